"""Images as bytes: eight bits a channel, and PNG.

The values of a portion by flat name: scalars, histograms and images.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._logdict.logdict import leaf_name
from logax._media import HistogramBins, ImagePixels, is_shown

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


Column = np.ndarray[Any, Any]

_MOST_ELEMENTS = 16  # of an array that is shown element by element
_CHANNELS = (1, 3, 4)
_PLAIN = frozenset(map(np.dtype, "fdbBhHiIlLqQ"))


class Scalar(NamedTuple):
    """One number a record: the key it comes from, its name, and an array (streams, records)."""

    key: str
    name: str
    column: Column


class Picture(NamedTuple):
    """A histogram or an image a record.

    Attributes:
      key: The key it comes from.
      name: Its flat name.
      value: `HistogramBins` or `ImagePixels` of NumPy arrays (streams, records, ...).
      x: The x of each record, an array (streams, records).
    """

    key: str
    name: str
    value: Any
    x: Column


class Values(NamedTuple):
    """All there is to show of a portion. The pictures have no x yet."""

    scalars: list[Scalar]
    histograms: list[Picture]
    images: list[Picture]


class Names:
    """Names that were given, so that each is given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def new(self, name: str) -> str:
        """The name, or where it was given before, one like it."""
        while name in self._taken:
            name += "~"
        self._taken.add(name)
        return name


def values_of(values: Mapping[str, Any], names: Names) -> Values:
    """The values of a portion, each with a name of its own."""
    found = Values([], [], [])
    no_x = np.zeros((0, 0))
    for key, value in values.items():
        # By far the most common ones have a short way.
        if type(value) is np.ndarray and value.ndim == 2 and value.dtype in _PLAIN:
            found.scalars.append(Scalar(key, names.new(key), value))
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_shown):
            name = leaf_name(key, path)
            if isinstance(leaf, HistogramBins):
                for own, bins in _histograms(name, leaf):
                    found.histograms.append(Picture(key, names.new(own), bins, no_x))
            elif isinstance(leaf, ImagePixels):
                for own, pixels in _images(name, leaf):
                    found.images.append(Picture(key, names.new(own), pixels, no_x))
            else:
                for own, column in _scalars(name, leaf):
                    found.scalars.append(Scalar(key, names.new(own), column))
    return found


def plain_numbers(x: Any) -> Column | None:
    """The array with a dtype that every Python program knows, or None where it holds no numbers."""
    dtype = x.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(x, np.float64 if dtype.itemsize >= 8 else np.float32)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.asarray(x)
    if dtype == np.bool_:
        return np.asarray(x, np.int8)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(x) if dtype.kind in "iu" and dtype.isbuiltin else np.asarray(x, np.int32)
    return None


def _scalars(name: str, leaf: Any) -> Iterator[tuple[str, Column]]:
    numbers = plain_numbers(leaf)
    if numbers is None:
        return
    if np.iscomplexobj(numbers):
        yield from _scalars(f"{name}/real", numbers.real)
        yield from _scalars(f"{name}/imag", numbers.imag)
    elif numbers.ndim == 2:
        yield name, numbers
    elif np.prod(numbers.shape[2:]) <= _MOST_ELEMENTS:
        for index in _indices(numbers.shape[2:]):
            yield _element(name, index), _at(numbers, index)
    else:
        flat = numbers.reshape(*numbers.shape[:2], -1)
        with np.errstate(all="ignore"):  # infinities of both signs, say, have the mean NaN
            yield f"{name}/mean", flat.mean(2, dtype=np.float64)
        yield f"{name}/min", flat.min(2)
        yield f"{name}/max", flat.max(2)


def _histograms(name: str, bins: HistogramBins) -> Iterator[tuple[str, HistogramBins]]:
    """One for each element, where the histogram was logged for many lanes at once."""
    counts, edges, nonfinite = (np.asarray(x) for x in (bins.counts, bins.edges, bins.nonfinite))
    for index in _indices(nonfinite.shape[2:]):
        own = HistogramBins(_at(counts, index), _at(edges, index), _at(nonfinite, index))
        yield _element(name, index), own


def _images(name: str, image: ImagePixels) -> Iterator[tuple[str, ImagePixels]]:
    pixels = np.asarray(image.pixels)
    numbers = pixels * np.uint8(255) if pixels.dtype == np.bool_ else plain_numbers(pixels)
    shape = pixels.shape[2:]
    rank = 3 if len(shape) > 2 and shape[-1] in _CHANNELS else 2
    for index in _indices(shape[: len(shape) - rank]):
        yield _element(name, index), ImagePixels(_at(numbers, index))


def _at(x: Any, index: tuple[int, ...]) -> Any:
    return x[(slice(None), slice(None), *index)]


def _indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


def _element(name: str, index: tuple[int, ...]) -> str:
    return f"{name}/{','.join(map(str, index))}" if index else name
