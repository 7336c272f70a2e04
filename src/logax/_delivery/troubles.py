"""What went wrong where nobody could be told: kept, counted, and told to whoever asks."""

from __future__ import annotations

import collections
import threading
from typing import Any

from logax._delivery.forks import renew_after_fork
from logax._errors import raise_together, warn_user


class DeliveryError(RuntimeError):
    """A callback raised. What it raised is the `__cause__` of this."""


class Troubles:
    """What went wrong on the thread, until somebody can be told."""

    queue_bytes = 0  # how large the queue is from which records were dropped

    def __init__(self) -> None:
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[Any, DeliveryError] = {}
        self._mild: set[Any] = set()
        self._more: collections.Counter[Any] = collections.Counter()
        self._dropped: collections.Counter[str] = collections.Counter()
        self._warnings: list[str] = []

    def failed(self, who: Any, error: DeliveryError, raises: bool = True, records: int = 1) -> None:
        """Keep the first error of each culprit, to raise or to warn of, and count the others."""
        with self._lock:
            if not raises:
                self._mild.add(who)
            if who in self._errors:
                self._more[who] += records
            else:
                self._errors[who] = error

    def warn(self, message: str) -> None:
        """Say this when somebody asks."""
        with self._lock:
            self._warnings.append(message)

    def dropped(self, what: str, number: int) -> None:
        """Count records that there was no room for."""
        with self._lock:
            self._dropped[what] += number

    def tell(self, who: Any = None) -> None:
        """Raise or warn of what was kept, of one culprit or of all, and of what was dropped."""
        if not (self._errors or self._dropped or self._warnings):
            return
        with self._lock:
            culprits = [who] if who is not None else list(self._errors)
            told = {each: self._told(each) for each in culprits if each in self._errors}
            dropped, self._dropped = self._dropped, collections.Counter()
            messages, self._warnings = self._warnings, []
        errors = [error for each, error in told.items() if each not in self._mild]
        for each in self._mild & set(told):
            messages.append(" ".join([str(told[each]), *getattr(told[each], "__notes__", [])]))
        if dropped:
            each = ", ".join(f"{number} of {what}" for what, number in dropped.items())
            messages.append(
                f"{sum(dropped.values())} records were dropped because the queue of "
                f"{self.queue_bytes} bytes was full: {each}. Make it larger, or wait for room: "
                '`logax.configure(queue_bytes=..., when_full="block")`.'
            )
        for message in messages:
            warn_user(message)
        raise_together("several callbacks raised", errors)

    def _told(self, who: Any) -> DeliveryError:
        error, more = self._errors.pop(who), self._more.pop(who, 0)
        if more:
            error.add_note(f"It raised for {more} more records after that one.")
        return error


troubles = Troubles()
