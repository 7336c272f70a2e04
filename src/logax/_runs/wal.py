"""SQLite's log beside a file of runs, the `-wal` file, checked for damage that SQLite passes over.

SQLite reads a log up to the first frame whose checksum does not agree, and says nothing about the
rest: that is how it finds the end. Behind the last commit a killed writer may leave anything: a
frame of which only the head was written, frames whose checksums SQLite corrects before it commits,
and frames of an earlier turn, which have other salts. A frame with a wrong checksum is therefore
damage only if a commit of the current turn comes after it. If the last commit itself is damaged,
the number of commits in the lock of the file tells.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

_HEADER, _FRAME = 32, 24  # bytes
_MAGIC = 0x377F0682  # its lowest bit: whether checksums take numbers as big-endian
_MAX_PAGE = 65536


class WalState(NamedTuple):
    """What a log holds.

    Attributes:
      damage: What is damaged in it; None if nothing is.
      pages: Numbers of the pages that it has.
    """

    damage: str | None
    pages: frozenset[int]


def check_wal(path: str) -> WalState:
    """Check a log; one that is empty, or not there, is whole."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
            if not header:
                return WalState(None, frozenset())
            if len(header) < _HEADER:
                return WalState("the header of its log is cut off", frozenset())
            magic, _, size, _, *salts, one, two = struct.unpack(">8I", header)
            order = ">" if magic & 1 else "<"
            if (
                magic & ~1 != _MAGIC
                or not 512 <= size <= _MAX_PAGE
                or size & (size - 1)
                or _checksum(header[:24], (0, 0), order) != (one, two)
            ):
                return WalState("the header of its log is damaged", frozenset())
            pages: set[int] = set()
            sums, number = (one, two), 0
            broken = None
            while len(frame := file.read(_FRAME + size)) == _FRAME + size:
                number += 1
                page, commits, salt_1, salt_2, one, two = struct.unpack_from(">6I", frame)
                if broken is None:
                    sums = _checksum(frame[:8] + frame[_FRAME:], sums, order)
                    if [salt_1, salt_2] == salts and sums == (one, two):
                        pages.add(page)
                        continue
                    broken = number
                elif commits and (salt_1 == salts[0] or salt_2 == salts[1]):
                    return WalState(f"its log is damaged from frame {broken} on", frozenset(pages))
            return WalState(None, frozenset(pages))
    except FileNotFoundError:
        return WalState(None, frozenset())


def _checksum(data: bytes, start: tuple[int, int], order: str) -> tuple[int, int]:
    """Return SQLite's checksum of a log, which runs on over pairs of numbers, modulo 2**32.

    With `s` and `t` after each pair `(a, b)`: `s += a + t; t += b + s`. These are sums with
    Fibonacci numbers as weights, taken for blocks at once.
    """
    s, t = start
    numbers = np.frombuffer(data, f"{order}u4").astype(np.uint64)
    for at in range(0, len(numbers), _BLOCK):
        block = numbers[at : at + _BLOCK]
        # The sequence s0, t0, s1, t1, ... has x[n] = x[n - 2] + x[n - 1] + block[n].
        n = len(block)
        weights = _WEIGHTS[n - 1 :: -1] if n else _WEIGHTS[:0]
        total = int((block * weights & _MASK).sum()) & _MASK
        short = int((block[:-1] * weights[1:] & _MASK).sum()) & _MASK
        f = _FIBONACCI
        s, t = (
            (s * f[n - 1] + t * f[n] + short) & _MASK,
            (s * f[n] + t * f[n + 1] + total) & _MASK,
        )
    return s, t


_BLOCK = 2048
_MASK = 0xFFFFFFFF


def _fibonacci(number: int) -> list[int]:
    found = [0, 1]
    while len(found) < number:
        found.append((found[-1] + found[-2]) & _MASK)
    return found


_FIBONACCI = _fibonacci(_BLOCK + 3)
_WEIGHTS = np.array(_FIBONACCI[1 : _BLOCK + 1], np.uint64)  # from the last number on
