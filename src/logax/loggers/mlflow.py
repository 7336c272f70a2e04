"""`MLflowLogger`: metrics, parameters and tags of MLflow runs.

**Names.** MLflow accepts letters, digits, `_`, `-`, `.`, `:`, `/` and spaces, and only names that
are normalized paths. `mlflow_name` replaces any other character by its hexadecimal code between
colons: `loss%` becomes `loss:25:`, and a colon `:3a:`. It also encodes the dots of a part that is
`.` or `..`, and an empty part as `::`: `../x` becomes `:2e::2e:/x`, and `a//b` becomes `a/::/b`.
`original_name` is the inverse. A name that would exceed 250 characters is truncated, and ends with
`::` and the SHA-256 of the original.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from logax._delivery.record_batch import KnownRuns, RecordBatch, RunInfo
from logax._serialization.plain_config import flatten_run_config
from logax._serialization.record_text import to_json_value
from logax._support.imports import import_optional
from logax._support.messages import describe_error, describe_value
from logax._support.redaction import redact, redact_error
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import MetricBatch, XAxis
from logax.loggers.sink import Sink, for_each

NAME = "MLflowLogger"
_MAX_NAME_LENGTH = 250
_MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 5000  # characters; the limit of the oldest servers
_CONNECT_TIMEOUT_SECONDS = 10.0
_CONFIG_TAG = "logax.config"  # prefix of numbered tags
_FORBIDDEN_CHARACTER = re.compile(r"[^/\w.\- ]")
_ESCAPE = re.compile(r":([0-9a-f]*):")
_MAX_METRICS_PER_REQUEST = 1000
_MAX_PARAMS_PER_REQUEST = 100  # and tags
_MAX_RUNS_PER_PAGE = 1000
_STATUS = {"finished": "FINISHED", "crashed": "FAILED"}
_LEFT_OUT_TAG = "logax.left_out"


class MLflowLogger(Logger):
    """Send metrics to MLflow: to a server, or to a local database file.

        logger = MLflowLogger(experiment="seeds", tracking_uri="http://localhost:5000")
        with logger.run(name="first", config={"rate": 0.1}) as state:
            weights = logger.tap(train, state)(key)

    Requires MLflow: `pip install "logax[mlflow]"`. The logger neither uses nor changes the global
    state of `mlflow.set_tracking_uri` and `mlflow.start_run`. Only the defaults of `tracking_uri`
    and `experiment` are those of MLflow (`MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`).

    **Metrics.** Scalars are sent as they are, an array of at most 16 elements element by element,
    and a larger one as its mean, minimum and maximum. The step in MLflow is the step called `step`,
    else the first step named, else a count of the key's records. It must be an integer: if it is
    not, MLflow gets the count, and the step as another metric. If steps go back or repeat,
    timestamps increase slightly, so that MLflow shows the records in order. Histograms and images
    are left out, and listed in the tag `logax.left_out`. MLflow's databases do not store
    infinities: they return the largest float instead.

    **Names.** A character that MLflow does not allow in a name is replaced by its code between
    colons: `loss%` becomes `loss:25:`, `a//b` becomes `a/::/b`. A name of more than 250 characters
    is truncated and ends with the SHA-256 of the full name; the tag `logax.name.<SHA-256>` holds
    the beginning of it.

    **Runs.** The config becomes parameters, with nested dictionaries by path (`model/layers`). A
    value of more than 6,000 characters is truncated, and the tags `logax.config.0`,
    `logax.config.1`, ... hold the whole config as pieces of JSON. MLflow cannot change parameters:
    if a run is resumed with a different value, these tags hold the new config, merged into the
    previous one. Join all of them: the last ones may be empty. The tag `logax.id` is the id of the
    run. With `lanes="group"` the runs of one `init` are nested in a parent run.

    **Failures.** A server that refuses connections raises an error within seconds. If a server
    answers with errors or not at all, MLflow retries in the background for some minutes;
    `MLFLOW_HTTP_REQUEST_MAX_RETRIES` and `MLFLOW_HTTP_REQUEST_TIMEOUT` set the limits.

    **Secrets.** The address may contain a user and a password, `http://user:password@host`, quoted
    with `urllib.parse.quote(password, safe="")`. Errors show `***` in their place, and the logger
    suppresses the line with the run's address that MLflow prints when a run ends.
    `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD` keep them out of the address.

    Args:
      experiment: Name of the experiment. It is created if it does not exist.
      tracking_uri: Address of the server, or a database such as `sqlite:///mlflow.db`.
      lanes: Treatment of the lanes of `vmap`: "split", "aggregate" or "group"; see `Logger`.

    Raises:
      ImportError: MLflow is not installed.
      ConnectionError: The server is not reachable.
      ValueError: The experiment was deleted, or MLflow rejects the arguments.
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
    """The sink of `MLflowLogger`."""

    takes_lanes = False
    opens_later = True

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        mlflow = import_optional("mlflow", NAME)
        self._entities = import_optional("mlflow.entities", NAME)
        self._errors: type[Exception] = import_optional("mlflow.exceptions", NAME).MlflowException
        for name, text in (("experiment", experiment), ("tracking_uri", tracking_uri)):
            if text is not None and not (isinstance(text, str) and text):
                raise TypeError(
                    f"`{NAME}` takes a string as `{name}`, and got {describe_value(text)}."
                )
        self.uri = tracking_uri or mlflow.get_tracking_uri()
        check_reachable(self.uri)
        with explain_refusal(self._errors):
            self._unchecked_client = mlflow.MlflowClient(tracking_uri=self.uri)
            self._experiment, self._name = self._find_or_create_experiment(experiment)
        self._x_axis = XAxis(whole=True)
        self._runs: dict[RunInfo, _MLflowRun] = {}
        self._parent_runs: dict[str, _ParentRun] = {}
        self._batch_time_ms = self._last_time_ms = 0  # of this batch, and the last one used

    @property
    def _client(self) -> Any:
        """MLflow's client for one request, after a check that the server is reachable."""
        check_reachable(self.uri)
        return self._unchecked_client

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Create or resume the runs, and create their parent runs."""

        def begin(run: RunInfo) -> None:
            with explain_failure(self._errors, f"open the run {run.name!r}"):
                self._runs[run] = self._resume_run(run) if run.resumed else self._create_run(run)

        for_each(NAME, runs, begin, until=ConnectionError)

    def write(self, batch: RecordBatch) -> None:
        """Convert records to metrics, and hold them until `flush`."""
        self._batch_time_ms = max(self._last_time_ms + 1, int(time.time() * 1000))
        metric_batches = list(self._x_axis.metric_batches(batch))

        def collect_metrics(number: int) -> None:
            run = batch.streams[number].run
            if run not in self._runs:
                raise RuntimeError(
                    f"`{NAME}` could not open the run {run.name!r}: its records are lost."
                )
            for metric_batch in metric_batches:
                self._collect_metrics(metric_batch, number, self._runs[run])

        for_each(NAME, range(len(batch.streams)), collect_metrics)

    def flush(self) -> None:
        """Send all metrics and tags."""
        waiting = [(run, run.take_metrics()) for run in self._runs.values()]
        for_each(NAME, waiting, self._send_waiting, until=ConnectionError)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Set the status of the runs; a parent run ends with the last of its runs."""
        self._x_axis.forget(runs)
        jobs: list[Callable[[], None]] = [self.flush]
        jobs += [functools.partial(self._end, run, status) for run in runs]
        try:
            for_each(NAME, jobs, lambda job: job(), until=ConnectionError)
        finally:
            for run in runs:
                self._runs.pop(run, None)

    def end(self) -> None:
        """Send the remaining metrics."""
        self.flush()

    def known_runs(self) -> KnownRuns:
        """Return the runs of the experiment that an `MLflowLogger` created."""
        known: dict[str, str] = {}
        more, token = True, None
        while more:
            with explain_failure(self._errors, "list the runs of the experiment"):
                page = self._client.search_runs(
                    [self._experiment],
                    max_results=_MAX_RUNS_PER_PAGE,
                    order_by=["attributes.start_time ASC"],
                    page_token=token,
                )
            tags = ((found.data.tags.get("logax.id"), found.info.run_name) for found in page)
            known.update((own, name) for own, name in tags if own)
            token = page.token
            more = bool(token)
        return KnownRuns(f"the experiment {self._name!r}", known)

    def _find_or_create_experiment(self, name: str | None) -> tuple[str, str]:
        """Return the id and the name of the experiment."""
        number = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if name is None and number:
            found = self._client.get_experiment(number)
        else:
            name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
            found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name)), str(name)
            except self._errors:  # another process may have created it in the meantime
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

    def _create_run(self, run: RunInfo) -> _MLflowRun:
        params, tags = params_of(run.config)
        tags |= {"logax.id": run.id}
        tags |= dict(split_tag("logax.machine", json.dumps(to_json_value(run.machine))))
        if run.lanes is not None:
            tags["logax.lanes"] = str(run.lanes)
        if run.group is not None:
            tags["mlflow.parentRunId"] = self._parent_run_id(run.group, run)
        own = self._create_mlflow_run(run.name, run.began, tags)
        self._log_params(own, params)
        return _MLflowRun(own)

    def _log_params(self, own: str, params: dict[str, str]) -> None:
        names = list(params)
        for start in range(0, len(names), _MAX_PARAMS_PER_REQUEST):
            some = [
                self._entities.Param(x, params[x])
                for x in names[start : start + _MAX_PARAMS_PER_REQUEST]
            ]
            self._client.log_batch(own, params=some)

    def _create_mlflow_run(self, name: str, began: float, tags: dict[str, str]) -> str:
        first = dict(list(tags.items())[-_MAX_PARAMS_PER_REQUEST:])
        made = self._client.create_run(
            self._experiment, start_time=int(began * 1000), tags=first, run_name=name
        )
        for key in tags.keys() - first.keys():
            self._client.set_tag(made.info.run_id, key, tags[key])
        return str(made.info.run_id)

    def _resume_run(self, run: RunInfo) -> _MLflowRun:
        found = self._client.search_runs([self._experiment], f"tags.`logax.id` = '{run.id}'")
        if not found:
            return self._create_run(run)
        own = _MLflowRun(str(found[0].info.run_id), sent_tags=dict(found[0].data.tags))
        self._client.update_run(own.id, status="RUNNING")
        self._add_config(own, run, found[0].data.params)
        return own

    def _add_config(self, own: _MLflowRun, run: RunInfo, before: Mapping[str, str]) -> None:
        """Add the config of a resumed run. Parameters are immutable: tags hold changed values."""
        params, tags = params_of(run.config)
        self._log_params(own.id, {x: text for x, text in params.items() if x not in before})
        stored = read_config_tags(own.sent_tags)
        if stored or tags or any(before.get(x, text) != text for x, text in params.items()):
            own.tags |= config_tags({**stored, **run.config}, own.sent_tags)

    def _parent_run_id(self, name: str, run: RunInfo) -> str:
        """Return the id of a group's parent run, and add a run to it."""
        group = self._parent_runs.get(name)
        if group is None:
            group = _ParentRun(self._create_mlflow_run(name, run.began, {"logax.group": name}))
            self._parent_runs[name] = group
        elif not group.members:
            self._client.update_run(group.own, status="RUNNING")
        group.members.add(run)
        return group.own

    def _leave_parent(self, run: RunInfo, status: str) -> None:
        group = self._parent_runs.get(run.group or "")
        if group is None or run not in group.members:
            return
        group.members.remove(run)
        if status != "finished":
            group.status = status
        if not group.members:
            self._terminate(group.own, group.status)

    def _send_waiting(self, waiting: tuple[_MLflowRun, list[Any]]) -> None:
        run, metrics = waiting
        for start in range(0, len(metrics), _MAX_METRICS_PER_REQUEST):
            lost = f"send {len(metrics) - start} metrics, which are lost"
            with explain_failure(self._errors, lost):
                self._client.log_batch(
                    run.id, metrics=metrics[start : start + _MAX_METRICS_PER_REQUEST]
                )
        for tag, text in run.tags.items():
            if run.sent_tags.get(tag) != text:
                with explain_failure(self._errors, f"set the tag {tag}"):
                    self._client.set_tag(run.id, tag, text)
                run.sent_tags[tag] = text

    def _end(self, run: RunInfo, status: str) -> None:
        with explain_failure(self._errors, f"close the run {run.name!r}"):
            try:
                if run in self._runs:  # otherwise it could not be opened
                    self._terminate(self._runs[run].id, status)
            finally:
                self._leave_parent(run, status)

    def _terminate(self, own: str, status: str) -> None:
        """Set the status and the end time of an MLflow run.

        `set_terminated` prints the address of the run with its password. The client has no option
        against that, and the environment variable would apply to the whole process.
        """
        client = self._client
        if not has_secret(self.uri):
            client.set_terminated(own, _STATUS[status])
            return
        kind = self._entities.RunStatus.from_string(_STATUS[status])
        client._tracking_client.store.update_run_info(own, kind, int(time.time() * 1000), None)

    def _collect_metrics(self, metric_batch: MetricBatch, number: int, run: _MLflowRun) -> None:
        metric = self._entities.Metric
        for table in metric_batch.tables:
            x, columns = table.lists(number)
            for name, column in zip(table.names, columns, strict=True):
                own = mlflow_name(name)
                if is_truncated(own, name):
                    run.tags[f"logax.name.{own[-64:]}"] = name[:MAX_TAG_LENGTH]
                run.metrics += [
                    metric(own, value, timestamp, step)
                    for value, timestamp, step in zip(
                        column, self._timestamps_of(x), x, strict=True
                    )
                ]
        run.leave_out(
            sorted(media.name for media in (*metric_batch.histograms, *metric_batch.images))
        )

    def _timestamps_of(self, steps: Sequence[float]) -> list[int]:
        """Return a timestamp for each step of a metric, increasing where the steps do not.

        MLflow sorts by timestamp and then by step, and keeps one of several identical metrics.
        """
        timestamp, before, timestamps = self._batch_time_ms, -math.inf, []
        for step in steps:
            timestamp += step <= before
            before = step
            timestamps.append(timestamp)
        self._last_time_ms = max(self._last_time_ms, timestamp)
        return timestamps


@dataclasses.dataclass(eq=False)
class _MLflowRun:
    """State of one run in MLflow.

    Attributes:
      id: MLflow's run id.
      metrics: Metrics to send.
      tags: Current tags.
      sent_tags: Tags as MLflow has them.
      left_out: Names of values that MLflow cannot show.
    """

    id: str
    metrics: list[Any] = dataclasses.field(default_factory=list)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    sent_tags: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: dict[str, None] = dataclasses.field(init=False)  # a set, in order

    def __post_init__(self) -> None:
        before = self.sent_tags.get(_LEFT_OUT_TAG)
        self.left_out = dict.fromkeys(before.split(", ")) if before else {}

    def take_metrics(self) -> list[Any]:
        """Remove and return the metrics to send."""
        metrics, self.metrics = self.metrics, []
        return metrics

    def leave_out(self, names: Sequence[str]) -> None:
        """Add names to the tag of values that are left out."""
        if not self.left_out.keys() >= set(names):
            self.left_out.update(dict.fromkeys(names))
            self.tags[_LEFT_OUT_TAG] = ", ".join(self.left_out)[:MAX_TAG_LENGTH]


@dataclasses.dataclass
class _ParentRun:
    """A parent run: its id, its open runs, and the worst status of those that ended."""

    own: str
    members: set[RunInfo] = dataclasses.field(default_factory=set)
    status: str = "finished"


def mlflow_name(name: str) -> str:
    """Return a name that MLflow accepts for a metric, parameter or tag; different for each name."""
    parts = _FORBIDDEN_CHARACTER.sub(_escape_character, name).split("/")
    plain = "/".join(map(_escape_part, parts))
    if plain.startswith(".."):
        plain = f":2e:{plain[1:]}"
    if len(plain) <= _MAX_NAME_LENGTH:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    begin = plain[: _MAX_NAME_LENGTH - len(digest) - 2]
    if begin.count(":") % 2:  # within an escape
        begin = begin[: begin.rindex(":")]
    return f"{begin.rstrip('/.')}::{digest}"


def original_name(name: str) -> str:
    """Return the name before `mlflow_name`, unless it was truncated."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", name)


def is_truncated(name: str, original: str) -> bool:
    """Return whether a name does not contain all of the original."""
    return original_name(name) != original


def params_of(config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the config of a run as parameters, and as tags if parameters cannot hold it.

    Dictionaries are flattened: `{"model": {"layers": 2}}` becomes `model/layers`. Lists and arrays
    become JSON. A value of more than 6,000 characters is truncated; then the tags `logax.config.0`,
    `logax.config.1`, ... hold the whole config as pieces of one JSON text.
    """
    values = flatten_run_config(to_json_value(config))
    flat = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values
    }
    params = {
        mlflow_name(name): text
        if len(text) <= _MAX_PARAM_LENGTH
        else f"{text[: _MAX_PARAM_LENGTH - 1]}…"
        for name, text in flat.items()
    }
    names = ((mlflow_name(name), name) for name in flat)
    cut = any(len(text) > _MAX_PARAM_LENGTH for text in flat.values())
    if not cut and not any(is_truncated(*pair) for pair in names):
        return params, {}
    return params, config_tags(config)


def config_tags(config: Mapping[str, Any], before: Iterable[str] = ()) -> dict[str, str]:
    """Return the tags that hold a config, and empty tags for superfluous earlier pieces.

    Args:
      config: Config of the run.
      before: Names of the tags that the run has.
    """
    tags = dict.fromkeys((x for x in before if x.startswith(f"{_CONFIG_TAG}.")), "")
    return tags | dict(
        split_tag(_CONFIG_TAG, json.dumps(to_json_value(config), ensure_ascii=False))
    )


def read_config_tags(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the config that the tags of a run hold; empty if they do not hold one."""
    names = (f"{_CONFIG_TAG}.{number}" for number in itertools.count())
    text = "".join(tags[name] for name in itertools.takewhile(tags.__contains__, names))
    try:
        config = json.loads(text)
    except json.JSONDecodeError:  # there are no tags, or a user edited them
        return {}
    return config if isinstance(config, dict) else {}


def split_tag(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Split a text of any length into tags."""
    for number, start in enumerate(range(0, len(text), MAX_TAG_LENGTH)):
        yield f"{name}.{number}", text[start : start + MAX_TAG_LENGTH]


def has_secret(uri: str) -> bool:
    """Return whether an address contains a user, a password or a token."""
    return redact(uri) != uri


def check_reachable(uri: str) -> None:
    """Raise within seconds if no server listens: MLflow itself would retry for some minutes.

    MLflow's number of retries is a setting of the whole process. Behind a proxy nothing is checked.
    """
    if not uri.lower().startswith(("http://", "https://")):
        return
    address = _split_address(uri)
    if not address.hostname:
        return
    proxied = address.scheme in urllib.request.getproxies()
    if proxied and not urllib.request.proxy_bypass(address.hostname):
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(
            f"`{NAME}` cannot reach the MLflow server at {address.scheme}://"
            f"{address.hostname}:{port} ({error}). Start it with `mlflow server`, or give the "
            "`tracking_uri` of another."
        ) from error


def _split_address(uri: str) -> urllib.parse.SplitResult:
    """Split an HTTP address, or raise an error that does not quote it."""
    with contextlib.suppress(ValueError):
        address = urllib.parse.urlsplit(uri)
        _ = address.port
        if "@" in address.netloc or "@" not in uri:
            return address
    # Outside the block above, whose error may quote a part of the password.
    raise ValueError(
        f"`{NAME}` got a `tracking_uri` whose host or port cannot be read. Quote the user and the "
        'password in it: `urllib.parse.quote(password, safe="")`.'
    )


@contextlib.contextmanager
def explain_failure(errors: type[Exception], what: str) -> Iterator[None]:
    """Raise errors of MLflow again with a description of the failed action.

    Raises:
      ConnectionError: The server does not answer.
      RuntimeError: MLflow refused the request.
    """
    try:
        yield
    except (ConnectionError, errors) as error:
        # MLflow raises the same type if no server answers, with the OSError as its context.
        is_unreachable = isinstance(error, ConnectionError) or isinstance(
            error.__context__, OSError
        )
        kind = ConnectionError if is_unreachable else RuntimeError
        raise kind(f"`{NAME}` could not {what}: {describe_error(error)}") from redact_error(error)


@contextlib.contextmanager
def explain_refusal(errors: type[Exception]) -> Iterator[None]:
    """Raise errors of MLflow again as errors about the user's arguments."""
    try:
        yield
    except errors as error:
        raise ValueError(
            f"`{NAME}` got arguments that MLflow does not accept: {describe_error(error)}"
        ) from redact_error(error)


def _escape_character(found: re.Match[str]) -> str:
    return f":{ord(found[0]):x}:"


def _escape_part(part: str) -> str:
    if not part:
        return "::"
    return part.replace(".", ":2e:") if part in (".", "..") else part
