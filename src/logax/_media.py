"""`Histogram` and `Image`: values that say how they want to be shown.

Both are plain holders, so that making one costs nothing in a program that nobody harvests. A
harvested `log` turns a `Histogram` into its bins on the device (`HistogramBins`), so that only
those travel; an `Image` travels as its pixels (`ImagePixels`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._support.validation import at_least


@dataclasses.dataclass(frozen=True, eq=False)
class Histogram:
    """Log the distribution of an array instead of its elements.

    Args:
      x: An array of numbers of any shape. Elements that are not finite are counted apart.
      bins: How many bins of equal width between the least and the greatest finite element.

    In the logs the value is a `HistogramBins` with `counts` and `edges`.
    """

    x: Any
    bins: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", at_least(1, "Histogram", "bins", self.bins))


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """Log an array as a picture.

    Args:
      x: Pixels, of shape (height, width) or (height, width, channels) with 1, 3 or 4 channels:
        integers from 0 to 255, or floats from 0 to 1.

    In the logs the value is an `ImagePixels` with `pixels`.
    """

    x: Any

    def __post_init__(self) -> None:
        shape = np.shape(self.x)
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
            raise ValueError(
                "`Image` takes pixels of shape (height, width) or (height, width, channels) with "
                f"1, 3 or 4 channels, and got shape {shape}."
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class HistogramBins:
    """A histogram as logged: `counts` of each bin, its `edges`, and how many were `nonfinite`."""

    counts: Array
    edges: Array
    nonfinite: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ImagePixels:
    """An image as logged."""

    pixels: Array


def is_shown(value: Any) -> bool:
    """Whether a node of a logged pytree is one value: a histogram, an image."""
    return isinstance(value, (HistogramBins, ImagePixels))


def shown(leaf: Any) -> Any:
    """What travels for a leaf: the bins of a histogram, the pixels of an image, else itself."""
    if isinstance(leaf, Histogram):
        return _bins(_real("Histogram", leaf.x), leaf.bins)
    if isinstance(leaf, Image):
        return ImagePixels(_real("Image", leaf.x))
    return leaf


def _real(what: str, x: Any) -> Array:
    """An array of real numbers or truth values, or an error."""
    array = jnp.asarray(x) if _holds_jax(x) else np.asarray(x)
    real = (jnp.integer, jnp.floating, jnp.bool_)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in real):
        raise TypeError(f"`{what}` takes real numbers, and got {array.dtype}.")
    if what == "Histogram" and isinstance(array, np.ndarray) and array.dtype.kind in "iu":
        array = array.astype(np.float32)  # as its bins are; JAX would cut wide integers
    return jnp.asarray(array)


def _holds_jax(x: Any) -> bool:
    """Whether this is an array of JAX's, or a list of some."""
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))


def _bins(x: Array, bins: int) -> HistogramBins:
    x = jnp.ravel(x)
    x = x.astype(x.dtype if x.dtype.itemsize > 4 and x.dtype.kind == "f" else jnp.float32)
    finite = jnp.isfinite(x)
    low = jnp.min(x, initial=jnp.inf, where=finite)
    high = jnp.max(x, initial=-jnp.inf, where=finite)
    some = low <= high
    low, high = jnp.where(some, low, 0.0), jnp.where(some, high, 1.0)
    # Equal numbers stand in the middle, as wide as they must for the edges to differ.
    half = jnp.where(high > low, 0.0, jnp.maximum(0.5, jnp.abs(low) * 2.0**-10))
    low, high = low - half, high + half
    # Scaled where the distance of two numbers is more than the dtype holds.
    scale = jnp.where(jnp.isfinite(high - low), 1.0, jnp.maximum(jnp.abs(low), jnp.abs(high)))
    share = (jnp.where(finite, x, low) / scale - low / scale) / (high / scale - low / scale)
    index = jnp.clip((share * bins).astype(jnp.int32), 0, bins - 1)
    counts = jnp.zeros(bins, jnp.int32).at[index].add(finite.astype(jnp.int32))
    along = jnp.arange(bins + 1, dtype=x.dtype) / bins
    edges = low * (1 - along) + high * along
    return HistogramBins(counts, edges, jnp.sum(~finite, dtype=jnp.int32))
