"""Runs on disk: what `SaveLogger` takes, for a thousand seeds in one compiled call and for one run.

*Many seeds* are 1,024 runs of 1,000 records with 20 scalars each, 20 million scalars. They are
timed from the call of the compiled program until `logax.flush()` has returned, when all of it is
safe. By hand somebody writes a row for each value into SQLite; that is done for a hundredth of the
values and taken a hundred times, and the program that computes them is not counted.

*One run* is 1,000 records of ten scalars. Its *delivery time* is the time that the processor spends
on the thread of delivery, commit included. *The program's time* is as in `streams`: from the call
until the result is there, against `tap` with a callback that does nothing.

*Checksums* of a batch are set against all of the writing of the same batch, commits and checksums
included; they may take a twentieth of its time. One row writes 64 batches, until SQLite has moved
all of them from its log into the file, which is what a run pays. The other writes one batch, which
goes to the log alone; it informs.

Some rows are set against an allowance: a time that is not measured but given, as a goal, or as a
figure that was measured elsewhere and is quoted. What is read back from disk is compared with what
`spool` gives before anything is timed. All files go to the folder for temporary files, and are
removed when the clock stands still.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.streams import BUFFER, STEPS, Stream, ignore, log_scalars, loop
from benchmarks.timing import Allowance, Side
from logax import flush, load, spool, tap
from logax._delivery.record_batch import RecordBatch, RunInfo
from logax._delivery.worker import worker
from logax._runs.encoding import LayoutCache, encode_batch
from logax._runs.format import block_checksums
from logax._runs.runs_writer import RunsWriter
from logax.loggers import SaveLogger

SEEDS = 1_024
KEYS = 20
SCALARS_A_SECOND = 10e6
PART = 100  # of the steps, for whom a hundredth takes long enough
SCALARS = 10
SECONDS_A_RECORD = 30e-6
SECONDS_TO_READ = 0.05
LOX_SECONDS_A_RECORD = 161 / 4_000  # of lox's `SaveLogger`, on a CPU
MOST_BYTES = 1.3
BATCH_RUNS, BATCH_RECORDS = 64, 100
BATCHES = 64  # 33 MB: enough for SQLite to move its log into the file

_many = loop(log_scalars(KEYS))
_one = loop(log_scalars(SCALARS))


@contextlib.contextmanager
def _saving() -> Iterator[tuple[SaveLogger, str]]:
    """A new logger, whose files are gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder,
        contextlib.closing(SaveLogger(folder)) as logger,
    ):
        yield logger, folder


def _expected(steps: int = STEPS) -> list[Any]:
    """By key what all seeds log in their first steps."""
    _, logs = jax.jit(jax.vmap(spool(_many)))(_seeds(SEEDS))
    return [np.asarray(values)[:, :steps] for values in dict(logs).values()]


def _seeds(number: int) -> Any:
    return jnp.linspace(0, 1, number)


@dataclasses.dataclass(frozen=True)
class _ManySeeds:
    """All seeds, from the call until everything is safe.

    Attributes:
      seeds: How many.
      steps: How many of the steps are compared.
    """

    seeds: int = SEEDS
    steps: int = STEPS

    def seconds(self, number: int) -> float:
        return sum(self._timed() for _ in range(number))

    def results(self) -> Any:
        with _saving() as (logger, folder):
            self.save(logger)
            runs = load(folder)
            return [runs[f"key{j}"][:, : self.steps] for j in range(KEYS)]

    def save(self, logger: SaveLogger) -> float:
        """Run the program, and say how long that took."""
        xs = _seeds(self.seeds)
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), self.seeds))
        program = jax.jit(jax.vmap(lambda state, x: logger.tap(_many, state, buffer=BUFFER)(x)))
        compiled = program.lower(states, xs).compile()
        flush()
        start = time.perf_counter()
        jax.block_until_ready(compiled(states, xs))
        flush()
        return time.perf_counter() - start

    def _timed(self) -> float:
        with _saving() as (logger, _):
            return self.save(logger)


class _RowsOfSQLite:
    """A row for each value, as many as come at once in one transaction."""

    def __init__(self, steps: int) -> None:
        self._values = _expected(steps)
        self._steps = steps

    def seconds(self, number: int) -> float:
        with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
            names = [os.path.join(folder, f"{i}.sqlite") for i in range(number)]
            return STEPS / self._steps * sum(map(self._write, names))

    def results(self) -> Any:
        with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
            path = os.path.join(folder, "values.sqlite")
            self._write(path)
            with contextlib.closing(sqlite3.connect(path)) as file:
                ask = "SELECT value FROM scalars WHERE key = ? ORDER BY run, step"
                columns = [file.execute(ask, (f"key{j}",)).fetchall() for j in range(KEYS)]
        return [np.array(rows, np.float32).reshape(SEEDS, -1) for rows in columns]

    def _write(self, path: str) -> float:
        file = sqlite3.connect(path)
        with contextlib.closing(file):
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("CREATE TABLE scalars (run INTEGER, key TEXT, step INTEGER, value REAL)")
            start = time.perf_counter()
            with file:
                file.executemany("INSERT INTO scalars VALUES (?, ?, ?, ?)", self._rows())
            return time.perf_counter() - start

    def _rows(self) -> Iterator[tuple[int, str, int, float]]:
        for j, values in enumerate(self._values):
            for run, own in enumerate(values.tolist()):
                for step, value in enumerate(own):
                    yield run, f"key{j}", step, value


def bytes_on_disk(seeds: int) -> float:
    """How many bytes there are for each byte of values, once the logger is closed."""
    with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
        with contextlib.closing(SaveLogger(folder)) as logger:
            _ManySeeds(seeds).save(logger)
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
    return size / (seeds * KEYS * STEPS * np.dtype(np.float32).itemsize)


def remarks() -> list[str]:
    """What is no time: the size of the files."""
    return [
        f"Bytes on disk for each byte of values, {SEEDS:,} seeds, {KEYS} keys, {STEPS:,} steps: "
        f"{bytes_on_disk(SEEDS):.3f} with `SaveLogger` ({MOST_BYTES} are allowed)."
    ]


class _Reading:
    """One key of one run of many, with all that comes before: files are looked for anew."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="logax-benchmarks-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        with contextlib.closing(SaveLogger(folder)) as logger:
            _ManySeeds().save(logger)
        self._folder, self._run = folder, list(load(folder))[SEEDS // 2]

    def seconds(self, number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            self._read()
        return time.perf_counter() - start

    def results(self) -> Any:
        return [self._read()]

    def _read(self) -> Any:
        return load(self._folder)[self._run][f"key{KEYS // 2}"]


@dataclasses.dataclass(frozen=True)
class _OneRun:
    """One run, until all of it is safe.

    Attributes:
      buffer: Of `tap`.
      clock: What is read before and after.
    """

    buffer: int
    clock: Callable[[], float]

    def seconds(self, number: int) -> float:
        with self._tapped() as (function, _):
            return sum(self._timed(function) for _ in range(number))

    def results(self) -> Any:
        with self._tapped() as (_, folder):
            (run,) = load(folder).values()
            return [run[f"key{j}"] for j in range(SCALARS)]

    def _timed(self, function: Callable[[Any], Any]) -> float:
        start = self.clock()
        jax.block_until_ready(function(jnp.float32(1)))
        flush()
        return self.clock() - start

    @contextlib.contextmanager
    def _tapped(self) -> Iterator[tuple[Callable[[Any], Any], str]]:
        """The program, called once: all that comes first has come."""
        with _saving() as (logger, folder), logger.run() as state:
            function = logger.tap(_one, state, buffer=self.buffer)
            jax.block_until_ready(function(jnp.float32(1)))
            flush()
            yield function, folder


def _delivery_clock() -> float:
    """The processor's time on the thread of delivery, when all that waits is done."""
    read: list[float] = []
    worker.put(0, lambda: read.append(time.thread_time()))
    flush()
    return read[0]


class _Beginning:
    """All runs begin, until that is safe.

    Args:
      begin: Given `init` and all keys.
    """

    def __init__(self, begin: Callable[[Any, Any], Any]) -> None:
        self._begin = begin
        self._keys = jax.random.split(jax.random.key(0), SEEDS)

    def seconds(self, number: int) -> float:
        return sum(self._begun()[0] for _ in range(number))

    def results(self) -> Any:
        return [np.array(self._begun()[1])]

    def _begun(self) -> tuple[float, int]:
        with _saving() as (logger, folder):
            start = time.perf_counter()
            self._begin(logger.init, self._keys)
            flush()
            return time.perf_counter() - start, len(load(folder))


def _one_after_another(init: Callable[[Any], Any], keys: Any) -> None:
    for key in keys:
        init(key)


def _at_once(init: Callable[[Any], Any], keys: Any) -> None:
    jax.vmap(init)(keys)


def _allowed_seeds() -> tuple[Side, Side]:
    scalars = SEEDS * KEYS * STEPS
    return Allowance(scalars / SCALARS_A_SECOND, _expected()), _ManySeeds()


def _against_sqlite() -> tuple[Side, Side]:
    return _RowsOfSQLite(STEPS // PART), _ManySeeds(steps=STEPS // PART)


def _reading() -> tuple[Side, Side]:
    expected = _expected()[KEYS // 2][SEEDS // 2]
    return Allowance(SECONDS_TO_READ, [expected]), _Reading()


def _allowed_run(
    a_record: float, buffer: int, clock: Callable[[], float]
) -> Callable[[], tuple[Side, Side]]:
    def make() -> tuple[Side, Side]:
        _, logs = spool(_one)(jnp.float32(1))
        expected = [np.asarray(values) for values in dict(logs).values()]
        return Allowance(STEPS * a_record, expected), _OneRun(buffer, clock)

    return make


def _program(buffer: int) -> Callable[[], tuple[Side, Side]]:
    def make() -> tuple[Side, Side]:
        x = jnp.float32(1)
        stack = contextlib.ExitStack()
        logger, _ = stack.enter_context(_saving())
        state = logger.init(jax.random.key(0))
        ours = Stream(logger.tap(_one, state, buffer=buffer), x)
        weakref.finalize(ours, stack.close)
        return Stream(tap(_one, ignore, buffer=buffer), x), ours

    return make


_CHECKSUMS = "SaveLogger, checksums"
_SEEDS = f"SaveLogger, {SEEDS:,} seeds, {KEYS} keys, {STEPS:,} steps"
_RUN = f"SaveLogger, a run of {STEPS:,} records of {SCALARS} scalars"
_DELIVERY = f"delivery time, {SECONDS_A_RECORD * 1e6:.0f} µs a record allowed"
_PROGRAM = "the program's time, against a callback that does nothing"
_QUOTED = f"all of it, {LOX_SECONDS_A_RECORD * 1e3:.0f} ms a record, quoted of lox"


def _checksums(batches: int) -> Callable[[], tuple[Side, Side]]:
    return lambda: (_Writing(batches), _Checksumming(batches))


class _Batch:
    """A batch of the records of 64 runs with 20 scalars, and its bytes as the store has them."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.runs = [RunInfo(f"run-{i}", f"run-{i}") for i in range(BATCH_RUNS)]
        chance = np.random.default_rng(0)
        shape = (BATCH_RUNS, BATCH_RECORDS)
        values = {f"key{j}": chance.standard_normal(shape, np.float32) for j in range(KEYS)}
        steps = np.broadcast_to(np.arange(BATCH_RECORDS), shape)
        self.batch = RecordBatch.of(self.runs, values, step=steps)
        layout, _ = LayoutCache().layout_of(self.batch)
        *_, self.shared, self.alone = encode_batch(self.batch, layout)

    def checksums(self) -> list[bytes]:
        """Compute the checksums that the store computes for its bytes."""
        parts = [memoryview(self.shared), *self.alone]
        return [block_checksums(data) for data in parts]

    def results(self) -> Any:
        return [np.frombuffer(b"".join(self.checksums()), "<u4").astype(np.int64)]


class _Writing(_Batch):
    """Write the batch several times; close the file, which empties the log, if they are many."""

    def seconds(self, number: int) -> float:
        return sum(self._write() for _ in range(number))

    def _write(self) -> float:
        with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
            writer = RunsWriter("SaveLogger", folder)
            try:
                writer.open(self.runs)
                writer.flush()
                start = time.perf_counter()
                for _ in range(self.batches):
                    writer.write(self.batch)
                    writer.flush()
                seconds = time.perf_counter() - start
            finally:
                writer.end()
            return seconds if self.batches == 1 else time.perf_counter() - start


class _Checksumming(_Batch):
    """Compute the checksums of the bytes of the batch as often."""

    def seconds(self, number: int) -> float:
        start = time.perf_counter()
        for _ in range(number * self.batches):
            self.checksums()
        return time.perf_counter() - start


CASES = [
    Case(_CHECKSUMS, f"against writing {BATCHES} batches, all of it", 1 / 20, _checksums(BATCHES)),
    Case(_CHECKSUMS, "against writing a batch to the log", None, _checksums(1)),
    Case(_SEEDS, f"{SCALARS_A_SECOND:.0e} scalars a second allowed", 1.0, _allowed_seeds),
    Case(_SEEDS, f"against SQLite, a row a value ({PART} times 1/{PART})", None, _against_sqlite),
    Case(_SEEDS, "load, and read a key of a run, 50 ms allowed", 1.0, _reading),
    *(
        case
        for buffer in (1, BUFFER)
        for case in (
            Case(
                _RUN,
                f"buffer={buffer}, {_DELIVERY}",
                1.0,
                _allowed_run(SECONDS_A_RECORD, buffer, _delivery_clock),
            ),
            Case(_RUN, f"buffer={buffer}, {_PROGRAM}", 1.05, _program(buffer)),
        )
    ),
    Case(
        _RUN,
        f"buffer=1, {_QUOTED}",
        None,
        _allowed_run(LOX_SECONDS_A_RECORD, 1, time.perf_counter),
    ),
    Case(
        f"SaveLogger, {SEEDS:,} runs begin",
        "vmap(init) against a loop",
        None,
        lambda: (_Beginning(_one_after_another), _Beginning(_at_once)),
    ),
]
