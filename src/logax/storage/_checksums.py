"""The two checksums of HDF5 that this package computes itself.

HDF5's own code for the first takes as long as writing, and keeps Python from running anything else.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_WIDTH = 512  # words in a row of the table that sums are taken of
_ROWS = 1 << 15  # sums of so many words fit into 32 bits
_FEW = 64  # words that Python adds up faster
_MODULUS = 65535
_MASK = 0xFFFFFFFF


def fletcher32(data: np.ndarray[Any, Any]) -> int:
    """The checksum that HDF5's filter puts behind a chunk, of an array of bytes.

    It takes words of two bytes, the first the higher one, and is their sum and the sum of all sums
    up to each, both modulo 65535, where zero stands only for zeros. Read the other way round, a
    word is 256 times as much, modulo 65535.
    """
    if len(data) % 2:
        data = np.append(data, np.uint8(0))
    words = data.view("<u2")
    total = weighted = 0
    if len(words) <= _FEW:
        for word in words.tolist():
            total += word
            weighted += total
        return _joined(total, weighted)
    part = _WIDTH * _ROWS
    for start in range(0, len(words), part):
        own, inner = _sums(words[start : start + part])
        weighted += inner + own * (len(words) - min(start + part, len(words)))
        total += own
    return _joined(total, weighted)


def _joined(total: int, weighted: int) -> int:
    if not total:
        return 0
    low, high = (256 * x % _MODULUS or _MODULUS for x in (total, weighted))
    return high << 16 | low


def _sums(words: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The sum, and the sum in which the last word counts once, the one before twice, and so on."""
    whole = len(words) // _WIDTH * _WIDTH
    table, rest = words[:whole].reshape(-1, _WIDTH), words[whole:].astype(np.uint64)
    rows = np.add.reduce(table, axis=1, dtype=np.uint32).astype(np.uint64)
    columns = np.add.reduce(table, axis=0, dtype=np.uint32).astype(np.uint64)
    of_table = int(rows.sum())
    after = int((rows * _falling(len(rows), 0)).sum()) * _WIDTH
    inside = int((columns * _falling(_WIDTH, 1)).sum())
    of_rest = int((rest * _falling(len(rest), 1)).sum())
    return of_table + int(rest.sum()), after + inside + of_table * len(rest) + of_rest


def _falling(length: int, last: int) -> np.ndarray[Any, Any]:
    return np.arange(length - 1 + last, last - 1, -1, dtype=np.int64).astype(np.uint64)


def lookup3(data: bytes) -> int:
    """Bob Jenkins' hash, with which HDF5 guards its own records."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    while len(data) > 12:
        x, y, z = struct.unpack_from("<III", data)
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        for turn in (4, 6, 8, 16, 19, 4):
            a, c = (a - c) & _MASK ^ _rotated(c, turn), (c + b) & _MASK
            a, b, c = b, c, a
        data = data[12:]
    if data:
        x, y, z = struct.unpack("<III", data.ljust(12, b"\0"))
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        for turn in (14, 11, 25, 16, 4, 14, 24):
            c = ((c ^ b) - _rotated(b, turn)) & _MASK
            a, b, c = b, c, a
        a, b, c = c, a, b
    return c


def _rotated(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & _MASK
