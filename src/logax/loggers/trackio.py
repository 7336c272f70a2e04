"""`TrackioLogger`: runs in Trackio's local database."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._serialization.plain_config import plain_config
from logax._serialization.record_text import to_json_value
from logax._support.arrays import replace_surrogates
from logax._support.imports import import_optional
from logax._support.messages import describe_error, describe_value
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import MetricBatch, XAxis
from logax.loggers.sink import Sink

_NAME = "TrackioLogger"
_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})  # of Trackio
_REMOTE_OPTIONS = ("space_id", "server_url", "dataset_id", "bucket_id")


class TrackioLogger(Logger):
    """Write metrics to a project of Trackio on this machine, for its dashboard.

        logger = TrackioLogger("seeds")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    Requires Trackio: `pip install "logax[trackio]"`. Everything is written to Trackio's database on
    this machine (`TRACKIO_DIR`); nothing is sent, no server starts, and a run of `trackio.init` is
    not touched. View the project with `trackio.show("seeds")`, and share it with
    `trackio.sync("seeds", space_id="...")`.

    **Metrics.** Scalars are written as they are, an array of at most 16 elements element by
    element, and a larger one as its mean, minimum and maximum. A `Histogram` becomes a histogram of
    Trackio. Images are left out, and listed in the config under `logax/left_out`. NaN and
    infinities stay. The step in Trackio is the step called `step`, else the first step named (which
    is also a metric under its name), else a count of the key's records. It must be an integer: if
    it is not, Trackio gets the count, and the step as another metric.

    **Names** that Trackio reserves (`project`, `run`, `timestamp`, `step`, `time`, `metrics`, and
    all that begin with two underscores) get two underscores in front, as in Trackio itself.

    **Runs.** A run without records is not visible, and Trackio does not store whether a run
    finished or crashed.

    Args:
      project: Name of the project.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`. Runs
        of a group share it in Trackio too.
      **init: `config` and `group` for all runs, as `trackio.init` takes them.

    Raises:
      ImportError: Trackio is not installed.
      ValueError: Trackio rejects the name.
      TypeError: `project` is not a string, or Trackio has no such local option.
      OSError: The database is not writable.
    """

    def __init__(self, project: str, *, lanes: str = "aggregate", **init: Any) -> None:
        super().__init__(TrackioSink(project, **init), lanes=lanes, network=True)


class TrackioSink(Sink):
    """The sink of `TrackioLogger`."""

    takes_lanes = False

    def __init__(
        self,
        project: str,
        *,
        config: Any = None,
        group: str | None = None,
        **others: Any,
    ) -> None:
        # `trackio.init` ends the previous run, and its runs drop records that they fail to write.
        # The storage class below it has no such state, and raises.
        self._storage = import_optional("trackio.sqlite_storage", _NAME).SQLiteStorage
        if not isinstance(project, str) or not project:
            raise TypeError(
                f"`{_NAME}` takes the name of a project, and got {describe_value(project)}."
            )
        if others:
            raise TypeError(_refusal_message(project, list(others)))
        self._project, self._config, self._group = project, plain_config(_NAME, config), group
        self._storage.validate_project_name(project)
        try:
            self._storage.init_db(project)
        except (OSError, sqlite3.Error) as error:
            raise OSError(
                f"`{_NAME}` cannot write Trackio's database for {project!r}: "
                f"{describe_error(error)} "
                "The environment variable `TRACKIO_DIR` sets its folder."
            ) from error
        self._x_axis = XAxis(whole=True)
        self._configs: dict[RunInfo, dict[str, Any]] = {}
        self._names: dict[RunInfo, str] = {}
        self._waiting: dict[RunInfo, list[tuple[int, dict[str, Any]]]] = {}
        self._unsaved_configs: set[RunInfo] = set()  # runs whose config is not written yet

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Prepare the configs, which are written with the first records."""
        for run in runs:
            self._names[run] = run.given_name or self._names_by_id().get(run.id, run.name)
            self._configs[run] = self._config_of(run)
            self._unsaved_configs.add(run)

    def write(self, batch: RecordBatch) -> None:
        """Convert records to rows, and hold them until `flush`."""
        for metric_batch in self._x_axis.metric_batches(batch):
            left_out = [media.name for media in metric_batch.images]
            for number, stream in enumerate(metric_batch.streams):
                self._waiting.setdefault(stream.run, []).extend(_rows(metric_batch, number))
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
                    f"they are lost: {describe_error(error)}"
                ) from error
            left -= len(rows)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Write the remaining rows of the runs."""
        try:
            self.flush()
        finally:
            self._x_axis.forget(runs)
            for run in runs:
                self._configs.pop(run, None)
                self._names.pop(run, None)
                self._unsaved_configs.discard(run)

    def end(self) -> None:
        """Write the remaining rows."""
        self.flush()

    def known_runs(self) -> KnownRuns:
        """Return the runs of the project."""
        return KnownRuns(f"the project {self._project!r}", self._names_by_id())

    def _names_by_id(self) -> dict[str, str]:
        """Return the names of the project's runs by id."""
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
            config=self._configs[run] if run in self._unsaved_configs else None,
        )
        self._unsaved_configs.discard(run)

    def _config_of(self, run: RunInfo) -> dict[str, Any]:
        given = to_json_value({**self._config, **run.config})
        # Trackio reserves names with a leading underscore.
        config = {f"logax/{k}" if k.startswith("_") else k: v for k, v in given.items()}
        if run.resumed:
            before = self._storage.get_run_config(self._project, self._names[run], run_id=run.id)
            if before:
                return {**before, **config}
        began = dt.datetime.fromtimestamp(run.began, dt.UTC).isoformat()
        own = {"_Username": None, "_Created": began, "_Group": run.group or self._group}
        return {**config, "logax/machine": to_json_value(run.machine), **own}

    def _leave_out(self, run: RunInfo, names: Sequence[str]) -> None:
        config = self._configs[run]
        known = config.setdefault("logax/left_out", [])
        new = [name for name in names if name not in known]
        if new:
            config["logax/left_out"] = known + new
            self._unsaved_configs.add(run)


def _rows(metric_batch: MetricBatch, stream: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the step and the metrics of each record of a stream."""
    step_metric = metric_batch.step_name if metric_batch.step != "step" else None
    for table in metric_batch.tables:
        names = [_metric_name(name) for name in table.names]
        for x, row in table.rows(stream):
            metrics = dict(zip(names, row, strict=True))
            if step_metric is not None:
                metrics[_metric_name(step_metric)] = x
            yield int(x), metrics
    for media in metric_batch.histograms:
        for place in metric_batch.record_indices(stream):
            edges, counts, nonfinite = (
                getattr(media.value, name)[stream, place].tolist()
                for name in ("edges", "counts", "nonfinite")
            )
            bins = {"_type": "trackio.histogram", "bins": edges, "values": counts}
            aside = {_metric_name(f"{media.name}/nonfinite"): nonfinite}
            yield int(media.x[stream, place]), {_metric_name(media.name): bins, **aside}


def _metric_name(name: str) -> str:
    name = replace_surrogates(name)  # JSON has no lone surrogates
    return f"__{name}" if name in _RESERVED or name.startswith("__") else name


def _refusal_message(project: str, options: Sequence[str]) -> str:
    if any(option in _REMOTE_OPTIONS for option in options):
        return (
            f"`{_NAME}` writes to this machine only, and got `{options[0]}`. Write "
            f"`trackio.sync({json.dumps(project)}, space_id=...)` when the runs have ended."
        )
    return f"`{_NAME}` takes `config`, `group` and `lanes`, and got `{options[0]}`."
