"""Extract scalars, histograms and images from a record batch by flat name; encode images as PNG."""

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
from logax._media import HistogramBins, ImagePixels, is_media

Pixels = np.ndarray[Any, Any]

_PNG_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # gray, RGB and RGBA, by number of channels


def as_uint8(pixels: Pixels) -> Pixels:
    """Convert pixels to bytes: clip integers, scale floats from [0, 1], and make NaN black."""
    if pixels.dtype.kind != "f":
        return np.asarray(np.clip(pixels, 0, 255), np.uint8)
    scaled = np.clip(np.nan_to_num(pixels, nan=0.0), 0, 1) * 255
    return np.asarray(np.rint(scaled), np.uint8)


def encode_png(pixels: Pixels) -> bytes:
    """Return an image of bytes (height, width) or (height, width, channels) as a PNG file."""
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # filter type 0: none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR_TYPES[channels], 0, 0, 0)
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


Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 16  # of an array that becomes one scalar per element
_CHANNELS = (1, 3, 4)
_BUILTIN_DTYPES = frozenset(map(np.dtype, "fdbBhHiIlLqQ"))


class ScalarColumn(NamedTuple):
    """One number per record: key, flat name, and array (streams, records)."""

    key: str
    name: str
    column: Array


class MediaColumn(NamedTuple):
    """One histogram or image per record.

    Attributes:
      key: Key that the value was logged under.
      name: Flat name.
      value: `HistogramBins` or `ImagePixels` of NumPy arrays (streams, records, ...).
      x: X of each record, an array (streams, records).
    """

    key: str
    name: str
    value: Any
    x: Array


class MetricValues(NamedTuple):
    """All values of a batch that services can show. The media have no x yet."""

    scalars: list[ScalarColumn]
    histograms: list[MediaColumn]
    images: list[MediaColumn]


class UniqueNames:
    """Set of names in use."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def unique(self, name: str) -> str:
        """Return the name, with `~` appended until it is unused, and mark it as used."""
        while name in self._taken:
            name += "~"
        self._taken.add(name)
        return name


def extract_values(values: Mapping[str, Any], names: UniqueNames) -> MetricValues:
    """Return the values of a batch, each with a unique name."""
    found = MetricValues([], [], [])
    no_x = np.zeros((0, 0))
    for key, value in values.items():
        # Fast path for plain scalars, by far the most common values.
        if type(value) is np.ndarray and value.ndim == 2 and value.dtype in _BUILTIN_DTYPES:
            found.scalars.append(ScalarColumn(key, names.unique(key), value))
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_media):
            name = leaf_name(key, path)
            if isinstance(leaf, HistogramBins):
                for own, bins in _histograms(name, leaf):
                    found.histograms.append(MediaColumn(key, names.unique(own), bins, no_x))
            elif isinstance(leaf, ImagePixels):
                for own, pixels in _images(name, leaf):
                    found.images.append(MediaColumn(key, names.unique(own), pixels, no_x))
            else:
                for own, column in _scalars(name, leaf):
                    found.scalars.append(ScalarColumn(key, names.unique(own), column))
    return found


def as_plain_numbers(x: Any) -> Array | None:
    """Return the array with a builtin dtype, or None if it does not hold numbers."""
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


def _scalars(name: str, leaf: Any) -> Iterator[tuple[str, Array]]:
    numbers = as_plain_numbers(leaf)
    if numbers is None:
        return
    if np.iscomplexobj(numbers):
        yield from _scalars(f"{name}/real", numbers.real)
        yield from _scalars(f"{name}/imag", numbers.imag)
    elif numbers.ndim == 2:
        yield name, numbers
    elif np.prod(numbers.shape[2:]) <= MAX_ELEMENTS:
        for index in _indices(numbers.shape[2:]):
            yield _element(name, index), _at(numbers, index)
    else:
        flat = numbers.reshape(*numbers.shape[:2], -1)
        with np.errstate(all="ignore"):  # the mean of opposite infinities is NaN
            yield f"{name}/mean", flat.mean(2, dtype=np.float64)
        yield f"{name}/min", flat.min(2)
        yield f"{name}/max", flat.max(2)


def _histograms(name: str, bins: HistogramBins) -> Iterator[tuple[str, HistogramBins]]:
    """Yield one histogram per element if it was logged for several lanes at once."""
    counts, edges, nonfinite = (np.asarray(x) for x in (bins.counts, bins.edges, bins.nonfinite))
    for index in _indices(nonfinite.shape[2:]):
        own = HistogramBins(_at(counts, index), _at(edges, index), _at(nonfinite, index))
        yield _element(name, index), own


def _images(name: str, image: ImagePixels) -> Iterator[tuple[str, ImagePixels]]:
    pixels = np.asarray(image.pixels)
    numbers = pixels * np.uint8(255) if pixels.dtype == np.bool_ else as_plain_numbers(pixels)
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
