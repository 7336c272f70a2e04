"""`ProfileLogger`: the trace has exactly the requested steps, also if the loop fails."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax.loop import CompositeLogger, NullLogger, ProfileLogger, ProfileReport, run_loop
from logax.loop import _profiler_trace as _recording
from logax.loop import _profiler_trace as trace_module
from logax.loop._profiler_trace import Operation, read_report
from loops import Particles, held_state


def _work(state: Any) -> Any:
    """Long enough to be under way when it is logged, were it not waited for."""
    return jax.lax.fori_loop(0, 40, lambda _, x: jnp.sin(x @ x), state)


def inside(state: Any) -> Any:
    return _work(state)


def beside(state: Any) -> Any:
    return _work(state) + 1


INSIDE = jax.jit(inside, donate_argnums=0)
BESIDE = jax.jit(beside, donate_argnums=0)


def start() -> Any:
    return jnp.ones((64, 64)) / 64


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    jax.clear_caches()  # a trace has all programs in it that are loaded, those of other tests too
    jax.block_until_ready(BESIDE(INSIDE(start())))


@pytest.fixture(autouse=True)
def _profiler_is_free_after_each_test(tmp_path: Path) -> Iterator[None]:
    yield
    assert not jax.profiler.TraceAnnotation.is_enabled()
    with jax.profiler.trace(tmp_path / "after"):
        pass


def run(
    logger: Any,
    steps: range,
    traced: range,
    told: Callable[[int], bool] = lambda step: True,
    then: Callable[[int], None] = lambda step: None,
) -> None:
    """A loop that does `INSIDE` in the steps that should be traced, and `BESIDE` in the others.

    Each step leaves an annotation with its number, whatever the logger does.
    """
    state = start()
    try:
        with logger:
            for step in steps:
                with jax.profiler.TraceAnnotation(f"work-{step}"):
                    state = (INSIDE if step in traced else BESIDE)(state)
                if told(step):
                    logger.log(state, step)
                then(step)
    finally:
        jax.block_until_ready(state)  # or it is in the trace of the next test


@dataclasses.dataclass
class Seen:
    """Contents of a trace."""

    names: list[str]
    work: list[int]  # the steps whose annotation is there
    runs: dict[str, int]  # how often each of the two programs ran
    marks: list[tuple[int, int | None]]  # first and last step of each mark


def seen(path: str | None) -> Seen:
    assert path is not None
    names, runs, marks = [], collections.defaultdict(set), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in jax.profiler.ProfileData.from_file(path).planes:
            for line in plane.lines:
                for event in sorted(line.events, key=lambda event: event.start_ns):
                    stats = dict(event.stats)
                    names.append(event.name)
                    if "hlo_module" in stats:
                        runs[stats["hlo_module"]].add(stats["run_id"])
                    if "step_num" in stats:
                        marks.append((stats["step_num"], stats.get("last_step")))
    ours = {"jit_inside": "inside", "jit_beside": "beside"}
    return Seen(
        names,
        sorted(int(name.removeprefix("work-")) for name in names if name.startswith("work-")),
        {ours[module]: len(ids) for module, ids in runs.items() if module in ours},
        marks,
    )


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.xplane.pb"))


@pytest.mark.parametrize(("first", "last"), [(3, 6), (3, 3), (0, 0), (0, 2), (5, 7)])
def test_exactly_the_steps_of_the_window_are_in_the_trace(
    tmp_path: Path, first: int, last: int
) -> None:
    logger = ProfileLogger(tmp_path, first, last)
    window = range(first, last + 1)
    run(logger, range(8), window)
    trace = seen(logger.trace_path)
    assert trace.work == list(window)
    assert trace.runs == {"inside": len(window)}
    assert trace.marks == [(step, step) for step in window]
    assert logger.report().steps == window
    assert files(tmp_path) == [logger.trace_path]
    assert os.path.dirname(os.path.dirname(files(tmp_path)[0])) == f"{tmp_path}/plugins/profile"


def test_a_loop_that_tells_of_every_second_step_has_marks_of_two(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 3, 6)
    run(logger, range(10), range(3, 7), told=lambda step: step % 2 == 0)
    trace = seen(logger.trace_path)
    assert (trace.work, trace.runs) == ([3, 4, 5, 6], {"inside": 4})
    assert trace.marks == [(3, 4), (5, 6)]
    report = logger.report()
    assert report.steps == range(3, 7)
    assert report.slowest_step in (4, 6)
    assert 2 * report.median_seconds <= 4 * report.seconds_per_step
    assert report.slowest_seconds <= 2 * report.seconds_per_step


def test_edges_that_it_is_not_told_of_are_moved_and_said(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 3, 6)
    with pytest.warns(UserWarning, match="ProfileLogger") as caught:
        run(logger, range(10), range(4, 8), told=lambda step: step % 2 == 1)
    assert [str(each.message) for each in caught] == [
        "`ProfileLogger` was to trace steps 3 to 6, and the trace has steps 4 to 7: step 2 was not "
        "logged, so it started after step 3; step 6 was not logged, so it stopped after step 7. "
        "Call `log` after every step, and choose a `start_step` after the first step that is "
        "logged."
    ]
    assert caught[0].filename == __file__
    trace = seen(logger.trace_path)
    assert (trace.work, trace.runs) == ([4, 5, 6, 7], {"inside": 4})
    assert logger.report().steps == range(4, 8)


def test_a_loop_that_ends_before_the_window_has_what_there_was(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 3, 100)
    expected = (
        r"^`ProfileLogger` was to trace steps 3 to 100, and the trace has steps 3 to 5: the loop "
        r"ended before step 6 was logged\.$"
    )
    with pytest.warns(UserWarning, match=expected):
        run(logger, range(6), range(3, 6))
    trace = seen(logger.trace_path)
    assert (trace.work, trace.runs) == ([3, 4, 5], {"inside": 3})
    report = logger.report()
    assert report.steps == range(3, 6)
    assert report.seconds_per_step * 3 >= report.slowest_seconds


def test_a_break_ends_the_trace(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 1, 6)

    def breaks() -> None:
        state = start()
        with logger:
            for step in range(8):
                state = INSIDE(state) if step else BESIDE(state)
                logger.log(state, step)
                if step == 1:
                    break

    with pytest.warns(UserWarning, match="the trace has step 1: the loop ended before step 2"):
        breaks()
    assert seen(logger.trace_path).runs == {"inside": 1}


def test_a_loop_without_a_whole_step_in_the_window_says_so(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 3, 6)
    with pytest.warns(UserWarning, match="has no step: the loop ended before step 3 was logged"):
        run(logger, range(3), range(0))
    assert seen(logger.trace_path).work == []
    with pytest.raises(RuntimeError, match=r"The trace at .*xplane\.pb has no complete step"):
        logger.report()


def test_a_window_that_is_never_reached_traces_nothing_and_says_so(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path / "profile", 30, 60)
    with pytest.warns(UserWarning, match="ProfileLogger") as caught:
        run(logger, range(6), range(0))
    assert [str(each.message) for each in caught] == [
        "`ProfileLogger` was to trace steps 30 to 60, and nothing was traced: the loop ended "
        "before step 30."
    ]
    assert logger.trace_path is None
    assert not (tmp_path / "profile").exists()


def test_a_loop_that_is_resumed_in_the_window_is_traced_from_its_second_step_on(
    tmp_path: Path,
) -> None:
    logger = ProfileLogger(tmp_path, 3, 6)
    with pytest.warns(UserWarning, match=r"has steps 5 to 6: step 2 was not logged, so it started"):
        run(logger, range(4, 9), range(5, 7))
    trace = seen(logger.trace_path)
    assert (trace.work, trace.runs) == ([5, 6], {"inside": 2})


def test_a_loop_that_is_resumed_behind_the_window_traces_nothing_and_says_so(
    tmp_path: Path,
) -> None:
    logger = ProfileLogger(tmp_path, 3, 6)
    expected = (
        r"^`ProfileLogger` was to trace steps 3 to 6, and nothing was traced: the first step that "
        r"was logged, step 6, comes after them\. Call `log` after every step"
    )
    with pytest.warns(UserWarning, match=expected) as caught:
        run(logger, range(6, 9), range(0))
    assert len(caught) == 1
    assert logger.trace_path is None


@pytest.mark.parametrize("error", [ValueError("exploded"), KeyboardInterrupt()])
def test_a_loop_that_fails_keeps_its_trace_and_the_error_says_where(
    tmp_path: Path, error: BaseException
) -> None:
    logger = ProfileLogger(tmp_path, 2, 50)

    def fails(step: int) -> None:
        if step == 4:
            raise error

    with pytest.raises(type(error)) as caught:
        run(logger, range(8), range(2, 8), then=fails)
    (path,) = files(tmp_path)
    assert caught.value.__notes__ == [
        "`ProfileLogger` was to trace steps 2 to 50, and the trace has steps 2 to 4 and later "
        f"work: {path}"
    ]
    assert logger.trace_path == path
    assert seen(path).work == [2, 3, 4]
    assert logger.report().steps == range(2, 5)


@pytest.mark.parametrize("at", [0, 5])
def test_a_loop_that_fails_outside_of_the_window_has_nothing_added(tmp_path: Path, at: int) -> None:
    def fails(step: int) -> None:
        if step == at:
            raise ValueError("exploded")

    logger = ProfileLogger(tmp_path, 2, 3)
    with pytest.raises(ValueError, match="exploded") as caught:
        run(logger, range(8), range(2, 4), then=fails)
    assert not hasattr(caught.value, "__notes__")


def test_another_trace_that_is_running_goes_on(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path / "ours", 2, 3)
    with jax.profiler.trace(tmp_path / "other"):
        with pytest.raises(RuntimeError) as caught:
            run(logger, range(4), range(0))
        with jax.profiler.TraceAnnotation("work-77"):
            pass
    assert str(caught.value) == (
        "`ProfileLogger` could not start its trace: another one is running. JAX runs one trace at "
        "a time, and the running one continues. Stop it first with `jax.profiler.stop_trace()`, "
        "or let one `ProfileLogger` end before the next one starts."
    )
    assert seen(files(tmp_path / "other")[0]).work == [0, 1, 77]
    assert files(tmp_path / "ours") == []
    run(logger, range(5), range(2, 4))
    assert seen(logger.trace_path).work == [2, 3]


def test_another_trace_that_only_jax_knows_of_goes_on_too(tmp_path: Path) -> None:
    silent = jax.profiler.ProfileOptions()
    silent.host_tracer_level = 0
    logger = ProfileLogger(tmp_path / "ours", 0, 3)
    with jax.profiler.trace(tmp_path / "other", profiler_options=silent):
        with pytest.raises(RuntimeError, match="`ProfileLogger` could not start its tra") as caught:
            logger.__enter__()
        with pytest.raises(RuntimeError, match="outside of its `with` block"):
            logger.log(start(), 0)
    assert "Only one profile may be run at a time" in str(caught.value.__cause__)
    assert len(files(tmp_path / "other")) == 1
    run(logger, range(4), range(4))
    assert seen(logger.trace_path).work == [0, 1, 2, 3]


def test_a_logger_can_be_used_again_and_each_trace_has_its_own_place(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 1, 2)
    run(logger, range(4), range(1, 3))
    paths = [logger.trace_path]
    with pytest.warns(UserWarning, match="the trace has step 2"):
        run(logger, range(1, 4), range(2, 3))
    paths.append(logger.trace_path)
    run(logger, range(4), range(1, 3))
    paths.append(logger.trace_path)
    assert files(tmp_path) == sorted(str(path) for path in paths)
    assert [seen(path).work for path in paths] == [[1, 2], [2], [1, 2]]
    assert all(os.stat(os.path.dirname(str(path))).st_mode & 0o055 == 0o055 for path in paths)
    assert logger.report().steps == range(1, 3)


def test_the_file_for_perfetto_is_next_to_the_trace(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 1, 2, perfetto=True)
    assert logger.perfetto_path is None
    run(logger, range(4), range(1, 3))
    assert logger.perfetto_path is not None
    assert os.path.dirname(logger.perfetto_path) == os.path.dirname(str(logger.trace_path))
    with gzip.open(logger.perfetto_path) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"work-1", "work-2", "step"} <= names
    assert not {"work-0", "work-3"} & names


def test_a_trace_near_the_limit_of_the_viewers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MAX_VIEWER_EVENTS", 500)
    logger = ProfileLogger(tmp_path, 1, 4)

    def loop() -> None:
        with logger:
            for step in range(6):
                for _ in range(300):
                    with jax.profiler.TraceAnnotation("many"):
                        pass
                logger.log(0, step)

    with pytest.warns(UserWarning, match="ProfileLogger") as caught:
        loop()
    number = len(seen(logger.trace_path).names)
    assert number >= 1200
    assert [str(each.message) for each in caught] == [
        f"The trace of steps 1 to 4 (4 in all) has {number:,} events, and viewers show the first "
        "500 only. Give `ProfileLogger` fewer steps: 1 at most."
    ]


def test_pythons_calls_are_traced_only_if_the_options_say_so(tmp_path: Path) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 1
    with_calls = ProfileLogger(tmp_path, 1, 2, options=options)
    without = ProfileLogger(tmp_path, 1, 2)
    for logger in (with_calls, without):
        run(logger, range(4), range(1, 3), then=lambda step: os.fspath(tmp_path) and None)
    assert any(name.startswith("$") for name in seen(with_calls.trace_path).names)
    assert not any(name.startswith("$") for name in seen(without.trace_path).names)


@jax.jit
def _sorts(state: Any) -> Any:
    return jnp.sort(state * -1.0)


def test_the_report_tells_of_steps_and_operations(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 2, 5)
    with logger:
        state = jnp.arange(50_000.0)
        for step in range(8):
            state = jax.block_until_ready(_sorts(state))
            logger.log(state, step)
            if step == 6:
                early = logger.report()
    report = logger.report()
    assert report == early
    assert isinstance(report, ProfileReport)
    assert report.steps == range(2, 6)
    assert report.slowest_step in report.steps
    assert 0 < report.median_seconds <= report.slowest_seconds
    assert report.slowest_seconds < 4 * report.seconds_per_step
    # The marks cover all of the time between the edges but what `log` itself takes.
    assert report.median_seconds * 2 < report.seconds_per_step * 4

    first = report.operations[0]
    assert first.name.startswith("jit__sorts/")
    assert "sort" in first.name.removeprefix("jit__sorts/")
    assert first.calls == 4
    assert 0.5 < first.share <= 1
    assert sum(operation.share for operation in report.operations) <= 1 + 1e-9
    assert all(operation.seconds > 0 for operation in report.operations)
    seconds = [operation.seconds for operation in report.operations]
    assert seconds == sorted(seconds, reverse=True)
    assert len(report.operations) <= 10
    assert sum(seconds) <= 4 * report.seconds_per_step

    table = str(report).splitlines()
    assert table[0].startswith("steps 2 to 5: ")
    assert table[0].endswith(f"(step {report.slowest_step})")
    assert table[1].split() == ["time", "share", "calls", "operation"]
    assert first.name in table[2]
    assert len(table) == 2 + len(report.operations)


XSPACE = """
planes {
  name: "/host:CPU"
  lines {
    name: "python"
    events { metadata_id: 1 offset_ps: 1000000 duration_ps: 4000000
      stats { metadata_id: 3 int64_value: 10 } stats { metadata_id: 4 int64_value: 11 } }
    events { metadata_id: 1 offset_ps: 6000000 duration_ps: 3000000
      stats { metadata_id: 3 int64_value: 12 } stats { metadata_id: 4 int64_value: 12 } }
    events { metadata_id: 1 offset_ps: 9500000 duration_ps: 90000000
      stats { metadata_id: 3 int64_value: 13 } }
  }
  lines {
    name: "tf_XLA"
    events { metadata_id: 2 offset_ps: 1000000 duration_ps: 4000000
      stats { metadata_id: 1 str_value: "while.1" } stats { metadata_id: 2 str_value: "jit_f" } }
    events { metadata_id: 3 offset_ps: 1500000 duration_ps: 1000000
      stats { metadata_id: 1 str_value: "dot.1" } stats { metadata_id: 2 str_value: "jit_f" } }
    events { metadata_id: 3 offset_ps: 3000000 duration_ps: 1500000
      stats { metadata_id: 1 str_value: "dot.1" } stats { metadata_id: 2 str_value: "jit_f" } }
    events { metadata_id: 4 offset_ps: 3100000 duration_ps: 1400000 }
    events { metadata_id: 3 offset_ps: 5000000 duration_ps: 500000
      stats { metadata_id: 1 str_value: "dot.1" } stats { metadata_id: 2 str_value: "jit_g" } }
  }
  event_metadata { key: 1 value { id: 1 name: "step" } }
  event_metadata { key: 2 value { id: 2 name: "while.1" } }
  event_metadata { key: 3 value { id: 3 name: "dot.1" } }
  event_metadata { key: 4 value { id: 4 name: "end: dot.1" } }
  stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }
  stat_metadata { key: 2 value { id: 2 name: "hlo_module" } }
  stat_metadata { key: 3 value { id: 3 name: "step_num" } }
  stat_metadata { key: 4 value { id: 4 name: "last_step" } }
}
"""

GPUS = "".join(
    f"""
planes {{
  name: "/device:GPU:{number}"
  lines {{
    name: "Stream #14(Compute,MemcpyD2D)"
    events {{ metadata_id: 1 offset_ps: 1000000 duration_ps: 3000000
      stats {{ metadata_id: 1 str_value: "command_buffer" }}
      stats {{ metadata_id: 2 str_value: "jit_f" }} }}
    events {{ metadata_id: 2 offset_ps: 2000000 duration_ps: 1000000
      stats {{ metadata_id: 1 str_value: "command_buffer" }}
      stats {{ metadata_id: 2 str_value: "jit_f" }} }}
    events {{ metadata_id: 3 offset_ps: 5000000 duration_ps: 9000000 }}
  }}
  event_metadata {{ key: 1 value {{ id: 1 name: "gemm" }} }}
  event_metadata {{ key: 2 value {{ id: 2 name: "loop_add_fusion" }} }}
  event_metadata {{ key: 3 value {{ id: 3 name: "MemcpyH2D" }} }}
  stat_metadata {{ key: 1 value {{ id: 1 name: "hlo_op" }} }}
  stat_metadata {{ key: 2 value {{ id: 2 name: "hlo_module" }} }}
}}
"""
    for number in range(2)
)


def written(folder: Path, text: str) -> str:
    path = folder / "host.xplane.pb"
    path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(text))
    return str(path)


def test_a_nested_operation_counts_once_and_unfinished_steps_do_not(tmp_path: Path) -> None:
    report = read_report(written(tmp_path, XSPACE))
    assert report.steps == range(10, 13)
    assert report.slowest_step == 12
    np.testing.assert_allclose(report.seconds_per_step, 8e-6 / 3)
    np.testing.assert_allclose([report.median_seconds, report.slowest_seconds], [2e-6, 3e-6])
    expected = [
        Operation("jit_f/dot.1", 2.5e-6, 2, 2.5 / 4.5),
        Operation("jit_f/while.1", 1.5e-6, 1, 1.5 / 4.5),
        Operation("jit_g/dot.1", 0.5e-6, 1, 0.5 / 4.5),
    ]
    assert [(each.name, each.calls) for each in report.operations] == [
        (each.name, each.calls) for each in expected
    ]
    np.testing.assert_allclose(
        [(each.seconds, each.share) for each in report.operations],
        [(each.seconds, each.share) for each in expected],
    )
    assert str(report).splitlines() == [
        "steps 10 to 12: 2.667 µs per step, median 2 µs, slowest 3 µs (step 12)",
        "      time  share   calls  operation",
        "    2.5 µs  55.6%       2  jit_f/dot.1",
        "    1.5 µs  33.3%       1  jit_f/while.1",
        "    500 ns  11.1%       1  jit_g/dot.1",
    ]
    (only,) = str(dataclasses.replace(report, operations=())).splitlines()
    assert only == "steps 10 to 12: 2.667 µs per step, median 2 µs, slowest 3 µs (step 12)"


def test_with_gpus_the_kernels_of_all_of_them_are_counted_and_the_host_is_not(
    tmp_path: Path,
) -> None:
    report = read_report(written(tmp_path, XSPACE + GPUS))
    assert report.steps == range(10, 13)
    assert [(each.name, each.calls) for each in report.operations] == [
        ("jit_f/gemm", 2),
        ("jit_f/loop_add_fusion", 2),
    ]
    np.testing.assert_allclose(
        [(each.seconds, each.share) for each in report.operations], [(6e-6, 0.75), (2e-6, 0.25)]
    )


def test_only_the_edges_wait(tmp_path: Path) -> None:
    ready = Particles.at_rest()
    with held_state() as held, ProfileLogger(tmp_path, 3, 5) as logger:
        for step in range(9):
            logger.log(ready if step in (2, 5) else held, step)
    assert logger.report().steps == range(3, 6)


def test_it_goes_with_other_loggers_and_the_ready_loop(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 2, 3)
    run_loop(inside, start(), 6, logger=CompositeLogger(NullLogger(), logger))
    assert logger.report().steps == range(2, 4)
    assert seen(logger.trace_path).runs == {"inside": 2}


def test_a_step_that_is_told_twice_counts_once(tmp_path: Path) -> None:
    with ProfileLogger(tmp_path, 1, 3) as logger:
        for step in (0, 1, 1, 0, 2, 3, 3):
            logger.log(start(), step)
    assert seen(logger.trace_path).marks == [(1, 1), (2, 2), (3, 3)]


def test_steps_of_numpy_and_jax_are_numbers(tmp_path: Path) -> None:
    with ProfileLogger(tmp_path, 1, 2) as logger:
        for step in (np.int64(0), jnp.int32(1), np.uint8(2)):
            logger.log(start(), step)  # type: ignore[arg-type]
    assert seen(logger.trace_path).marks == [(1, 1), (2, 2)]


def put_a_file_in_the_place_of_its_folder(temporary: Path) -> None:
    (folder,) = temporary.iterdir()
    shutil.rmtree(folder)
    folder.write_text("in the way")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_trace_that_cannot_be_written_leaves_the_profiler_free(
    tmp_path: Path, temporary: Path
) -> None:
    logger = ProfileLogger(tmp_path / "profile", 1, 2)
    with pytest.raises(RuntimeError, match=r"^`ProfileLogger` could not write its trac") as error:
        run(
            logger,
            range(4),
            range(1, 3),
            then=lambda step: put_a_file_in_the_place_of_its_folder(temporary) if step else None,
        )
    assert "is not a directory" in str(error.value.__cause__)
    assert logger.trace_path is None
    assert list(temporary.iterdir()) == []
    run(logger, range(4), range(1, 3))
    assert seen(logger.trace_path).work == [1, 2]
    assert list(temporary.iterdir()) == []


def test_a_trace_that_cannot_be_written_does_not_hide_why_the_loop_failed(
    tmp_path: Path, temporary: Path
) -> None:
    def fails(step: int) -> None:
        if step == 2:
            put_a_file_in_the_place_of_its_folder(temporary)
            raise ValueError("exploded")

    logger = ProfileLogger(tmp_path / "profile", 1, 6)
    with pytest.raises(ValueError, match="exploded") as caught:
        run(logger, range(4), range(1, 4), then=fails)
    (note,) = caught.value.__notes__
    assert note.startswith("`ProfileLogger` could not write its trace: ")


@pytest.mark.parametrize("function", ["start_trace", "stop_trace"])
def test_an_interrupt_of_the_profiler_comes_out_and_leaves_nothing(
    tmp_path: Path, temporary: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = getattr(jax.profiler, function), list[Any]()

    def interrupted(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(*arguments, **options)

    monkeypatch.setattr(jax.profiler, function, interrupted)
    logger = ProfileLogger(tmp_path / "profile", 1, 2)
    with pytest.raises(KeyboardInterrupt):
        run(logger, range(4), range(1, 3))
    assert logger.trace_path is None
    assert list(temporary.iterdir()) == []
    assert files(tmp_path) == []


def test_traces_of_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    for number, name in enumerate(("now", "now_1", "now_2")):
        (tmp_path / "now").mkdir(exist_ok=True)
        (tmp_path / "now" / "trace").write_text(str(number))
        target = _recording._copy_to_free_name(str(tmp_path / "now"), str(tmp_path / "home"))
        assert target == str(tmp_path / "home" / name)
    found = {path.parent.name: path.read_text() for path in (tmp_path / "home").rglob("trace")}
    assert found == {"now": "0", "now_1": "1", "now_2": "2"}


def test_a_trace_that_cannot_be_copied_leaves_no_part_of_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        _recording._copy_to_free_name(str(tmp_path / "gone"), str(tmp_path / "home"))
    assert os.listdir(tmp_path / "home") == []
    with pytest.raises(FileNotFoundError, match="gone"):  # and the name is not the reason
        _recording._rename_if_free(str(tmp_path / "gone"), str(tmp_path / "free"))


def test_a_trace_whose_folder_is_gone_is_kept_elsewhere(tmp_path: Path, temporary: Path) -> None:
    def replaces(step: int) -> None:
        if step == 1:
            (tmp_path / "profile").rmdir()
            (tmp_path / "profile").write_text("in the way")

    logger = ProfileLogger(tmp_path / "profile", 1, 2)
    with pytest.raises(OSError, match=r"^`ProfileLogger` could not put its trace into") as caught:
        run(logger, range(4), range(1, 3), then=replaces)
    (path,) = files(temporary)
    assert str(caught.value).endswith(f" It is in {os.path.dirname(path)}")
    assert seen(path).work == [1, 2]


def test_a_state_that_cannot_be_waited_for_ends_the_trace_and_the_loop(tmp_path: Path) -> None:
    gone = start()
    gone.delete()
    logger = ProfileLogger(tmp_path, 1, 2)
    with pytest.raises(RuntimeError, match="deleted") as caught, logger:  # noqa: PT012 - a loop
        logger.log(start(), 0)
        logger.log(start(), 1)
        logger.log(gone, 2)
    assert "the trace has step 1 and later work: " in caught.value.__notes__[0]
    assert logger.report().steps == range(1, 2)


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (6, 3, r"and got 6 and 3\. Write `ProfileLogger\(log_dir, 3, 6\)`\.$"),
        (-1, 3, r"and got -1 and 3\. Write whole numbers of 0 or more\.$"),
        (1.5, 3, r"and got 1\.5 and 3\. Write"),
        (True, 3, r"and got True and 3\. Write"),
        (1, None, r"and got 1 and None\. Write"),
    ],
)
def test_what_is_no_window_is_refused(tmp_path: Path, first: Any, last: Any, message: str) -> None:
    begins = "^`ProfileLogger` traces the steps from `start_step` to `end_step`, both included, "
    with pytest.raises(ValueError, match=begins + message):
        ProfileLogger(tmp_path, first, last)


def test_what_is_no_folder_and_no_options_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="takes a folder as `log_dir`, and got 3 of type `int`"):
        ProfileLogger(3, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="takes a folder of this machine as `log_dir`, and got 'g"):
        ProfileLogger("gs://bucket/profile", 0, 1)
    with pytest.raises(TypeError, match=r"`jax.profiler.ProfileOptions\(\)`, and got \{\} of type"):
        ProfileLogger(tmp_path, 0, 1, options={})  # type: ignore[arg-type]


def test_it_works_inside_its_block_only_and_once_at_a_time(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 1, 2)
    with pytest.raises(RuntimeError, match=r"^`ProfileLogger\.log` was called outside of its `wit"):
        logger.log(start(), 0)
    inner = pytest.raises(RuntimeError, match=r"^This `ProfileLogger` is in use")
    with pytest.warns(UserWarning, match="nothing was traced"), logger, inner:
        logger.__enter__()
    with pytest.raises(RuntimeError, match="outside of its `with` block"):
        logger.log(start(), 3)


def test_a_trace_that_was_moved_is_not_there(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path / "profile", 1, 2, perfetto=True)
    run(logger, range(4), range(1, 3))
    folder = os.path.dirname(str(logger.trace_path))
    shutil.move(tmp_path / "profile", tmp_path / "elsewhere")
    assert (logger.trace_path, logger.perfetto_path) == (None, None)
    with pytest.raises(RuntimeError) as caught:
        logger.report()
    assert str(caught.value) == (
        f"`ProfileLogger.report` reads the trace in {folder}, which no longer exists. Call "
        "`report` before you move the trace."
    )


def test_a_folder_that_cannot_be_made_is_told_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "profile"
    with pytest.raises(NotADirectoryError) as caught, ProfileLogger(folder, 0, 1):
        pass
    assert str(caught.value) == (
        f"`ProfileLogger` takes a folder as `log_dir`, and {folder} is a file, or lies in one. "
        "Give another one."
    )


@pytest.mark.parametrize(
    ("name", "reason"), [("x" * 300, "File name too long"), ("a\0b", "embedded null")]
)
def test_a_folder_that_no_system_makes_is_told_with_the_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    folder = f"{tmp_path}/{name}"
    with pytest.raises(OSError, match="cannot make") as caught, ProfileLogger(folder, 0, 1):
        pass
    begin = f"`ProfileLogger` cannot make the folder {folder!r}: "
    assert str(caught.value).startswith(begin)
    assert reason in str(caught.value).removeprefix(begin)


def test_a_report_needs_a_trace(tmp_path: Path) -> None:
    logger = ProfileLogger(tmp_path, 1, 2)
    message = (
        r"^`ProfileLogger\.report` needs a trace, and there is none yet\. Call `report` after step "
        r"2 is logged, or after a `with` block that reached step 1\.$"
    )
    with pytest.raises(RuntimeError, match=message):
        logger.report()
    with logger:
        for step in range(4):
            if step < 3:
                with pytest.raises(RuntimeError, match=message):
                    logger.report()
            logger.log(start(), step)
    assert logger.report().steps == range(1, 3)
