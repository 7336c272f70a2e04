"""Records in TensorBoard's files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from logax._files import writable_folder
from logax.loggers._each import for_each
from logax.loggers._numbers import Axis
from logax.loggers._shell.logger import Logger
from logax.loggers._tensorboard import EventFile, Events
from logax.loggers.sink import KnownRuns, Portion, RunInfo, Sink

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

    def write(self, portion: Portion) -> None:
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
