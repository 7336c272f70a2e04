"""`Histogram` and `Image`: values that request a way of being displayed.

Both only hold their argument, so creating one costs nothing in a program without a harvest. Under a
harvest `log` converts a `Histogram` to its bins on the device (`HistogramBins`), so only the bins
are transferred, and an `Image` to its pixels (`ImagePixels`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._support.validation import validate_minimum


@dataclasses.dataclass(frozen=True, eq=False)
class Histogram:
    """Log the distribution of an array instead of its elements.

    The bins are computed on the device. In the logs the value is a `HistogramBins`.

    Args:
      x: Array of real numbers, of any shape. Non-finite elements are counted separately.
      bins: Number of bins of equal width between the minimum and maximum finite element.

    Raises:
      ValueError: `bins` is not an integer of 1 or more.

    Example:
      `log({"grad": Histogram(grads["w"])}, step=i)`
    """

    x: Any
    bins: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", validate_minimum(1, "Histogram", "bins", self.bins))


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """Log an array as a picture.

    In the logs the value is an `ImagePixels`.

    Args:
      x: Pixels of shape (height, width) or (height, width, channels) with 1, 3 or 4 channels:
        integers from 0 to 255, or floats from 0 to 1.

    Raises:
      ValueError: `x` has another shape.

    Example:
      `log({"sample": Image(pixels)}, step=i)`
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
    """A logged `Histogram`.

    Attributes:
      counts: Number of finite elements in each bin.
      edges: Edges of the bins, one more than there are bins.
      nonfinite: Number of elements that are NaN or infinite.
    """

    counts: Array
    edges: Array
    nonfinite: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ImagePixels:
    """A logged `Image`.

    Attributes:
      pixels: The array that was passed to `Image`.
    """

    pixels: Array


def is_media(value: Any) -> bool:
    """Return whether a node of a logged pytree is a histogram or an image."""
    return isinstance(value, (HistogramBins, ImagePixels))


def to_loggable(leaf: Any) -> Any:
    """Replace a `Histogram` by its bins and an `Image` by its pixels; return other leaves."""
    if isinstance(leaf, Histogram):
        return _compute_bins(_as_real_array("Histogram", leaf.x), leaf.bins)
    if isinstance(leaf, Image):
        return ImagePixels(_as_real_array("Image", leaf.x))
    return leaf


def _as_real_array(what: str, x: Any) -> Array:
    """Convert to an array of real numbers or booleans, or raise a `TypeError`."""
    array = jnp.asarray(x) if _contains_jax_array(x) else np.asarray(x)
    real = (jnp.integer, jnp.floating, jnp.bool_)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in real):
        raise TypeError(f"`{what}` takes real numbers, and got {array.dtype}.")
    if what == "Histogram" and isinstance(array, np.ndarray) and array.dtype.kind in "iu":
        array = array.astype(np.float32)  # the dtype of the bins; JAX would truncate wide integers
    return jnp.asarray(array)


def _contains_jax_array(x: Any) -> bool:
    """Return whether this is a JAX array or a list of JAX arrays."""
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))


def _compute_bins(x: Array, bins: int) -> HistogramBins:
    x = jnp.ravel(x)
    x = x.astype(x.dtype if x.dtype.itemsize > 4 and x.dtype.kind == "f" else jnp.float32)
    finite = jnp.isfinite(x)
    low = jnp.min(x, initial=jnp.inf, where=finite)
    high = jnp.max(x, initial=-jnp.inf, where=finite)
    some = low <= high
    low, high = jnp.where(some, low, 0.0), jnp.where(some, high, 1.0)
    # If all elements are equal, widen the range around them until the edges differ.
    half = jnp.where(high > low, 0.0, jnp.maximum(0.5, jnp.abs(low) * 2.0**-10))
    low, high = low - half, high + half
    # Scale if the range overflows the dtype.
    scale = jnp.where(jnp.isfinite(high - low), 1.0, jnp.maximum(jnp.abs(low), jnp.abs(high)))
    share = (jnp.where(finite, x, low) / scale - low / scale) / (high / scale - low / scale)
    index = jnp.clip((share * bins).astype(jnp.int32), 0, bins - 1)
    counts = jnp.zeros(bins, jnp.int32).at[index].add(finite.astype(jnp.int32))
    along = jnp.arange(bins + 1, dtype=x.dtype) / bins
    edges = low * (1 - along) + high * along
    return HistogramBins(counts, edges, jnp.sum(~finite, dtype=jnp.int32))
