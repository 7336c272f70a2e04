"""Describe values and errors, warn users, and raise several errors at once.

Every text is redacted first, so that no message shows a credential; see `redaction`.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from logax._support.redaction import redact


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and attribute the warning to the nearest frame outside logax and JAX."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(redact(message), category, stacklevel=level + 1)


def warn_without_raising(message: str) -> None:
    """Warn the user; where warnings are errors, print to standard error instead of raising."""
    try:
        warn_user(message)
    except Warning as warning:
        traceback.print_exception(warning.with_traceback(None))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("logax", "jax", "contextlib", "functools")


def caller_location() -> str:
    """Return file and line of the nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("logax."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def describe_value(value: Any) -> str:
    """Describe a value by its shortened `repr` and its type."""
    text = redact(repr(value))
    return f"{text if len(text) < 60 else text[:57] + '...'} of type `{type(value).__name__}`"


def describe_error(error: BaseException) -> str:
    """Describe an error by its type and message, as a sentence."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return format_sentence(redact(text.removeprefix(f"{type(error).__module__}.")))


def format_sentence(text: str) -> str:
    """Append a full stop unless the text already ends a sentence."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error. If its class does not accept notes, warn instead."""
    note = redact(note)
    try:
        error.add_note(note)
    except (AttributeError, TypeError):  # of a frozen class
        warn_user(note)


def note_or_warn(error: BaseException | None, message: str) -> None:
    """Report another failure at the end of a block: as a note of `error`, or as a warning.

    It is a warning if there is no error, and for interrupts and exits, because Python does not
    always print their notes. If warnings are errors, interrupts and exits get a note too.
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
    """Raise a single error as itself and several as a group. Do nothing for an empty sequence.

    An interrupt is raised as itself, so that handlers of it work; the other errors are its cause.
    """
    interrupts = [error for error in errors if not isinstance(error, Exception)]
    others = [error for error in errors if isinstance(error, Exception)]
    if interrupts:
        raise interrupts[0] from (ExceptionGroup(message, others) if others else None)
    if len(others) == 1:
        raise others[0]
    if others:
        raise ExceptionGroup(message, others)
