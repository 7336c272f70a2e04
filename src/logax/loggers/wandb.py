"""Records in Weights & Biases."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from typing import Any

from logax._config import plain_config
from logax._errors import as_sentence, described, received, warn_user
from logax._extras import imported
from logax.loggers._each import for_each
from logax.loggers._numbers import Axis
from logax.loggers._shell.logger import Logger
from logax.loggers._text.cells import as_json
from logax.loggers._wandb import WandbRun
from logax.loggers.sink import KnownRuns, Portion, RunInfo, Sink

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

    def write(self, portion: Portion) -> None:
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
