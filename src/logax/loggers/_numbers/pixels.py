"""Images as bytes: eight bits a channel, and PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

Pixels = np.ndarray[Any, Any]

_COLORS = {1: 0, 3: 2, 4: 6}  # PNG's number for grey, RGB and RGBA, by channels


def as_bytes(pixels: Pixels) -> Pixels:
    """Pixels from 0 to 255: integers are such already, floats go from 0 to 1, NaN is black."""
    if pixels.dtype.kind != "f":
        return np.asarray(np.clip(pixels, 0, 255), np.uint8)
    scaled = np.clip(np.nan_to_num(pixels, nan=0.0), 0, 1) * 255
    return np.asarray(np.rint(scaled), np.uint8)


def png(pixels: Pixels) -> bytes:
    """An image of bytes (height, width) or (height, width, channels) as the bytes of a PNG file."""
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # 0: the line is not filtered
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLORS[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))
