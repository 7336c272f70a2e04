"""Numbers of every dtype are read back bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from logax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    StorageError,
    WriterGroupConfig,
)
from trajectories import assert_same

EXTENDED = [name for name in dir(ml_dtypes) if name.startswith(("bfloat", "float", "int", "uint"))]
NUMPY = [
    *"?bBhHiIlLqQefdgFDG",
    ">f4",
    ">i8",
    ">c16",
    "S3",
    "U5",
    ">U2",
    "M8[ns]",
    "m8[s]",
    ">M8[D]",
]


def some(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Return values with all bit patterns that the dtype allows."""
    random = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=int))
    if dtype.kind in "?bSU" or dtype.name in ("int1", "int2", "int4", "uint1", "uint2", "uint4"):
        numbers = (
            random.integers(0, 2, count) if dtype.kind == "b" else random.integers(0, 4, count)
        )
        return numbers.astype(dtype).reshape(shape)
    if dtype.name.startswith(("float4", "float6")):
        return random.integers(0, 4, count).astype(np.float32).astype(dtype).reshape(shape)
    if dtype.itemsize in (16, 32) and dtype.kind in "fc" and dtype != np.complex128:
        return random.normal(size=count).astype(dtype).reshape(shape)  # some bits are padding
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)


def picked(state: Any) -> Any:
    """Return the state: a view that needs no program if the state is ready."""
    return state


def computed(state: Any) -> Any:
    """Return a view that needs a program."""
    return jax.tree.map(jnp.copy, state)


VIEWS = [picked, computed]


def stored(
    tmp_path: Path, states: list[Any], schedule: Any = 1, view: Any = picked, **options: Any
) -> list[Any]:
    """Write states, and return the rows that are read back."""
    config = {"frames": WriterGroupConfig(view, schedule)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, states[0], **options) as writer:
        for step, state in enumerate(states):
            writer.log(state, step)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        group = reader.focus_group("frames")
        return [group[...]] if isinstance(schedule, Once) else list(group)


@pytest.mark.parametrize("schedule", [1, Once()], ids=["rows", "once"])
@pytest.mark.parametrize("compression", [None, 3])
def test_every_type_comes_back_bit_for_bit(schedule: Any, compression: Any, tmp_path: Path) -> None:
    dtypes = [np.dtype(code) for code in NUMPY]
    dtypes += [np.dtype(getattr(ml_dtypes, name)) for name in EXTENDED]
    states = [
        {
            f"{dtype}_{'x'.join(map(str, shape))}": some(dtype, shape, i + 100 * step)
            for i, dtype in enumerate(dtypes)
            for shape in [(), (3,), (2, 1, 3), (0,), (2, 0)]
        }
        for step in range(3)
    ]
    rows = stored(tmp_path, states, schedule, compression=compression)
    for row, state in zip(rows, states, strict=isinstance(schedule, int)):
        assert_same(row, {name: x[()] for name, x in state.items()})


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_of_jax_come_back_bit_for_bit(view: Any, tmp_path: Path) -> None:
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "int4", "uint4"]
    names += ["int8", "uint16", "int32", "uint32", "bool", "complex64"]
    states = [
        {
            name: jnp.asarray(some(np.dtype(getattr(ml_dtypes, name, name)), (2, 3), step))
            for name in names
        }
        for step in range(5)
    ]
    for row, state in zip(stored(tmp_path, states, view=view), states, strict=True):
        assert_same(row, jax.device_get(state))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,), (40_000,)], ids=str)
def test_types_of_python_of_jax_come_back_bit_for_bit(
    shape: tuple[int, ...], view: Any, tmp_path: Path
) -> None:
    with jax.enable_x64(True):
        states = [
            {
                name: jnp.asarray(some(np.dtype(name), shape, step))
                for name in ("f8", "i8", "c16", "f4", "b1", "u4", "i2", "c8")
            }
            for step in range(2)
        ]
        rows = stored(tmp_path, states, view=view)
    for row, state in zip(rows, states, strict=True):
        assert_same(row, jax.device_get(state))


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("schedule", [1, Once()], ids=["rows", "once"])
def test_prng_keys_come_back_as_keys(implementation: str, schedule: Any, tmp_path: Path) -> None:
    one = jax.random.key(7, impl=implementation)
    states = [{"one": one, "many": jax.random.split(one, (2, 3))} for _ in range(2)]
    row = stored(tmp_path, states, schedule)[-1]
    assert row["many"].shape == (2, 3)
    assert row["one"].dtype == one.dtype
    assert_same(row, states[0])
    np.testing.assert_array_equal(jax.random.uniform(row["one"]), jax.random.uniform(one))


def test_prng_keys_of_a_kind_that_this_jax_does_not_make_are_told(tmp_path: Path) -> None:
    stored(tmp_path, [{"key": jax.random.key(7), "x": np.float32(3)}])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        text = bytes(file["logax/schema"][...]).replace(b"threefry2x32", b"threefry2x99")
        file["logax/schema"][...] = np.frombuffer(text, np.uint8)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        group = reader.focus_group("frames")
        assert group.focus(lambda row: row["x"])[0] == 3
        with pytest.raises(StorageError) as caught:
            group[0]
    assert str(caught.value) == (
        "The file holds PRNG keys of type 'key<threefry2x99>', which this version of JAX does not "
        "support."
    )


def test_numbers_of_python_are_arrays_of_64_bits(tmp_path: Path) -> None:
    states = [{"b": True, "i": 2**62 + 1, "f": 0.1, "c": 0.1 + 2j} for _ in range(2)]
    row = stored(tmp_path, states)[1]
    assert row == states[0]
    assert {name: x.dtype.name for name, x in row.items()} == {
        "b": "bool",
        "i": "int64",
        "f": "float64",
        "c": "complex128",
    }


def test_what_hdf5_lacks_says_beside_its_bits_what_it_is(tmp_path: Path) -> None:
    state = {"a": jnp.ones(2, jnp.bfloat16), "k": jax.random.key(0), "t": np.array([3], "M8[s]")}
    stored(tmp_path, [state])
    with h5py.File(tmp_path / "a.h5") as file:
        said = {
            name: (file["frames"][name].attrs["dtype"], file["frames"][name].dtype)
            for name in state
        }
    assert said == {
        "a": ("bfloat16", np.uint16),
        "k": ("key<threefry2x32>", np.uint32),
        "t": ("<M8[s]", np.int64),
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", "must return arrays and numbers, and `x` is 'text' of type `str`"),
        (object, "`x` is <class 'object'> of type `type`"),
        (np.array([None]), "returns `x` of the type object, which cannot be stored"),
        (np.zeros(2, [("a", "f4")]), "which cannot be stored. Convert it in the view"),
        (np.zeros(2, jax.dtypes.float0), "which cannot be stored"),
        (2**70, "cannot be stored"),
    ],
    ids=["text", "class", "object", "fields", "float0", "too large"],
)
def test_what_is_no_array_is_refused_by_its_name(value: Any, message: str, tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(lambda state: {"x": value}, 1)}
    with pytest.raises(TypeError, match="The view of `frames`") as caught:
        HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0))
    assert message in str(caught.value)
