"""`RingBufferLogger`: the states it keeps, and the file it writes after a crash."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax import EveryNStep
from logax._support import arrays as _copies
from logax.loop import CompositeLogger, NullLogger, RingBufferLogger
from loops import Particles, advance, held_state, run


def test_the_last_states_are_there_oldest_first() -> None:
    ring = RingBufferLogger(3)
    run(ring)
    assert [step for step, _ in ring.buf] == [7, 8, 9]
    for step, state in ring.buf:
        assert isinstance(state, Particles)
        assert isinstance(state.position, np.ndarray)
        np.testing.assert_array_equal(state.position, np.full((4, 2), step + 1.0))
        assert state.energy == step + 1


def test_a_view_a_schedule_and_a_ring_that_is_not_full() -> None:
    ring = RingBufferLogger(9, lambda state: state.energy, schedule=EveryNStep(4))
    run(ring)
    assert ring.buf == [(0, 1.0), (4, 5.0), (8, 9.0)]
    run(ring, steps=1)
    assert ring.buf == [(0, 1.0)]


class KeepsReferences(NullLogger):
    """Calls that a logger must not make."""

    def log(self, state: Any, step: int) -> None:
        self.kept = state


def test_keeping_a_reference_to_a_donated_state_is_found_out() -> None:
    careless, ring = KeepsReferences(), RingBufferLogger(2)
    state = run(CompositeLogger(careless, ring))
    advance(state)
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(careless.kept.position)
    assert [float(kept.energy) for _, kept in ring.buf] == [9.0, 10.0]


def test_what_is_looked_at_in_the_loop_stays_when_the_loop_goes_on() -> None:
    ring = RingBufferLogger(1)
    seen: list[Any] = []
    run(ring, at=lambda step: seen.append(ring.buf[0]))
    assert [step for step, _ in seen] == list(range(10))
    assert [float(state.energy) for _, state in seen] == [step + 1.0 for step in range(10)]


def test_nobody_waits_for_the_device() -> None:
    with RingBufferLogger(2) as ring, held_state() as state:
        for step in range(5):
            ring.log(state, step)
    assert [step for step, _ in ring.buf] == [3, 4]


def test_the_copies_are_one_program_whatever_the_number_of_steps() -> None:
    ring = RingBufferLogger(3)
    run(ring)
    programs = _copies._copy._cache_size()
    state = Particles.at_rest()
    with ring, jax.transfer_guard("disallow"):
        for step in range(20):
            ring.log(state, step)
    assert _copies._copy._cache_size() == programs


@pytest.mark.parametrize("inside", [False, True])
def test_what_a_ring_keeps_on_the_device_is_free_as_soon_as_the_ring_is_dropped(
    inside: bool,
) -> None:
    """And not only when Python looks for circles of objects, which may take it long."""
    gc.collect()
    gc.disable()
    try:
        ring: Any = RingBufferLogger(2)
        logger: Any = CompositeLogger(ring) if inside else ring
        run(logger)
        kept = [weakref.ref(ring), weakref.ref(logger), weakref.ref(ring._entries[0][1].position)]
        assert all(each() is not None for each in kept)
        del ring, logger
        assert [each() for each in kept] == [None] * 3
    finally:
        gc.enable()


def test_numpy_arrays_are_copied_and_other_things_stay() -> None:
    array = np.zeros(3)
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    with RingBufferLogger(1) as ring:
        ring.log({"array": array, "name": "a", "model": model, "key": jax.random.key(7)}, 0)
    array += 1
    ((_, kept),) = ring.buf
    np.testing.assert_array_equal(kept["array"], np.zeros(3))
    assert kept["name"] == "a"
    assert kept["model"].activation is model.activation
    np.testing.assert_array_equal(kept["model"].layers[0].weight, model.layers[0].weight)
    np.testing.assert_array_equal(kept["key"], jax.random.key_data(jax.random.key(7)))


def test_arrays_on_several_devices_are_copied_where_they_are() -> None:
    first, second, *_ = jax.devices()
    mesh = jax.make_mesh((8,), ("x",))
    rows = jax.NamedSharding(mesh, jax.P("x")) if hasattr(jax, "NamedSharding") else None
    rows = rows or jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    state = {
        "one": jax.device_put(jnp.arange(3.0), first),
        "two": jax.device_put(jnp.arange(4.0), second),
        "all": jax.device_put(jnp.arange(8.0), rows),
    }
    with RingBufferLogger(1) as ring:
        ring.log(state, 0)
        (_, kept) = ring._entries[0]
    assert {name: x.sharding for name, x in kept.items()} == {
        name: x.sharding for name, x in state.items()
    }
    ((_, value),) = ring.buf
    jax.tree.map(np.testing.assert_array_equal, value, state)


# After a crash.


def fail_at(last: int, error: type[BaseException] = ZeroDivisionError) -> Any:
    def fail(step: int) -> None:
        if step == last:
            raise error("over")

    return fail


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_loop_that_dies_leaves_a_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "last.npz"
    with pytest.raises(error, match="over") as caught:
        run(RingBufferLogger(3, dump=path), at=fail_at(5, error))
    with np.load(path, allow_pickle=False) as arrays:
        assert sorted(arrays) == ["energy", "position", "step"]
        np.testing.assert_array_equal(arrays["step"], [3, 4, 5])
        np.testing.assert_array_equal(arrays["energy"], [4, 5, 6])
        assert arrays["position"].shape == (3, 4, 2)
    assert caught.value.__notes__ == [
        f"`RingBufferLogger` wrote the states of steps 3 to 5 to {path}."
    ]
    assert os.listdir(tmp_path) == ["last.npz"]


def test_a_loop_that_ends_or_dies_unasked_leaves_none(tmp_path: Path) -> None:
    run(RingBufferLogger(3, dump=tmp_path / "last.npz"))
    with pytest.raises(ZeroDivisionError) as caught:
        run(RingBufferLogger(3), at=fail_at(5))
    assert os.listdir(tmp_path) == []
    assert not hasattr(caught.value, "__notes__")


def loaded(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def crash(ring: Any, states: dict[int, Any], lose: int | None = None) -> Any:
    """A loop over these states that dies, perhaps with one of its programs, and what it dies of."""

    def loop() -> None:
        with ring:
            for step, state in states.items():
                ring.log(state, step)
            if lose is not None:
                ring._entries[lose][1].delete()
            raise ZeroDivisionError("over")

    with pytest.raises(ZeroDivisionError) as caught:
        loop()
    return caught.value


def test_every_kind_of_array_can_be_dumped(tmp_path: Path) -> None:
    state = {
        "half": jnp.array([1.5, -2], jnp.bfloat16),
        "eighth": jnp.array([0.5], jnp.float8_e4m3fn),
        "nibble": jnp.array([-3], jnp.int4),
        "whole": jnp.array([2**31 - 1]),
        "complex": jnp.array(1 + 2j),
        "key": jax.random.key(3),
        "step": jnp.float32(4),
        "nested": [jnp.zeros((0, 3)), {"a": 1.5}],
        "name": "left out",
    }
    crash(RingBufferLogger(2, dump=tmp_path / "x"), {8: state})
    arrays = loaded(tmp_path / "x")
    expected = {
        "half": ([[1.5, -2]], np.float32),
        "eighth": ([[0.5]], np.float32),
        "nibble": ([[-3]], np.int32),
        "whole": ([[2**31 - 1]], np.int32),
        "complex": ([1 + 2j], np.complex64),
        "key": ([jax.random.key_data(jax.random.key(3))], np.uint32),
        "step_": ([4.0], np.float32),
        "nested/0": (np.zeros((1, 0, 3)), np.float32),
        "nested/1/a": ([1.5], np.float64),
        "step": ([8], np.int64),
    }
    assert sorted(arrays) == sorted(expected)
    for name, (value, dtype) in expected.items():
        np.testing.assert_array_equal(arrays[name], value)
        assert arrays[name].dtype == dtype


def test_states_that_change_their_shape_are_dumped_one_by_one(tmp_path: Path) -> None:
    states = {step: {"grows": jnp.ones(step + 1), "stays": jnp.ones(2)} for step in range(3)}
    crash(RingBufferLogger(3, dump=tmp_path / "x"), states)
    arrays = loaded(tmp_path / "x")
    assert sorted(arrays) == ["grows@0", "grows@1", "grows@2", "stays", "step"]
    assert [arrays[f"grows@{step}"].size for step in range(3)] == [1, 2, 3]


def test_what_cannot_be_fetched_is_counted_and_the_rest_is_written(tmp_path: Path) -> None:
    ring = RingBufferLogger(3, dump=tmp_path / "x")
    states = {step: jnp.float32(step) for step in range(3)}
    error = crash(ring, states, lose=1)
    np.testing.assert_array_equal(loaded(tmp_path / "x")["value"], [0, 2])
    assert error.__notes__[0].endswith("x. 1 more could not be fetched.")


def test_a_file_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def fail(step: int) -> None:
        folder.rmdir()
        raise ZeroDivisionError("over")

    with pytest.raises(ZeroDivisionError, match="over") as caught:
        run(RingBufferLogger(3, dump=folder / "x.npz"), at=fail)
    (note,) = caught.value.__notes__
    assert note.startswith("`RingBufferLogger` could not write the last states to ")
    assert "FileNotFoundError" in note


FULL_DISK = """
import resource, sys, jax.numpy as jnp
from logax.loop import RingBufferLogger
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with RingBufferLogger(2, dump=sys.argv[1]) as ring:
    ring.log(jnp.zeros(5000), 0)
    raise ZeroDivisionError("over")
"""


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"what was there before")
    command = [sys.executable, "-c", FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ZeroDivisionError: over" in done.stderr
    assert "could not write the last states" in done.stderr
    assert os.listdir(tmp_path) == ["x.npz"]
    assert path.read_bytes() == b"what was there before"


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3"])
def test_a_ring_has_room_for_one_or_more(k: Any) -> None:
    with pytest.raises(ValueError, match="`RingBufferLogger` takes `k` of 1 or more, and got"):
        RingBufferLogger(k)


def test_a_file_that_cannot_be_written_is_an_error_before_the_loop(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"`RingBufferLogger` writes to .* Make it first\."):
        run(RingBufferLogger(3, dump=tmp_path / "none" / "x.npz"))
    with pytest.raises(IsADirectoryError, match="is a folder"):
        run(RingBufferLogger(3, dump=tmp_path))
    with pytest.raises(FileExistsError, match="/dev/null is something else"):
        run(RingBufferLogger(3, dump=os.devnull))
    with pytest.raises(TypeError, match="`RingBufferLogger` takes a path as `dump`, and got 3"):
        RingBufferLogger(3, dump=3)  # type: ignore[arg-type]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to(tmp_path / "file.npz")
    crash(RingBufferLogger(2, dump=tmp_path / "link.npz"), {0: jnp.zeros(2)})
    assert (tmp_path / "link.npz").is_symlink()
    assert sorted(loaded(tmp_path / "file.npz")) == ["step", "value"]


def test_names_of_all_kinds_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 60)
    state = {
        "file": 1.0,
        "allow_pickle": 2.0,
        "step": 3.0,
        "step_": 4.0,
        "a": {"b": 5.0},
        "a/b": 6.0,
        "": 7.0,
        "value": 8.0,
        "größe": 9.0,
        "\udc80": 10.0,
    }
    crash(RingBufferLogger(2, dump=path), {0: state})
    arrays = loaded(path)
    values = sorted(float(array[0]) for name, array in arrays.items() if name != "step")
    assert values == [float(number) for number in range(1, 11)]
    assert arrays["file"] == 1.0
    assert arrays["größe"] == 9.0


def test_what_cannot_be_stored_is_named_and_the_rest_is_written(tmp_path: Path) -> None:
    state = {
        "good": jnp.ones(2),
        "object": object(),
        "none": np.zeros(2, jax.dtypes.float0),
        "objects": np.array([object()]),
        "texts": np.array(["a", "b"]),
        "pairs": np.zeros(2, [("x", "f4"), ("y", "i4")]),
        "other order": np.ones(2, ">f8"),
        "dates": np.array(["2026-01-01"], "datetime64[D]"),
    }
    error = crash(RingBufferLogger(2, dump=tmp_path / "x"), {0: state})
    kinds = {name: array.dtype.str for name, array in loaded(tmp_path / "x").items()}
    assert kinds.pop("pairs") is not None
    assert kinds == {
        "step": "<i8",
        "good": "<f4",
        "texts": "<U1",
        "other order": "<f8",
        "dates": "<M8[D]",
    }
    note = error.__notes__[0]
    assert "Left out, since they are not arrays: `none`, `object`, `objects`." in note


def test_an_error_that_takes_no_notes_stays_what_it_is(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):  # noqa: N818
        code: int

    def fail(step: int) -> None:
        raise Frozen(3)

    with pytest.warns(UserWarning, match="`RingBufferLogger` wrote"), pytest.raises(Frozen):
        run(RingBufferLogger(2, dump=tmp_path / "x"), at=fail)
