"""Trajectories: what `HDF5StorageWriter` takes of a loop's time, and how long its files take.

It is set against kUPS's writer of that name, which has a thread of its own too, and against loops
that write by hand, with h5py and to a plain file, and wait for that. All store the same random
numbers, uncompressed: ten scalars, or one array of 2 MB. What is in the files is read back and
compared before anything is timed.

Each step has a state of its own, which is there before the clock starts. All files go to the
folder for temporary files, are not synced, and are removed when the clock stands still. The writers
are made once and entered for each run, so that all is compiled.

*A call* is the median of the calls of `log` in a run. The thread behind a writer wants Python too;
whom it holds up, and when, is chance. So there is a pause after each call, in which both threads
get done, as in a loop whose steps take a while. Calls without pauses only inform. *A run* is all of
it, whoever waits for whom: entering the block, all calls without pauses, leaving it. kUPS's queue
has no bound, so that logax gets one that is never reached.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import loops
from benchmarks.case import Case
from benchmarks.formats import (
    H5PY,
    KUPS,
    LOGAX,
    PLAIN_FILE,
    SHAPE,
    Format,
    MakeLogger,
    kups_writer,
    logax_writer,
    removed,
    unused_path,
)
from benchmarks.streams import ON_GPU
from benchmarks.timing import Comparison, Effort, Side
from logax.loop import NullLogger

ARRAYS = 64
PAUSE_AFTER_ARRAY = 0.01
SCALARS = 10
STEPS = 2_000
STEPS_BY_HAND = 200  # each takes long
PAUSE_AFTER_SCALARS = 2e-4
MANY_SCALARS = 200
SECONDS_TO_BEGIN = 1.0
QUEUE = 64 * 2**20
ROWS_AT_ONCE = 300
_PEAK = "/proc/self/clear_refs"  # Linux only

WIDTH = 4096  # of a square of 64 MB
PRODUCTS = 32  # for some 90 ms on an H200, in which most disks take in 64 MB
LOOP_STEPS = 20

States = list[dict[str, Any]]


def missing() -> list[str]:
    """The libraries without which there are no rows."""
    return [] if importlib.util.find_spec("h5py") else ["h5py"]


class _Run:
    """A file, from its beginning to its end."""

    def __init__(self, how: Format, states: States) -> None:
        self._read, self._states, self._path = how.read, states, unused_path()
        self._logger = how.make(self._path, states[0], len(states))

    def seconds(self, number: int) -> float:
        return sum(self._timed(_fresh(self._states)) for _ in range(number))

    def results(self) -> Any:
        with removed(self._path):
            self._write(self._states)
            return self._read(self._path)

    def _write(self, states: States) -> None:
        with self._logger as logger:
            for step, state in enumerate(states):
                logger.log(state, step)

    def _timed(self, states: States) -> float:
        with removed(self._path):
            start = time.perf_counter()
            self._write(states)
            return time.perf_counter() - start


class _OneCall(_Run):
    """The median of the calls of `log` in a run.

    Args:
      how: Who writes.
      states: What.
      pause: Seconds after each call.
    """

    def __init__(self, how: Format, states: States, pause: float = 0.0) -> None:
        super().__init__(how, states)
        self._pause = pause

    def _timed(self, states: States) -> float:
        seconds = []
        with removed(self._path), self._logger as logger:
            for step, state in enumerate(states):
                start = time.perf_counter()
                logger.log(state, step)
                seconds.append(time.perf_counter() - start)
                if self._pause:
                    time.sleep(self._pause)
        return statistics.median(seconds)


class _FewRuns(Case):
    """A row whose timings are runs, or taken from runs, and so longer than they seem."""

    def run(self, effort: Effort) -> Comparison:
        few = min(effort.fewest, effort.most)
        return super().run(dataclasses.replace(effort, timing_seconds=0.0, most=few))


@jax.jit
def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _fresh(states: States) -> States:
    """The same in other arrays, of which JAX keeps no copy on the host."""
    copies: States = jax.block_until_ready([_copy(state) for state in states])
    return copies


def _ten_scalars(steps: int = STEPS) -> States:
    return _scalars(steps, SCALARS)


def _scalars(steps: int, number: int) -> States:
    table = jax.random.normal(jax.random.key(0), (steps, number))
    split = jax.jit(lambda row: {f"value{i}": row[i] for i in range(number)})
    return [split(row) for row in table]


def _arrays() -> States:
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    return [{"x": jax.random.normal(key, SHAPE)} for key in keys]


def _run(theirs: Format, states: Callable[[], States]) -> Callable[[], tuple[Side, Side]]:
    def make() -> tuple[Side, Side]:
        given = states()
        return _Run(theirs, given), _Run(LOGAX, given)

    return make


def _call(states: Callable[[], States], pause: float = 0.0) -> Callable[[], tuple[Side, Side]]:
    def make() -> tuple[Side, Side]:
        given = states()
        return _OneCall(KUPS, given, pause), _OneCall(LOGAX, given, pause)

    return make


def remarks() -> list[str]:
    """What is no time: the memory that rows take which wait to be written."""
    if missing() or not os.path.exists(_PEAK):
        return []
    ours = functools.partial(logax_writer, queue_bytes=QUEUE)
    writers: dict[str, MakeLogger] = {f"logax, `queue_bytes={QUEUE}`": ours}
    if not loops.missing():
        writers["kUPS"] = kups_writer
    peaks = [f"{_peak_bytes(make) / 1e6:.0f} MB with {name}" for name, make in writers.items()]
    return [f"Peak memory while {ROWS_AT_ONCE} rows of 2 MB are logged without pauses: "
            f"{', '.join(peaks)}."]  # fmt: skip


def _peak_bytes(make: MakeLogger) -> int:
    """By how much the memory of the process grows at most in a run."""
    (state, *_) = _arrays()
    path = unused_path()
    with removed(path), make(path, state, ROWS_AT_ONCE) as logger:
        with open(_PEAK, "w") as file:
            file.write("5")  # forget the peak so far
        before = _memory("VmRSS")
        for step in range(ROWS_AT_ONCE):
            logger.log(state, step)
    return _memory("VmHWM") - before


def _memory(what: str) -> int:
    """Bytes, of the kernel's account of this process."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(what))
    return int(line.split()[1]) * 1024


@dataclasses.dataclass(frozen=True)
class _First:
    """Making a logger, entering its block, and the first call.

    Attributes:
      make: Makes it.
      state: With what it is called.
      extra: Seconds that are added.
    """

    make: MakeLogger
    state: Any
    extra: float = 0.0

    def seconds(self, number: int) -> float:
        return sum(self._timed() for _ in range(number))

    def _timed(self) -> float:
        path = unused_path()
        with removed(path):
            start = time.perf_counter()
            with self.make(path, self.state, STEPS) as logger:
                logger.log(self.state, 0)
                return time.perf_counter() - start + self.extra

    def results(self) -> Any:
        return [jnp.zeros(())]


def _no_logger(path: str, state: Any, steps: int) -> NullLogger:
    return NullLogger()


def _beginning() -> tuple[Side, Side]:
    (state,) = _scalars(1, MANY_SCALARS)
    return _First(_no_logger, state, SECONDS_TO_BEGIN), _First(logax_writer, state)


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A loop with a large state, within the block of its logger, until its result is there.

    The queue is of the usual size and takes in four states, so that a disk that cannot keep up
    holds up the loop.
    """

    make: MakeLogger
    advance: Callable[[Any], Any]
    x: Any

    def seconds(self, number: int) -> float:
        return sum(self._timed()[0] for _ in range(number))

    def results(self) -> Any:
        return [self._timed()[1]]

    def _timed(self) -> tuple[float, Any]:
        path, x = unused_path(), jax.block_until_ready(jnp.copy(self.x))
        with removed(path), self.make(path, x, LOOP_STEPS) as logger:
            start = time.perf_counter()
            for step in range(LOOP_STEPS):
                x = self.advance(x)
                logger.log(x, step)
            jax.block_until_ready(x)
            return time.perf_counter() - start, x


def _multiplied(x: Any) -> Any:
    """A step of many products of large matrices."""

    def body(_: Any, x: Any) -> Any:
        product = jnp.matmul(x, x, precision="highest")
        return product * jax.lax.rsqrt(jnp.mean(product * product))

    return jax.lax.fori_loop(0, PRODUCTS, body, x)


def _large_state() -> tuple[Side, Side]:
    x = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH))
    advance = jax.jit(_multiplied, donate_argnums=0)
    return _Loop(_no_logger, advance, x), _Loop(logax_writer, advance, x)


_ONE_CALL = "a call of writer.log(state, step) against kUPS"
_WHOLE = "a run with HDF5StorageWriter"
_ROWS_OF_SCALARS = f"{STEPS:,} rows of {SCALARS} scalars"
_ROWS_OF_ARRAYS = f"{ARRAYS} rows of 2 MB"

CASES: list[Case] = []
if not missing():
    CASES += [
        _FewRuns(_WHOLE, f"{_ROWS_OF_ARRAYS}, against h5py", 1.25, _run(H5PY, _arrays)),
        _FewRuns(
            _WHOLE, f"{_ROWS_OF_ARRAYS}, against a plain file", None, _run(PLAIN_FILE, _arrays)
        ),
        _FewRuns(
            _WHOLE,
            f"{STEPS_BY_HAND} rows of {SCALARS} scalars, against h5py",
            None,
            _run(H5PY, lambda: _ten_scalars(STEPS_BY_HAND)),
        ),
        _FewRuns(
            "HDF5StorageWriter, until the first log has returned",
            f"{MANY_SCALARS} scalars, 1 s allowed",
            1.0,
            _beginning,
        ),
    ]
    if ON_GPU:
        CASES += [_FewRuns("a Python loop", "HDF5StorageWriter, 64 MB a step", None, _large_state)]
    if not loops.missing():
        CASES += [
            _FewRuns(
                _ONE_CALL, f"{SCALARS} scalars", 0.7, _call(_ten_scalars, PAUSE_AFTER_SCALARS)
            ),
            _FewRuns(_ONE_CALL, f"{SCALARS} scalars, no pauses", None, _call(_ten_scalars)),
            _FewRuns(_ONE_CALL, "2 MB", 0.7, _call(_arrays, PAUSE_AFTER_ARRAY)),
            _FewRuns(_ONE_CALL, "2 MB, no pauses", None, _call(_arrays)),
            _FewRuns(_WHOLE, f"{_ROWS_OF_SCALARS}, against kUPS", 1 / 3, _run(KUPS, _ten_scalars)),
            _FewRuns(_WHOLE, f"{_ROWS_OF_ARRAYS}, against kUPS", None, _run(KUPS, _arrays)),
        ]
