"""Records as rows of Trackio's database on this machine."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._support.arrays import as_utf8
from logax._support.config import plain_config
from logax._support.imports import imported
from logax._support.messages import described, received
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import Axis, Part
from logax.loggers._text.cells import as_json
from logax.loggers.sink import Sink

_NAME = "TrackioLogger"
_OURS = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})  # of Trackio
_REMOTE = ("space_id", "server_url", "dataset_id", "bucket_id")


class TrackioLogger(Logger):
    """Writes numbers to a project of Trackio, as its dashboard shows them.

        logger = TrackioLogger("seeds")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    It needs Trackio: `pip install "logax[trackio]"`. Everything is written to Trackio's database on
    this machine (`TRACKIO_DIR`); nothing is sent, no server is started, and the run that
    `trackio.init` made is left alone. To look at it write `trackio.show("seeds")`, to share it
    `trackio.sync("seeds", space_id="...")`.

    **Metrics.** Scalars are what they are; an array of up to 16 elements is written by element, a
    larger one as its mean, least and greatest element. A histogram is Trackio's own, images are
    left out and named in the config under `logax/left_out`. NaN and infinities stay. Trackio's step
    is the step called `step`, else the first one named, which is a metric by its own name too, else
    a count of the key's records; it must be whole, and where it is not, records are counted and the
    step is a metric beside them.

    **Names** that Trackio has for itself (`project`, `run`, `timestamp`, `step`, `time`, `metrics`,
    and all that begin with two underscores) get two underscores in front, as Trackio does it.

    **Runs.** A run without records does not show, and Trackio does not know whether a run was
    finished or crashed.

    Args:
      project: Its name.
      lanes: What becomes of seeds; see `Logger`. Runs of a group have it in common in Trackio too.
      **init: `config` and `group`, as `trackio.init` takes them, for all runs.

    Raises:
      ImportError: Trackio is not installed.
      ValueError: Trackio does not take the name.
      TypeError: `project` is no string, or an option is none of Trackio's on this machine.
      OSError: The database cannot be written.
    """

    def __init__(self, project: str, *, lanes: str = "aggregate", **init: Any) -> None:
        super().__init__(TrackioSink(project, **init), lanes=lanes, network=True)


class TrackioSink(Sink):
    """The project of a `TrackioLogger`."""

    takes_lanes = False

    def __init__(
        self,
        project: str,
        *,
        config: Any = None,
        group: str | None = None,
        **others: Any,
    ) -> None:
        # `trackio.init` ends the run that was there before, and its runs drop what they fail to
        # write. What it writes with knows no such state, and raises.
        self._storage = imported("trackio.sqlite_storage", _NAME).SQLiteStorage
        if not isinstance(project, str) or not project:
            raise TypeError(f"`{_NAME}` takes the name of a project, and got {received(project)}.")
        if others:
            raise TypeError(_refusal(project, list(others)))
        self._project, self._config, self._group = project, plain_config(_NAME, config), group
        self._storage.validate_project_name(project)
        try:
            self._storage.init_db(project)
        except (OSError, sqlite3.Error) as error:
            raise OSError(
                f"`{_NAME}` cannot write Trackio's database for {project!r}: {described(error)} "
                "The environment variable `TRACKIO_DIR` says in which folder it is."
            ) from error
        self._axis = Axis(whole=True)
        self._configs: dict[RunInfo, dict[str, Any]] = {}
        self._names: dict[RunInfo, str] = {}
        self._waiting: dict[RunInfo, list[tuple[int, dict[str, Any]]]] = {}
        self._new: set[RunInfo] = set()  # whose config is to be written

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Have the config of the runs written with their first records."""
        for run in runs:
            self._names[run] = run.given_name or self._known().get(run.id, run.name)
            self._configs[run] = self._config_of(run)
            self._new.add(run)

    def write(self, portion: RecordBatch) -> None:
        """Turn records into rows, which wait for `flush`."""
        for part in self._axis.parts(portion):
            left_out = [picture.name for picture in part.images]
            for number, stream in enumerate(part.streams):
                self._waiting.setdefault(stream.run, []).extend(_rows(part, number))
                if left_out:
                    self._leave_out(stream.run, left_out)

    def flush(self) -> None:
        """Write all rows."""
        waiting, self._waiting = self._waiting, {}
        left = sum(map(len, waiting.values()))
        for run, rows in waiting.items():
            try:
                self._log(run, rows)
            except (OSError, sqlite3.Error) as error:
                raise OSError(
                    f"`{_NAME}` could not write {left} rows to the project {self._project!r}, and "
                    f"they are lost: {described(error)}"
                ) from error
            left -= len(rows)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write what is left of the runs."""
        try:
            self.flush()
        finally:
            self._axis.forget(runs)
            for run in runs:
                self._configs.pop(run, None)
                self._names.pop(run, None)
                self._new.discard(run)

    def end(self) -> None:
        """Write what is left."""
        self.flush()

    def known_runs(self) -> KnownRuns:
        """The runs of the project."""
        return KnownRuns(f"the project {self._project!r}", self._known())

    def _known(self) -> dict[str, str]:
        """The names of the runs of the project by their ids."""
        records = self._storage.get_run_records(self._project)
        return {str(record["id"]): str(record["name"]) for record in records}

    def _log(self, run: RunInfo, rows: Sequence[tuple[int, dict[str, Any]]]) -> None:
        if not rows:
            return
        self._storage.bulk_log(
            project=self._project,
            run=self._names[run],
            run_id=run.id,
            metrics_list=[metrics for _, metrics in rows],
            steps=[step for step, _ in rows],
            config=self._configs[run] if run in self._new else None,
        )
        self._new.discard(run)

    def _config_of(self, run: RunInfo) -> dict[str, Any]:
        given = as_json({**self._config, **run.config})
        # Names with an underscore in front are Trackio's own.
        config = {f"logax/{k}" if k.startswith("_") else k: v for k, v in given.items()}
        if run.resumed:
            before = self._storage.get_run_config(self._project, self._names[run], run_id=run.id)
            if before:
                return {**before, **config}
        began = dt.datetime.fromtimestamp(run.began, dt.UTC).isoformat()
        own = {"_Username": None, "_Created": began, "_Group": run.group or self._group}
        return {**config, "logax/machine": as_json(run.machine), **own}

    def _leave_out(self, run: RunInfo, names: Sequence[str]) -> None:
        config = self._configs[run]
        known = config.setdefault("logax/left_out", [])
        new = [name for name in names if name not in known]
        if new:
            config["logax/left_out"] = known + new
            self._new.add(run)


def _rows(part: Part, stream: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The step and the metrics of each record of a stream."""
    beside = part.step_name if part.step != "step" else None
    for table in part.tables:
        names = [_own_name(name) for name in table.names]
        for x, row in table.rows(stream):
            metrics = dict(zip(names, row, strict=True))
            if beside is not None:
                metrics[_own_name(beside)] = x
            yield int(x), metrics
    for picture in part.histograms:
        for place in part.rows_of(stream):
            edges, counts, nonfinite = (
                getattr(picture.value, name)[stream, place].tolist()
                for name in ("edges", "counts", "nonfinite")
            )
            bins = {"_type": "trackio.histogram", "bins": edges, "values": counts}
            aside = {_own_name(f"{picture.name}/nonfinite"): nonfinite}
            yield int(picture.x[stream, place]), {_own_name(picture.name): bins, **aside}


def _own_name(name: str) -> str:
    name = as_utf8(name)  # JSON has no lone surrogates
    return f"__{name}" if name in _OURS or name.startswith("__") else name


def _refusal(project: str, options: Sequence[str]) -> str:
    if any(option in _REMOTE for option in options):
        return (
            f"`{_NAME}` writes to this machine only, and got `{options[0]}`. Write "
            f"`trackio.sync({json.dumps(project)}, space_id=...)` when the runs have ended."
        )
    return f"`{_NAME}` takes `config`, `group` and `lanes`, and got `{options[0]}`."
