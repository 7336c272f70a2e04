"""One run of W&B's: rows of numbers, sent as few as they can be.

W&B counts calls of `log` and bounds their rate: all that has the same x and arrives between two
flushes is one call. The x is a metric like any other, and each key is told which one is its own;
W&B's own step only counts calls.

Records in Weights & Biases.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._support.arrays import as_utf8
from logax._support.config import plain_config
from logax._support.imports import imported
from logax._support.messages import add_note, as_sentence, described, received, warn_user
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import Axis, Part, as_bytes
from logax.loggers._text.cells import as_json
from logax.loggers.sink import Sink, for_each

_COUNT = "records"  # the x-axis of keys without a step
_RESERVED = ("_step", "_timestamp", "_runtime", "_wandb")
_MOST_BINS = 512  # that W&B takes
_MOST_ROWS = 1000  # that wait

_Row = dict[str, Any]


class WandbRun:
    """Writes to a run that W&B has opened."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self._rows: list[_Row] = []
        self._latest: dict[tuple[str, float], _Row] = {}
        self._axes: dict[str, str] = {}  # by metric, its x-axis
        self._default: str | None = None

    def add(self, part: Part, stream: int) -> None:
        """Take all that one stream of a part says."""
        x_name = _COUNT if part.step_name is None else _own_name(part.step_name)
        for table in part.tables:
            names = [_own_name(name) for name in table.names]
            self._define(names, x_name)
            for x, row in table.rows(stream):
                self._put(x_name, x, dict(zip(names, row, strict=True)))
        for name, x, value in _pictures(part, stream):
            self._define([name], x_name)
            self._put(x_name, x, {name: value})
        if len(self._rows) > _MOST_ROWS:
            self.send()

    def send(self) -> None:
        """Hand all rows to W&B. Where that fails, those that are left are lost."""
        rows, self._rows = self._rows, []
        self._latest.clear()
        for number, row in enumerate(rows):
            try:
                self.run.log(row)
            except Exception as error:
                lost = f"{len(rows) - number} rows of the W&B run {self.run.name!r} were lost."
                add_note(error, lost)
                raise

    def _put(self, x_name: str, x: float, values: _Row) -> None:
        row = self._latest.get((x_name, x))
        if row is None or not row.keys().isdisjoint(values):
            row = self._latest[x_name, x] = {x_name: x}
            self._rows.append(row)
        row.update(values)

    def _define(self, names: list[str], x_name: str) -> None:
        """Tell W&B over which metric to show these, once."""
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


def _own_name(name: str) -> str:
    """The name, unless it is W&B's, or is no text that can be sent."""
    name = as_utf8(name)
    return f"key/{name}" if name in _RESERVED else name


def _pictures(part: Part, stream: int) -> Iterator[tuple[str, float, Any]]:
    if not (part.histograms or part.images):
        return
    wandb = imported("wandb", "WandbLogger")
    for number in part.rows_of(stream):
        for picture in part.histograms:
            name, x = _own_name(picture.name), picture.x[stream, number].item()
            counts, edges = _bins(picture.value, stream, number)
            yield name, x, wandb.Histogram(np_histogram=(counts, edges))
            if (nonfinite := int(picture.value.nonfinite[stream, number])) > 0:
                yield f"{name}/nonfinite", x, nonfinite
        for picture in part.images:
            pixels = as_bytes(picture.value.pixels[stream, number])
            flat = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
            image = imported("PIL.Image", "WandbLogger", "wandb").fromarray(flat)
            yield _own_name(picture.name), picture.x[stream, number].item(), wandb.Image(image)


def _bins(value: Any, stream: int, number: int) -> tuple[Any, Any]:
    """Counts and edges, neighbours taken together where W&B does not take as many."""
    counts, edges = value.counts[stream, number], value.edges[stream, number]
    together = -(-len(counts) // _MOST_BINS)
    starts = np.arange(0, len(counts), together)
    return np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1])


_NAME = "WandbLogger"
_OURS = {
    "id": "every run has its own; give `resume=` to `init` or `run` to go on with one",
    "name": "give it to `init` or `run`",
    "reinit": "all runs are open side by side",
    "resume": "give it to `init` or `run`",
    "resume_from": "give `resume=` to `init` or `run`",
}


class WandbLogger(Logger):
    """Sends records to Weights & Biases.

        logger = WandbLogger(project="mine")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    **Seeds.** By default all lanes of a `vmap` around `init` are one run, with `key/mean`,
    `key/min` and `key/max`. `lanes="split"` makes a run for each, `lanes="group"` too, with a
    group of W&B's in common.

    **Values.** Scalars are as they are; arrays of up to 16 elements go element by element
    (`key/0`, `key/1,2`), larger ones as `key/mean`, `key/min` and `key/max`, complex numbers as
    `key/real` and `key/imag`. PRNG keys are left out. A `Histogram` is one of W&B's, of at most 512
    bins; how many elements were not finite stands beside it as `key/nonfinite`, where there are
    any. An `Image` is one of W&B's, for which Pillow is needed.

    **Steps.** The x-axis of a key (`define_metric`) is the step called `step`, else the first one
    named, else `records`, a count of the key's records. W&B's own step is not used for it: records
    may go back, and nothing is dropped. All that has the same x and comes about the same time is
    one call of W&B's `log`. The names `_step`, `_timestamp`, `_runtime` and `_wandb` are W&B's: a
    key of such a name has `key/` before it.

    **Without login** nothing asks for it. Runs are kept in files (offline), as a warning says, and
    `wandb sync` sends them later. The same happens where W&B cannot be reached when a run begins.

    **Quiet.** W&B prints nothing at the beginning and the end of runs. To see what it has to say,
    the address of a run say, give `settings={"silent": False}`, or set `WANDB_SILENT=false`.

    **Going on.** `logger.run(resume=id)` goes on with the run of this id, where W&B is online.
    Offline it begins another file of the same run: send that with `wandb sync --append`. It cannot
    look up names or "last"; in a `MultiLogger`, a destination that lists runs, such as
    `SaveLogger`, does so for it.

    Args:
      lanes: What becomes of seeds; see `Logger`.
      **init: Options of `wandb.init`, for every run: `project`, `entity`, `tags`, `mode`, `dir`,
        `settings` and others. The `config` of `init` and `run` is added to the one given here.

    Raises:
      ImportError: W&B is not installed.
      TypeError: `wandb.init` has no such option, or it is not for you to give.
      ValueError: W&B does not take a value of `settings`.
      RuntimeError: There is no login, and `force=True` asks for one.
    """

    def __init__(self, *, lanes: str = "aggregate", **init: Any) -> None:
        super().__init__(WandbSink(init), lanes=lanes, network=True)


class WandbSink(Sink):
    """The runs of a `WandbLogger`."""

    takes_lanes = False
    opens_later = True

    def __init__(self, init: dict[str, Any]) -> None:
        self._wandb = imported("wandb", _NAME)
        _check(self._wandb, init)
        self._init = {**init, "config": plain_config(_NAME, init.get("config"))}
        self._settings = _settings(self._wandb, self._init.pop("settings", None))
        # W&B's end at exit is registered by this: it comes after that of the logger, which is
        # registered later.
        self._mode = self._wandb.setup().settings.mode
        if self._is_online and not _logged_in(self._wandb, self._settings):
            if self._init.get("force"):
                raise RuntimeError(
                    f"`{_NAME}(force=True)` found no login for W&B. Write `wandb login` before."
                )
            self._init["mode"] = "offline"
            warn_user(
                f"`{_NAME}` found no login for W&B, and keeps its runs offline, in the folder "
                "`wandb`. Write `wandb login` before, or `wandb sync` afterwards; or "
                f'`{_NAME}(mode="offline")`, to say that this is meant.'
            )
        self._axis = Axis()
        self._runs: dict[RunInfo, WandbRun] = {}
        self._some_began = False

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Begin a run of W&B's for each."""
        for_each(_NAME, runs, self._begin)

    def write(self, portion: RecordBatch) -> None:
        """Take records, which go to W&B with the next flush."""
        parts = list(self._axis.parts(portion))

        def add(number: int) -> None:
            for part in parts:
                self._run(portion.streams[number].run).add(part, number)

        for_each(_NAME, range(len(portion.streams)), add)

    def flush(self) -> None:
        """Hand all records to W&B's own process."""
        for_each(_NAME, self._runs.values(), WandbRun.send)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """End the runs, and wait until W&B has all of them."""
        self._axis.forget(runs)
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
        """Accept any id: W&B lists runs only where it is online, and slowly."""
        return KnownRuns("W&B", None)

    def _run(self, run: RunInfo) -> WandbRun:
        if run not in self._runs:
            raise RuntimeError(f"`{_NAME}` could not begin run {run.name!r}: its records are lost.")
        return self._runs[run]

    def _begin(self, run: RunInfo) -> None:
        settings = dict(self._settings)
        if self._some_began and "x_save_requirements" in self._wandb.Settings.model_fields:
            settings.setdefault("x_save_requirements", False)  # they are the same for all
        options = {
            **self._init,
            "group": run.group or self._init.get("group"),
            "id": re.sub(r"[^\w\-]", "_", run.id)[:128],
            "name": run.given_name,
            "config": as_json({**self._init["config"], **run.config}),
            "reinit": "create_new",
        }
        resumes = {"resume": "allow"} if run.resumed and self._is_online else {}
        warning = self._begin_anywhere(run, {**options, **resumes}, settings)
        self._some_began = True
        if warning is not None:
            warn_user(warning)

    def _begin_anywhere(
        self, run: RunInfo, options: dict[str, Any], settings: dict[str, Any]
    ) -> str | None:
        """Begin a run of W&B's, offline if need be; what is to be said of it."""
        wandb = self._wandb
        try:
            own = wandb.init(**options, settings=wandb.Settings(**settings))
        except wandb.errors.CommError as error:
            # This may take a minute and a half to find out. The next ones need not try. W&B's
            # process takes the id for one in use, so that this run has another.
            self._init["mode"] = options["mode"] = "offline"
            options["id"] += "-offline"
            options.pop("resume", None)
            own = wandb.init(**options, settings=wandb.Settings(**settings))
            self._runs[run] = WandbRun(own)
            return (
                f"`{_NAME}` cannot reach W&B, and keeps its runs offline; `wandb sync` sends them "
                f"later. W&B says: {described(error)}"
            )
        self._runs[run] = WandbRun(own)
        if run.resumed and not self._is_online:
            return (
                f"`{_NAME}` goes on with run {run.id} offline, in another file of W&B's. Write "
                "`wandb sync --append` to add it to what was sent before."
            )
        return None

    @property
    def _is_online(self) -> bool:
        mode = self._init.get("mode") or self._settings.get("mode") or self._mode
        return mode in ("online", "shared")


def _check(wandb: Any, init: dict[str, Any]) -> None:
    for name, advice in _OURS.items():
        if name in init:
            raise TypeError(f"`{_NAME}` takes no `{name}`: {advice}.")
    known = inspect.signature(wandb.init).parameters
    for name in init:
        if name not in known:
            raise TypeError(
                f"`{_NAME}` hands its options to `wandb.init`, which has none called `{name}`. "
                f"What a run is given goes to `init` and `run`: `logger.run(config={{...}})`."
            )


def _settings(wandb: Any, given: Any) -> dict[str, Any]:
    """The settings by name, with W&B kept away from the standard output, and quiet."""
    if isinstance(given, wandb.Settings):
        given = {name: getattr(given, name) for name in given.model_fields_set}
    if given is not None and not isinstance(given, dict):
        raise TypeError(f"`{_NAME}` takes `settings` as W&B does, and got {received(given)}.")
    # W&B says several lines at the beginning and the end of every run, of which there may be many.
    quiet = {} if "WANDB_SILENT" in os.environ else {"silent": True}
    settings = {"console": "off", **quiet, **(given or {})}
    refused: list[str] = []
    try:
        wandb.Settings(**settings)
    except ValueError as error:  # of pydantic
        refused = [f"`{'.'.join(map(str, x['loc']))}`: {x['msg']}" for x in error.errors()]  # type: ignore[attr-defined]
    if refused:  # without the values and without the cause, which show passwords and keys
        raise ValueError(
            f"`{_NAME}` got `settings` that W&B does not take: {as_sentence('; '.join(refused))}"
        )
    return settings


def _logged_in(wandb: Any, settings: dict[str, Any]) -> bool:
    """Whether W&B will find a key, so that it has none to ask for."""
    token = os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return bool(settings.get("api_key") or token or wandb.api.api_key)
