"""Format names, numbers, times, summaries and tables as text for people.

Text of users is escaped: a terminal shows it and does not interpret it.
"""

from __future__ import annotations

import dataclasses
import math
import time
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Mean and standard deviation of one number over the streams where it is finite.

    Attributes:
      mean: Mean of the finite numbers; the first number if none is finite.
      deviation: Standard deviation; None for a single stream.
      nonfinite: Number of streams where the number is not finite.
    """

    mean: float
    deviation: float | None = None
    nonfinite: int = 0

    @staticmethod
    def of(numbers: Any) -> Spread | None:
        """Return the spread of an array with one number per stream; None if it is empty."""
        if not numbers.size:
            return None
        finite = numbers[np.isfinite(numbers)]
        if not finite.size:
            return Spread(float(numbers[0]), None, numbers.size)
        deviation = None if numbers.size == 1 else float(finite.std())
        return Spread(float(finite.mean()), deviation, numbers.size - finite.size)


def divide_or_nan(total: Any, number: Any) -> Any:
    """Divide totals by numbers, with NaN where a number is 0."""
    return np.divide(total, number, out=np.full(np.shape(total), np.nan), where=number > 0)


@dataclasses.dataclass(frozen=True)
class KeySummary:
    """Statistics of one key. The defaults describe a key without records.

    Attributes:
      suffix: Text shown after the key.
      remark: Text shown instead of the last number.
      last: Numbers of the last record of each stream.
      mean: Means over the last records of each stream.
      low: Minimum over all streams and records.
      high: Maximum over all streams and records.
      history: Numbers that the sparkline shows.
      nonfinite: Number of records that are not finite.
    """

    suffix: str = ""
    remark: str = ""
    last: Spread | None = None
    mean: Spread | None = None
    low: float = np.inf
    high: float = -np.inf
    history: Any = ()
    nonfinite: int = 0


MAX_NAME_CHARS = 60
_MAX_DURATION_SECONDS = 1e9
_UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


class Glyphs(NamedTuple):
    """Characters for sparklines and separators that a file can encode."""

    levels: str
    nonfinite: str
    ellipsis: str
    plus_minus: str
    dot: str
    is_ascii: bool

    @staticmethod
    def of(file: Any) -> Glyphs:
        """Return the glyphs for a file; a file without an encoding accepts Unicode."""
        encoding = getattr(file, "encoding", None) or "utf-8"
        return UNICODE if "utf" in encoding.lower() else ASCII


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "!", "…", "±", "·", False)
ASCII = Glyphs("_.-=+*%#", "!", "~", "+-", "|", True)


def format_text(text: str, glyphs: Glyphs, max_chars: int = MAX_NAME_CHARS) -> str:
    """Escape a text of the user, and cut its middle if it is longer than `max_chars`."""
    if len(text) > max_chars:
        head = max_chars * 2 // 3
        tail = max_chars - head
        first, last = _escape(text[:head], glyphs), _escape(text[len(text) - tail :], glyphs)
        return first[:head] + glyphs.ellipsis + last[-(tail - 1) :]
    text = _escape(text, glyphs)
    return text if len(text) <= max_chars else text[: max_chars - 1] + glyphs.ellipsis


def _escape(text: str, glyphs: Glyphs) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in _UNPRINTABLE_CATEGORIES
        or (glyphs.is_ascii and ord(letter) > 127)
        else letter
        for letter in text
    )


def truncate(text: str, max_chars: int) -> str:
    """Cut the end of a text that is longer than `max_chars`."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def format_number(x: Any, digits: int = 4) -> str:
    """Format a number in a few digits.

    Integers are exact, and so are floats with integer values below ten million.
    """
    if isinstance(x, (bool, np.bool_)):
        return "true" if x else "false"
    if isinstance(x, (int, np.integer)):
        return str(x)
    if isinstance(x, (complex, np.complexfloating)):
        return f"{x:.{digits}g}"
    x = float(x)
    if math.isfinite(x) and x == int(x) and abs(x) < 1e7:
        return str(int(x))
    return f"{x:.{digits}g}"


def format_spread(value: Spread | None, glyphs: Glyphs, gap: str = " ") -> str:
    """Format the mean and standard deviation of a number over several streams."""
    if value is None:
        return ""
    text = format_number(value.mean)
    if value.deviation is not None:
        is_noise = value.deviation < 1e-12 * abs(value.mean)  # rounding error of equal numbers
        deviation = format_number(0.0 if is_noise else value.deviation, 2)
        text += f"{gap}{glyphs.plus_minus}{gap}{deviation}"
    if value.nonfinite and math.isfinite(value.mean):
        text += f" ({value.nonfinite} nonfinite)"
    return text


def format_step(reached: tuple[float, float] | None, name: str) -> str:
    """Format the last steps of the slowest and the fastest stream, as one step if they agree."""
    if reached is None:
        return "no records"
    low, high = (_exact_step(x) for x in reached)
    at = low if low == high else f"{low} to {high}"
    return f"{name} {at}" if name else f"{at} {'record' if at == '1' else 'records'}"


def _exact_step(x: float) -> str:
    return str(int(x)) if math.isfinite(x) and x == int(x) and abs(x) < 2**53 else f"{x:.6g}"


def format_rate(steps: float | None, name: str) -> str:
    """Format a number of steps per second; "" for None."""
    if steps is None:
        return ""
    per = {"": "records", "step": "steps"}.get(name, name)
    return f"{steps:,.0f} {per}/s" if steps >= 1000 else f"{steps:.3g} {per}/s"


def format_clock(seconds: float) -> str:
    """Format elapsed time for a display that is updated: `1:05`, `2:01:05`."""
    hours, minutes, seconds = _split_seconds(seconds)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_duration(seconds: float) -> str:
    """Format the duration of something that has ended: `4.2 s`, `0:01:05`; `?` if absurd."""
    if not 0 <= seconds < _MAX_DURATION_SECONDS:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, minutes, whole_seconds = _split_seconds(seconds)
    return f"{hours}:{minutes:02}:{whole_seconds:02}"


def format_short_duration(seconds: float) -> str:
    """Format the duration of a small piece of work: `1.5 s`, `12.34 ms`, `3 µs`, `80 ns`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def _split_seconds(seconds: float) -> tuple[int, int, int]:
    minutes, rest = divmod(int(seconds), 60)
    return (*divmod(minutes, 60), rest)


def format_time(seconds: float) -> str:
    """Format seconds since the epoch as local date and time; `?` if the system has no such date."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # read from a damaged file
        return "?"


def align_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table with aligned columns.

    Args:
      header: Heading of each column.
      rows: Cells of each row. Columns whose cells are all empty are left out.
      right: Headings of the columns that are aligned to the right.
    """
    used = [at for at in range(len(header)) if any(row[at] for row in rows)]
    cells = [[row[at] for at in used] for row in (header, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    sides = [header[at] in right for at in used]
    return ["  ".join(map(_pad, row, widths, sides)).rstrip() for row in cells]


def _pad(text: str, width: int, is_right: bool) -> str:
    gap = " " * (width - display_width(text))
    return gap + text if is_right else text + gap


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    return len(text) if text.isascii() else sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def sparkline(history: Any, width: int, glyphs: Glyphs) -> str:
    """Draw numbers as a line of at most `width` blocks, scaled from minimum to maximum.

    A block shows the mean of neighbours if there are more numbers than blocks, and a separate glyph
    if one of them is not finite.
    """
    numbers = np.asarray(history, np.float64)
    if not numbers.size:
        return ""
    if numbers.size > width:
        starts = np.arange(width) * numbers.size // width
        sizes = np.diff(np.append(starts, numbers.size))
        numbers = np.add.reduceat(numbers / np.repeat(sizes, sizes), starts)
    finite = np.isfinite(numbers)
    if not finite.any():
        return glyphs.nonfinite * numbers.size
    low, high = numbers[finite].min(), numbers[finite].max()
    half = high / 2 - low / 2  # the distance itself may overflow
    top = len(glyphs.levels) - 1
    share = (numbers / 2 - low / 2) / half if half > 0 else np.full(numbers.size, 0.5)
    levels = np.rint(np.where(finite, share, 0) * top).astype(int)
    pairs = zip(levels, finite, strict=True)
    return "".join(glyphs.levels[level] if real else glyphs.nonfinite for level, real in pairs)
