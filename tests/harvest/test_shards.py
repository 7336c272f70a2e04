"""Harvests on eight devices: sharded arrays, and logs inside `shard_map` and `pmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import logax
from devices import LINE, doubled, on_line

P = PartitionSpec
GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
X = np.arange(8.0, dtype=np.float32)
SHARDED = jax.device_put(
    np.arange(64.0, dtype=np.float32).reshape(8, 8), NamedSharding(LINE, P("i"))
)
Function = Callable[..., Any]


def shape_on_one_device(x: jax.Array) -> tuple[int, ...]:
    (shape,) = {shard.data.shape for shard in x.addressable_shards}
    assert len(x.addressable_shards) == 8
    return shape


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [2, 4, 8]),
        ({"capacity": 2}, [4, 8]),
        ({"interval": 2}, [2, 8]),
        ({"reduce": "last"}, [8]),
        ({"reduce": "sum"}, [14]),
    ],
)
def test_sharded_inputs_stay_sharded(options: Any, kept: list[int]) -> None:
    out, logs = logax.spool(doubled, **options)(SHARDED)
    assert out.sharding.is_equivalent_to(SHARDED.sharding, 2)
    np.testing.assert_array_equal(out, 8 * np.asarray(SHARDED))
    assert shape_on_one_device(logs["carry"]) == (len(kept), 1, 8)
    np.testing.assert_array_equal(logs["carry"], [k * np.asarray(SHARDED) for k in kept])


def test_arrays_with_explicit_shardings_stay_sharded() -> None:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.asarray(SHARDED), NamedSharding(mesh, P("i")))
        out, logs = logax.spool(doubled)(x)
    assert shape_on_one_device(out) == (1, 8)
    assert shape_on_one_device(logs["carry"]) == (3, 1, 8)
    np.testing.assert_array_equal(logs["carry"], [k * np.asarray(SHARDED) for k in (2, 4, 8)])


def test_shardings_of_a_jitted_part_and_of_a_constraint_survive() -> None:
    rows, columns = NamedSharding(LINE, P("i")), NamedSharding(LINE, P(None, "i"))

    def logged(x: Any) -> Any:
        logax.log({"x": x})
        return x * 2

    jitted = jax.jit(logged, in_shardings=rows, out_shardings=columns)

    def calling(x: Any) -> Any:
        return jitted(x)

    def constrained(x: Any) -> Any:
        logax.log({"x": x})
        return lax.with_sharding_constraint(x * 2, columns)

    for function in (jitted, calling, constrained):
        out, logs = logax.spool(function)(SHARDED)
        assert out.sharding.is_equivalent_to(columns, 2)
        np.testing.assert_array_equal(out, 2 * np.asarray(SHARDED))
        np.testing.assert_array_equal(logs["x"], [np.asarray(SHARDED)])


def test_a_sharded_argument_is_donated() -> None:
    def function(x: Any) -> Any:
        logax.log({"first": x[0]})
        return x * 2

    for donating in (
        jax.jit(logax.spool(function), donate_argnums=0),
        logax.spool(jax.jit(function, donate_argnums=0)),
    ):
        x = jax.device_put(np.asarray(SHARDED), SHARDED.sharding)
        out, _ = donating(x)
        assert x.is_deleted()
        assert out.sharding.is_equivalent_to(SHARDED.sharding, 2)


def shard(x: Any) -> Any:
    """What one shard does: logs its own value and the sum over all."""
    logax.log({"own": x[0], "index": lax.axis_index("i")}, step=7)
    total = lax.psum(x, "i")
    logax.log({"total": total})
    return x + total


def assert_each_shard_logged(logs: Any) -> None:
    assert list(logs) == ["own", "index", "total"]
    np.testing.assert_array_equal(logs["own"], [X])
    np.testing.assert_array_equal(logs["index"], [range(8)])
    np.testing.assert_array_equal(logs["total"], np.full((1, 8, 1), 28))
    np.testing.assert_array_equal(logs.steps["step"]["own"], np.full((1, 8), 7))
    assert [int(logs.count[key]) for key in logs] == [1, 1, 1]


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_shard_logs_along_an_axis_after_the_record_axis(check_vma: bool) -> None:
    mapped = on_line(shard, check_vma=check_vma)
    for harvested in (logax.spool(mapped), jax.jit(logax.spool(mapped))):
        out, logs = harvested(X)
        np.testing.assert_array_equal(out, X + 28)
        assert_each_shard_logged(logs)
    plain = jax.grad(lambda x: (mapped(x) ** 2).sum())
    gradient, logs = logax.spool(plain)(X)
    np.testing.assert_array_equal(gradient, plain(X))
    assert_each_shard_logged(logs)


def test_a_gradient_outside_of_a_harvest_of_shards_is_that_of_the_function() -> None:
    def loss(x: Any) -> Any:
        return (jax.checkpoint(on_line(shard))(x) ** 2).sum()

    gradient, logs = jax.jit(jax.grad(logax.spool(loss), has_aux=True))(X)
    np.testing.assert_array_equal(gradient, jax.jit(jax.grad(loss))(X))
    assert_each_shard_logged(logs)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    ("options", "kept", "steps"),
    [
        ({}, [2, 4, 8], [0, 1, 2]),
        ({"capacity": 2}, [4, 8], [1, 2]),
        ({"interval": 2}, [2, 8], [0, 2]),
        ({"reduce": "sum"}, [14], [2]),
        ({"reduce": "first"}, [2], [0]),
    ],
)
def test_stores_are_kept_on_each_shard(
    options: Any, kept: list[int], steps: list[int], check_vma: bool
) -> None:
    out, logs = logax.spool(on_line(doubled, check_vma=check_vma), **options)(X)
    np.testing.assert_array_equal(out, 8 * X)
    np.testing.assert_array_equal(logs["carry"][..., 0], [k * X for k in kept])
    np.testing.assert_array_equal(logs.steps["step"]["carry"], [[s] * 8 for s in steps])


def test_mesh_axes_become_one_axis_in_the_order_of_the_mesh() -> None:
    def both(x: Any) -> Any:
        logax.log({"x": x[0, 0]})
        return x

    values = X.reshape(4, 2)
    _, logs = logax.spool(
        jax.shard_map(both, mesh=GRID, in_specs=P("a", "b"), out_specs=P("a", "b"))
    )(values)
    np.testing.assert_array_equal(logs["x"], [X])
    partly = jax.shard_map(
        lambda x: both(x) * 1, mesh=GRID, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}
    )
    _, logs = jax.jit(logax.spool(partly))(values)
    np.testing.assert_array_equal(logs["x"], [values[:, 0]])


def test_nested_shard_maps_have_an_axis_each() -> None:
    def inner(x: Any) -> Any:
        logax.log({"inner": x[0, 0]})
        return x

    def outer(x: Any) -> Any:
        logax.log({"outer": x[0].sum()})
        return jax.shard_map(
            inner, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"}
        )(x)

    values = X.reshape(4, 2)
    nested = jax.shard_map(outer, mesh=GRID, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    for options in ({}, {"reduce": "last"}):
        _, logs = jax.jit(logax.spool(nested, **options))(values)
        np.testing.assert_array_equal(logs["inner"], [values])
        np.testing.assert_array_equal(logs["outer"], [values.sum(1)])


def test_shards_inside_loops_and_branches_log_each_time() -> None:
    def repeated(x: Any) -> Any:
        x, _ = lax.scan(lambda c, _: (on_line(doubled)(c), None), x, None, length=2)
        x = lax.cond(x[1] > 0, on_line(doubled), lambda x: x, x)
        return lax.while_loop(lambda x: x[1] < 1000, on_line(doubled), x)

    _, logs = logax.spool(repeated, capacity=20)(X)
    assert int(logs.count["carry"]) == 12
    np.testing.assert_array_equal(logs["carry"][:12, :, 0], [X * 2**i for i in range(1, 13)])


def test_a_harvest_inside_gives_each_shard_its_own_logs() -> None:
    def until_five(x: Any) -> Any:
        def body(x: Any) -> Any:
            logax.log({"x": x[0]})
            return x + 1

        return lax.while_loop(lambda x: x[0] < 5, body, x)

    def harvested(x: Any) -> Any:
        out, logs = logax.spool(until_five, capacity=3)(x)
        return out, jax.tree.map(lambda leaf: leaf[None], logs)

    out, logs = jax.jit(on_line(harvested))(X)
    np.testing.assert_array_equal(out, np.maximum(X, 5))
    np.testing.assert_array_equal(logs.count["x"], [5, 4, 3, 2, 1, 0, 0, 0])
    for i in range(8):
        real = np.asarray(logs["x"])[i, : min(3, max(0, 5 - i))]
        np.testing.assert_array_equal(real, np.arange(i, 5)[-3:])

    with pytest.raises(ValueError, match=r"`x`, logged at .*:\d+, may have a different number"):
        logax.spool(on_line(until_five), capacity=3)(X)


def test_a_count_that_is_the_same_on_all_shards_may_depend_on_data() -> None:
    def counted(limit: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, x = state
            logax.log({"x": x[0]}, step=i)
            return i + 1, x + 1

        return lax.while_loop(lambda state: state[0] < limit, body, (0, x))[1]

    mapped = jax.shard_map(counted, mesh=LINE, in_specs=(P(), P("i")), out_specs=P("i"))
    for limit in (0, 2, 5):
        _, logs = logax.spool(mapped, capacity=3)(limit, X)
        assert int(logs.count["x"]) == limit
        wanted = [X + i for i in range(limit)][-3:]
        np.testing.assert_array_equal(logs["x"][: len(wanted)], np.reshape(wanted, (-1, 8)))


def one_bad_shard(x: Any) -> Any:
    """Shard 3 has a NaN in step 1."""

    def body(x: Any, i: Any) -> Any:
        x = jnp.where((lax.axis_index("i") == 3) & (i == 1), jnp.nan, x + 1)
        logax.log({"x": x[0]}, step=i)
        return x, None

    return lax.scan(body, x, jnp.arange(4))[0]


def test_a_reducer_whose_records_differ_in_number_between_shards_is_not_cut_to_one_of_them() -> (
    None
):
    first_bad = logax.FirstNonFinite(window=2)
    with pytest.raises(ValueError, match=r"`x`, logged at .*:\d+, may have a different number"):
        logax.spool(on_line(one_bad_shard), reduce=first_bad)(X)

    def harvested(x: Any) -> Any:
        _, logs = logax.spool(one_bad_shard, reduce=first_bad)(x)
        return jax.tree.map(lambda leaf: leaf[None], logs)

    logs = jax.jit(on_line(harvested))(X)
    np.testing.assert_array_equal(logs.count["x"], [0, 0, 0, 2, 0, 0, 0, 0])
    np.testing.assert_array_equal(logs["x"][3], [4, np.nan])
    np.testing.assert_array_equal(logs.steps["step"]["x"][3], [0, 1])


def test_lanes_of_shards_and_shards_of_lanes() -> None:
    def each(x: Any) -> Any:
        logax.log({"x": x[0]})
        return x * 2

    lanes = np.stack([X, X + 10])
    outs, logs = jax.vmap(logax.spool(on_line(each)))(lanes)
    np.testing.assert_array_equal(outs, 2 * lanes)
    np.testing.assert_array_equal(logs["x"], lanes[:, None])
    outs, logs = logax.spool(jax.vmap(on_line(each)))(lanes)
    np.testing.assert_array_equal(outs, 2 * lanes)
    np.testing.assert_array_equal(logs["x"], lanes.T[None])


def test_pmap_inside_and_outside() -> None:
    def each(x: Any) -> Any:
        logax.log({"x": x})
        return x * 2

    out, logs = logax.spool(jax.pmap(each))(X)
    np.testing.assert_array_equal(out, 2 * X)
    np.testing.assert_array_equal(logs["x"], [X])
    out, logs = jax.pmap(logax.spool(each))(X)
    np.testing.assert_array_equal(out, 2 * X)
    np.testing.assert_array_equal(logs["x"], X[:, None])


def test_a_key_inside_and_outside_of_shards_is_told() -> None:
    def program(x: Any) -> Any:
        logax.log({"x": x.sum()})
        return on_line(lambda x: (logax.log({"x": x.sum()}), x)[1])(x)

    told = (
        r"`x` is logged inside a `shard_map` at .* and outside of it at .*, or the other way round"
    )
    with pytest.raises(TypeError, match=told):
        logax.spool(program)(X)
