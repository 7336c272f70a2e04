"""`Histogram` and `Image`, anywhere in a logged pytree, compared with NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax
from slow_cases import slow


def histogram(x: Any, bins: int = 8) -> logax.HistogramBins:
    """Return the bins of one logged `Histogram(x)`."""
    _, logs = logax.spool(lambda x: logax.log({"h": logax.Histogram(x, bins)}))(x)
    value = jax.tree.map(lambda leaf: np.asarray(leaf)[0], logs["h"])
    assert isinstance(value, logax.HistogramBins)
    return value


RANDOM = np.random.default_rng(0)
AS_NUMPY: dict[str, Any] = {
    "normal": RANDOM.normal(size=1000).astype(np.float32),
    "matrix": RANDOM.normal(size=(10, 3, 2)).astype(np.float32),
    "whole numbers": np.arange(10, dtype=np.int32),
    "negative numbers": np.arange(-128, 128).astype(np.int8),
    "unsigned": np.arange(256).astype(np.uint8),
    "large numbers": np.array([2**24, 2**25, 2**30], np.int32),
    "truth values": np.array([True, False, True]),
    "bfloat16": jnp.arange(10, dtype=jnp.bfloat16),
    "on the edges": np.array([0.0, 0.25, 0.5, 1.0, 2.0], np.float32),
    "a constant": np.full(5, 2.0, np.float32),
    "zeros": np.zeros(4, np.float32),
    "a scalar": np.float32(3.0),
    "a Python number": 3.0,
}


NARROW: dict[str, Any] = {
    "float8": jnp.arange(5).astype(jnp.float8_e5m2),
    "int4": jnp.arange(-4, 4).astype(jnp.int4),
}


@pytest.mark.parametrize(
    ("arrays", "bins"), [(AS_NUMPY, 8), (NARROW, 1), *slow((AS_NUMPY, 1), (NARROW, 8))]
)
def test_counts_and_edges_are_those_of_numpy(arrays: dict[str, Any], bins: int) -> None:
    def f(arrays: dict[str, Any]) -> None:
        logax.log({case: logax.Histogram(x, bins) for case, x in arrays.items()})

    _, logs = logax.spool(f)(arrays)
    for case, x in arrays.items():
        counts, edges = np.histogram(np.asarray(x).astype(np.float32), bins)
        found = logs[case]
        np.testing.assert_array_equal(found.counts, [counts], err_msg=case)
        np.testing.assert_allclose(found.edges, [edges], rtol=1e-6, atol=1e-6, err_msg=case)
        np.testing.assert_array_equal(found.nonfinite, [0])
        assert (found.counts.dtype, found.edges.dtype) == (np.int32, np.float32)


def test_what_is_not_finite_is_counted_apart() -> None:
    x = np.array([1.0, np.nan, 2.0, np.inf, -np.inf, 3.0], np.float32)
    found = histogram(x, 4)
    counts, edges = np.histogram(x[np.isfinite(x)], 4)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.edges, edges)
    assert found.nonfinite == 3


@pytest.mark.parametrize(("x", "nonfinite"), [(np.zeros(0), 0), (np.full((2, 2), np.nan), 4)])
def test_of_nothing_finite_there_are_empty_bins_from_zero_to_one(x: Any, nonfinite: int) -> None:
    found = histogram(x.astype(np.float32), 4)
    np.testing.assert_array_equal(found.counts, np.zeros(4))
    np.testing.assert_array_equal(found.edges, [0.0, 0.25, 0.5, 0.75, 1.0])
    assert found.nonfinite == nonfinite


@pytest.mark.parametrize(
    "x", [[-3e38, 0.0, 3e38], [1e9, 1e9, 1e9], [-3e38, -3e38, -3e38], [1e-30, 2e-30, 4e-30]]
)
def test_every_element_is_in_a_bin_whose_edges_hold_it(x: Any) -> None:
    values = np.asarray(x, np.float32)
    found = histogram(values, 4)
    edges = found.edges.astype(np.float64)
    assert np.isfinite(edges).all()
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= values.min() <= values.max() <= edges[-1]
    by_edges = np.searchsorted(edges[1:-1], values.astype(np.float64), side="right")
    np.testing.assert_array_equal(found.counts, np.bincount(by_edges, minlength=4))


def test_histograms_and_images_stand_anywhere_in_a_value() -> None:
    def f(x: Any) -> None:
        tree = {"weight": x, "bias": x[0]}
        logax.log({"grad": jax.tree.map(lambda leaf: logax.Histogram(leaf, 2), tree), "x": x[0]})
        logax.log({"mixed": [logax.Image(x[None]), (logax.Histogram(x, 2), x.sum())]})

    _, logs = logax.spool(f)(jnp.arange(4.0))
    assert list(logs.leaves()) == [
        "grad/bias/counts", "grad/bias/edges", "grad/bias/nonfinite",
        "grad/weight/counts", "grad/weight/edges", "grad/weight/nonfinite",
        "x", "mixed/0/pixels",
        "mixed/1/0/counts", "mixed/1/0/edges", "mixed/1/0/nonfinite", "mixed/1/1",
    ]  # fmt: skip
    np.testing.assert_array_equal(logs["grad"]["weight"].counts, [[2, 2]])
    np.testing.assert_array_equal(logs["mixed"][0].pixels, [[[0.0, 1.0, 2.0, 3.0]]])
    np.testing.assert_array_equal(logs["mixed"][1][1], [6.0])
    _, logs = logax.spool(f, keys="*/counts")(jnp.arange(4.0))
    assert [name.split("/")[-1] for name in logs.leaves()] == ["counts"] * 3


def walk(x: Any) -> None:
    def body(carry: Any, i: Any) -> Any:
        logax.log({"h": logax.Histogram(x + i, 4), "i": logax.Image(x * i)}, step=i)
        return carry, None

    lax.scan(body, 0, jnp.arange(3.0))


X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def test_there_is_one_for_each_record() -> None:
    _, logs = logax.spool(walk)(X)
    for i in range(3):
        counts, edges = np.histogram(X + i, 4)
        np.testing.assert_array_equal(logs["h"].counts[i], counts)
        np.testing.assert_allclose(logs["h"].edges[i], edges, rtol=1e-6)
        np.testing.assert_array_equal(logs["i"].pixels[i], X * i)


def test_there_is_one_for_each_lane() -> None:
    _, logs = jax.jit(jax.vmap(logax.spool(walk)))(np.stack([X, 10 * X]))
    assert logs["i"].pixels.shape == (2, 3, 2, 3)
    np.testing.assert_array_equal(logs["h"].counts[1, 2], np.histogram(10 * X + 2, 4)[0])
    _, logs = logax.spool(jax.vmap(walk))(np.stack([X, 10 * X]))
    assert logs["i"].pixels.shape == (3, 2, 2, 3)
    np.testing.assert_array_equal(logs["h"].counts[2, 1], np.histogram(10 * X + 2, 4)[0])


@pytest.mark.parametrize("how", ["mean", "last", *slow("sum", "first", "max", "count", "std")])
def test_they_can_be_reduced_like_any_value(how: str) -> None:
    every = logax.spool(walk)(X)[1]
    _, logs = logax.spool(walk, reduce=how)(X)
    assert isinstance(logs["h"], logax.HistogramBins)
    for name, column in every.leaves().items():
        function = {
            "first": lambda x: x[0],
            "last": lambda x: x[-1],
            "count": lambda x: np.int32(len(x)),
        }.get(how, lambda x: getattr(np, how)(x, axis=0))
        expected = function(np.asarray(column))
        np.testing.assert_allclose(logs.leaves()[name][0], expected, rtol=1e-6, err_msg=name)


def test_they_cost_nothing_when_nothing_harvests() -> None:
    plain = jax.jit(lambda x: x + 1).lower(X).as_text()

    def f(x: Any) -> Any:
        logax.log({"h": logax.Histogram(x), "i": logax.Image(x)})
        return x + 1

    assert jax.jit(f).lower(X).as_text().replace("jit_f", "jit__lambda") == plain


@pytest.mark.slow
def test_gradients_and_nan_checks_do_not_see_them() -> None:
    def f(x: Any) -> Any:
        logax.log({"h": logax.Histogram(x)})
        return (x**2).sum()

    with jax.debug_nans(True):
        gradient, _ = jax.grad(logax.spool(f), has_aux=True)(X)
    np.testing.assert_array_equal(gradient, 2 * X)


@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "bool", "int32"])
def test_an_image_is_its_pixels(channels: tuple[int, ...], dtype: str) -> None:
    pixels = np.ones((2, 3, *channels), jnp.dtype(dtype))
    _, logs = logax.spool(lambda: logax.log({"i": logax.Image(pixels)}))()
    assert isinstance(logs["i"], logax.ImagePixels)
    assert logs["i"].pixels.dtype == pixels.dtype
    np.testing.assert_array_equal(logs["i"].pixels, pixels[None])


def test_a_histogram_may_be_given_as_a_list_of_traced_numbers() -> None:
    def f(x: Any) -> None:
        logax.log({"h": logax.Histogram([x, x + 1, x + 1], bins=np.int64(2))})  # type: ignore[arg-type]

    np.testing.assert_array_equal(logax.spool(f)(1.0)[1]["h"].counts, [[1, 2]])


def test_an_image_may_be_given_as_lists() -> None:
    _, logs = logax.spool(lambda: logax.log({"i": logax.Image([[0.0, 0.5], [1.0, 0.0]])}))()
    np.testing.assert_array_equal(logs["i"].pixels, [[[0.0, 0.5], [1.0, 0.0]]])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 2), (5, 2, 3, 3)])
def test_an_image_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`Image` takes pixels of shape \(height, width\)") as e:
        logax.Image(jnp.ones(shape))
    assert f"got shape {shape}" in str(e.value)


@pytest.mark.parametrize("make", [logax.Histogram, logax.Image])
@pytest.mark.parametrize(
    "x",
    [np.ones((2, 2), np.complex64), np.array([["a"]]), jax.random.split(jax.random.key(0), (2, 2))],
)
def test_what_is_no_real_number_is_refused_with_key_and_place(make: Any, x: Any) -> None:
    def f() -> None:
        logax.log({"x": make(x)})

    with pytest.raises(TypeError) as raised:
        logax.spool(f)()
    message = str(raised.value)
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in message
    assert "`x`" in message
    assert f"`{make.__name__}` takes" in message


def test_whole_numbers_of_64_bits_are_not_cut() -> None:
    logs = logax.spool(
        lambda: logax.log({"x": logax.Histogram(np.array([2**40, 1, 2]), bins=2)})
    )()[1]
    bins = logs.last["x"]
    assert np.asarray(bins.counts).tolist() == [2, 1]
    assert float(bins.edges[-1]) == 2**40
