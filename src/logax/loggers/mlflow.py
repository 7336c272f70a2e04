"""What MLflow lets pass: names, parameters, a server that is there, and errors that say more.

**Names.** MLflow takes letters, digits, and `_`, `-`, `.`, `:`, `/` and spaces, and only names that
are paths in their plainest form. All else is written between colons, as the hexadecimal code of the
character: `loss%` is `loss:25:`, and a colon itself `:3a:`. The dots of a part that is `.` or `..`
are written so too, and an empty part as `::`: `../x` is `:2e::2e:/x`, `a//b` is `a/::/b`.
`original_name` turns it round. A name that would have more than 250 characters is cut, and ends
with `::` and the SHA-256 of the original.

Records as metrics of MLflow runs.
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
from logax._support.imports import imported
from logax._support.messages import described, received
from logax._support.redaction import redacted, without_secrets
from logax.loggers._core.logger import Logger
from logax.loggers._numbers import Axis, Part
from logax.loggers._text.cells import as_json
from logax.loggers.sink import Sink, for_each

NAME = "MLflowLogger"

_LONGEST_NAME = 250
_LONGEST_PARAM = 6000
TAG_LENGTH = 5000  # characters; what servers of all versions take
_PATIENCE = 10.0  # seconds until a server that does not answer is taken for none

_CONFIG = "logax.config"  # tags, with a number behind
_FOREIGN = re.compile(r"[^/\w.\- ]")
_ESCAPE = re.compile(r":([0-9a-f]*):")


def mlflow_name(name: str) -> str:
    """The name under which MLflow takes a metric, parameter or tag. No two are the same."""
    plain = "/".join(_part(part) for part in _FOREIGN.sub(_escaped, name).split("/"))
    if plain.startswith(".."):
        plain = f":2e:{plain[1:]}"
    if len(plain) <= _LONGEST_NAME:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    begin = plain[: _LONGEST_NAME - len(digest) - 2]
    if begin.count(":") % 2:  # within an escape
        begin = begin[: begin.rindex(":")]
    return f"{begin.rstrip('/.')}::{digest}"


def original_name(name: str) -> str:
    """The name before `mlflow_name`, unless it was cut."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", name)


def was_cut(name: str, original: str) -> bool:
    """Whether a name is not all of the original."""
    return original_name(name) != original


def params_of(config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the config of a run as parameters, and tags for what parameters cannot hold.

    Dictionaries are flattened: `{"model": {"layers": 2}}` gives `model/layers`. Lists and arrays
    are JSON. A value of more than 6,000 characters is cut; then all of the config is in the tags
    `logax.config.0`, `logax.config.1`, ... as pieces of one JSON text.
    """
    flat = dict(_flat(as_json(config)))
    params = {
        mlflow_name(name): text if len(text) <= _LONGEST_PARAM else f"{text[: _LONGEST_PARAM - 1]}…"
        for name, text in flat.items()
    }
    names = ((mlflow_name(name), name) for name in flat)
    cut = any(len(text) > _LONGEST_PARAM for text in flat.values())
    if not cut and not any(was_cut(*pair) for pair in names):
        return params, {}
    return params, config_tags(config)


def config_tags(config: Mapping[str, Any], before: Iterable[str] = ()) -> dict[str, str]:
    """Return the tags that hold a config, and empty ones for the pieces of `before` beyond them.

    `before` are the names of the tags that the run has.
    """
    tags = dict.fromkeys((x for x in before if x.startswith(f"{_CONFIG}.")), "")
    return tags | dict(pieces(_CONFIG, json.dumps(as_json(config), ensure_ascii=False)))


def stored_config(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the config that the tags of a run hold; it is empty where they do not hold one."""
    names = (f"{_CONFIG}.{number}" for number in itertools.count())
    text = "".join(tags[name] for name in itertools.takewhile(tags.__contains__, names))
    try:
        config = json.loads(text)
    except json.JSONDecodeError:  # no tags, or a user has edited them
        return {}
    return config if isinstance(config, dict) else {}


def pieces(name: str, text: str) -> Iterator[tuple[str, str]]:
    """A text of any length as tags."""
    for number, start in enumerate(range(0, len(text), TAG_LENGTH)):
        yield f"{name}.{number}", text[start : start + TAG_LENGTH]


def has_secret(uri: str) -> bool:
    """Whether an address holds a user, a password or a token."""
    return redacted(uri) != uri


def check_reachable(uri: str) -> None:
    """Raise soon where nobody listens: MLflow itself would try again for some minutes.

    How often it does is set for the whole process only. Behind a proxy nothing can be said.
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
        socket.create_connection((address.hostname, port), _PATIENCE).close()
    except OSError as error:
        raise ConnectionError(
            f"`{NAME}` cannot reach the MLflow server at {address.scheme}://"
            f"{address.hostname}:{port} ({error}). Start it with `mlflow server`, or give the "
            "`tracking_uri` of another."
        ) from error


def _split_address(uri: str) -> urllib.parse.SplitResult:
    """Split an http address whose host and port can be read, or raise without showing it."""
    with contextlib.suppress(ValueError):
        address = urllib.parse.urlsplit(uri)
        _ = address.port
        if "@" in address.netloc or "@" not in uri:
            return address
    # Outside of the block above: its error may quote a part of the password.
    raise ValueError(
        f"`{NAME}` got a `tracking_uri` whose host or port cannot be read. Quote the user and the "
        'password in it: `urllib.parse.quote(password, safe="")`.'
    )


@contextlib.contextmanager
def telling_loss(errors: type[Exception], what: str) -> Iterator[None]:
    """Have an error say what could not be done.

    Raises:
      ConnectionError: Nobody answers.
      RuntimeError: MLflow does, and refuses.
    """
    try:
        yield
    except (ConnectionError, errors) as error:
        # What MLflow raises where nobody answers is the same type, raised while it had the other.
        is_gone = isinstance(error, ConnectionError) or isinstance(error.__context__, OSError)
        kind = ConnectionError if is_gone else RuntimeError
        raise kind(f"`{NAME}` could not {what}: {described(error)}") from without_secrets(error)


@contextlib.contextmanager
def telling_refusal(errors: type[Exception]) -> Iterator[None]:
    """Have an error say that it is about what users gave."""
    try:
        yield
    except errors as error:
        raise ValueError(
            f"`{NAME}` got what MLflow does not take: {described(error)}"
        ) from without_secrets(error)


def _flat(values: dict[str, Any], begin: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{begin}{key}/")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{begin}{key}", text


def _escaped(found: re.Match[str]) -> str:
    return f":{ord(found[0]):x}:"


def _part(part: str) -> str:
    if not part:
        return "::"
    return part.replace(".", ":2e:") if part in (".", "..") else part


_METRICS, _PARAMS, _PAGE = 1000, 100, 1000  # the most of a request
_STATUS = {"finished": "FINISHED", "crashed": "FAILED"}
_LEFT_OUT = "logax.left_out"  # a tag


class MLflowLogger(Logger):
    """Sends numbers to MLflow: to a server, or to its database in a file.

        logger = MLflowLogger(experiment="seeds", tracking_uri="http://localhost:5000")
        with logger.run(name="first", config={"rate": 0.1}) as state:
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

    **Runs.** The config becomes parameters, nested dictionaries by path (`model/layers`). A value
    of more than 6,000 characters is cut, and then the tags `logax.config.0`, `logax.config.1`, ...
    have the whole config in pieces of JSON. MLflow does not change parameters: where a run is
    resumed with another value, these tags have the new config, merged into the one that they had.
    Join all of them: later ones may be empty. The tag `logax.id` is the id of the run. With
    `lanes="group"` the runs of one `init` are nested in a run of their own.

    **Failures.** A server at whose address nobody listens is an error within seconds. One that
    answers with errors or not at all is asked again as MLflow does, for some minutes, in the
    background: `MLFLOW_HTTP_REQUEST_MAX_RETRIES` and `MLFLOW_HTTP_REQUEST_TIMEOUT` say how long.

    **Secrets.** A user and a password may be in the address, `http://user:password@host`, quoted
    with `urllib.parse.quote(password, safe="")`. Errors show `***` in their place, and the line
    with the address of a run that MLflow prints when a run ends is left out.
    `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD` keep them out of the address.

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
    opens_later = True

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
        self._runs: dict[RunInfo, _Run] = {}
        self._groups: dict[str, _Group] = {}
        self._now = self._last = 0  # milliseconds: of this portion, and the last that was used

    @property
    def _client(self) -> Any:
        """For one request: MLflow's client, where somebody listens."""
        check_reachable(self.uri)
        return self._untested

    def open(self, runs: Sequence[RunInfo]) -> None:
        """Make the runs, and the ones they are nested in."""

        def begin(run: RunInfo) -> None:
            with telling_loss(self._errors, f"open the run {run.name!r}"):
                self._runs[run] = self._resumed(run) if run.resumed else self._created(run)

        for_each(NAME, runs, begin, until=ConnectionError)

    def write(self, portion: RecordBatch) -> None:
        """Turn records into metrics, which wait for `flush`."""
        self._now = max(self._last + 1, int(time.time() * 1000))
        parts = list(self._axis.parts(portion))

        def gather(number: int) -> None:
            run = portion.streams[number].run
            if run not in self._runs:
                raise RuntimeError(
                    f"`{NAME}` could not open the run {run.name!r}: its records are lost."
                )
            for part in parts:
                self._gather(part, number, self._runs[run])

        for_each(NAME, range(len(portion.streams)), gather)

    def flush(self) -> None:
        """Send all metrics and tags."""
        waiting = [(run, run.taken()) for run in self._runs.values()]
        for_each(NAME, waiting, self._send, until=ConnectionError)

    def close(self, runs: Sequence[RunInfo], status: str) -> None:
        """Tell how the runs ended; a run that others are nested in ends with the last of them."""
        self._axis.forget(runs)
        jobs: list[Callable[[], None]] = [self.flush]
        jobs += [functools.partial(self._end, run, status) for run in runs]
        try:
            for_each(NAME, jobs, lambda job: job(), until=ConnectionError)
        finally:
            for run in runs:
                self._runs.pop(run, None)

    def end(self) -> None:
        """Send what is left."""
        self.flush()

    def known_runs(self) -> KnownRuns:
        """The runs of the experiment that a logger has made."""
        known: dict[str, str] = {}
        more, token = True, None
        while more:
            with telling_loss(self._errors, "list the runs of the experiment"):
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
        return KnownRuns(f"the experiment {self._name!r}", known)

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

    def _created(self, run: RunInfo) -> _Run:
        params, tags = params_of(run.config)
        tags |= {"logax.id": run.id}
        tags |= dict(pieces("logax.machine", json.dumps(as_json(run.machine))))
        if run.lanes is not None:
            tags["logax.lanes"] = str(run.lanes)
        if run.group is not None:
            tags["mlflow.parentRunId"] = self._parent(run.group, run)
        own = self._new(run.name, run.began, tags)
        self._log_params(own, params)
        return _Run(own)

    def _log_params(self, own: str, params: dict[str, str]) -> None:
        names = list(params)
        for start in range(0, len(names), _PARAMS):
            some = [self._entities.Param(x, params[x]) for x in names[start : start + _PARAMS]]
            self._client.log_batch(own, params=some)

    def _new(self, name: str, began: float, tags: dict[str, str]) -> str:
        first = dict(list(tags.items())[-_PARAMS:])
        made = self._client.create_run(
            self._experiment, start_time=int(began * 1000), tags=first, run_name=name
        )
        for key in tags.keys() - first.keys():
            self._client.set_tag(made.info.run_id, key, tags[key])
        return str(made.info.run_id)

    def _resumed(self, run: RunInfo) -> _Run:
        found = self._client.search_runs([self._experiment], f"tags.`logax.id` = '{run.id}'")
        if not found:
            return self._created(run)
        own = _Run(str(found[0].info.run_id), told=dict(found[0].data.tags))
        self._client.update_run(own.id, status="RUNNING")
        self._add_config(own, run, found[0].data.params)
        return own

    def _add_config(self, own: _Run, run: RunInfo, before: Mapping[str, str]) -> None:
        """Add the config of a resumed run. MLflow keeps parameters: tags hold other values."""
        params, tags = params_of(run.config)
        self._log_params(own.id, {x: text for x, text in params.items() if x not in before})
        stored = stored_config(own.told)
        if stored or tags or any(before.get(x, text) != text for x, text in params.items()):
            own.tags |= config_tags({**stored, **run.config}, own.told)

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
            self._terminate(group.own, group.status)

    def _send(self, waiting: tuple[_Run, list[Any]]) -> None:
        run, metrics = waiting
        for start in range(0, len(metrics), _METRICS):
            lost = f"send {len(metrics) - start} metrics, which are lost"
            with telling_loss(self._errors, lost):
                self._client.log_batch(run.id, metrics=metrics[start : start + _METRICS])
        for tag, text in run.tags.items():
            if run.told.get(tag) != text:
                with telling_loss(self._errors, f"set the tag {tag}"):
                    self._client.set_tag(run.id, tag, text)
                run.told[tag] = text

    def _end(self, run: RunInfo, status: str) -> None:
        with telling_loss(self._errors, f"close the run {run.name!r}"):
            try:
                if run in self._runs:  # else it could not be opened
                    self._terminate(self._runs[run].id, status)
            finally:
                self._leave_group(run, status)

    def _terminate(self, own: str, status: str) -> None:
        """Set the status and the end of a run of MLflow's.

        `set_terminated` prints the address of the run, with the password that is in it. No option
        of the client turns that off, and the environment variable that does is of the process.
        """
        client = self._client
        if not has_secret(self.uri):
            client.set_terminated(own, _STATUS[status])
            return
        kind = self._entities.RunStatus.from_string(_STATUS[status])
        client._tracking_client.store.update_run_info(own, kind, int(time.time() * 1000), None)

    def _gather(self, part: Part, number: int, run: _Run) -> None:
        metric = self._entities.Metric
        for table in part.tables:
            x, columns = table.lists(number)
            for name, column in zip(table.names, columns, strict=True):
                own = mlflow_name(name)
                if was_cut(own, name):
                    run.tags[f"logax.name.{own[-64:]}"] = name[:TAG_LENGTH]
                run.metrics += [
                    metric(own, value, moment, step)
                    for value, moment, step in zip(column, self._moments(x), x, strict=True)
                ]
        run.leave_out(sorted(picture.name for picture in (*part.histograms, *part.images)))

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


@dataclasses.dataclass(eq=False)
class _Run:
    """A run of MLflow's.

    Attributes:
      id: MLflow's.
      metrics: Those that wait to be sent.
      tags: What tags are to say.
      told: What they say.
      left_out: The names of what MLflow has no place for.
    """

    id: str
    metrics: list[Any] = dataclasses.field(default_factory=list)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    told: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: dict[str, None] = dataclasses.field(init=False)  # a set, in order

    def __post_init__(self) -> None:
        before = self.told.get(_LEFT_OUT)
        self.left_out = dict.fromkeys(before.split(", ")) if before else {}

    def taken(self) -> list[Any]:
        """The metrics that wait; then none does."""
        metrics, self.metrics = self.metrics, []
        return metrics

    def leave_out(self, names: Sequence[str]) -> None:
        """Have the tag name these too."""
        if not self.left_out.keys() >= set(names):
            self.left_out.update(dict.fromkeys(names))
            self.tags[_LEFT_OUT] = ", ".join(self.left_out)[:TAG_LENGTH]


@dataclasses.dataclass
class _Group:
    """A run that others are nested in: its id, those that are open, and how they ended so far."""

    own: str
    members: set[RunInfo] = dataclasses.field(default_factory=set)
    status: str = "finished"
