"""What went wrong where nobody could be told: kept, counted, and told to whoever asks."""

from __future__ import annotations

import collections
import threading
from typing import Any

from logax._support.forks import renew_after_fork
from logax._support.messages import raise_together, warn_user, warn_without_raising
from logax._support.redaction import without_secrets


class DeliveryError(RuntimeError):
    """Something failed where nobody could be told: a callback or a sink raised, say.

    What was raised is the `__cause__` of this.
    """

    __module__ = "logax"


class Troubles:
    """What went wrong on the thread, until somebody can be told."""

    queue_bytes = 0  # how large the queue is from which records were dropped

    def __init__(self) -> None:
        self._reset()
        renew_after_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[Any, tuple[DeliveryError, bool]] = {}  # and whether it is raised
        self._more: collections.Counter[Any] = collections.Counter()
        self._dropped: collections.Counter[str] = collections.Counter()
        self._warnings: list[str] = []

    def failed(
        self,
        who: Any,
        error: DeliveryError,
        raises: bool = True,
        records: int = 1,
        is_final: bool = False,
    ) -> None:
        """Keep the first error of each culprit, to raise or to warn of, and count the others.

        A final error, which says what is lost for good, takes the place of an earlier one.
        Credentials are taken out of it and of its causes, since it may be printed anywhere.
        """
        with self._lock:
            if who in self._errors and not is_final:
                self._more[who] += records
            else:
                without_secrets(error)
                self._errors[who] = (error, raises)

    def warn(self, message: str) -> None:
        """Say this when somebody asks."""
        with self._lock:
            self._warnings.append(message)

    def dropped(self, what: str, number: int) -> None:
        """Count records that there was no room for."""
        with self._lock:
            self._dropped[what] += number

    def tell(self, who: Any = None) -> None:
        """Raise or warn of what was kept, of one culprit or of all, and of what was dropped.

        An error that is only to be warned of is never raised, even where warnings are errors.
        """
        if not (self._errors or self._dropped or self._warnings):
            return
        with self._lock:
            culprits = [who] if who is not None else list(self._errors)
            told = [self._told(each) for each in culprits if each in self._errors]
            dropped, self._dropped = self._dropped, collections.Counter()
            messages, self._warnings = self._warnings, []
        errors: list[BaseException] = [error for error, raises in told if raises]
        for error in [error for error, raises in told if not raises]:
            warn_without_raising(" ".join([str(error), *getattr(error, "__notes__", [])]))
        if dropped:
            each = ", ".join(f"{number} of {what}" for what, number in dropped.items())
            messages.append(
                f"{sum(dropped.values())} records were dropped because the queue of "
                f"{self.queue_bytes} bytes was full: {each}. Make it larger, or wait for room: "
                '`logax.configure(queue_bytes=..., when_full="block")`.'
            )
        for message in messages:
            try:
                warn_user(message)
            except Warning as warning:  # where warnings are errors, the others must not be lost
                errors.append(warning)
        raise_together("several things failed in delivery", errors)

    def _told(self, who: Any) -> tuple[DeliveryError, bool]:
        (error, raises), more = self._errors.pop(who), self._more.pop(who, 0)
        if more:
            records = "record" if more == 1 else "records"
            error.add_note(f"It raised for {more} more {records} after that one.")
        return error, raises


troubles = Troubles()
