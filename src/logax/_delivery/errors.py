"""Collect the errors of background threads until a call of the user can raise them.

Callbacks and sinks run on worker threads, where raising would end the thread and reach no caller.
Their errors are stored here, and `flush`, the next call of the same source, or the exit of the
process raises them.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from logax._support.messages import raise_together, warn_user, warn_without_raising
from logax._support.processes import reset_after_fork
from logax._support.redaction import redact_error


class DeliveryError(RuntimeError):
    """A callback or a sink failed on a background thread.

    The original exception is the `__cause__`.
    """

    __module__ = "logax"


class DeliveryErrors:
    """Errors, warnings and dropped records that no call of the user has reported yet."""

    queue_bytes = 0  # size of the queue, for the warning about dropped records

    def __init__(self) -> None:
        self._reset()
        reset_after_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[Any, tuple[DeliveryError, bool]] = {}  # by source; raise or only warn
        self._repeated: collections.Counter[Any] = collections.Counter()
        self._dropped: collections.Counter[str] = collections.Counter()
        self._warnings: list[str] = []

    def add(
        self,
        source: Any,
        error: DeliveryError,
        raises: bool = True,
        records: int = 1,
        is_final: bool = False,
    ) -> None:
        """Store the first error of each source, and count the records of later ones.

        Credentials are removed from the error and its causes, since it may be printed anywhere.

        Args:
          source: Hashable object that failed, such as a route or a sink worker.
          error: The error.
          raises: True if the error is raised; otherwise it becomes a warning.
          records: Number of records that the error affects.
          is_final: True if the error states a final loss, and so replaces an earlier one.
        """
        with self._lock:
            if source in self._errors and not is_final:
                self._repeated[source] += records
            else:
                redact_error(error)
                self._errors[source] = (error, raises)

    def add_warning(self, message: str) -> None:
        """Store a message to warn with."""
        with self._lock:
            self._warnings.append(message)

    def count_dropped(self, description: str, records: int) -> None:
        """Count records that did not fit into the queue."""
        with self._lock:
            self._dropped[description] += records

    def raise_pending(self, source: Any = None) -> None:
        """Raise the stored errors of one source, or of all, and warn about dropped records.

        An error that was stored with `raises=False` is never raised, even where warnings are
        errors. Several errors are raised together in an `ExceptionGroup`.
        """
        if not (self._errors or self._dropped or self._warnings):
            return
        with self._lock:
            sources = [source] if source is not None else list(self._errors)
            popped = [self._pop(each) for each in sources if each in self._errors]
            dropped, self._dropped = self._dropped, collections.Counter()
            messages, self._warnings = self._warnings, []
        errors: list[BaseException] = [error for error, raises in popped if raises]
        for error in [error for error, raises in popped if not raises]:
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

    def _pop(self, source: Any) -> tuple[DeliveryError, bool]:
        (error, raises), repeated = self._errors.pop(source), self._repeated.pop(source, 0)
        if repeated:
            records = "record" if repeated == 1 else "records"
            error.add_note(f"It raised for {repeated} more {records} after that one.")
        return error, raises


delivery_errors = DeliveryErrors()
