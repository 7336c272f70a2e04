"""Checksums of the rows of a file, and of the bytes in them.

A row has the CRC-32 of its table's name and its values. Bytes that may be long have one for each
block of `BLOCK_BYTES` bytes, so that a reader can check a part of them without reading the rest.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from logax._runs.errors import ChecksumError

BLOCK_BYTES = 2**15
_ENTRY = struct.Struct("<I")


def row_checksum(table: str, *values: Any) -> int:
    """Return the CRC-32 of a row: of each value its length, a colon, and its bytes.

    Numbers and NULL are the text that Python's `repr` has for them.
    """
    parts = [table.encode()]
    for value in values:
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
        else:
            data = value if isinstance(value, bytes) else repr(value).encode()
        parts += (b"%d:" % len(data), data)
    return zlib.crc32(b"".join(parts))


def block_checksums(data: bytes | memoryview) -> bytes:
    """Return the CRC-32 of each block of the data, little-endian."""
    if len(data) <= BLOCK_BYTES:
        return _ENTRY.pack(zlib.crc32(data)) if data else b""
    view = memoryview(data)
    starts = range(0, len(view), BLOCK_BYTES)
    return b"".join(_ENTRY.pack(zlib.crc32(view[at : at + BLOCK_BYTES])) for at in starts)


def verify_blocks(data: bytes, first: int, checksums: bytes) -> None:
    """Raise ChecksumError unless the data, whole blocks from block `first` on, is as it was."""
    end = first + -(-len(data) // BLOCK_BYTES)
    if block_checksums(data) != checksums[first * _ENTRY.size : end * _ENTRY.size]:
        raise ChecksumError("the bytes of a batch differ from their checksum")
