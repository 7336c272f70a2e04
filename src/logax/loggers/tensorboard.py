"""`TensorBoardLogger`: event files for TensorBoard.

All scalars of a record share one event, which is much cheaper than an event per scalar. No file
stays open between two appends: the number of runs is not limited by file descriptors, a deleted
file is noticed, and a failed append restores the file, so that the next one stays readable.
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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._serialization.plain_config import flatten_run_config
from logax._serialization.record_text import json_cells
from logax._support.arrays import replace_surrogates, shape_name
from logax._support.files import make_writable_folder
from logax._support.imports import import_optional
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import MediaColumn, MetricBatch, XAxis, as_uint8, encode_png
from logax.loggers._text.shared_files import append_or_undo
from logax.loggers.sink import Sink, for_each

_HEAD_BYTES = 2**12  # beginning of a file that identifies it; contains the creation time
_STATUS = {"finished": 1, "crashed": 2}  # SUCCESS and FAILURE of the hparams plugin
_NAME = "TensorBoardLogger"
_IDENTITY_FILE = "logax-run.json"  # id and name of a folder's run
_UNSAFE_CHARACTER = re.compile(r"[^\w\-. +=,@()\[\]]")
_MAX_FOLDER_NAME_BYTES = 100  # file systems allow 255
_MAX_LISTED_ELEMENTS = 16  # larger arrays in a config are written as dtype and shape
_Hyperparameter = str | bool | int | float


class TensorBoardLogger(Logger):
    """Write event files for TensorBoard, with one folder per run.

        logger = TensorBoardLogger("logs")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    Requires tensorboardX: `pip install "logax[tensorboard]"`. View the runs with `tensorboard
    --logdir logs` (`pip install tensorboard`), at any time.

    **Values.** Scalars have TensorBoard's 32 bits. Arrays of at most 16 elements are written
    element by element (`key/0`, `key/1,2`), larger ones as `key/mean`, `key/min` and `key/max`, and
    complex numbers as `key/real` and `key/imag`. PRNG keys are left out. A `Histogram` is written
    as a histogram; its number of nonfinite elements, if any, is `key/nonfinite`. An `Image` is
    written as an image.

    **Steps.** The step in TensorBoard is the step called `step`, else the first step named, else a
    count of the key's records. It must be an integer: if it is not, TensorBoard gets the count, and
    the step as another scalar. Other steps are scalars too.

    **Folders.** The folder of a run has its name, or its name and part of its id if that name is
    taken; characters that are not allowed in a file name become `_`. With `lanes="group"` the runs
    of one `init` share a parent folder. A resumed run continues in its folder. The config is
    written as text and as hyperparameters.

    **Durability.** Records reach the operating system about twice per second, and then survive the
    end of the process. Files are not kept open, so hundreds of runs are no problem.

    Args:
      log_dir: Folder of all runs. It is created if it does not exist.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.

    Raises:
      ImportError: tensorboardX is not installed.
      NotADirectoryError: `log_dir` is a file.
      PermissionError: The folder cannot be created, or is not writable.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, lanes: str = "split") -> None:
        super().__init__(TensorBoardSink(log_dir), lanes=lanes)


class TensorBoardSink(Sink):
    """The sink of `TensorBoardLogger`."""

    takes_lanes = False
    opens_later = True

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._encoder = EventEncoder()
        self.log_dir = make_writable_folder(_NAME, "log_dir", log_dir)
        self._x_axis = XAxis(whole=True)
        self._files: dict[RunInfo, EventFile] = {}

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Create the folder of each run, and write its config."""

        def make(run: RunInfo) -> None:
            with _name_run_in_errors(run):
                self._file(run)

        for_each(_NAME, runs, make)

    def write(self, batch: RecordBatch) -> None:
        """Append the records of each run to its file."""
        now = time.time()
        metric_batches = list(self._x_axis.metric_batches(batch))

        def add(number: int) -> None:
            run = batch.streams[number].run
            events = [
                event
                for metric_batch in metric_batches
                for event in self._encoder.records(metric_batch, number, now)
            ]
            with _name_run_in_errors(run):
                if events:
                    self._file(run).add(b"".join(events))

        for_each(_NAME, range(len(batch.streams)), add)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write the status of the runs."""
        self._x_axis.forget(runs)

        def end(run: RunInfo) -> None:
            file = self._files.pop(run, None)
            with _name_run_in_errors(run):
                if file is not None:
                    file.add(self._encoder.status(status))

        for_each(_NAME, runs, end)

    def known_runs(self) -> KnownRuns:
        """Return the runs that have a folder."""
        known = sorted((own for _, own in _runs_in(self.log_dir)), key=lambda own: own["began"])
        return KnownRuns(self.log_dir, {own["id"]: own["name"] for own in known})

    def _file(self, run: RunInfo) -> EventFile:
        """Return the file of a run; create it if that failed before."""
        file = self._files.get(run)
        if file is None:
            begin = self._encoder.header() + self._encoder.config(run)
            file = self._files[run] = EventFile(self._folder_of(run), begin)
        return file

    def _folder_of(self, run: RunInfo) -> str:
        if run.resumed:
            for folder, own in _runs_in(self.log_dir):
                if own["id"] == run.id:
                    return folder
        parent = (
            self.log_dir
            if run.group is None
            else os.path.join(self.log_dir, _safe_folder_name(run.group))
        )
        os.makedirs(parent, exist_ok=True)
        name, own_id = _safe_folder_name(run.name), _safe_folder_name(run.id)
        for own_name in (name, f"{name}-{own_id[:8]}", f"{name}-{own_id}"):
            folder = os.path.join(parent, own_name)
            try:
                os.mkdir(folder)
            except FileExistsError:
                continue
            identity = {"id": run.id, "name": run.name, "began": run.began}
            with open(os.path.join(folder, _IDENTITY_FILE), "x", encoding="utf-8") as file:
                json.dump(identity, file)
            return folder
        raise FileExistsError(errno.EEXIST, "There is a run of this name and id already", folder)


class EventEncoder:
    """Encode events with the protocol buffers of tensorboardX."""

    def __init__(self) -> None:
        events = import_optional("tensorboardX.proto.event_pb2", _NAME, "tensorboard")
        self._summaries = import_optional("tensorboardX.proto.summary_pb2", _NAME, "tensorboard")
        self._text_summary = import_optional("tensorboardX.summary", _NAME, "tensorboard").text
        self._hparams = import_optional(
            "tensorboardX.proto.plugin_hparams_pb2", _NAME, "tensorboard"
        )
        self._checksum = import_optional(
            "tensorboardX.record_writer", _NAME, "tensorboard"
        ).masked_crc32c
        self._event = events.Event
        self._value = self._summaries.Summary.Value

    def header(self) -> bytes:
        """Return the first event of a file."""
        return self._frame(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def config(self, run: RunInfo) -> bytes:
        """Encode the config of a run, as text and as hyperparameters."""
        flat = _hyperparameters(run.config)
        start = self._hparams.SessionStartInfo(start_time_secs=run.began)
        for name, value in flat.items():
            _set_hyperparameter(start.hparams[replace_surrogates(name)], value)
        called = run.given_name
        own = [("id", run.id), *([] if called is None else [("name", called)])]
        lines = [
            f"| {_markdown_cell(name)} | {_markdown_cell(value)} |"
            for name, value in [*own, *flat.items()]
        ]
        text = self._text_summary("logax/config", "\n".join(["| | |", "| --- | --- |", *lines]))
        return self._session("start", start, run.began) + self._summary(text.value, 0, run.began)

    def status(self, status: str) -> bytes:
        """Encode the status of a run that ended."""
        now = time.time()
        end = self._hparams.SessionEndInfo(status=_STATUS.get(status, 0), end_time_secs=now)
        return self._session("end", end, now)

    def records(self, metric_batch: MetricBatch, stream: int, now: float) -> Iterator[bytes]:
        """Encode the records of one stream."""
        for table in metric_batch.tables:
            event = self._event(wall_time=now)
            names = [replace_surrogates(name) for name in table.names]
            values = [event.summary.value.add(tag=name, simple_value=0.0) for name in names]
            for x, row in table.rows(stream):
                event.step = x
                for value, number in zip(values, row, strict=True):
                    value.simple_value = number
                yield self._frame(event)
        if metric_batch.histograms or metric_batch.images:
            for number in metric_batch.record_indices(stream):
                yield from self._media(metric_batch, stream, number, now)

    def _media(
        self, metric_batch: MetricBatch, stream: int, row: int, now: float
    ) -> Iterator[bytes]:
        for media in metric_batch.histograms:
            yield self._summary(
                self._histogram_values(media, stream, row), media.x[stream, row], now
            )
        for media in metric_batch.images:
            yield self._summary([self._image_value(media, stream, row)], media.x[stream, row], now)

    def _histogram_values(self, media: MediaColumn, stream: int, row: int) -> list[Any]:
        bins, name = media.value, replace_surrogates(media.name)
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

    def _image_value(self, media: MediaColumn, stream: int, row: int) -> Any:
        pixels = as_uint8(media.value.pixels[stream, row])
        image = self._summaries.Summary.Image(
            height=pixels.shape[0],
            width=pixels.shape[1],
            colorspace=1 if pixels.ndim == 2 else pixels.shape[2],
            encoded_image_string=encode_png(pixels),
        )
        return self._value(tag=replace_surrogates(media.name), image=image)

    def _session(self, moment: str, info: Any, now: float) -> bytes:
        """Encode session information for the hparams plugin, which finds the metrics itself."""
        content = self._hparams.HParamsPluginData(**{f"session_{moment}_info": info})
        plugin = self._summaries.SummaryMetadata.PluginData(
            plugin_name="hparams", content=content.SerializeToString()
        )
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        value = self._value(tag=f"_hparams_/session_{moment}_info", metadata=metadata)
        return self._summary([value], 0, now)

    def _summary(self, values: Sequence[Any], step: int, now: float) -> bytes:
        summary = self._summaries.Summary(value=values)
        return self._frame(self._event(wall_time=now, step=int(step), summary=summary))

    def _frame(self, event: Any) -> bytes:
        """Return an event in the file format, with its length and checksums."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = struct.pack("<I", self._checksum(length)), struct.pack("<I", self._checksum(data))
        return b"".join((length, checks[0], data, checks[1]))


class EventFile:
    """A new event file.

    Args:
      folder: Folder of the file.
      begin: First bytes of the file.
    """

    def __init__(self, folder: str, begin: bytes) -> None:
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9}.{now % 10**9:09}.{socket.gethostname()}"
        self._path = os.path.join(folder, f"{name}.{os.getpid()}")
        self._head = begin[:_HEAD_BYTES]
        self._size = 0  # bytes after the last append
        self._add(begin, os.O_CREAT | os.O_EXCL)

    def add(self, events: bytes) -> None:
        """Append events, or restore the file and raise.

        Raises:
          OSError: The file is missing, or another program changed it.
        """
        self._add(events, 0)

    def _add(self, events: bytes, flags: int) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)
        try:
            if self._size:
                self._check_unchanged(fd)
            append_or_undo(fd, events)
            self._size = os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _check_unchanged(self, fd: int) -> None:
        """Raise if another program replaced or truncated the file."""
        if os.pread(fd, len(self._head), 0) != self._head:
            change = "Another program replaced the file"
        elif os.fstat(fd).st_size < self._size:
            change = "Another program truncated the file"
        else:
            return
        raise OSError(errno.ESTALE, f"{change}, and nothing was added to it", self._path)


def _set_hyperparameter(hyperparameter: Any, value: _Hyperparameter) -> None:
    if isinstance(value, bool):
        hyperparameter.bool_value = value
    elif isinstance(value, str):
        hyperparameter.string_value = replace_surrogates(value)
    else:
        hyperparameter.number_value = _as_double(value)


def _as_double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a large integer
        return math.inf if value > 0 else -math.inf


def _markdown_cell(value: Any) -> str:
    """Return a value as a cell of a Markdown table."""
    return replace_surrogates(_format_value(value)).replace("|", "\\|").replace("\n", " ")


@contextlib.contextmanager
def _name_run_in_errors(run: RunInfo) -> Iterator[None]:
    """Add the name of the run to errors of the operating system."""
    try:
        yield
    except OSError as error:
        text = f"`{_NAME}` could not write run {run.name!r}: {error.strerror}"
        raise OSError(error.errno, text, error.filename) from error


def _runs_in(folder: str, depth: int = 2) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the folders of runs with their identities, including those in groups."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
    except PermissionError:  # a folder of another user
        return
    for own in folders:
        identity = _read_identity(own)
        if identity is not None:
            yield own, identity
        elif depth > 1:
            yield from _runs_in(own, depth - 1)


def _read_identity(folder: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, _IDENTITY_FILE), encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, PermissionError, ValueError):  # not a run's folder, or incomplete
        return None
    known = isinstance(found, dict) and [found.get(name) for name in ("id", "name", "began")]
    match known:
        case [str(), str(), int() | float()]:
            return dict(found)
    return None


def _safe_folder_name(name: str) -> str:
    """Return a folder name that is neither a path nor hidden."""
    text = (
        _UNSAFE_CHARACTER.sub("_", name).encode()[:_MAX_FOLDER_NAME_BYTES].decode(errors="ignore")
    )
    text = text.strip(" ").rstrip(".")
    return re.sub(r"\A\.", "_", text) or "_"


def _hyperparameters(config: Mapping[str, Any]) -> dict[str, _Hyperparameter]:
    """Return a config as strings, booleans and numbers by path (`outer/inner`, `outer/0`).

    A large array is its dtype and shape, and any other value its text. None is left out.
    """
    flat: dict[str, _Hyperparameter] = {}
    for name, value in flatten_run_config(config, lists=True):
        if value is None or isinstance(value, (Mapping, list, tuple)):  # empty ones
            continue
        while name in flat:
            name += "~"
        flat[name] = value if isinstance(value, (str, bool, int, float)) else _plain_value(value)
    return flat


def _format_value(value: Any) -> str:
    """Format a value, with a float of 32-bit precision in its shortest form.

    A traced number has 32 bits even as a Python float: 0.009999999776482582 was 0.01.
    """
    text = str(value)
    if not isinstance(value, float) or not math.isfinite(value) or value.is_integer():
        return text
    with np.errstate(over="ignore", under="ignore"):
        short = np.float32(value)
    return min(str(short), text, key=len) if float(short) == value else text


def _plain_value(value: Any) -> _Hyperparameter:
    if not isinstance(value, (np.ndarray, np.generic)):
        return str(value)
    if value.ndim == 0:
        return _scalar_value(value)
    if value.size <= _MAX_LISTED_ELEMENTS:
        return json_cells(np.asarray(value)[None])[0] if _is_float(value) else str(value.tolist())
    return shape_name(value.dtype, value.shape)


def _scalar_value(value: Any) -> _Hyperparameter:
    item = value.item()
    if isinstance(item, (str, bool, int, float)):
        return item
    # Python has no float of more than 64 bits.
    return float(value) if _is_float(value) else str(item)


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))
