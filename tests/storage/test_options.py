"""Modes, resumption, options, and the errors of incorrect use."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax.storage._writer_thread as writer_thread
from gates import pending
from logax._support.progress_bars import Bar
from logax.storage import (
    EveryNStep,
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    StorageError,
    WriterGroupConfig,
    resume_state,
)
from logax.storage._commits import encode_commit, latest_commit
from logax.storage._layout import FileLayout
from loops import Particles, run
from trajectories import frames, write_frames


def whole(state: Any) -> Any:
    return state


def counted(steps: Any, add: float = 0) -> list[tuple[int, Any]]:
    return [(step, np.float32(step + add)) for step in steps]


def count(path: Path, steps: Any, add: float = 0, **options: Any) -> None:
    write_frames(path, whole, 1, counted(steps, add), np.float32(0), **options)


ONE = {"frames": WriterGroupConfig(whole, 1)}


# Modes.


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    count(path, range(3))
    before = path.read_bytes()
    with pytest.raises(FileExistsError) as caught:
        HDF5StorageWriter(path, ONE, np.float32(0))
    assert str(caught.value) == (
        f'`HDF5StorageWriter` creates a new file, and {path} exists. Write `mode="w"` to '
        'replace it, `mode="a"` to continue it, or another path.'
    )
    later = HDF5StorageWriter(tmp_path / "b.h5", ONE, np.float32(0))
    (tmp_path / "b.h5").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="exists"), later:
        pass
    assert path.read_bytes() == before
    assert (tmp_path / "b.h5").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "b.h5"]


def test_mode_w_replaces_a_file_whatever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"something else")
    count(path, range(3), mode="w")
    count(path, range(5), mode="w")
    assert frames(path)[1] == list(range(5))
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.h5").symlink_to(tmp_path / "folder" / "real.h5")
    count(tmp_path / "link.h5", range(3), mode="a")
    count(tmp_path / "link.h5", range(3, 6), mode="a")
    assert frames(tmp_path / "folder" / "real.h5")[1] == list(range(6))
    assert (tmp_path / "link.h5").is_symlink()


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("size", [1, 3000, 20_000])
def test_mode_a_begins_a_file_and_goes_on_with_it(
    compression: Any, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    for part in range(4):
        steps = range(10 * part, 10 * part + 10)
        states = [(step, np.full(size, step, np.float32)) for step in steps]
        write_frames(path, whole, 1, states, states[0][1], mode="a", compression=compression)
    rows, steps = frames(path)
    assert steps == list(range(40))
    np.testing.assert_array_equal(rows, np.full((size, 40), np.arange(40, dtype=np.float32)).T)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["frames/value"][:, 0], np.arange(40))


def test_rows_from_the_step_that_a_run_resumes_with_come_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    config = {
        "start": WriterGroupConfig(whole, Once()),
        **ONE,
        "tens": WriterGroupConfig(whole, 10),
    }

    def go(steps: range, add: float, start: int | None) -> None:
        writer = HDF5StorageWriter(path, config, np.float32(0), mode="a", start_step=start)
        with writer:
            for step, state in counted(steps, add):
                writer.log(state, step)

    go(range(37), 0, None)
    go(range(25, 60), 1000, 25)
    with HDF5StorageReader(path) as reader:
        assert reader.actual_steps == 60
        assert reader.focus_group("start")[...] == 0
        expected = [*range(25), *range(1025, 1060)]
        np.testing.assert_array_equal(reader.focus_group("frames")[...], np.float32(expected))
        np.testing.assert_array_equal(
            reader.focus_group("tens")[...], [0, 10, 20, 1030, 1040, 1050]
        )
    go(range(0), 0, 0)
    with HDF5StorageReader(path) as reader:
        assert (len(reader.focus_group("frames")), reader.actual_steps) == (0, 0)
        assert len(reader.focus_group("start")) == 0  # step 0 is logged again


def test_a_run_resumes_with_the_last_state_of_its_file_and_the_step_after_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.h5"
    start = {"x": jnp.float32(7), "n": np.int64(3)}
    config = {
        "states": WriterGroupConfig(whole, 10),
        "named": WriterGroupConfig(lambda state: {"state": state, "twice": 2 * state["x"]}, 5),
        "every": WriterGroupConfig(lambda state: state["x"], 1),
        "setup": WriterGroupConfig(whole, Once()),
    }
    assert resume_state(path, "states", start) == (start, 0)

    def go(state: Any, steps: range, first: int) -> None:
        with HDF5StorageWriter(path, config, state, mode="a", start_step=first) as writer:
            for step in steps:
                state = {"x": state["x"] + 1, "n": state["n"] + 1}
                writer.log(state, step)

    go(start, range(0), 0)
    assert resume_state(path, "states", start) == (start, 0)
    go(start, range(38), 0)
    state, first = resume_state(path, "states", start)
    assert (state, first) == ({"x": 38, "n": 34}, 31)
    assert isinstance(state["x"], jax.Array)
    assert isinstance(state["n"], np.generic)
    part = resume_state(path, "named", start, where=lambda row: row["state"])
    assert part == ({"x": 43, "n": 39}, 36)
    go(state, range(first, 60), first)
    with HDF5StorageReader(path) as reader:
        assert (reader.actual_steps, reader.complete) == (60, True)
        np.testing.assert_array_equal(reader.focus_group("every")[...], np.arange(8.0, 68.0))
        assert reader.focus_group("named").steps.tolist() == list(range(0, 60, 5))
    with pytest.raises(LookupError, match=r"`setup` was written once\. Store states under a sched"):
        resume_state(path, "setup", start)
    with pytest.raises(LookupError, match="has no such group"):
        resume_state(path, "frames", start)
    advice = "Give the group that holds the states, or select them from its rows with `where`."
    with pytest.raises(ValueError, match=re.escape(advice)) as caught:
        resume_state(path, "named", start)
    assert "cannot take the state from `named` of" in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(advice)) as caught:
        resume_state(path, "every", np.zeros(5, np.int32))
    assert "its rows have float32[] where `initial_state` has int32[5]." in str(caught.value)


def test_a_writer_that_is_entered_again_goes_on_and_never_drops_its_own_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.h5"
    goes_on = HDF5StorageWriter(path, ONE, np.float32(0), mode="a")
    for steps in (range(3), range(3, 5)):
        with goes_on:
            for step, state in counted(steps):
                goes_on.log(state, step)
    assert frames(path)[1] == [0, 1, 2, 3, 4]
    for options in ({"mode": "w"}, {"mode": "a", "start_step": 0}):
        writer = HDF5StorageWriter(path, ONE, np.float32(0), **options)  # type: ignore[arg-type]
        with writer:
            writer.log(np.float32(7), 7)
        with pytest.raises(RuntimeError) as caught, writer:
            pass
        assert str(caught.value) == (
            "`HDF5StorageWriter` was entered again, which would drop rows that it has written "
            f'to {path}. Make another writer: with `mode="a"` it goes on after them, with '
            '`mode="w"` it replaces them.'
        )
        assert frames(path)[1] == [7]


@pytest.mark.parametrize("size", [1, 2**20])  # many rows in a block, and one
def test_a_file_may_be_continued_often_among_rows_out_of_order(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    first = np.zeros(size, np.int8)
    times = 5 if size > 1 else 100
    for _ in range(times):
        write_frames(path, whole, 1, [(9, first), (3, first)], first, mode="a", start_step=5)
    assert frames(path)[1] == [3, 9]
    with HDF5StorageWriter(path, ONE, first, mode="a", start_step=5) as writer:
        assert writer._thread is not None
        assert writer._thread.trajectory.safe_rows == {"frames": times}  # without the void ones


def test_a_file_that_has_no_room_for_what_is_dropped_is_not_continued(tmp_path: Path) -> None:
    path, first = tmp_path / "a.h5", np.zeros(2**20, np.int8)
    last = 2**62
    write_frames(path, whole, 1, [(last, first), (0, first)], first)
    with h5py.File(path, "r+") as file:
        layout = FileLayout.from_json(bytes(file["logax/schema"][...]))
        commit, _ = latest_commit([bytes(each) for each in file["logax/commits"][...]], layout)
        assert commit is not None
        size, room = len(encode_commit(commit, layout.version)), layout.slot_bytes
        commit.groups[0].cuts = [(0, last - 1000 + i) for i in range((room - size) // 24)]
        data = encode_commit(commit, layout.version)
        file["logax/commits"][:, : len(data)] = np.frombuffer(data, np.uint8)
    with pytest.raises(StorageError) as caught:
        write_frames(path, whole, 1, [], first, mode="a", start_step=last)
    assert str(caught.value) == (
        f"A commit takes {len(data) + 25} bytes, and there is room for {room}: the file was "
        "continued too often in the middle of rows out of order. Write to a new one."
    )
    assert frames(path)[1] == [0, last]
    count(path, range(3), mode="w")  # the lock is free
    assert frames(path)[1] == [0, 1, 2]


def test_a_file_of_other_containers_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_frames(path, lambda x: {"x": (x, x)}, 1, counted(range(3)), np.float32(0))
    config = {"frames": WriterGroupConfig(lambda x: {"x": [x, x]}, 1)}
    told = "`frames` has containers of other types in the file. Write to another file."
    with pytest.raises(StorageError, match=told):
        HDF5StorageWriter(path, config, np.float32(0), mode="a").__enter__()


def test_a_file_that_this_process_has_open_elsewhere_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    count(path, range(3))
    told = "If this process has it open, in a reader or in h5py, close it there first"
    with h5py.File(path, "r", locking=False), pytest.raises(StorageError, match=told):
        HDF5StorageWriter(path, ONE, np.float32(0), mode="a").__enter__()
    count(path, range(3, 5), mode="a")
    assert frames(path)[1] == [0, 1, 2, 3, 4]


def test_an_array_that_is_too_large_for_a_row_is_named(tmp_path: Path) -> None:
    huge = np.broadcast_to(np.float64(0), (2**29,))
    told = (
        "`frames` returns `value` of 4294967296 bytes, and a row of one array has at most "
        "4294967288 bytes"
    )
    with pytest.raises(ValueError, match=told):
        HDF5StorageWriter(tmp_path / "a.h5", ONE, huge)


@pytest.mark.parametrize(
    ("view", "schedule", "difference"),
    [
        (lambda x: {"y": x}, 1, "the arrays are `frames/x` in the file, and `frames/y` now"),
        (lambda x: {"x": x.astype("f8")}, 1, "`frames/x` is float32 in the file, and float64 now"),
        (lambda x: {"x": x[None]}, 1, "`frames/x` is float32 in the file, and float32[1] now"),
        (lambda x: {"x": x}, Once(), "`frames` is not written once in the file"),
    ],
    ids=["name", "type", "shape", "once"],
)
def test_a_file_of_other_arrays_is_not_continued(
    view: Any, schedule: Any, difference: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    write_frames(path, lambda x: {"x": x}, 1, counted(range(3)), np.float32(0))
    before = path.read_bytes()
    config = {"frames": WriterGroupConfig(view, schedule)}
    with pytest.raises(StorageError, match="cannot continue") as caught:
        HDF5StorageWriter(path, config, np.float32(0), mode="a").__enter__()
    assert f"{difference}. Write to another file." in str(caught.value)
    other = {"others": WriterGroupConfig(lambda x: {"x": x}, 1)}
    with pytest.raises(StorageError, match="groups are `frames` in the file, and `others` now"):
        HDF5StorageWriter(path, other, np.float32(0), mode="a").__enter__()
    assert path.read_bytes() == before


def test_a_file_of_another_program_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("nothing of ours")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    for name in ("text.h5", "other.h5"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(StorageError, match="not a trajectory of logax"):
            HDF5StorageWriter(tmp_path / name, ONE, np.float32(0), mode="a").__enter__()
        assert (tmp_path / name).read_bytes() == before


# A row that does not fit.


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"x": np.zeros((3, 2), "f4"), "n": np.int32(1)},
            "`x`, which was float32[2,3], is now float32[3,2]",
        ),
        (
            {"x": np.zeros((2, 3), "i4"), "n": np.int32(1)},
            "`x`, which was float32[2,3], is now int32[2,3]",
        ),
        ({"x": np.zeros((2, 3), "f4")}, "the same structure, and now there is `n` missing"),
        ({"x": np.zeros((2, 3), "f4"), "m": np.int32(1)}, "there is `n` missing and `m` new"),
        ({"x": None, "n": np.int32(1)}, "`x` missing"),
    ],
    ids=["shape", "type", "missing", "renamed", "none"],
)
def test_a_row_that_does_not_fit_raises_where_it_is_logged_and_harms_no_other(
    bad: Any, message: str, compiled: bool, tmp_path: Path
) -> None:
    def state(step: int) -> Any:
        own = {"x": np.full((2, 3), step, "f4"), "n": np.int32(step)}
        return jax.tree.map(jnp.asarray, own) if compiled else own

    wrong = jax.tree.map(jnp.asarray, bad) if compiled else bad
    with HDF5StorageWriter(tmp_path / "a.h5", ONE, state(0)) as writer:
        for step in range(5):
            writer.log(state(step), step)
        with pytest.raises(ValueError, match="The view of `frames` must always return") as caught:
            writer.log(wrong, 5)
        assert message in str(caught.value)
        assert "This step was not stored; all others are." in str(caught.value)
        for step in range(6, 9):
            writer.log(state(step), step)
    rows, steps = frames(tmp_path / "a.h5")
    assert steps == [0, 1, 2, 3, 4, 6, 7, 8]
    np.testing.assert_array_equal(rows["n"], steps)


def test_a_step_whose_view_fails_is_in_no_group(tmp_path: Path) -> None:
    def fails(state: Any) -> Any:
        if state > 2:
            raise ArithmeticError("too large")
        return state

    config = {"a": WriterGroupConfig(fails, 1), "b": WriterGroupConfig(whole, 1)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0)) as writer:
        for step, state in counted(range(3)):
            writer.log(state, step)
        with pytest.raises(ArithmeticError, match="too large"):
            writer.log(np.float32(3), 3)
        writer.log(np.float32(1), 4)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.focus_group("a").steps.tolist() == [0, 1, 2, 4]
        assert reader.focus_group("b").steps.tolist() == [0, 1, 2, 4]


def test_a_number_with_more_bits_than_before_is_refused_and_not_rounded(tmp_path: Path) -> None:
    with HDF5StorageWriter(tmp_path / "a.h5", ONE, {"x": jnp.float32(0)}) as writer:
        writer.log({"x": jnp.float32(1)}, 0)
        with pytest.raises(ValueError, match="`x`, which was float32, is now float64"):
            writer.log({"x": np.float64(0.1)}, 1)
        writer.log({"x": np.float32(2)}, 2)
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0]["x"], [1, 2])


@pytest.mark.parametrize("number", [2**63 + 5, 2**70])
def test_a_number_of_python_that_is_too_large_is_refused(number: int, tmp_path: Path) -> None:
    with HDF5StorageWriter(tmp_path / "a.h5", ONE, {"n": 1}) as writer:
        writer.log({"n": 2}, 0)
        with pytest.raises((ValueError, TypeError), match="The view of `frames`"):
            writer.log({"n": number}, 1)
        writer.log({"n": 3}, 2)
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0]["n"], [2, 3])


def test_a_state_that_is_gone_raises_where_it_is_logged(tmp_path: Path) -> None:
    with HDF5StorageWriter(tmp_path / "a.h5", ONE, jnp.zeros(3)) as writer:
        state = jnp.ones(3)
        writer.log(state, 0)
        state.delete()
        with pytest.raises(RuntimeError, match="deleted"):
            writer.log(state, 1)
        writer.log(jnp.ones(3), 2)
    assert frames(tmp_path / "a.h5")[1] == [0, 2]


def test_inside_a_compiled_function_there_is_nothing_to_store(tmp_path: Path) -> None:
    with HDF5StorageWriter(tmp_path / "a.h5", ONE, jnp.zeros(3)) as writer:

        @jax.jit
        def step(x: Any) -> Any:
            writer.log(x, 0)
            return x

        with pytest.raises(TypeError, match="called inside a function that JAX traces"):
            step(jnp.zeros(3))
        writer.log(jnp.ones(3), 0)
    assert frames(tmp_path / "a.h5")[1] == [0]


# The end.


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt, SystemExit])
def test_all_rows_are_kept_when_the_loop_fails(error: Any, tmp_path: Path) -> None:
    def at(step: int) -> None:
        if step == 4:
            raise error

    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, Particles.at_rest(), 100)
    with pytest.raises(error):
        run(writer, at=at)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert (reader.complete, reader.actual_steps, reader.total_steps) == (True, 5, 100)
        np.testing.assert_array_equal(reader.focus_group("frames")[...].energy, np.arange(1, 6))


def test_after_the_end_and_before_the_beginning_log_raises(tmp_path: Path) -> None:
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0))
    with pytest.raises(RuntimeError, match=r"`HDF5StorageWriter.log` was called outside of its"):
        writer.log(np.float32(0), 0)
    with writer:
        writer.log(np.float32(0), 0)
    with pytest.raises(RuntimeError, match="outside of its `with` block"):
        writer.log(np.float32(0), 1)
    with pytest.raises(FileExistsError), writer:
        pass


def test_what_was_begun_and_never_ended_is_ended_at_exit(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from logax.storage import HDF5StorageWriter, WriterGroupConfig\n"
        "config = {'frames': WriterGroupConfig(lambda x: x, 1)}\n"
        "writer = HDF5StorageWriter(sys.argv[1], config, np.float32(0)).__enter__()\n"
        "for step in range(100): writer.log(np.float32(step), step)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "a.h5"], check=True)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.complete
        np.testing.assert_array_equal(reader.focus_group("frames")[...], np.arange(100))


def test_the_end_shows_what_is_still_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first drawing of the bar opens the gate for the rows."""
    gate = threading.Event()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "writing" in text:
                gate.set()
            return super().write(text)

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(writer_thread, "_PROGRESS_DELAY_SECONDS", 0.0)
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, jnp.float32(0))
    with writer:
        x = pending(gate)
        for step in range(10):
            writer.log(x, step)
    assert "writing" in screen.getvalue()
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0], np.full(10, 8))


class Interrupted(Bar):
    """A bar that raises an interrupt in its first `times` drawings, and then opens the gate."""

    def __init__(self, gate: threading.Event, times: int) -> None:
        super().__init__(io.StringIO(), 10, 0)
        self.gate, self.left = gate, times

    def draw(self, position: int, values: str = "") -> None:
        self.left -= 1
        if self.left <= 0:
            self.gate.set()
        if self.left >= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_of_the_end_costs_no_row_and_a_second_leaves_the_file_whole(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(writer_thread, "_PROGRESS_DELAY_SECONDS", 0.0)
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, jnp.float32(0))
    with pytest.raises(KeyboardInterrupt) as caught, writer:  # noqa: PT012 - the end raises
        writer.log(jnp.float32(0), 0)
        x = pending(gate)
        for step in range(1, 10):
            writer.log(x, step)
        bar = Interrupted(gate, times)
        bar.due = 0.0
        monkeypatch.setattr(writer_thread, "Bar", lambda *_: bar)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        rows = reader.focus_group("frames")
        lost = 10 - len(rows)
        np.testing.assert_array_equal(rows[...], [0, *[8] * (9 - lost)])
        assert reader.complete == (times == 1)
    if times == 1:
        assert (lost, getattr(caught.value, "__notes__", [])) == (0, [])
    else:
        assert f"interrupted at its end, and {lost} rows were not" in caught.value.__notes__[0]


def test_who_interrupts_the_end_again_and_again_is_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits for the device; the finalizer of the writer closes the file."""
    gate = threading.Event()
    monkeypatch.setattr(writer_thread, "_PROGRESS_DELAY_SECONDS", 0.0)
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, jnp.float32(0))
    with pytest.raises(KeyboardInterrupt), writer:  # noqa: PT012 - the end raises
        run = writer._thread
        x = pending(gate)
        for step in range(10):
            writer.log(x, step)
        bar = Interrupted(gate, 4)
        bar.due = 0.0
        monkeypatch.setattr(writer_thread, "Bar", lambda *_: bar)
    assert run is not None
    assert not run.is_over
    writer._finalizer()
    while not run.is_over:
        pass
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert not reader.complete
        assert reader.focus_group("frames")[...].tolist() in (
            [],
            [8],
        )  # it may have begun


class Closed:
    """The standard error of a program whose window was closed."""

    def isatty(self) -> bool:
        raise RuntimeError("the window was closed")


@pytest.mark.parametrize(
    ("console", "why"), [(None, "AttributeError.*'write'"), (Closed(), "RuntimeError: the window")]
)
@pytest.mark.parametrize("action", ["default", "error"])
def test_a_bar_that_cannot_be_drawn_at_the_end_costs_no_row(
    action: str, console: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs without a console have no standard error."""
    gate, tried_again = threading.Event(), threading.Event()
    bars: list[Any] = []

    def bar(*options: Any) -> Bar:
        bars.append(options)
        try:
            return Bar(*options)
        finally:
            if len(bars) == 1:
                threading.Thread(target=lambda: (tried_again.wait(0.3), gate.set())).start()
            else:
                tried_again.set()

    def loop() -> None:
        with HDF5StorageWriter(tmp_path / "a.h5", ONE, jnp.float32(0)) as writer:
            x = pending(gate)
            for step in range(14):
                writer.log(x, step)
            monkeypatch.setattr(sys, "stderr", console)

    monkeypatch.setattr(writer_thread, "_PROGRESS_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(writer_thread, "Bar", bar)
    told = f"The progress bar cannot be drawn: {why}"
    if action == "error":
        with pytest.raises(UserWarning, match=told):
            loop()
    else:
        with pytest.warns(UserWarning, match=told):
            loop()
    assert len(bars) == 1
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.complete
        np.testing.assert_array_equal(reader.focus_group("frames")[...], np.full(14, 8))


def test_a_row_that_comes_while_the_block_ends_is_stored_or_refused(tmp_path: Path) -> None:
    """Every `log` of another thread either raises or has its row in the file."""
    stored: list[int] = []
    begun = threading.Event()

    def others(writer: HDF5StorageWriter) -> None:
        with contextlib.suppress(RuntimeError):
            for step in range(20_000):
                writer.log(np.float32(step), step)
                stored.append(step)
                begun.set()

    with HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0)) as writer:
        thread = threading.Thread(target=others, args=(writer,))
        thread.start()
        begun.wait()
    thread.join()
    assert frames(tmp_path / "a.h5")[1] == stored


def test_a_file_that_is_deleted_under_its_writer_is_told(tmp_path: Path) -> None:
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0))
    with pytest.raises(StorageError) as caught, writer:
        os.unlink(tmp_path / "a.h5")
    assert str(caught.value) == (
        f"`HDF5StorageWriter` could not write to {tmp_path / 'a.h5'}: StorageError: the file was "
        "deleted while it was being written. Rows that are safe in it: 0 of `frames`. When the "
        'cause is fixed, go on with `mode="a"`.'
    )


def test_a_file_that_is_deleted_is_told_in_the_loop_and_none_of_its_rows_is_called_safe(
    tmp_path: Path,
) -> None:
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0), flush_seconds=0)

    def loop() -> None:
        with writer:
            writer.log(np.float32(0), 0)
            with HDF5StorageReader(tmp_path / "a.h5") as reader:
                next(reader.follow("frames"))  # it is safe
            os.unlink(tmp_path / "a.h5")
            for step in range(1, 2**40):
                writer.log(np.float32(step), step)

    with pytest.raises(StorageError, match=r"deleted while .* 0 of `frames`"):
        loop()


def spoil(path: Path, way: str) -> str:
    """Damage the file of a writer as another program may, and return the expected message."""
    if way == "renamed":
        path.rename(path.with_suffix(".moved"))
        return "the file was renamed while it was being written"
    if way == "replaced":
        path.rename(path.with_suffix(".moved"))
        path.write_text("something else")
        return "the file was replaced by another one while it was being written"
    if way == "written over":
        new = path.with_suffix(".new")
        new.write_text("something else")
        new.rename(path)
        return "the file was replaced by another one while it was being written"
    if way == "deleted":
        path.unlink()
        return "the file was deleted while it was being written"
    size = path.stat().st_size
    left = {"cut a little": size - 1, "cut": 1000, "emptied": 0}[way]
    os.truncate(path, left)
    return f"another program truncated the file while it was being written, from {size} to {left} "


SPOILT = ["renamed", "replaced", "written over", "deleted", "cut a little", "cut", "emptied"]


@pytest.mark.parametrize("size", [3, 2**15])  # rows that are stored in a commit, and larger ones
@pytest.mark.parametrize("way", SPOILT)
def test_a_file_that_another_program_moves_or_cuts_is_told(
    way: str, size: int, tmp_path: Path
) -> None:
    path, first = tmp_path / "a.h5", np.zeros(size)
    said = ""

    def loop(last: int) -> None:
        nonlocal said
        with HDF5StorageWriter(path, ONE, first, flush_seconds=0, mode="w") as writer:
            writer.log(first, 0)
            with HDF5StorageReader(path) as reader:
                next(reader.follow("frames"))  # it is safe, and the thread is idle
            said = spoil(path, way)
            for step in range(1, last):
                writer.log(first + step, step)

    safe = {"renamed": r"[1-9]\d*", "replaced": r"[1-9]\d*"}.get(way, "0")
    for last in (1, 2**40):  # at the end, and in the loop
        with pytest.raises(StorageError) as caught:
            loop(last)
        begin = f"`HDF5StorageWriter` could not write to {path}: StorageError: {said}"
        assert str(caught.value).startswith(begin)
        assert re.search(f"Rows that are safe in it: {safe} of `frames`", str(caught.value))
        if safe != "0":
            number = frames(path.with_suffix(".moved"))[1]
            assert f" {len(number)} of `frames`" in str(caught.value)


def test_a_file_that_is_cut_and_grows_again_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"

    def loop() -> None:
        with HDF5StorageWriter(path, ONE, np.float32(0), flush_seconds=0) as writer:
            writer.log(np.float32(0), 0)
            with HDF5StorageReader(path) as reader:
                next(reader.follow("frames"))
            size = path.stat().st_size
            os.truncate(path, 1000)
            os.truncate(path, size)

    with pytest.raises(StorageError, match="truncated the file, or wrote to it, while it was bei"):
        loop()


def test_many_steps_that_never_come_cost_nothing(tmp_path: Path) -> None:
    write_frames(
        tmp_path / "a.h5", whole, 1, [(0, np.zeros(9000))], np.zeros(9000), total_steps=2**70
    )
    assert frames(tmp_path / "a.h5")[0].shape == (1, 9000)


def test_a_writer_that_is_forgotten_gives_its_file_free(tmp_path: Path) -> None:
    def cell() -> HDF5StorageWriter:
        writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0), mode="w")
        writer.__enter__()
        writer.log(np.float32(5), 0)
        return writer

    kept = cell()
    with pytest.raises(StorageError, match="another writer, or another program, has open"):
        cell()
    assert kept is not None
    del kept
    cell()
    np.testing.assert_array_equal(frames(tmp_path / "a.h5")[0], [5])


def forgotten(path: Path) -> Any:
    """Return the thread of a writer in a reference cycle, which only the collector frees."""
    writer = HDF5StorageWriter(path, ONE, np.float32(0), flush_seconds=60)
    writer.__enter__()
    for step in range(100):
        writer.log(np.float32(step), step)
    writer.itself = writer  # type: ignore[attr-defined]
    return writer._thread


@pytest.mark.parametrize("where", ["the thread of the writer", "a process without threads"])
def test_a_writer_that_is_forgotten_ends_wherever_python_finds_that_out(
    where: str, tmp_path: Path
) -> None:
    gc.collect()
    gc.disable()
    try:
        run = forgotten(tmp_path / "a.h5")
        if where == "the thread of the writer":
            run._worker.put(0, gc.collect)
        else:
            usual = threading.stack_size(2**50)  # as if the system allowed no further thread
            try:
                gc.collect()
            finally:
                threading.stack_size(usual)
            assert run.is_over
    finally:
        gc.enable()
    while not run.is_over:
        pass
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.complete
        np.testing.assert_array_equal(reader.focus_group("frames")[...], np.arange(100))


def test_a_writer_that_is_forgotten_where_hdf5_is_locked_ends_all_the_same(tmp_path: Path) -> None:
    """Python may finalize a writer anywhere, also where another thread waits for this one."""
    writer = HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0), flush_seconds=60)
    writer.__enter__()
    for step in range(100):
        writer.log(np.float32(step), step)
    with h5py._objects.phil:
        del writer
    ends = [
        each for each in threading.enumerate() if each.name == f"{writer_thread.THREAD_NAME}-end"
    ]
    for thread in ends:
        thread.join(60)
    assert len(ends) == 1
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.complete
        np.testing.assert_array_equal(reader.focus_group("frames")[...], np.arange(100))


def test_a_start_that_never_came_is_told(tmp_path: Path) -> None:
    config = {"start": WriterGroupConfig(whole, Once()), **ONE}
    with (
        pytest.warns(UserWarning, match=r"`start` was never written: `Once\(\)` is step 0"),
        HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0)) as writer,
    ):
        writer.log(np.float32(1), 1)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert list(reader.to_xarray().children) == ["frames"]


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "r"}, "takes `mode` as 'x', 'w' or 'a', and got 'r'"),
        ({"start_step": 3}, "takes `start_step` where a file is continued, and got mode 'x'"),
        ({"mode": "a", "start_step": -1}, "takes `start_step` of 0 or more, and got -1"),
        ({"compression": "zstd"}, "takes `compression` as None, 'gzip' or a level from 1 to 9"),
        ({"compression": 0}, "and got 0"),
        ({"flush_seconds": -1}, "takes `flush_seconds` in seconds"),
        ({"queue_bytes": 0}, "takes `queue_bytes` of 1 or more, and got 0"),
        ({"when_full": "wait"}, "takes `when_full` as 'block' or 'drop', and got 'wait'"),
        ({"total_steps": -1}, "takes `total_steps` of 0 or more"),
        ({"total_steps": 1.5}, "takes `total_steps` of 0 or more"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_options_that_are_wrong_are_named(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`HDF5StorageWriter`") as caught:
        HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0), **options)
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == []


@dataclasses.dataclass
class Plain:
    frames: Any


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "got a configuration without a `WriterGroupConfig`"),
        ({"a": 3}, "and `a` is 3 of type `int`. Write `WriterGroupConfig(view, schedule)`."),
        (
            {"a": whole},
            "Write `WriterGroupConfig(view, EveryNStep(10))` with that function as view",
        ),
        (Plain, "the configuration is <class"),
        ({0: ONE["frames"], "0": ONE["frames"]}, "got two groups called `0`"),
        ({"logax": ONE["frames"]}, "reserves `logax` for itself"),
        ({(1, 2): ONE["frames"]}, "The key (1, 2) of a dictionary cannot be stored"),
    ],
    ids=["empty", "number", "function", "class", "twice", "reserved", "key"],
)
def test_configurations_that_are_wrong_are_named(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0))
    assert message in str(caught.value)


def test_groups_and_schedules_of_other_libraries_count_by_their_names(tmp_path: Path) -> None:
    class Start:
        def should_log(self, step: int) -> bool:
            return step == 0

        def leading_shape(self, total_steps: int) -> tuple[int, ...]:
            return ()

    @dataclasses.dataclass
    class Group:
        view: Any
        logging_frequency: Any

    config = {"start": Group(whole, Start()), "frames": Group(whole, EveryNStep(2))}
    with HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0)) as writer:
        for step, state in counted(range(5), add=1):
            writer.log(state, step)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.focus_group("start")[...] == 1
        np.testing.assert_array_equal(reader.focus_group("frames")[...], [1, 3, 5])


def test_groups_take_a_function_and_a_schedule() -> None:
    with pytest.raises(
        TypeError, match="`WriterGroupConfig` takes a view, a function of the state"
    ):
        WriterGroupConfig(EveryNStep(3), whole)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="The schedule of `WriterGroupConfig` takes a whole number"
    ):
        WriterGroupConfig(whole, 0)


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(lambda x: ({"a": {0: x, "0": x}}), 1)}
    with pytest.raises(ValueError, match="returns two arrays called `frames/a/0`"):
        HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0))


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (-1, ValueError, "takes steps from 0 to 2**63 - 1, and got -1"),
        (2**63, ValueError, "takes steps from 0 to 2**63 - 1, and got 9223372036854775808"),
        (1.5, TypeError, "takes the number of the step, an int, and got 1.5"),
    ],
)
def test_steps_are_counted_from_zero(
    step: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with HDF5StorageWriter(tmp_path / "a.h5", ONE, np.float32(0)) as writer:
        with pytest.raises(error) as caught:
            writer.log(np.float32(0), step)
        assert message in str(caught.value)


def test_places_where_nothing_can_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        HDF5StorageWriter(tmp_path / "none" / "a.h5", ONE, np.float32(0))
    with pytest.raises(IsADirectoryError, match="takes the path of a file"):
        HDF5StorageWriter(tmp_path, ONE, np.float32(0))
    with pytest.raises(TypeError, match="takes a path as `out_path`, and got 3"):
        HDF5StorageWriter(3, ONE, np.float32(0))  # type: ignore[arg-type]


def test_without_h5py_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(tmp_path / "a.h5", range(3))
    monkeypatch.setitem(sys.modules, "h5py", None)
    line = r'h5py, which is not installed. Write `pip install "logax\[hdf5\]"`'
    with pytest.raises(ImportError, match=f"`HDF5StorageReader` needs {line}"):
        HDF5StorageReader(tmp_path / "a.h5")
    with pytest.raises(ImportError, match=f"`HDF5StorageWriter` needs {line}"):
        HDF5StorageWriter(tmp_path / "b.h5", ONE, np.float32(0))
    assert os.listdir(tmp_path) == ["a.h5"]
