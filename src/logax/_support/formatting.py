"""How keys, numbers and times are written, so that a terminal shows them and does nothing else."""

from __future__ import annotations

import math
import unicodedata
from typing import Any, NamedTuple

import numpy as np

from logax._support.summary import Spread

LONGEST_NAME = 60
_NOT_SHOWN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


class Glyphs(NamedTuple):
    """The signs that a file can take."""

    levels: str
    nonfinite: str
    ellipsis: str
    plus_minus: str
    dot: str
    is_ascii: bool

    @staticmethod
    def of(file: Any) -> Glyphs:
        """Those of a file: a file without an encoding takes all."""
        encoding = getattr(file, "encoding", None) or "utf-8"
        return UNICODE if "utf" in encoding.lower() else ASCII


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "!", "…", "±", "·", False)
ASCII = Glyphs("_.-=+*%#", "!", "~", "+-", "|", True)


def plain(text: str, glyphs: Glyphs, longest: int = LONGEST_NAME) -> str:
    """Text of the user's: escaped where it would do something, cut in the middle where long."""
    if len(text) > longest:
        head = longest * 2 // 3
        cut = _escaped(text[:head], glyphs), _escaped(text[len(text) - (longest - head) :], glyphs)
        return cut[0][:head] + glyphs.ellipsis + cut[1][-(longest - head - 1) :]
    text = _escaped(text, glyphs)
    return text if len(text) <= longest else text[: longest - 1] + glyphs.ellipsis


def _escaped(text: str, glyphs: Glyphs) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in _NOT_SHOWN or (glyphs.is_ascii and ord(letter) > 127)
        else letter
        for letter in text
    )


def number(x: float, digits: int = 4) -> str:
    """A number in a few digits; whole ones in full, up to seven digits."""
    if math.isfinite(x) and x == int(x) and abs(x) < 1e7:
        return str(int(x))
    return f"{x:.{digits}g}"


def spread(value: Spread | None, glyphs: Glyphs, gap: str = " ") -> str:
    """A number of several streams, and how far they are apart."""
    if value is None:
        return ""
    text = number(value.mean)
    if value.deviation is not None:
        is_noise = value.deviation < 1e-12 * abs(value.mean)  # of summing equal numbers
        deviation = number(0.0 if is_noise else value.deviation, 2)
        text += f"{gap}{glyphs.plus_minus}{gap}{deviation}"
    if value.nonfinite and math.isfinite(value.mean):
        text += f" ({value.nonfinite} nonfinite)"
    return text


def step(reached: tuple[float, float] | None, name: str) -> str:
    """Where streams are: one step, or from the slowest to the fastest."""
    if reached is None:
        return "no records"
    low, high = (_whole(x) for x in reached)
    at = low if low == high else f"{low} to {high}"
    return f"{name} {at}" if name else f"{at} {'record' if at == '1' else 'records'}"


def _whole(x: float) -> str:
    """A step: whole ones in full."""
    return str(int(x)) if math.isfinite(x) and x == int(x) and abs(x) < 2**53 else f"{x:.6g}"


def rate(steps: float | None, name: str) -> str:
    """So many steps a second, or nothing."""
    if steps is None:
        return ""
    per = {"": "records", "step": "steps"}.get(name, name)
    return f"{steps:,.0f} {per}/s" if steps >= 1000 else f"{steps:.3g} {per}/s"


def elapsed(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def sparkline(history: Any, width: int, glyphs: Glyphs) -> str:
    """Numbers as a line of blocks from the least to the greatest, the means of neighbours if many.

    Neighbours of which one is not finite have a sign of their own.
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
    half = high / 2 - low / 2  # the distance itself may be more than a float holds
    most = len(glyphs.levels) - 1
    share = (numbers / 2 - low / 2) / half if half > 0 else np.full(numbers.size, 0.5)
    levels = np.rint(np.where(finite, share, 0) * most).astype(int)
    pairs = zip(levels, finite, strict=True)
    return "".join(glyphs.levels[level] if real else glyphs.nonfinite for level, real in pairs)
