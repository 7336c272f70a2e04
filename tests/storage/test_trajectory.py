"""Groups, schedules and structures are read as they were written."""

from __future__ import annotations

import collections
import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from gates import pending
from logax.loggers import CallbackLogger
from logax.loop import CompositeLogger, Logger, RingBufferLogger, run_loop
from logax.storage import (
    Between,
    EveryNStep,
    EverySeconds,
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    OnSteps,
    WriterGroupConfig,
)
from loops import Particles, advance, run
from slow_cases import slow
from trajectories import assert_same, frames, write_frames


@dataclasses.dataclass
class Config:
    start: WriterGroupConfig[Particles, Any]
    frames: WriterGroupConfig[Particles, Particles]


def both() -> Config:
    return Config(
        start=WriterGroupConfig(lambda state: state.energy, Once()),
        frames=WriterGroupConfig(lambda state: state, EveryNStep(1)),
    )


def whole(state: Any) -> Any:
    return state


def counted(steps: Any) -> list[tuple[int, Any]]:
    return [(step, np.float32(step)) for step in steps]


# Groups.


def test_a_value_of_the_start_and_a_row_for_each_step(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    state = run(HDF5StorageWriter(path, both(), Particles.at_rest(), 50), steps=50)
    with HDF5StorageReader[Config](path) as reader:
        start = reader.focus_group(lambda config: config.start)
        rows = reader.focus_group(lambda config: config.frames)
        assert reader.list_groups() == ["start", "frames"]
        assert (reader.complete, reader.actual_steps, reader.total_steps) == (True, 50, 50)
        value = start[...]
        assert (value, value.dtype, value.shape) == (1, np.float32, ())
        assert start.steps.tolist() == [0]
        assert rows[...].energy.shape == (50,)
        assert_same(vars(rows[0]), {"position": np.ones((4, 2), "f4"), "energy": np.float32(1)})
        assert_same(vars(rows[-1]), vars(jax.device_get(state)))
        assert rows.steps.tolist() == list(range(50))
    with h5py.File(path) as file:
        assert file["start/value"].shape == ()
        assert file["frames/energy"].shape == (50,)
        assert file["frames/position"].shape == (50, 4, 2)
        np.testing.assert_array_equal(file["frames/energy"], np.arange(1, 51))
        np.testing.assert_array_equal(file["frames/step"], np.arange(50))
        assert file["frames/energy"].fletcher32
        assert file["frames/energy"].dims[0]["step"] == file["frames/step"]


def test_it_is_a_logger_of_loops_like_all_others(tmp_path: Path) -> None:
    writer = HDF5StorageWriter(tmp_path / "run.h5", both(), Particles.at_rest())
    assert isinstance(writer, Logger)
    logger = CompositeLogger(writer, RingBufferLogger(1))
    state = run_loop(advance, Particles.at_rest(), 7, logger=logger)
    with HDF5StorageReader(tmp_path / "run.h5") as reader:
        last = reader.focus_group("frames", like=state)[-1]
    assert isinstance(last, Particles)
    assert_same(last, jax.device_get(state))


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (EveryNStep(3), [0, 3, 6, 9, 12, 15, 18]),
        (3, [0, 3, 6, 9, 12, 15, 18]),
        (OnSteps([2, 3, 19, 40]), [2, 3, 19]),
        (Between(5, 8), [5, 6, 7, 8]),
        (EveryNStep(8) | OnSteps([1]), [0, 1, 8, 16]),
        (EveryNStep(2) & Between(10, None), [10, 12, 14, 16, 18]),
        (EverySeconds(1e9), [0]),
        (OnSteps([50]), []),
    ],
    ids=repr,
)
@pytest.mark.parametrize("total", [None, 20, 6, 100])
def test_rows_are_those_that_the_schedule_names(
    schedule: Any, steps: list[int], total: int | None, tmp_path: Path
) -> None:
    write_frames(
        tmp_path / "a.h5", whole, schedule, counted(range(20)), np.float32(0), total_steps=total
    )
    rows, found = frames(tmp_path / "a.h5")
    assert found == steps
    np.testing.assert_array_equal(rows, np.array(steps, np.float32))
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["frames/value"], np.array(steps, np.float32))
        np.testing.assert_array_equal(file["frames/step"], steps)


def test_a_schedule_of_ones_own_makes_rows_too(tmp_path: Path) -> None:
    class Squares:
        def should_log(self, step: int) -> bool:
            return int(step**0.5) ** 2 == step

    write_frames(
        tmp_path / "a.h5", whole, Squares(), counted(range(20)), np.float32(0), total_steps=20
    )
    assert frames(tmp_path / "a.h5")[1] == [0, 1, 4, 9, 16]


def test_rows_are_found_by_their_step_whatever_order_they_came_in(tmp_path: Path) -> None:
    states = [(step, np.float32(i)) for i, step in enumerate([7, 2, 9, 2, 0, 7])]
    write_frames(tmp_path / "a.h5", whole, 1, states, np.float32(0))
    rows, steps = frames(tmp_path / "a.h5")
    assert steps == [0, 2, 7, 9]
    np.testing.assert_array_equal(rows, np.float32([4, 3, 5, 2]))  # the later row of the same step


def test_once_keeps_the_first_value(tmp_path: Path) -> None:
    write_frames(
        tmp_path / "a.h5", whole, Once(), [(0, np.arange(3)), (0, np.ones(3, int))], np.ones(3, int)
    )
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0], np.arange(3))


# Structures.


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Inner:
    a: Any
    b: Any


class Pair(collections.namedtuple("Pair", "left right")):
    pass


class Model(eqx.Module):
    weight: Any
    name: str = eqx.field(static=True, default="m")


def test_states_of_nested_classes_dictionaries_and_tuples_come_back(tmp_path: Path) -> None:
    def state(x: float) -> Any:
        f = jnp.float32
        return {
            "inner": Inner((f(x), [f(x + 1), None]), {}),
            "pair": Pair(f(x + 2), {3: f(x + 3), 1: f(x + 4)}),
            "model": Model(jnp.full((2, 2), float(x))),
            "ordered": collections.OrderedDict(z=f(x), y=(f(x),)),
            "empty": ((), [], None),
        }

    states = [(step, state(step)) for step in range(3)]
    write_frames(tmp_path / "a.h5", whole, 1, states, state(0))
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        row = reader.focus_group("frames")[2]
        mine = reader.focus_group("frames", like=state(0))[2]
        part = reader.focus_group("frames").focus(lambda row: row["pair"].right[1])
        np.testing.assert_array_equal(part[...], np.float32([4, 5, 6]))
        weight = reader.focus_group("frames").focus(lambda row: row["model"])
        assert weight.arrays == {"weight": "float32[2,2]"}
    assert_same(mine, jax.device_get(state(2)))
    assert type(mine["model"]) is Model
    assert row["empty"] == ((), [], None)
    assert row["inner"] == SimpleNamespace(a=(2, [3, None]), b={})
    assert row["pair"] == SimpleNamespace(left=4, right={1: 6, 3: 5})
    assert row["ordered"] == {"z": 2, "y": (2,)}
    np.testing.assert_array_equal(row["model"].weight, np.full((2, 2), 2))


def test_classes_that_jax_does_not_know_are_stored_by_their_fields(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Frame:
        position: Any
        energy: Any

    states = [(step, np.full(3, step, np.float64)) for step in range(3)]
    config = {"frames": WriterGroupConfig(lambda x: Frame(x, x[0]), 1)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, np.zeros(3)) as writer:
        for step, state in states:
            writer.log(state, step)
        with pytest.raises(ValueError, match=r"`position`, which was float64\[3\], is now "):
            writer.log(np.zeros(4), 3)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        found = reader.focus_group("frames")[...]
        np.testing.assert_array_equal(found.position, np.stack([x for _, x in states]))
        np.testing.assert_array_equal(found.energy, np.arange(3))


def test_configurations_of_any_structure_give_the_groups_their_names(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Plain:
        here: Any
        there: Any

    one = WriterGroupConfig(lambda state: {"x": state}, 1)
    config = Plain({"a": (one, [one]), 2: one}, Inner(one, None))
    with HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0)) as writer:
        writer.log(np.float32(5), 0)
    names = ["here/2", "here/a/0", "here/a/1/0", "there/a"]
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert sorted(reader.list_groups()) == names
        assert reader.focus_group(lambda c: c.here["a"][1][-1]).name == "here/a/1/0"
        assert reader.focus_group(lambda c: c.here[2]).name == "here/2"
        assert reader.focus_group(lambda c: c.there.a)[0] == {"x": 5}
    with h5py.File(tmp_path / "a.h5") as file:
        assert all(file[f"{name}/x"].shape == (1,) for name in names)


def test_a_configuration_may_be_one_group(tmp_path: Path) -> None:
    with HDF5StorageWriter(tmp_path / "a.h5", WriterGroupConfig(whole), np.float32(0)) as writer:
        writer.log(np.float32(5), 0)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.list_groups() == ["value"]
        assert reader.focus_group(lambda config: config)[0] == 5


@pytest.mark.parametrize("name", ["a/b", ".", "", "..", "%", "step", "ü ñ", "a\0b", "\ud800", "-"])
def test_names_of_any_kind_come_back(name: str, tmp_path: Path) -> None:
    state = {name: np.float32(1), "other": {name: np.float32(2)}}
    config = {name: WriterGroupConfig(whole, 1), "x": {name: WriterGroupConfig(whole, Once())}}
    with HDF5StorageWriter(tmp_path / "a.h5", config, state) as writer:
        writer.log(state, 0)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.focus_group(lambda config: config[name])[0] == state
        assert reader.focus_group(lambda config: config["x"][name])[...] == state


def test_a_view_that_gives_nothing_has_steps_only(tmp_path: Path) -> None:
    write_frames(tmp_path / "a.h5", lambda state: {}, 2, counted(range(5)), np.float32(0))
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        group = reader.focus_group("frames")
        assert (group[1], group[...], group.steps.tolist()) == ({}, {}, [0, 2, 4])


# Views.


def test_a_view_is_compiled_once(tmp_path: Path) -> None:
    traces = []

    def view(state: Particles) -> Any:
        traces.append(None)
        return {"mean": state.position.mean(), "constant": 2**40, "exact": np.float64(0.1)}

    config = {"frames": WriterGroupConfig(view, 1)}
    run(HDF5StorageWriter(tmp_path / "a.h5", config, Particles.at_rest()), steps=20)
    assert len(traces) == 2  # for the shapes, and to compile
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["mean"], np.arange(1, 21, dtype=np.float32))
    np.testing.assert_array_equal(rows["constant"], np.full(20, 2**40))
    np.testing.assert_array_equal(rows["exact"], np.full(20, 0.1))


def test_a_view_that_only_picks_small_arrays_takes_no_program(tmp_path: Path) -> None:
    traces = []

    def view(state: Any) -> Any:
        traces.append(None)
        return {"again": state["x"], "x": state["x"], "on": state["on"]}

    states = [
        (i, {"x": jnp.float32(i), "on": jnp.bool_(i % 2), "other": jnp.zeros(i // 8)})
        for i in range(10)
    ]
    write_frames(tmp_path / "a.h5", view, 1, jax.block_until_ready(states[:8]), states[0][1])
    assert len(traces) == 1  # for the shapes
    write_frames(tmp_path / "a.h5", view, 1, jax.block_until_ready(states), states[0][1], mode="w")
    assert len(traces) == 3  # for the shapes, and to compile for another shape
    rows, _ = frames(tmp_path / "a.h5")
    expected = np.arange(10, dtype=np.float32)
    assert_same(rows, {"again": expected, "on": expected % 2 == 1, "x": expected})


@pytest.mark.parametrize("is_ready", [True, False])
def test_states_may_be_donated_after_log(is_ready: bool, tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(whole)}
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = {"small": jnp.zeros((), jnp.int32), "some": jnp.zeros((50, 3))}
    with HDF5StorageWriter(tmp_path / "a.h5", config, state) as writer:
        for i in range(200):
            writer.log(state, i)
            old, state = state, step(state)
            assert old["small"].is_deleted()
            if is_ready:
                jax.block_until_ready(state)
        with pytest.raises(RuntimeError, match="deleted"):
            writer.log(old, 200)
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["small"], np.arange(200))
    np.testing.assert_array_equal(rows["some"][:, 49, 2], np.arange(200))


def test_states_with_prng_keys_are_compiled_too(tmp_path: Path) -> None:
    traces = []

    def view(state: Any) -> Any:
        traces.append(None)
        return {"key": state["key"], "x": state["x"] + 1}

    states = [(i, {"key": jax.random.key(i), "x": jnp.float32(i)}) for i in range(5)]
    write_frames(tmp_path / "a.h5", view, 1, states, states[0][1])
    assert len(traces) == 2
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["x"], [1, 2, 3, 4, 5])
    keys = jnp.stack([state["key"] for _, state in states])
    np.testing.assert_array_equal(jax.random.key_data(rows["key"]), jax.random.key_data(keys))


def test_constants_of_a_compiled_view_are_those_of_its_own_state(tmp_path: Path) -> None:
    def view(state: Any) -> Any:
        return {"length": state.shape[0], "sum": state.sum()}

    states = [(i, jnp.ones(n)) for i, n in enumerate([3, 4, 3, 4, 3])]
    write_frames(tmp_path / "a.h5", view, 1, states, jnp.zeros(3))
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["length"], [3, 4, 3, 4, 3])
    np.testing.assert_array_equal(rows["sum"], [3, 4, 3, 4, 3])


def test_a_view_that_needs_numbers_is_called_as_it_is(tmp_path: Path) -> None:
    def view(state: Particles) -> Any:
        return {"energy": float(state.energy), "big": np.asarray(state.position).sum() > 40}

    config = {"frames": WriterGroupConfig(view, 1)}
    run(HDF5StorageWriter(tmp_path / "a.h5", config, Particles.at_rest()), steps=10)
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["energy"], np.arange(1, 11, dtype=np.float64))
    np.testing.assert_array_equal(rows["big"], np.arange(1, 11) > 5)


def test_states_with_numbers_of_python_and_numpy_keep_all_their_bits(tmp_path: Path) -> None:
    def state(step: int) -> Any:
        return {
            "time": 0.1 * step,
            "count": 2**40 + step,
            "x": np.full(3, 1e-300),
            "j": jnp.ones(2),
        }

    write_frames(tmp_path / "a.h5", whole, 1, [(i, state(i)) for i in range(4)], state(0))
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["time"], 0.1 * np.arange(4))
    np.testing.assert_array_equal(rows["count"], 2**40 + np.arange(4))
    np.testing.assert_array_equal(rows["x"], np.full((4, 3), 1e-300))
    assert rows["j"].dtype == np.float32


def test_functions_among_the_leaves_of_a_state_do_not_keep_it_from_being_compiled(
    tmp_path: Path,
) -> None:
    traces = []

    def view(state: Any) -> Any:
        traces.append(None)
        return {"out": state[0](jnp.ones(2)), "name": jnp.float32(len(state[1]))}

    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    states = [(i, (model, "name")) for i in range(5)]
    write_frames(tmp_path / "a.h5", view, 1, states, states[0][1])
    assert len(traces) == 2
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_allclose(rows["out"], np.tile(model(jnp.ones(2)), (5, 1)), rtol=1e-6)
    np.testing.assert_array_equal(rows["name"], np.full(5, 4))


def test_shapes_alone_are_enough_to_begin_with(tmp_path: Path) -> None:
    shapes = jax.eval_shape(Particles.at_rest)
    run(HDF5StorageWriter(tmp_path / "a.h5", both(), shapes), steps=3)
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0].energy, [1, 2, 3])


def test_arrays_of_the_caller_may_change_after_log(tmp_path: Path) -> None:
    state = {"x": np.zeros(3)}
    with HDF5StorageWriter(
        tmp_path / "a.h5", {"frames": WriterGroupConfig(whole)}, state
    ) as writer:
        for step in range(100):
            state["x"][:] = step
            writer.log(state, step)
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0]["x"][:, 0], np.arange(100))


def test_log_does_not_wait_for_the_device(tmp_path: Path) -> None:
    gate = threading.Event()
    writer = HDF5StorageWriter(
        tmp_path / "a.h5", {"frames": WriterGroupConfig(whole)}, jnp.float32(0)
    )
    with writer:
        state = jax.jit(lambda x: x + 1)(pending(gate))
        writer.log(state, 0)
        assert not state.is_ready()
        gate.set()
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0], [9])


def test_arrays_that_are_sharded_over_devices_are_stored_whole(tmp_path: Path) -> None:
    mesh = jax.make_mesh((8,), ("i",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    state = {"x": jax.device_put(jnp.arange(8 * 20000.0), spec), "e": jnp.float32(3)}
    write_frames(tmp_path / "a.h5", whole, 1, [(0, state), (1, state)], state)
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0]["x"][1], np.arange(8 * 20000.0))


def test_arrays_that_come_to_be_sharded_later_are_stored_too(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2,), ("i",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    one = jax.device_put({"x": jnp.arange(4.0), "y": jnp.ones(2)}, jax.devices()[0])
    states = [one, jax.device_put(one, spec), one]
    write_frames(tmp_path / "a.h5", whole, 1, enumerate(jax.block_until_ready(states)), one)
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["x"], np.tile(np.arange(4.0), (3, 1)))
    np.testing.assert_array_equal(rows["y"], np.ones((3, 2)))


def test_arrays_on_different_devices_can_be_stored_together(tmp_path: Path) -> None:
    one, two = jax.devices()[:2]
    state = {"a": jax.device_put(jnp.ones(3), one), "b": jax.device_put(jnp.zeros(3), two)}
    write_frames(tmp_path / "a.h5", whole, 1, [(0, state), (1, state)], state)
    rows, _ = frames(tmp_path / "a.h5")
    np.testing.assert_array_equal(rows["a"], np.ones((2, 3)))
    np.testing.assert_array_equal(rows["b"], np.zeros((2, 3)))


@pytest.mark.parametrize("is_ready", [True, False])
def test_arrays_that_come_to_different_devices_later_are_refused(
    is_ready: bool, tmp_path: Path
) -> None:
    one, two = jax.devices()[:2]
    together = jax.device_put({"a": jnp.float32(0), "b": jnp.float32(1)}, one)
    gate = threading.Event()
    first = jnp.float32(8) if is_ready else pending(gate)
    apart = {"a": jax.device_put(first, one), "b": jax.device_put(jnp.float32(3), two)}
    if is_ready:
        jax.block_until_ready(apart)
    config = {"frames": WriterGroupConfig(whole)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, together) as writer:
        writer.log(together, 0)
        with pytest.raises(ValueError, match="devices"):
            writer.log(apart, 1)
        writer.log(together, 2)
        gate.set()
    rows, steps = frames(tmp_path / "a.h5")
    assert steps == [0, 2]
    np.testing.assert_array_equal(rows["b"], [1, 1])


def test_a_shape_is_no_state(tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(whole)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, jnp.zeros(3)) as writer:
        with pytest.raises(TypeError, match="ShapeDtypeStruct"):
            writer.log(jax.ShapeDtypeStruct((3,), jnp.float32), 0)
        writer.log(jnp.zeros(3), 1)
    assert frames(tmp_path / "a.h5")[1] == [1]


def test_rows_of_all_sizes_are_written_whole(tmp_path: Path) -> None:
    """Rows fill blocks exactly, nearly, and not at all; one row has several megabytes."""
    for size in (1, 7, 1000, 8191, 8192, 8193, 16383, 16384, 1_000_003):
        x = np.arange(size, dtype=np.uint8 if size % 2 else np.float64)
        path = tmp_path / f"{size}.h5"
        write_frames(path, whole, 1, [(i, x + i) for i in range(20)], x)
        rows, _ = frames(path)
        np.testing.assert_array_equal(
            rows, np.stack([x + np.asarray(i, x.dtype) for i in range(20)])
        )


def test_large_arrays_of_every_width_leave_the_program_unchanged(tmp_path: Path) -> None:
    """Copies use arithmetic, which must keep the payloads of NaNs and negative zeros."""
    random = np.random.default_rng(0)
    state = {
        name: jnp.asarray(np.frombuffer(random.bytes(2**17), dtype))
        for name, dtype in [("f", "f4"), ("h", "f2"), ("i", "i4"), ("b", "u1")]
    }
    write_frames(tmp_path / "a.h5", whole, 1, [(0, state)], state)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert_same(reader.focus_group("frames")[0], jax.device_get(state))


# With other parts of logax.


@pytest.mark.parametrize("way", ["tap", "a logger"])
def test_records_of_a_compiled_loop_can_be_stored(way: str, tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            logax.log({"x": x}, step=i)
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(10))[0]

    config = {"frames": WriterGroupConfig(lambda record: {"x": record["x"]}, EveryNStep(2))}
    with HDF5StorageWriter(tmp_path / "a.h5", config, {"x": np.float32(0)}) as writer:
        if way == "tap":
            stored = logax.tap(program, lambda record: writer.log(record, record.steps["step"]))
            stored(jnp.float32(5))
            logax.flush()
        else:
            logger = CallbackLogger(lambda record: writer.log(record.values, record.steps["step"]))
            with logger.run() as state:
                logger.tap(program, state, buffer=4)(jnp.float32(5))
    rows, steps = frames(tmp_path / "a.h5")
    assert steps == [0, 2, 4, 6, 8]
    np.testing.assert_array_equal(rows["x"], [5, 7, 9, 11, 13])


def test_schedules_and_configurations_have_types_that_can_be_written() -> None:
    alias = WriterGroupConfig[Particles, dict[str, float]]
    assert alias(whole, 1).logging_frequency == EveryNStep(1)
    assert HDF5StorageReader[Config].__origin__ is HDF5StorageReader


# Size.


@pytest.mark.parametrize(("compression", "total"), [*slow((None, None)), ("gzip", 40_000)])
def test_small_rows_take_little_more_than_their_own_bytes(
    compression: Any, total: int | None, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    state = random.normal(size=(40_000, 10)).astype(np.float32)
    names = [f"x{i}" for i in range(10)]
    first = dict(zip(names, state[0], strict=True))
    states = ((i, dict(zip(names, row, strict=True))) for i, row in enumerate(state))
    write_frames(
        tmp_path / "a.h5",
        whole,
        1,
        states,
        first,
        total_steps=total,
        compression=compression,
        flush_seconds=0.01,
    )
    assert (tmp_path / "a.h5").stat().st_size <= 1.2 * state.nbytes + 100_000
    rows, steps = frames(tmp_path / "a.h5")
    assert steps == list(range(40_000))
    np.testing.assert_array_equal(np.stack([rows[name] for name in names], axis=1), state)


def test_what_repeats_is_compressed(tmp_path: Path) -> None:
    state = {"x": np.zeros(5000), "e": np.float32(1)}
    for level in (None, 1, 9):
        path = tmp_path / f"{level}.h5"
        write_frames(path, whole, 1, [(i, state) for i in range(50)], state, compression=level)
        np.testing.assert_array_equal(frames(path)[0]["x"], np.zeros((50, 5000)))
    sizes = [(tmp_path / f"{level}.h5").stat().st_size for level in (None, 1, 9)]
    assert sizes[0] > 2_000_000
    assert max(sizes[1:]) < 150_000
