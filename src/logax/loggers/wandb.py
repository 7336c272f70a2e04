"""`WandbLogger`: runs in Weights & Biases.

W&B counts calls of `log` and limits their rate, so all values with the same x that arrive between
two flushes are sent in one call. The x is a metric like any other, and `define_metric` assigns it
to each key; W&B's own step only counts calls.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._serialization.plain_config import plain_config
from logax._serialization.record_text import to_json_value
from logax._support.arrays import replace_surrogates
from logax._support.imports import import_optional
from logax._support.messages import (
    add_note,
    describe_error,
    describe_value,
    format_sentence,
    warn_user,
)
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import MetricBatch, XAxis, as_uint8
from logax.loggers.sink import Sink, for_each

_COUNT_AXIS = "records"  # x-axis of keys without a step
_RESERVED_METRICS = ("_step", "_timestamp", "_runtime", "_wandb")
_MAX_HISTOGRAM_BINS = 512  # the limit of W&B
_MAX_WAITING_ROWS = 1000
_Row = dict[str, Any]
_NAME = "WandbLogger"
_RESERVED_OPTIONS = {
    "id": "each run has a unique one; pass `resume=` to `init` or `run` to continue a run",
    "name": "pass it to `init` or `run`",
    "reinit": "all runs are open at the same time",
    "resume": "pass it to `init` or `run`",
    "resume_from": "pass `resume=` to `init` or `run`",
}


class WandbLogger(Logger):
    """Send records to Weights & Biases.

        logger = WandbLogger(project="mine")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    Requires W&B: `pip install "logax[wandb]"`.

    **Lanes.** By default all lanes of a `vmap` around `init` share one run, with `key/mean`,
    `key/min` and `key/max`. `lanes="split"` opens a run per lane; `lanes="group"` does so too, and
    puts them into one group of W&B.

    **Values.** Scalars are sent as they are, arrays of at most 16 elements element by element
    (`key/0`, `key/1,2`), larger ones as `key/mean`, `key/min` and `key/max`, and complex numbers as
    `key/real` and `key/imag`. PRNG keys are left out. A `Histogram` becomes a histogram of W&B with
    at most 512 bins; its number of nonfinite elements, if any, is `key/nonfinite`. An `Image`
    becomes an image of W&B, which requires Pillow.

    **Steps.** The x-axis of a key (`define_metric`) is the step called `step`, else the first step
    named, else `records`, a count of the key's records. W&B's own step is not used for it: steps
    may go back, and nothing is dropped. Values with the same x that arrive together are sent in one
    call of `wandb.log`. The names `_step`, `_timestamp`, `_runtime` and `_wandb` belong to W&B: a
    key of such a name gets the prefix `key/`.

    **Login.** The logger never asks for a login. Without one it warns, and keeps runs in files
    (offline); `wandb sync` sends them later. The same happens if W&B is not reachable when a run
    starts.

    **Output.** W&B prints nothing at the start and the end of runs. To see its messages, such as
    the address of a run, pass `settings={"silent": False}` or set `WANDB_SILENT=false`.

    **Resuming.** `logger.run(resume=id)` continues the run of this id if W&B is online. Offline it
    starts another file of the same run: send that with `wandb sync --append`. W&B does not look up
    names or "last"; in a `MultiLogger`, a destination that lists runs, such as `SaveLogger`, does
    it.

    Args:
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.
      **init: Options of `wandb.init` for every run: `project`, `entity`, `tags`, `mode`, `dir`,
        `settings` and others. The `config` of `init` and `run` is added to the one given here.

    Raises:
      ImportError: W&B is not installed.
      TypeError: `wandb.init` has no such option, or the logger sets it itself.
      ValueError: W&B rejects a value of `settings`.
      RuntimeError: There is no login, and `force=True` requires one.
    """

    def __init__(self, *, lanes: str = "aggregate", **init: Any) -> None:
        super().__init__(WandbSink(init), lanes=lanes, network=True)


class WandbSink(Sink):
    """The sink of `WandbLogger`."""

    takes_lanes = False
    opens_later = True

    def __init__(self, init: dict[str, Any]) -> None:
        self._wandb = import_optional("wandb", _NAME)
        _validate_options(self._wandb, init)
        self._init = {**init, "config": plain_config(_NAME, init.get("config"))}
        self._settings = _settings(self._wandb, self._init.pop("settings", None))
        # Registers the exit handler of W&B before that of the logger, so that it runs after it.
        self._mode = self._wandb.setup().settings.mode
        if self._is_online and not _has_login(self._wandb, self._settings):
            if self._init.get("force"):
                raise RuntimeError(
                    f"`{_NAME}(force=True)` found no login for W&B. Run `wandb login` first."
                )
            self._init["mode"] = "offline"
            warn_user(
                f"`{_NAME}` found no login for W&B, and keeps its runs offline, in the folder "
                "`wandb`. Run `wandb login` first or `wandb sync` afterwards, or write "
                f'`{_NAME}(mode="offline")` to silence this warning.'
            )
        self._x_axis = XAxis()
        self._runs: dict[RunInfo, WandbRun] = {}
        self._has_opened_run = False

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Open a W&B run for each run."""
        for_each(_NAME, runs, self._open_run)

    def write(self, batch: RecordBatch) -> None:
        """Buffer records until the next flush."""
        metric_batches = list(self._x_axis.metric_batches(batch))

        def add(number: int) -> None:
            for metric_batch in metric_batches:
                self._run_of(batch.streams[number].run).add(metric_batch, number)

        for_each(_NAME, range(len(batch.streams)), add)

    def flush(self) -> None:
        """Pass all records to W&B's background process."""
        for_each(_NAME, self._runs.values(), WandbRun.send)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Finish the runs, and wait until W&B has stored all records."""
        self._x_axis.forget(runs)
        code = 0 if status == "finished" else 1

        def end(run: RunInfo) -> None:
            own = self._runs.pop(run, None)
            if own is not None:
                try:
                    own.send()
                finally:
                    own.run.finish(exit_code=code)

        for_each(_NAME, runs, end)

    def known_runs(self) -> KnownRuns:
        """Accept any id: W&B lists runs only online, and slowly."""
        return KnownRuns("W&B", None)

    def _run_of(self, run: RunInfo) -> WandbRun:
        if run not in self._runs:
            raise RuntimeError(f"`{_NAME}` could not open run {run.name!r}: its records are lost.")
        return self._runs[run]

    def _open_run(self, run: RunInfo) -> None:
        settings = dict(self._settings)
        if self._has_opened_run and "x_save_requirements" in self._wandb.Settings.model_fields:
            settings.setdefault("x_save_requirements", False)  # the first run has saved them
        options = {
            **self._init,
            "group": run.group or self._init.get("group"),
            "id": re.sub(r"[^\w\-]", "_", run.id)[:128],
            "name": run.given_name,
            "config": to_json_value({**self._init["config"], **run.config}),
            "reinit": "create_new",
        }
        resumes = {"resume": "allow"} if run.resumed and self._is_online else {}
        warning = self._open_online_or_offline(run, {**options, **resumes}, settings)
        self._has_opened_run = True
        if warning is not None:
            warn_user(warning)

    def _open_online_or_offline(
        self, run: RunInfo, options: dict[str, Any], settings: dict[str, Any]
    ) -> str | None:
        """Open a W&B run, offline if necessary, and return a warning or None."""
        wandb = self._wandb
        try:
            own = wandb.init(**options, settings=wandb.Settings(**settings))
        except wandb.errors.CommError as error:
            # This error may take 90 seconds, so later runs do not try again. W&B's process
            # considers the id in use, so this run gets another.
            self._init["mode"] = options["mode"] = "offline"
            options["id"] += "-offline"
            options.pop("resume", None)
            own = wandb.init(**options, settings=wandb.Settings(**settings))
            self._runs[run] = WandbRun(own)
            return (
                f"`{_NAME}` cannot reach W&B, and keeps its runs offline; `wandb sync` sends them "
                f"later. W&B says: {describe_error(error)}"
            )
        self._runs[run] = WandbRun(own)
        if run.resumed and not self._is_online:
            return (
                f"`{_NAME}` continues run {run.id} offline, in another file of W&B. Run "
                "`wandb sync --append` to add it to the records sent before."
            )
        return None

    @property
    def _is_online(self) -> bool:
        mode = self._init.get("mode") or self._settings.get("mode") or self._mode
        return mode in ("online", "shared")


class WandbRun:
    """Rows of an open W&B run that wait to be sent."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self._rows: list[_Row] = []
        self._latest: dict[tuple[str, float], _Row] = {}
        self._axes: dict[str, str] = {}  # x-axis of each metric
        self._default: str | None = None

    def add(self, metric_batch: MetricBatch, stream: int) -> None:
        """Add the records of one stream."""
        x_name = (
            _COUNT_AXIS if metric_batch.step_name is None else _metric_name(metric_batch.step_name)
        )
        for table in metric_batch.tables:
            names = [_metric_name(name) for name in table.names]
            self._define(names, x_name)
            for x, row in table.rows(stream):
                self._add_row(x_name, x, dict(zip(names, row, strict=True)))
        for name, x, value in _media(metric_batch, stream):
            self._define([name], x_name)
            self._add_row(x_name, x, {name: value})
        if len(self._rows) > _MAX_WAITING_ROWS:
            self.send()

    def send(self) -> None:
        """Pass all rows to W&B. On a failure the remaining ones are lost."""
        rows, self._rows = self._rows, []
        self._latest.clear()
        for number, row in enumerate(rows):
            try:
                self.run.log(row)
            except Exception as error:
                lost = f"{len(rows) - number} rows of the W&B run {self.run.name!r} were lost."
                add_note(error, lost)
                raise

    def _add_row(self, x_name: str, x: float, values: _Row) -> None:
        row = self._latest.get((x_name, x))
        if row is None or not row.keys().isdisjoint(values):
            row = self._latest[x_name, x] = {x_name: x}
            self._rows.append(row)
        row.update(values)

    def _define(self, names: list[str], x_name: str) -> None:
        """Define the x-axis of these metrics in W&B, once."""
        for name in names:
            if self._axes.get(name) == x_name:
                continue
            if x_name not in self._axes:
                self._axes[x_name] = x_name
                self.run.define_metric(x_name)
            if self._default is None:
                self._default = x_name
                self.run.define_metric("*", step_metric=x_name, step_sync=False)
            if x_name != self._axes.get(name, self._default) and "*" not in name:
                self.run.define_metric(name, step_metric=x_name, step_sync=False)
            self._axes[name] = x_name


def _metric_name(name: str) -> str:
    """Return a name that W&B accepts: valid Unicode, and not one of its reserved names."""
    name = replace_surrogates(name)
    return f"key/{name}" if name in _RESERVED_METRICS else name


def _media(metric_batch: MetricBatch, stream: int) -> Iterator[tuple[str, float, Any]]:
    if not (metric_batch.histograms or metric_batch.images):
        return
    wandb = import_optional("wandb", "WandbLogger")
    for number in metric_batch.record_indices(stream):
        for media in metric_batch.histograms:
            name, x = _metric_name(media.name), media.x[stream, number].item()
            counts, edges = _merge_bins(media.value, stream, number)
            yield name, x, wandb.Histogram(np_histogram=(counts, edges))
            if (nonfinite := int(media.value.nonfinite[stream, number])) > 0:
                yield f"{name}/nonfinite", x, nonfinite
        for media in metric_batch.images:
            pixels = as_uint8(media.value.pixels[stream, number])
            flat = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
            image = import_optional("PIL.Image", "WandbLogger", "wandb").fromarray(flat)
            yield _metric_name(media.name), media.x[stream, number].item(), wandb.Image(image)


def _merge_bins(value: Any, stream: int, number: int) -> tuple[Any, Any]:
    """Return counts and edges, with adjacent bins merged if W&B does not accept as many."""
    counts, edges = value.counts[stream, number], value.edges[stream, number]
    together = -(-len(counts) // _MAX_HISTOGRAM_BINS)
    starts = np.arange(0, len(counts), together)
    return np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1])


def _validate_options(wandb: Any, init: dict[str, Any]) -> None:
    for name, advice in _RESERVED_OPTIONS.items():
        if name in init:
            raise TypeError(f"`{_NAME}` takes no `{name}`: {advice}.")
    known = inspect.signature(wandb.init).parameters
    for name in init:
        if name not in known:
            raise TypeError(
                f"`{_NAME}` passes its options to `wandb.init`, which has no option `{name}`. "
                f"Pass options of a single run to `init` or `run`: `logger.run(config={{...}})`."
            )


def _settings(wandb: Any, given: Any) -> dict[str, Any]:
    """Return the settings by name, with W&B silent and standard output uncaptured by default."""
    if isinstance(given, wandb.Settings):
        given = {name: getattr(given, name) for name in given.model_fields_set}
    if given is not None and not isinstance(given, dict):
        raise TypeError(f"`{_NAME}` takes `settings` as W&B does, and got {describe_value(given)}.")
    # W&B prints several lines at the start and the end of every run, and there may be many runs.
    quiet = {} if "WANDB_SILENT" in os.environ else {"silent": True}
    settings = {"console": "off", **quiet, **(given or {})}
    refused: list[str] = []
    try:
        wandb.Settings(**settings)
    except ValueError as error:  # pydantic's ValidationError
        refused = [f"`{'.'.join(map(str, x['loc']))}`: {x['msg']}" for x in error.errors()]  # type: ignore[attr-defined]
    if refused:  # without the values and without the cause, which may contain API keys
        raise ValueError(
            f"`{_NAME}` got `settings` that W&B does not accept: "
            f"{format_sentence('; '.join(refused))}"
        )
    return settings


def _has_login(wandb: Any, settings: dict[str, Any]) -> bool:
    """Return whether W&B will find an API key, so that it does not ask for one."""
    token = os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return bool(settings.get("api_key") or token or wandb.api.api_key)
