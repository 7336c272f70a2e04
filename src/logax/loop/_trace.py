"""What a trace of JAX's profiler says: its steps, its operations, how many events it has.

A trace has planes (the host, each device), a plane has lines (a thread, a stream), a line has
events. A mark is the event that `ProfileLogger` leaves for one step, or for several where it was
not told of each: `step_num` is the first of them and `last_step` the last. Marks without a last
step are of steps that did not come to their end.

An operation is an event with the statistic `hlo_op`: on a GPU a kernel or a copy, on the CPU what
one thread did for an operation of the compiled program.

A trace of JAX's profiler that is running, and where it comes to rest.

JAX has one trace at a time, and names a trace by the second. So each is written to a temporary
folder and then copied to a place of its own, which is never seen in part. That also keeps the
profiler free if the folder for traces is full or gone: up to JAX 0.11 a trace that could not be
written counts as running.
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
from logax._support.messages import described

MARK = "step"

# What the viewers of traces show. Up to JAX 0.10 the file for them is cut there as it is written,
# later TensorBoard cuts it as it reads. The tracer of NVIDIA GPUs takes in twice as many.
EVENT_LIMIT = 1_000_000
BYTES_PER_EVENT = 8  # fewer than any event takes up, so that small files need not be counted

COSTLIEST = 10


class Operation(NamedTuple):
    """An operation of a compiled program, all its calls together."""

    name: str
    """The program and the operation: `jit_step/dot_general.3`."""
    seconds: float
    calls: int
    share: float
    """Of the time of all operations."""


@dataclasses.dataclass(frozen=True)
class ProfileReport:
    """What a trace of `ProfileLogger` says; printed, it is a table.

    The time of an operation is summed over all its calls, and over devices or threads that work at
    the same time. An operation that holds others, such as a loop on the CPU, counts with what is
    its own. Where a GPU did the work, what the CPU did is left out.

    Attributes:
      steps: The steps in the trace.
      seconds_per_step: The time from edge to edge, over their number. At both edges the device is
        waited for, so this is the time that a step takes, with all that is logged in it.
      median_seconds: Of the times from one `log` to the next. A loop that does not wait for the
        device runs ahead of it: then this is the time to hand in a step, and the last step, which
        waits for all of them, is the slowest.
      slowest_seconds: The longest of these.
      slowest_step: And which step that was. (If several steps passed between one `log` and the
        next, they count as equally long, and this is the last of them.)
      operations: The ten costliest operations, as tuples `(name, seconds, calls, share)`.
    """

    steps: range
    seconds_per_step: float
    median_seconds: float
    slowest_seconds: float
    slowest_step: int
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        rows = [
            f"{said_steps(self.steps)}: {_seconds(self.seconds_per_step)} per step, median "
            f"{_seconds(self.median_seconds)}, slowest {_seconds(self.slowest_seconds)} "
            f"(step {self.slowest_step})"
        ]
        if self.operations:
            rows.append(f"{'time':>10} {'share':>6} {'calls':>7}  operation")
        for name, seconds, calls, share in self.operations:
            short = name if len(name) <= 64 else f"{name[:61]}..."
            rows.append(f"{_seconds(seconds):>10} {share:>6.1%} {calls:>7}  {short}")
        return "\n".join(rows)


def said_steps(steps: range) -> str:
    """The steps in words."""
    if len(steps) == 0:
        return "no step"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def read_report(path: str) -> ProfileReport:
    """What the trace in this file says."""
    with warnings.catch_warnings():
        # From the types that JAX's reader makes when it is first used, since Python 3.12.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        planes = list(jax.profiler.ProfileData.from_file(path).planes)
        marks = sorted(_marks(planes))
        devices = [plane for plane in planes if plane.name.startswith("/device:")]
        operations = _costliest(_operations(devices) or _operations(planes))
    whole = [mark for mark in marks if mark.steps]
    if not whole:
        raise RuntimeError(
            f"There is no whole step in the trace at {path}: the first did not come to its end, or "
            "`options` of `ProfileLogger` has a `host_tracer_level` of 0, which leaves out the "
            "steps. Trace more steps, or leave the level at 2."
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
    """How many events there are in this file; 0 if it is too small for the limit to be near."""
    if os.path.getsize(path) < 0.9 * EVENT_LIMIT * BYTES_PER_EVENT:
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
                if event.name == MARK:
                    stats = dict(event.stats)
                    if "step_num" in stats and "last_step" in stats:
                        first, last = int(stats["step_num"]), int(stats["last_step"])
                        yield _Mark(event.start_ns, event.end_ns, first, last)


def _operations(planes: Iterable[Any]) -> dict[str, tuple[float, int]]:
    """Nanoseconds and calls, by name."""
    totals: dict[str, tuple[float, int]] = {}
    for plane in planes:
        for line in plane.lines:
            found = [
                (event.start_ns, event.end_ns, name)
                for event in line.events
                if (name := _operation_name(event)) is not None
            ]
            # What overlaps on a stream are kernels side by side, and not one within the other.
            own = _lengths(found) if line.name.startswith("Stream") else _own_times(found)
            for name, time in own:
                total, calls = totals.get(name, (0.0, 0))
                totals[name] = total + time, calls + 1
    return totals


def _operation_name(event: Any) -> str | None:
    """The event's own name: `hlo_op` is that of a whole graph where CUDA graphs are used."""
    stats = dict(event.stats)
    if "hlo_op" not in stats:
        return None
    module = stats.get("hlo_module")
    return f"{module}/{event.name}" if module else str(event.name)


def _lengths(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    return ((name, end - start) for start, end, name in events)


def _own_times(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """The time of each, without that of the events inside it."""
    own = [end - start for start, end, _ in events]
    around: list[int] = []  # the events that the present one is in, innermost last
    for i in sorted(range(len(events)), key=lambda i: (events[i][0], -events[i][1])):
        start, end, _ = events[i]
        while around and events[around[-1]][1] < end:
            around.pop()
        if around:
            own[around[-1]] -= end - start
        around.append(i)
    return ((event[2], time) for event, time in zip(events, own, strict=True))


def _costliest(totals: dict[str, tuple[float, int]]) -> tuple[Operation, ...]:
    everything = sum(time for time, _ in totals.values())
    ranked = collections.Counter({name: time for name, (time, _) in totals.items()})
    return tuple(
        Operation(name, time / 1e9, totals[name][1], time / everything if everything else 0.0)
        for name, time in ranked.most_common(COSTLIEST)
    )


def _seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


class Recording:
    """A trace that is running, and ours to stop.

    Args:
      log_dir: The folder for traces.
      perfetto: Whether to write a file for Perfetto too.
      options: What to trace; by default what JAX does, without Python's calls.

    Raises:
      RuntimeError: Another trace is running.
    """

    def __init__(
        self, log_dir: str, perfetto: bool, options: jax.profiler.ProfileOptions | None
    ) -> None:
        self._log_dir = log_dir
        # Now, and not when the steps are done.
        make_folder("ProfileLogger", log_dir, "a folder as `log_dir`", "Give another one.")
        # `start_trace` does not see a trace that something else has started, and what it starts
        # then can never be stopped.
        if jax.profiler.TraceAnnotation.is_enabled():
            raise _not_started("another one is running.")
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
                raise _not_started(described(error)) from error
            raise

    def stop(self) -> str:
        """Stop it, and give the folder that it is in."""
        try:
            jax.profiler.stop_trace()
            (written,) = glob.glob(os.path.join(glob.escape(self._scratch), "plugins/profile/*"))
        except BaseException as error:
            self._release()
            if isinstance(error, (RuntimeError, OSError, ValueError)):
                raise RuntimeError(
                    f"`ProfileLogger` could not write its trace: {described(error)}"
                ) from error
            raise
        try:
            folder = _copied(written, os.path.join(self._log_dir, "plugins", "profile"))
        except OSError as error:
            raise OSError(
                f"`ProfileLogger` could not put its trace into {self._log_dir}: "
                f"{described(error)} It is in {written}"
            ) from error
        shutil.rmtree(self._scratch, ignore_errors=True)
        return folder

    def _release(self) -> None:
        """Let JAX forget a trace that it could not write: stop it again, now that it is empty."""
        with contextlib.suppress(OSError):
            os.unlink(self._scratch)  # whatever may stand in the place of the folder
        shutil.rmtree(self._scratch, ignore_errors=True)
        with contextlib.suppress(RuntimeError):  # since JAX 0.12 it is forgotten already
            jax.profiler.stop_trace()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _not_started(reason: str) -> RuntimeError:
    return RuntimeError(
        f"`ProfileLogger` could not start its trace: {reason} JAX has one trace at a time, and one "
        "that is running goes on. Stop it before with `jax.profiler.stop_trace()`, or let one "
        "`ProfileLogger` end before the next begins."
    )


def _copied(folder: str, home: str) -> str:
    """Copy a folder into another, under a name that is free."""
    os.makedirs(home, exist_ok=True)
    part = tempfile.mkdtemp(prefix=".part-", dir=home)
    try:
        shutil.copytree(folder, part, dirs_exist_ok=True)
        name = target = os.path.join(home, os.path.basename(folder))
        number = 0
        while not _renamed(part, target):
            number += 1
            target = f"{name}_{number}"
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def _renamed(source: str, target: str) -> bool:
    """Whether the name was free."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.lexists(target):
            raise
        return False
    return True
