"""Write, read and compare trajectories, for the tests of `logax.storage`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from logax.storage import HDF5StorageReader, HDF5StorageWriter, WriterGroupConfig


def write_frames(
    path: Any,
    view: Callable[[Any], Any],
    schedule: Any,
    states: Iterable[tuple[int, Any]],
    first: Any,
    **options: Any,
) -> None:
    """Write the states, each with its step, to a file with one group, `frames`."""
    config = {"frames": WriterGroupConfig(view, schedule)}
    with HDF5StorageWriter(path, config, first, **options) as writer:
        for step, state in states:
            writer.log(state, step)


def frames(path: Any) -> tuple[Any, list[int]]:
    """Return all rows of the group `frames`, and their steps."""
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("frames")
        return group[...], group.steps.tolist()


def assert_same(one: Any, two: Any) -> None:
    """Assert that two trees have the same structure, and arrays that are equal bit by bit."""
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        a, b = bits(a), bits(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype in (np.longdouble, np.clongdouble):
            np.testing.assert_array_equal(a, b)  # some of their bits are padding
        else:
            assert a.tobytes() == b.tobytes(), (a, b)


def bits(x: Any) -> np.ndarray[Any, Any]:
    """Return an array on the host, and the key data of PRNG keys."""
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)
