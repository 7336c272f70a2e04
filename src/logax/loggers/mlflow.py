"""Records as metrics of MLflow runs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Sequence
from typing import Any

from logax._errors import received
from logax._extras import imported
from logax.loggers._mlflow import (
    NAME,
    TAG_LENGTH,
    check_reachable,
    mlflow_name,
    params_of,
    pieces,
    telling_loss,
    telling_refusal,
    was_cut,
)
from logax.loggers._numbers import Axis, Part
from logax.loggers._search import one_run
from logax.loggers._shell.logger import Logger
from logax.loggers._text.cells import as_json
from logax.loggers.sink import Portion, RunInfo, Sink

_METRICS, _PARAMS, _PAGE = 1000, 100, 1000  # the most of a request
_STATUS = {"finished": "FINISHED", "crashed": "FAILED"}


class MLflowLogger(Logger):
    """Sends numbers to MLflow: to a server, or to its database in a file.

        logger = MLflowLogger(experiment="seeds", tracking_uri="http://localhost:5000")
        with logger.run(name="first", rate=0.1) as state:
            weights = logger.tap(train, state)(key)

    It needs MLflow: `pip install "logax[mlflow]"`. What `mlflow.set_tracking_uri` and
    `mlflow.start_run` set for the process is neither used nor changed, except that `tracking_uri`
    and `experiment` that are not given are those of MLflow (`MLFLOW_TRACKING_URI`,
    `MLFLOW_EXPERIMENT_NAME`).

    **Metrics.** Scalars are what they are; an array of up to 16 elements is sent by element, a
    larger one as its mean, least and greatest element. MLflow's step is the step called `step`,
    else the first one named, else a count of the key's records; it must be whole, and where it is
    not, records are counted and the step is a metric beside them. Where steps go back, or stay, the
    time of a metric is a little later, so that MLflow shows records in their order. Histograms and
    images are left out, and named in the tag `logax.left_out`. MLflow's databases have no
    infinities: they come back as the greatest float.

    **Names.** What MLflow does not allow in a name stands between colons as the code of the
    character: `loss%` is `loss:25:`, `a//b` is `a/::/b`. A name of more than 250 characters is cut,
    and ends with the SHA-256 of the whole, of which the tag `logax.name.` and that has the
    beginning.

    **Runs.** What was given to `init` becomes parameters, nested dictionaries by path
    (`config/rate`). A value of more than 6,000 characters is cut, and then the tags `logax.info.0`,
    `logax.info.1`, ... have all of it in pieces of JSON. The tag `logax.id` is the id of the run.
    With `lanes="group"` the runs of one `init` are nested in a run of their own.

    **Failures.** A server at whose address nobody listens is an error within seconds. One that
    answers with errors or not at all is asked again as MLflow does, for some minutes, in the
    background: `MLFLOW_HTTP_REQUEST_MAX_RETRIES` and `MLFLOW_HTTP_REQUEST_TIMEOUT` say how long.

    Args:
      experiment: Its name. It is made if there is none.
      tracking_uri: Of the server, or `sqlite:///mlflow.db`.
      lanes: What becomes of seeds; see `Logger`.

    Raises:
      ImportError: MLflow is not installed.
      ConnectionError: The server cannot be reached.
      ValueError: The experiment was deleted, or MLflow does not take the arguments.
    """

    def __init__(
        self,
        *,
        experiment: str | None = None,
        tracking_uri: str | None = None,
        lanes: str = "aggregate",
    ) -> None:
        super().__init__(MLflowSink(experiment, tracking_uri), lanes=lanes, network=True)


class MLflowSink(Sink):
    """The experiment of an `MLflowLogger`."""

    takes_lanes = False

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        mlflow = imported("mlflow", NAME)
        self._entities = imported("mlflow.entities", NAME)
        self._errors: type[Exception] = imported("mlflow.exceptions", NAME).MlflowException
        for name, text in (("experiment", experiment), ("tracking_uri", tracking_uri)):
            if text is not None and not (isinstance(text, str) and text):
                raise TypeError(f"`{NAME}` takes a string as `{name}`, and got {received(text)}.")
        self.uri = tracking_uri or mlflow.get_tracking_uri()
        check_reachable(self.uri)
        with telling_refusal(self._errors):
            self._untested = mlflow.MlflowClient(tracking_uri=self.uri)
            self._experiment, self._name = self._found_experiment(experiment)
        self._axis = Axis(whole=True)
        self._runs: dict[RunInfo, str] = {}
        self._groups: dict[str, _Group] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._told: dict[str, set[str]] = {}  # by run the names that a tag tells of
        self._now = self._last = 0  # milliseconds: of this portion, and the last that was used

    @property
    def _client(self) -> Any:
        """For one request: MLflow's client, where somebody listens."""
        check_reachable(self.uri)
        return self._untested

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Make the runs, and the ones they are nested in."""
        for run in runs:
            with telling_loss(self._errors, f"open the run {run.name!r}"):
                self._runs[run] = self._resumed(run) if run.resumed else self._created(run)

    def write(self, portion: Portion) -> None:
        """Turn records into metrics, which wait for `flush`."""
        self._now = max(self._last + 1, int(time.time() * 1000))
        for part in self._axis.parts(portion):
            for number, stream in enumerate(part.streams):
                self._gather(part, number, self._runs[stream.run])

    def flush(self) -> None:
        """Send all metrics."""
        waiting, self._waiting = self._waiting, {}
        left = sum(map(len, waiting.values()))
        for run, metrics in waiting.items():
            for start in range(0, len(metrics), _METRICS):
                some = metrics[start : start + _METRICS]
                with telling_loss(self._errors, f"send {left} metrics, which are lost,"):
                    self._client.log_batch(run, metrics=some)
                left -= len(some)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Tell how the runs ended; a run that others are nested in ends with the last of them."""
        self.flush()
        self._axis.forget(runs)
        for run in runs:
            own = self._runs.pop(run)
            self._told.pop(own, None)
            with telling_loss(self._errors, f"close the run {run.name!r}"):
                self._client.set_terminated(own, _STATUS[status])
                self._leave_group(run, status)

    def end(self) -> None:
        """Send what is left."""
        self.flush()

    def find(self, run: str) -> str:
        """The id of a run of the experiment, given its id, its beginning, or its name."""
        known: dict[str, str] = {}
        more, token = True, None
        while more:
            page = self._client.search_runs(
                [self._experiment],
                max_results=_PAGE,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            tags = ((found.data.tags.get("logax.id"), found.info.run_name) for found in page)
            known.update((own, name) for own, name in tags if own)
            token = page.token
            more = bool(token)
        return one_run(NAME, f"the experiment {self._name!r}", run, known)

    def _found_experiment(self, name: str | None) -> tuple[str, str]:
        """The id and the name of the experiment, which is made if there is none."""
        number = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if name is None and number:
            found = self._client.get_experiment(number)
        else:
            name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
            found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name)), str(name)
            except self._errors:  # another process may have been faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise ValueError(
                f"`{NAME}` got the experiment {found.name!r}, which was deleted. Restore it with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or give "
                "another."
            )
        return str(found.experiment_id), str(found.name)

    def _created(self, run: RunInfo) -> str:
        params, tags = params_of(run.info)
        tags |= {"logax.id": run.id}
        tags |= dict(pieces("logax.machine", json.dumps(as_json(run.machine))))
        if run.lanes is not None:
            tags["logax.lanes"] = str(run.lanes)
        if run.group is not None:
            tags["mlflow.parentRunId"] = self._parent(run.group, run)
        own = self._new(run.name, run.began, tags)
        names = list(params)
        for start in range(0, len(names), _PARAMS):
            some = [self._entities.Param(x, params[x]) for x in names[start : start + _PARAMS]]
            self._client.log_batch(own, params=some)
        return own

    def _new(self, name: str, began: float, tags: dict[str, str]) -> str:
        first = dict(list(tags.items())[-_PARAMS:])
        made = self._client.create_run(
            self._experiment, start_time=int(began * 1000), tags=first, run_name=name
        )
        for key in tags.keys() - first.keys():
            self._client.set_tag(made.info.run_id, key, tags[key])
        return str(made.info.run_id)

    def _resumed(self, run: RunInfo) -> str:
        found = self._client.search_runs([self._experiment], f"tags.`logax.id` = '{run.id}'")
        if not found:
            return self._created(run)
        own = str(found[0].info.run_id)
        self._client.update_run(own, status="RUNNING")
        return own

    def _parent(self, name: str, run: RunInfo) -> str:
        """The run that the runs of a group are nested in."""
        group = self._groups.get(name)
        if group is None:
            group = _Group(self._new(name, run.began, {"logax.group": name}))
            self._groups[name] = group
        elif not group.members:
            self._client.update_run(group.own, status="RUNNING")
        group.members.add(run)
        return group.own

    def _leave_group(self, run: RunInfo, status: str) -> None:
        group = self._groups.get(run.group or "")
        if group is None or run not in group.members:
            return
        group.members.remove(run)
        if status != "finished":
            group.status = status
        if not group.members:
            self._client.set_terminated(group.own, _STATUS[group.status])

    def _gather(self, part: Part, number: int, run: str) -> None:
        waiting = self._waiting.setdefault(run, [])
        metric = self._entities.Metric
        for table in part.tables:
            x, columns = table.lists(number)
            for name, column in zip(table.names, columns, strict=True):
                own = mlflow_name(name)
                if was_cut(own, name):
                    self._tell(run, f"logax.name.{own[-64:]}", name[:TAG_LENGTH])
                waiting += [
                    metric(own, value, moment, step)
                    for value, moment, step in zip(column, self._moments(x), x, strict=True)
                ]
        left_out = sorted(picture.name for picture in (*part.histograms, *part.images))
        if left_out:
            self._tell(run, "logax.left_out", ", ".join(left_out)[:TAG_LENGTH])

    def _moments(self, steps: Sequence[float]) -> list[int]:
        """A time for each step of a metric: a later one where the steps do not go forward.

        MLflow orders by time and then by step, and of metrics that agree in all it keeps one.
        """
        moment, before, moments = self._now, -math.inf, []
        for step in steps:
            moment += step <= before
            before = step
            moments.append(moment)
        self._last = max(self._last, moment)
        return moments

    def _tell(self, run: str, tag: str, text: str) -> None:
        """Set a tag of a run, once."""
        told = self._told.setdefault(run, set())
        if f"{tag} {text}" not in told:
            told.add(f"{tag} {text}")
            with telling_loss(self._errors, f"set the tag {tag}"):
                self._client.set_tag(run, tag, text)


@dataclasses.dataclass
class _Group:
    """A run that others are nested in: its id, those that are open, and how they ended so far."""

    own: str
    members: set[RunInfo] = dataclasses.field(default_factory=set)
    status: str = "finished"
