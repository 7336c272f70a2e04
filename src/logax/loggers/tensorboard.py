"""TensorBoard's events as bytes, and the files they stand in.

All scalars of a record are one event, which costs a small part of one event each. Nothing stays
open between two additions: any number of runs need no descriptors, a file that was deleted is
noticed, and an addition that fails leaves the file as it was, so that the next one can be read.

Records in TensorBoard's files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._support.arrays import as_utf8
from logax._support.files import writable_folder
from logax._support.imports import imported
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import Axis, Part, Picture, as_bytes, flat_config, png
from logax.loggers._numbers.config import Plain, value_text
from logax.loggers._text.files import append
from logax.loggers.sink import Sink, for_each

_HEAD_BYTES = 2**12  # bytes by which a file is known again; the time of its making is among them
_STATUS = {"finished": 1, "crashed": 2}  # SUCCESS and FAILURE, as the hparams plugin counts them


class Events:
    """Makes events, with tensorboardX's messages."""

    def __init__(self) -> None:
        events = imported("tensorboardX.proto.event_pb2", _NAME, "tensorboard")
        self._summaries = imported("tensorboardX.proto.summary_pb2", _NAME, "tensorboard")
        self._texts = imported("tensorboardX.summary", _NAME, "tensorboard").text
        self._hparams = imported("tensorboardX.proto.plugin_hparams_pb2", _NAME, "tensorboard")
        self._checksum = imported("tensorboardX.record_writer", _NAME, "tensorboard").masked_crc32c
        self._event = events.Event
        self._value = self._summaries.Summary.Value

    def header(self) -> bytes:
        """What a file begins with."""
        return self._framed(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def config(self, run: RunInfo) -> bytes:
        """The config of the run: as text, and as hyperparameters."""
        flat = flat_config(run.config)
        start = self._hparams.SessionStartInfo(start_time_secs=run.began)
        for name, value in flat.items():
            _set(start.hparams[as_utf8(name)], value)
        called = run.given_name
        own = [("id", run.id), *([] if called is None else [("name", called)])]
        lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in [*own, *flat.items()]]
        text = self._texts("logax/config", "\n".join(["| | |", "| --- | --- |", *lines]))
        return self._session("start", start, run.began) + self._summary(text.value, 0, run.began)

    def status(self, status: str) -> bytes:
        """How the run ended."""
        now = time.time()
        end = self._hparams.SessionEndInfo(status=_STATUS.get(status, 0), end_time_secs=now)
        return self._session("end", end, now)

    def records(self, part: Part, stream: int, now: float) -> Iterator[bytes]:
        """All that one stream of a part says."""
        for table in part.tables:
            event = self._event(wall_time=now)
            names = [as_utf8(name) for name in table.names]
            values = [event.summary.value.add(tag=name, simple_value=0.0) for name in names]
            for x, row in table.rows(stream):
                event.step = x
                for value, number in zip(values, row, strict=True):
                    value.simple_value = number
                yield self._framed(event)
        if part.histograms or part.images:
            for number in part.rows_of(stream):
                yield from self._pictures(part, stream, number, now)

    def _pictures(self, part: Part, stream: int, row: int, now: float) -> Iterator[bytes]:
        for picture in part.histograms:
            yield self._summary(self._bins(picture, stream, row), picture.x[stream, row], now)
        for picture in part.images:
            yield self._summary([self._image(picture, stream, row)], picture.x[stream, row], now)

    def _bins(self, picture: Picture, stream: int, row: int) -> list[Any]:
        bins, name = picture.value, as_utf8(picture.name)
        counts = np.asarray(bins.counts[stream, row], np.float64)
        edges = np.asarray(bins.edges[stream, row], np.float64)
        middles = edges[1:] / 2 + edges[:-1] / 2
        with np.errstate(over="ignore"):  # squares may be infinite
            squares = float(counts @ middles**2)
        histogram = self._summaries.HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=counts.sum(),
            sum=counts @ middles,
            sum_squares=squares,
            bucket_limit=edges[1:],
            bucket=counts,
        )
        values = [self._value(tag=name, histo=histogram)]
        lost = int(bins.nonfinite[stream, row])
        return (
            [*values, self._value(tag=f"{name}/nonfinite", simple_value=lost)] if lost else values
        )

    def _image(self, picture: Picture, stream: int, row: int) -> Any:
        pixels = as_bytes(picture.value.pixels[stream, row])
        image = self._summaries.Summary.Image(
            height=pixels.shape[0],
            width=pixels.shape[1],
            colorspace=1 if pixels.ndim == 2 else pixels.shape[2],
            encoded_image_string=png(pixels),
        )
        return self._value(tag=as_utf8(picture.name), image=image)

    def _session(self, moment: str, info: Any, now: float) -> bytes:
        """What the hparams plugin reads. TensorBoard finds the metrics by itself."""
        content = self._hparams.HParamsPluginData(**{f"session_{moment}_info": info})
        plugin = self._summaries.SummaryMetadata.PluginData(
            plugin_name="hparams", content=content.SerializeToString()
        )
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        value = self._value(tag=f"_hparams_/session_{moment}_info", metadata=metadata)
        return self._summary([value], 0, now)

    def _summary(self, values: Sequence[Any], step: int, now: float) -> bytes:
        summary = self._summaries.Summary(value=values)
        return self._framed(self._event(wall_time=now, step=int(step), summary=summary))

    def _framed(self, event: Any) -> bytes:
        """The event as it stands in a file, with its length and checksums."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = struct.pack("<I", self._checksum(length)), struct.pack("<I", self._checksum(data))
        return b"".join((length, checks[0], data, checks[1]))


class EventFile:
    """A new file of events in a folder.

    Args:
      folder: Where it is made.
      begin: What it begins with.
    """

    def __init__(self, folder: str, begin: bytes) -> None:
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9}.{now % 10**9:09}.{socket.gethostname()}"
        self._path = os.path.join(folder, f"{name}.{os.getpid()}")
        self._head = begin[:_HEAD_BYTES]
        self._size = 0  # bytes, after the last addition
        self._add(begin, os.O_CREAT | os.O_EXCL)

    def add(self, events: bytes) -> None:
        """Add all of this to the end, or nothing.

        Raises:
          OSError: The file is gone, or is not the one that was written.
        """
        self._add(events, 0)

    def _add(self, events: bytes, flags: int) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)
        try:
            if self._size:
                self._check_unchanged(fd)
            append(fd, events)
            self._size = os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _check_unchanged(self, fd: int) -> None:
        """Raise where another program replaced or truncated the file: nothing is added to that."""
        if os.pread(fd, len(self._head), 0) != self._head:
            change = "Another program put something else in its place"
        elif os.fstat(fd).st_size < self._size:
            change = "Another program truncated it"
        else:
            return
        raise OSError(errno.ESTALE, f"{change}, and nothing is added to that", self._path)


def _set(hyperparameter: Any, value: Plain) -> None:
    if isinstance(value, bool):
        hyperparameter.bool_value = value
    elif isinstance(value, str):
        hyperparameter.string_value = as_utf8(value)
    else:
        hyperparameter.number_value = _as_double(value)


def _as_double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # of an integer
        return math.inf if value > 0 else -math.inf


def _cell(value: Any) -> str:
    """In a table of Markdown's."""
    return as_utf8(value_text(value)).replace("|", "\\|").replace("\n", " ")


_NAME = "TensorBoardLogger"
_IDENTITY = "logax-run.json"  # which run a folder belongs to
_UNSAFE = re.compile(r"[^\w\-. +=,@()\[\]]")
_LONGEST = 100  # bytes of a name in a file system, of 255


class TensorBoardLogger(Logger):
    """Writes what TensorBoard shows, one folder a run.

        logger = TensorBoardLogger("logs")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    Then `tensorboard --logdir logs`, while it runs or later (`pip install tensorboard`).

    **Scalars** are TensorBoard's, of 32 bits; arrays of up to 16 elements go element by element
    (`key/0`, `key/1,2`), larger ones as `key/mean`, `key/min` and `key/max`, complex numbers as
    `key/real` and `key/imag`. PRNG keys are left out. A `Histogram` is shown as one; how many of
    its elements were not finite stands beside it as `key/nonfinite`, where there are any. An
    `Image` is shown as one.

    **Steps.** TensorBoard's step is the step called `step`, else the first one named, else a count
    of the key's records; it is an integer, so that a step which is not whole is shown as a number
    beside the count. The other steps are shown as numbers too.

    **Folders.** A run's folder has its name, or where that is taken, its name and a part of its id;
    what a folder cannot be called becomes `_`. With `lanes="group"` the folders of one `init` have
    one in common. A resumed run stays in its folder. The config is there as text and as
    hyperparameters.

    **Safety.** Records are in the hands of the system about twice a second, and survive the end of
    the process. Files are not kept open: hundreds of runs are fine.

    Args:
      log_dir: The folder of all runs. It is made if there is none.
      lanes: What becomes of seeds; see `Logger`.

    Raises:
      ImportError: tensorboardX is not installed.
      NotADirectoryError: `log_dir` is a file.
      PermissionError: The folder may not be made, or not be written to.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(TensorBoardSink(log_dir), lanes=lanes)


class TensorBoardSink(Sink):
    """The folders of a `TensorBoardLogger`."""

    takes_lanes = False
    opens_later = True

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._events = Events()
        self.log_dir = writable_folder(_NAME, "log_dir", log_dir)
        self._axis = Axis(whole=True)
        self._files: dict[RunInfo, EventFile] = {}

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Give each run its folder, with what it was given."""

        def make(run: RunInfo) -> None:
            with _telling_which(run):
                self._file(run)

        for_each(_NAME, runs, make)

    def write(self, portion: RecordBatch) -> None:
        """Add the records of each run to its file."""
        now = time.time()
        parts = list(self._axis.parts(portion))

        def add(number: int) -> None:
            run = portion.streams[number].run
            events = [event for part in parts for event in self._events.records(part, number, now)]
            with _telling_which(run):
                if events:
                    self._file(run).add(b"".join(events))

        for_each(_NAME, range(len(portion.streams)), add)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write how the runs ended."""
        self._axis.forget(runs)

        def end(run: RunInfo) -> None:
            file = self._files.pop(run, None)
            with _telling_which(run):
                if file is not None:
                    file.add(self._events.status(status))

        for_each(_NAME, runs, end)

    def known_runs(self) -> KnownRuns:
        """The runs that have a folder."""
        known = sorted((own for _, own in _runs_in(self.log_dir)), key=lambda own: own["began"])
        return KnownRuns(self.log_dir, {own["id"]: own["name"] for own in known})

    def _file(self, run: RunInfo) -> EventFile:
        """The run's file. One that could not be made before may be made now."""
        file = self._files.get(run)
        if file is None:
            begin = self._events.header() + self._events.config(run)
            file = self._files[run] = EventFile(self._folder_of(run), begin)
        return file

    def _folder_of(self, run: RunInfo) -> str:
        if run.resumed:
            for folder, own in _runs_in(self.log_dir):
                if own["id"] == run.id:
                    return folder
        parent = self.log_dir if run.group is None else os.path.join(self.log_dir, _safe(run.group))
        os.makedirs(parent, exist_ok=True)
        name, own_id = _safe(run.name), _safe(run.id)
        for own_name in (name, f"{name}-{own_id[:8]}", f"{name}-{own_id}"):
            folder = os.path.join(parent, own_name)
            try:
                os.mkdir(folder)
            except FileExistsError:
                continue
            identity = {"id": run.id, "name": run.name, "began": run.began}
            with open(os.path.join(folder, _IDENTITY), "x", encoding="utf-8") as file:
                json.dump(identity, file)
            return folder
        raise FileExistsError(errno.EEXIST, "There is a run of this name and id already", folder)


@contextlib.contextmanager
def _telling_which(run: RunInfo) -> Iterator[None]:
    """Have an error of the system say which run could not be written."""
    try:
        yield
    except OSError as error:
        text = f"`{_NAME}` could not write run {run.name!r}: {error.strerror}"
        raise OSError(error.errno, text, error.filename) from error


def _runs_in(folder: str, depth: int = 2) -> Iterator[tuple[str, dict[str, Any]]]:
    """The folders of runs with their identities, those in groups too."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
    except PermissionError:  # somebody else's
        return
    for own in folders:
        identity = _identity(own)
        if identity is not None:
            yield own, identity
        elif depth > 1:
            yield from _runs_in(own, depth - 1)


def _identity(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, _IDENTITY), encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, PermissionError, ValueError):  # not ours, or cut off in the middle
        return None
    known = isinstance(found, dict) and [found.get(name) for name in ("id", "name", "began")]
    match known:
        case [str(), str(), int() | float()]:
            return dict(found)
    return None


def _safe(name: str) -> str:
    """A name for a folder, whatever the name is: never a path, never hidden."""
    text = _UNSAFE.sub("_", name).encode()[:_LONGEST].decode(errors="ignore")
    text = text.strip(" ").rstrip(".")
    return re.sub(r"\A\.", "_", text) or "_"
