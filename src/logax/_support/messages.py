"""Report mistakes and failures: to whom, in which words, and several at once.

No text that leaves here shows a credential; see `_secrets`.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from logax._support.redaction import redacted


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point to the line of the user's that led here."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(redacted(message), category, stacklevel=level + 1)


def warn_without_raising(message: str) -> None:
    """Warn the user; where warnings are errors, print to standard error instead of raising."""
    try:
        warn_user(message)
    except Warning as warning:
        traceback.print_exception(warning.with_traceback(None))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("logax", "jax", "contextlib", "functools")


def caller() -> str:
    """File and line of the nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("logax."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def received(value: Any) -> str:
    """A value and its type, in few words."""
    text = redacted(repr(value))
    return f"{text if len(text) < 60 else text[:57] + '...'} of type `{type(value).__name__}`"


def described(error: BaseException) -> str:
    """What was raised, as a sentence, whatever it is."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return as_sentence(redacted(text.removeprefix(f"{type(error).__module__}.")))


def as_sentence(text: str) -> str:
    """The text with a full stop at its end, unless it has one."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def add_note(error: BaseException, note: str) -> None:
    """Add to an error what else there is to know; where it takes no notes, warn."""
    note = redacted(note)
    try:
        error.add_note(note)
    except (AttributeError, TypeError):  # of a frozen class
        warn_user(note)


def tell_at_end(error: BaseException | None, message: str) -> None:
    """Tell, where a block ends, what else went wrong in it: as a note of the error that ends it.

    Where there is none it is a warning. So it is with an interrupt or an exit, whose notes are not
    shown where they end the program quietly; where warnings are errors, it is a note of these too.
    """
    if isinstance(error, Exception):
        add_note(error, message)
        return
    try:
        warn_user(message)
    except Warning:
        if error is None:
            raise
        add_note(error, message)


def raise_together(message: str, errors: Sequence[BaseException]) -> None:
    """Raise one error as itself, and several as a group; nothing if there is none.

    An interrupt is raised as itself, so that whoever waits for it gets it, with the others as its
    cause.
    """
    interrupts = [error for error in errors if not isinstance(error, Exception)]
    others = [error for error in errors if isinstance(error, Exception)]
    if interrupts:
        raise interrupts[0] from (ExceptionGroup(message, others) if others else None)
    if len(others) == 1:
        raise others[0]
    if others:
        raise ExceptionGroup(message, others)
