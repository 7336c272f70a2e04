"""The two checksums of HDF5 that this package computes itself.

HDF5's own implementation of Fletcher-32 takes as long as writing the data, and holds the GIL.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_TABLE_COLUMNS = 512
_MAX_TABLE_ROWS = 1 << 15  # sums of this many words fit into 32 bits
_MAX_PYTHON_WORDS = 64  # a Python loop adds up to this many words faster than NumPy
_MODULUS = 65535
_MASK = 0xFFFFFFFF


def fletcher32(data: np.ndarray[Any, Any]) -> int:
    """Return the checksum that HDF5's Fletcher-32 filter appends to a chunk.

    The checksum consists of two sums over big-endian 16-bit words: the sum of all words, and the
    sum of all partial sums. Both are taken modulo 65535, and a sum is 0 only if all words are. This
    code reads the words as little-endian, which multiplies them by 256 modulo 65535.

    Args:
      data: Array of bytes.
    """
    if len(data) % 2:
        data = np.append(data, np.uint8(0))
    words = data.view("<u2")
    total = weighted = 0
    if len(words) <= _MAX_PYTHON_WORDS:
        for word in words.tolist():
            total += word
            weighted += total
        return _combine_sums(total, weighted)
    part = _TABLE_COLUMNS * _MAX_TABLE_ROWS
    for start in range(0, len(words), part):
        own, inner = _weighted_sums(words[start : start + part])
        weighted += inner + own * (len(words) - min(start + part, len(words)))
        total += own
    return _combine_sums(total, weighted)


def _combine_sums(total: int, weighted: int) -> int:
    if not total:
        return 0
    low, high = (256 * x % _MODULUS or _MODULUS for x in (total, weighted))
    return high << 16 | low


def _weighted_sums(words: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the sum of the words, and their sum with weights n, ..., 2, 1."""
    whole = len(words) // _TABLE_COLUMNS * _TABLE_COLUMNS
    table, rest = words[:whole].reshape(-1, _TABLE_COLUMNS), words[whole:].astype(np.uint64)
    rows = np.add.reduce(table, axis=1, dtype=np.uint32).astype(np.uint64)
    columns = np.add.reduce(table, axis=0, dtype=np.uint32).astype(np.uint64)
    of_table = int(rows.sum())
    after = int((rows * _descending_weights(len(rows), 0)).sum()) * _TABLE_COLUMNS
    inside = int((columns * _descending_weights(_TABLE_COLUMNS, 1)).sum())
    of_rest = int((rest * _descending_weights(len(rest), 1)).sum())
    return of_table + int(rest.sum()), after + inside + of_table * len(rest) + of_rest


def _descending_weights(length: int, last: int) -> np.ndarray[Any, Any]:
    return np.arange(length - 1 + last, last - 1, -1, dtype=np.int64).astype(np.uint64)


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' lookup3 hash, the checksum of HDF5's metadata."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    while len(data) > 12:
        x, y, z = struct.unpack_from("<III", data)
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        for turn in (4, 6, 8, 16, 19, 4):
            a, c = (a - c) & _MASK ^ _rotate(c, turn), (c + b) & _MASK
            a, b, c = b, c, a
        data = data[12:]
    if data:
        x, y, z = struct.unpack("<III", data.ljust(12, b"\0"))
        a, b, c = (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK
        for turn in (14, 11, 25, 16, 4, 14, 24):
            c = ((c ^ b) - _rotate(b, turn)) & _MASK
            a, b, c = b, c, a
        a, b, c = c, a, b
    return c


def _rotate(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & _MASK
