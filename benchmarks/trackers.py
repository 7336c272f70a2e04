"""Trackers through logax, against the same trackers alone: TensorBoard and W&B.

All write 2,000 records of ten scalars with their steps, from the making of the writer until it is
closed and everything is in files. Alone, a tracker gets floats of Python's that are there already;
through logax the records come out of a compiled program (`tap`), or as the same floats, one `log` a
record, or all of them at once (`log` of a `logdict`). The files are read back, and must hold the
same scalars and steps, before anything is timed.

TensorBoard alone is tensorboardX, one call a scalar. clu's writers for TensorBoard want TensorFlow
or PyTorch; what is measured is the one for PyTorch in clu's `AsyncWriter`, with tensorboardX's
`SummaryWriter`, which has the same methods, in place of PyTorch's.

W&B is offline, in a process of its own that is warm. Alone it is told the step as logax does: as a
metric, which is the x-axis of all others. Rows *without beginning and end* have no `wandb.init` and
no `finish` in them: the records, until all are handed to W&B's process.

None of the libraries is needed to run the benchmarks. `make bench` installs them; where one is
missing, its rows are left out, and that is said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import pathlib
import struct
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.case import Case
from benchmarks.streams import BUFFER, log_scalars, loop
from benchmarks.timing import Comparison, Effort, Side
from logax import flush, logdict, spool
from logax.loggers import Logger, TensorBoardLogger, WandbLogger

RECORDS = 2_000
SCALARS = 10

Way = Callable[[str], contextlib.AbstractContextManager[Callable[[], None]]]
Read = Callable[[str], dict[str, list[tuple[int, float]]]]


def missing() -> list[str]:
    """The libraries whose rows are left out."""
    return [name for name in ("tensorboardX", "clu", "wandb") if not importlib.util.find_spec(name)]


_program = loop(log_scalars(SCALARS), steps=RECORDS)


@functools.cache
def _logs() -> logdict:
    """What the program logs."""
    logs: logdict = spool(_program)(jnp.float32(1))[1]
    return logs


@functools.cache
def _rows() -> list[dict[str, float]]:
    """The same as floats, record by record."""
    columns = {key: np.asarray(values).tolist() for key, values in dict(_logs()).items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclasses.dataclass(frozen=True)
class _Written:
    """All records, in a new folder.

    Attributes:
      way: Begins in a folder, gives what writes all records, and ends.
      read: By key the steps and values that are in the folder.
      whole: Whether beginning and end count.
    """

    way: Way
    read: Read
    whole: bool = True

    def seconds(self, number: int) -> float:
        return sum(self._timed() for _ in range(number))

    def _timed(self) -> float:
        with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
            before = time.perf_counter()
            with self.way(folder) as write:
                if not self.whole:
                    flush()  # a run of ours begins on another thread
                begun = time.perf_counter()
                write()
                written = time.perf_counter()
            ended = time.perf_counter()
        return ended - before if self.whole else written - begun

    def results(self) -> Any:
        """Steps and values of each key, in the order of steps."""
        with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as folder:
            with self.way(folder) as write:
                write()
            found = self.read(folder)
        return [np.array(sorted(found[f"key{j}"])) for j in range(SCALARS)]


# Through logax.


def _tapped(logger: Logger, state: Any) -> None:
    jax.block_until_ready(logger.tap(_program, state, buffer=BUFFER)(jnp.float32(1)))
    flush()


def _one_by_one(logger: Logger, state: Any) -> None:
    for i, row in enumerate(_rows()):
        logger.log(state, row, step=i)
    flush()


def _all_at_once(logger: Logger, state: Any) -> None:
    logger.log(state, _logs())
    flush()


def _through(make: Callable[[str], Logger], write: Callable[[Logger, Any], None]) -> Way:
    @contextlib.contextmanager
    def way(folder: str) -> Iterator[Callable[[], None]]:
        with contextlib.closing(make(folder)) as logger, logger.run(name="run") as state:
            yield functools.partial(write, logger, state)

    return way


# TensorBoard.


@contextlib.contextmanager
def _tensorboardx(folder: str) -> Iterator[Callable[[], None]]:
    writer = importlib.import_module("tensorboardX").SummaryWriter(folder)

    def write() -> None:
        for i, row in enumerate(_rows()):
            for key, value in row.items():
                writer.add_scalar(key, value, i)

    with contextlib.closing(writer):
        yield write


@contextlib.contextmanager
def _clu(folder: str) -> Iterator[Callable[[], None]]:
    make_async, make = _clu_writers()
    writer = make_async(make(folder))

    def write() -> None:
        for i, row in enumerate(_rows()):
            writer.write_scalars(i, row)

    with contextlib.closing(writer):
        yield write


@functools.cache
def _clu_writers() -> tuple[Any, Any]:
    """`AsyncWriter` and `TorchTensorboardWriter`, past a package that imports TensorFlow."""
    (place,) = importlib.import_module("clu").__path__
    package = types.ModuleType("clu.metric_writers")
    package.__path__ = [os.path.join(place, "metric_writers")]
    sys.modules[package.__name__] = package
    torch, torch_utils = types.ModuleType("torch"), types.ModuleType("torch.utils")
    torch_utils.__dict__["tensorboard"] = importlib.import_module("tensorboardX")
    stand_ins = {"torch": torch, "torch.utils": torch_utils}
    known = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        own = importlib.import_module("clu.metric_writers.torch_tensorboard_writer")
    finally:
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(known)
    wrapper = importlib.import_module("clu.metric_writers.async_writer")
    return wrapper.AsyncWriter, own.TorchTensorboardWriter


def _read_tensorboard(folder: str) -> dict[str, list[tuple[int, float]]]:
    messages = importlib.import_module("tensorboardX.proto.event_pb2")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in pathlib.Path(folder).rglob("events.out.tfevents.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = messages.Event.FromString(data[at + 12 : at + 12 + size])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += size + 16
    return found


# W&B.


class _WithWandb(Case):
    """A row during which W&B has a folder for all that it keeps, and after which it is gone."""

    def run(self, effort: Effort) -> Comparison:
        wandb = importlib.import_module("wandb")
        with tempfile.TemporaryDirectory(prefix="logax-benchmarks-") as home:
            names = ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")
            own = {f"WANDB_{name}": home for name in names}
            own |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
            others = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
            with mock.patch.dict(os.environ, {**others, **own}, clear=True):
                wandb.teardown()
                try:
                    return super().run(effort)
                finally:
                    wandb.teardown()


def _wandb_options(folder: str) -> dict[str, Any]:
    return {
        "project": "benchmarks",
        "mode": "offline",
        "dir": folder,
        "settings": {"console": "off", "silent": True},
    }


@contextlib.contextmanager
def _wandb(folder: str) -> Iterator[Callable[[], None]]:
    wandb = importlib.import_module("wandb")
    run = wandb.init(**_wandb_options(folder), name="run", reinit="create_new")
    run.define_metric("step")
    run.define_metric("*", step_metric="step", step_sync=False)

    def write() -> None:
        for i, row in enumerate(_rows()):
            run.log({"step": i, **row})

    try:
        yield write
    finally:
        run.finish()


def _wandb_logger(folder: str) -> Logger:
    return WandbLogger(**_wandb_options(folder))


def _read_wandb(folder: str) -> dict[str, list[tuple[int, float]]]:
    importlib.import_module("wandb").teardown()  # when its process has ended, all is written
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    store = importlib.import_module("wandb.sdk.internal.datastore").DataStore()
    (path,) = pathlib.Path(folder).rglob("*.wandb")
    store.open_for_scan(str(path))
    found: dict[str, list[tuple[int, float]]] = {}
    while (data := store.scan_data()) is not None:
        items = records.Record.FromString(data).history.item
        row = {x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in items}
        for key, value in row.items():
            found.setdefault(key, []).append((row["step"], value))
    store.close()
    return found


# The rows.


def _pair(
    theirs: Way, ours: Way, read: Read, whole: bool = True
) -> Callable[[], tuple[Side, Side]]:
    return lambda: (_Written(theirs, read, whole), _Written(ours, read, whole))


_WRITES = {
    f"tap, buffer={BUFFER}": _tapped,
    "one log a record": _one_by_one,
    "one log of a logdict": _all_at_once,
}
_RECORDS = f"{RECORDS:,} records of {SCALARS} scalars"
_TENSORBOARD = f"TensorBoardLogger, {_RECORDS}"
_WANDB = f"WandbLogger, {_RECORDS}"

CASES: list[Case] = []
if "tensorboardX" not in missing():
    for _name, _write in _WRITES.items():
        _ours = _through(TensorBoardLogger, _write)
        CASES += [
            Case(
                _TENSORBOARD,
                f"{_name}, against tensorboardX",
                1.1,
                _pair(_tensorboardx, _ours, _read_tensorboard),
            )
        ]
    if "clu" not in missing():
        _ours = _through(TensorBoardLogger, _tapped)
        CASES += [
            Case(
                _TENSORBOARD,
                f"tap, buffer={BUFFER}, against clu",
                None,
                _pair(_clu, _ours, _read_tensorboard),
            )
        ]
if "wandb" not in missing():
    for _name, _write in _WRITES.items():
        _ours = _through(_wandb_logger, _write)
        CASES += [
            _WithWandb(_WANDB, f"{_name}, against W&B", 1.1, _pair(_wandb, _ours, _read_wandb)),
            _WithWandb(
                _WANDB,
                f"{_name}, against W&B, without beginning and end",
                None,
                _pair(_wandb, _ours, _read_wandb, whole=False),
            ),
        ]
