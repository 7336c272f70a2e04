"""Record traces with JAX's profiler, and summarise them.

`Recording` starts and stops a trace; `read_report` reads the finished file.

JAX runs one trace at a time, and names each by the second. A recording therefore writes to a
temporary folder, then copies that folder under a free name and renames it, so that readers never
see a part of a trace. A full or missing target folder cannot block the profiler either: up to JAX
0.11, a trace that could not be written counts as running.

A trace has planes (the host, each device), a plane has lines (a thread, a stream), and a line has
events. `ProfileLogger` marks each call of `log` with an event: `step_num` is the first step since
the call before, `last_step` the last. Marks without `last_step` belong to unfinished steps.

Operations are events with the statistic `hlo_op`: kernels and copies on a GPU; on the CPU, the work
of one thread for one operation of the compiled program.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import os
import shutil
import statistics
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from logax._support.files import make_folder
from logax._support.formatting import format_short_duration
from logax._support.messages import describe_error

STEP_MARK = "step"

# Viewers of traces show no more events. Up to JAX 0.10 the profiler truncates the file for them,
# later TensorBoard does as it reads. The tracer of NVIDIA GPUs records up to twice as many.
MAX_VIEWER_EVENTS = 1_000_000
MIN_BYTES_PER_EVENT = 8  # fewer than any event takes up, so that small files need not be counted

MAX_OPERATIONS = 10


class Operation(NamedTuple):
    """Total cost of one operation of a compiled program.

    Attributes:
      name: Program and operation, such as `jit_step/dot_general.3`.
      seconds: Time of all calls, without the operations inside it.
      calls: Number of calls.
      share: Fraction of the time of all operations, from 0 to 1.
    """

    name: str
    seconds: float
    calls: int
    share: float


@dataclasses.dataclass(frozen=True)
class ProfileReport:
    """Summary of a trace by `ProfileLogger`; `print` shows it as a table.

    The time of an operation is the sum over all its calls, and over devices or threads that work at
    the same time. For an operation that contains others, such as a loop on the CPU, the time of the
    inner operations is subtracted. If a GPU did the work, operations of the CPU are left out.

    Attributes:
      steps: Traced steps, as a range.
      seconds_per_step: Duration of the trace divided by the number of steps. The trace waits for
        the device at its start and its end, so this is the full time of a step, with all its logs.
      median_seconds: Median time from one call of `log` to the next. A loop that does not wait for
        the device runs ahead of it: this is then the time to dispatch a step, and the last step,
        which waits for all of them, is the slowest.
      slowest_seconds: Longest time from one call of `log` to the next.
      slowest_step: Number of the slowest step. If several steps passed between two calls of `log`,
        they count as equally long, and this is the last of them.
      operations: The ten most expensive operations, as tuples `(name, seconds, calls, share)`.
    """

    steps: range
    seconds_per_step: float
    median_seconds: float
    slowest_seconds: float
    slowest_step: int
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        times = (self.seconds_per_step, self.median_seconds, self.slowest_seconds)
        mean, median, slowest = map(format_short_duration, times)
        rows = [
            f"{format_steps(self.steps)}: {mean} per step, median {median}, slowest {slowest} "
            f"(step {self.slowest_step})"
        ]
        if self.operations:
            rows.append(f"{'time':>10} {'share':>6} {'calls':>7}  operation")
        for name, seconds, calls, share in self.operations:
            short = name if len(name) <= 64 else f"{name[:61]}..."
            rows.append(f"{format_short_duration(seconds):>10} {share:>6.1%} {calls:>7}  {short}")
        return "\n".join(rows)


def format_steps(steps: range) -> str:
    """Format a range of steps as words, such as "steps 10 to 12"."""
    if len(steps) == 0:
        return "no step"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def read_report(path: str) -> ProfileReport:
    """Return a summary of the trace in the file `path`."""
    with warnings.catch_warnings():
        # Since Python 3.12, the types that JAX's reader creates on first use warn.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        planes = list(jax.profiler.ProfileData.from_file(path).planes)
        marks = sorted(_marks(planes))
        devices = [plane for plane in planes if plane.name.startswith("/device:")]
        operations = _most_expensive(_operations(devices) or _operations(planes))
    whole = [mark for mark in marks if mark.steps]
    if not whole:
        raise RuntimeError(
            f"The trace at {path} has no complete step: the first one did not finish, or `options` "
            "of `ProfileLogger` has a `host_tracer_level` of 0, which leaves out the steps. Trace "
            "more steps, or leave the level at 2."
        )
    first, last = whole[0].steps[0], whole[-1].steps[-1]
    number = sum(len(mark.steps) for mark in whole)
    times = [mark.seconds / len(mark.steps) for mark in whole for _ in mark.steps]
    slowest = max(whole, key=lambda mark: mark.seconds / len(mark.steps))
    return ProfileReport(
        steps=range(first, last + 1),
        seconds_per_step=(marks[-1].end - marks[0].start) / 1e9 / number,
        median_seconds=statistics.median(times),
        slowest_seconds=max(times),
        slowest_step=slowest.steps[-1],
        operations=operations,
    )


def count_events(path: str) -> int:
    """Count the events of a trace file; 0 if the file is too small to come near the limit."""
    if os.path.getsize(path) < 0.9 * MAX_VIEWER_EVENTS * MIN_BYTES_PER_EVENT:
        return 0
    planes = jax.profiler.ProfileData.from_file(path).planes
    return sum(1 for plane in planes for line in plane.lines for _ in line.events)


class _Mark(NamedTuple):
    start: float
    end: float
    first: int
    last: int

    @property
    def steps(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


def _marks(planes: Iterable[Any]) -> Iterator[_Mark]:
    for plane in planes:
        for line in plane.lines:
            for event in line.events:
                if event.name == STEP_MARK:
                    stats = dict(event.stats)
                    if "step_num" in stats and "last_step" in stats:
                        first, last = int(stats["step_num"]), int(stats["last_step"])
                        yield _Mark(event.start_ns, event.end_ns, first, last)


def _operations(planes: Iterable[Any]) -> dict[str, tuple[float, int]]:
    """Return nanoseconds and number of calls of each operation, by name."""
    totals: dict[str, tuple[float, int]] = {}
    for plane in planes:
        for line in plane.lines:
            found = [
                (event.start_ns, event.end_ns, name)
                for event in line.events
                if (name := _operation_name(event)) is not None
            ]
            # Overlapping events of a GPU stream are concurrent kernels, not nested operations.
            own = _durations(found) if line.name.startswith("Stream") else _own_times(found)
            for name, time in own:
                total, calls = totals.get(name, (0.0, 0))
                totals[name] = total + time, calls + 1
    return totals


def _operation_name(event: Any) -> str | None:
    """Return the event's own name: with CUDA graphs, `hlo_op` names the whole graph."""
    stats = dict(event.stats)
    if "hlo_op" not in stats:
        return None
    module = stats.get("hlo_module")
    return f"{module}/{event.name}" if module else str(event.name)


def _durations(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    return ((name, end - start) for start, end, name in events)


def _own_times(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """Yield the time of each event, without the time of the events nested in it."""
    own = [end - start for start, end, _ in events]
    around: list[int] = []  # enclosing events, innermost last
    for i in sorted(range(len(events)), key=lambda i: (events[i][0], -events[i][1])):
        start, end, _ = events[i]
        while around and events[around[-1]][1] < end:
            around.pop()
        if around:
            own[around[-1]] -= end - start
        around.append(i)
    return ((event[2], time) for event, time in zip(events, own, strict=True))


def _most_expensive(totals: dict[str, tuple[float, int]]) -> tuple[Operation, ...]:
    everything = sum(time for time, _ in totals.values())
    ranked = collections.Counter({name: time for name, (time, _) in totals.items()})
    return tuple(
        Operation(name, time / 1e9, totals[name][1], time / everything if everything else 0.0)
        for name, time in ranked.most_common(MAX_OPERATIONS)
    )


class Recording:
    """A running trace of JAX's profiler.

    Args:
      log_dir: Folder for traces.
      perfetto: If True, also write a file for Perfetto.
      options: Options of the profiler; by default JAX's own, without calls of Python functions.

    Raises:
      RuntimeError: If another trace is running.
    """

    def __init__(
        self, log_dir: str, perfetto: bool, options: jax.profiler.ProfileOptions | None
    ) -> None:
        self._log_dir = log_dir
        # Fail now rather than after the traced steps.
        make_folder("ProfileLogger", log_dir, "a folder as `log_dir`", "Give another one.")
        # `start_trace` does not notice a trace that other code started, and the trace that it then
        # starts can never be stopped.
        if jax.profiler.TraceAnnotation.is_enabled():
            raise _start_error("another one is running.")
        if options is None:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
        self._scratch = tempfile.mkdtemp(prefix="logax-trace-")
        try:
            jax.profiler.start_trace(
                self._scratch, create_perfetto_trace=perfetto, profiler_options=options
            )
        except BaseException as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            if isinstance(error, RuntimeError):
                raise _start_error(describe_error(error)) from error
            raise

    def stop(self) -> str:
        """Stop the trace, and return the folder that holds it."""
        try:
            jax.profiler.stop_trace()
            (written,) = glob.glob(os.path.join(glob.escape(self._scratch), "plugins/profile/*"))
        except BaseException as error:
            self._release()
            if isinstance(error, (RuntimeError, OSError, ValueError)):
                raise RuntimeError(
                    f"`ProfileLogger` could not write its trace: {describe_error(error)}"
                ) from error
            raise
        try:
            folder = _copy_to_free_name(written, os.path.join(self._log_dir, "plugins", "profile"))
        except OSError as error:
            raise OSError(
                f"`ProfileLogger` could not put its trace into {self._log_dir}: "
                f"{describe_error(error)} It is in {written}"
            ) from error
        shutil.rmtree(self._scratch, ignore_errors=True)
        return folder

    def _release(self) -> None:
        """Make JAX drop a trace that it could not write: stop it again, now that it is empty."""
        with contextlib.suppress(OSError):
            os.unlink(self._scratch)  # the path may have become a file
        shutil.rmtree(self._scratch, ignore_errors=True)
        with contextlib.suppress(RuntimeError):  # since JAX 0.12 the first call dropped it
            jax.profiler.stop_trace()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _start_error(reason: str) -> RuntimeError:
    return RuntimeError(
        f"`ProfileLogger` could not start its trace: {reason} JAX runs one trace at a time, and "
        "the running one continues. Stop it first with `jax.profiler.stop_trace()`, or let one "
        "`ProfileLogger` end before the next one starts."
    )


def _copy_to_free_name(folder: str, home: str) -> str:
    """Copy `folder` into `home` under a free name, and return the new path."""
    os.makedirs(home, exist_ok=True)
    part = tempfile.mkdtemp(prefix=".part-", dir=home)
    try:
        shutil.copytree(folder, part, dirs_exist_ok=True)
        name = target = os.path.join(home, os.path.basename(folder))
        number = 0
        while not _rename_if_free(part, target):
            number += 1
            target = f"{name}_{number}"
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def _rename_if_free(source: str, target: str) -> bool:
    """Rename `source` to `target`; return False if `target` exists."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.lexists(target):
            raise
        return False
    return True
