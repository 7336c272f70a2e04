"""Every destination holds what every program of `logax.testing` says, as others read it."""

import dataclasses
import io
import itertools
import re

import numpy as np
import pytest

from destinations.console_lines import last_of, read_console
from destinations.destinations import DESTINATIONS, KEEPING_RUNS, MLFLOW, mlflow_at
from destinations.wandb_files import own_service
from logax.loggers import ConsoleLogger
from logax.testing import CASES, Case, Seen
from loggers.mlflow_server import mlflow_server
from oracle_checks import compiled_quickly
from slow_cases import slow_but

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb"),  # its own business
    # MLflow uses what the SQLAlchemy of today calls deprecated.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]


def _are_lanes(case):
    """Whether its runs begin together: the console takes their numbers together."""
    return "seed" in case.name or "lanes" in case.name


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where all destinations write, each test to a folder of its own."""
    place = tmp_path_factory.mktemp("destinations")
    with own_service(place):
        yield place


@pytest.fixture(autouse=True)
def _quick():
    with compiled_quickly():
        yield


@pytest.fixture
def folder(place, request, monkeypatch):
    folder = place / re.sub(r"\W+", "-", request.node.name).strip("-")
    folder.mkdir()
    # Trackio reads the variable for it once, when it is imported.
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", folder)
    return folder


def _pairs():
    """All pairs: fast is the first case everywhere, and of the others each at a few destinations.

    Every pair is in the slow suite otherwise.
    """
    for i, destination in enumerate(DESTINATIONS):
        for j, case in enumerate(CASES):
            fast = j == 0 or (i + j) % (6 if destination.expensive else 3) == 0
            marks = [] if fast else [pytest.mark.slow]
            yield pytest.param(destination, case, marks=marks, id=f"{destination} {case}")


@pytest.mark.parametrize(("destination", "case"), list(_pairs()))
def test_a_destination_holds_what_a_program_says(destination, case, folder):
    runs = destination.check(case, folder)
    assert {run.group for run in runs.values()} <= {None}


_FAST_AND_SLOW = slow_but([each for each in DESTINATIONS if not each.expensive], DESTINATIONS)
_SEEDS = next(case for case in CASES if case.name == "8 seeds, streamed in a buffer")
_RAGGED = next(case for case in CASES if case.name == "lanes of different lengths")


@pytest.mark.parametrize("destination", _FAST_AND_SLOW, ids=str)
def test_a_destination_holds_seeds_as_one_run(destination, folder):
    _check_together(destination, _SEEDS, folder)


def test_seeds_of_different_lengths_as_one_run_are_matched_by_their_steps(folder):
    _check_together(DESTINATIONS[0], _RAGGED, folder)


def _check_together(destination, case, folder):
    together = Case(f"{case}, as one", lambda logger: {"seed": _folded(case.program(logger))})
    destination.check(together, folder, lanes="aggregate")


def _folded(runs):
    """Of each key the mean, the least and the greatest of all that has the same x."""
    columns = {}
    for run in runs.values():
        for name, records in run.columns.items():
            for x, value in records:
                columns.setdefault(name, {}).setdefault(x, []).append(value)
    folds = {"mean": np.mean, "min": np.min, "max": np.max}
    return Seen(
        {
            f"{name}/{which}": [(x, fold(values)) for x, values in by_x.items()]
            for name, by_x in columns.items()
            for which, fold in folds.items()
        }
    )


@pytest.mark.parametrize("destination", _FAST_AND_SLOW, ids=str)
def test_a_destination_holds_seeds_as_a_group(destination, folder):
    runs = destination.check(_SEEDS, folder, lanes="group")
    assert {run.group for run in runs.values()} == {"seed" if destination.groups else None}


@pytest.mark.filterwarnings("ignore:`WandbLogger` continues run .* offline")
@pytest.mark.parametrize("destination", KEEPING_RUNS, ids=str)
def test_a_later_logger_resumes_a_run_by_its_name_its_id_or_last(destination, folder):
    values = itertools.count()

    def write(**options):
        with logger.run(**options) as state:
            x = next(values)
            logger.log(state, {"x": x / 2}, step=x)
        return state.id

    logger, _ = destination.open(folder, "split")
    one = write(name="one")
    logger.close()
    logger, _ = destination.open(folder, "split")
    lists_runs = destination.name != "W&B"
    assert write(resume=one[:-1] if lists_runs else one) == one
    two = write(name="two")
    logger.close()
    logger, read = destination.open(folder, "split")
    has_names = destination.name != "CSV"
    assert write(resume="one" if has_names and lists_runs else one) == one
    assert write(resume="last" if lists_runs else two) == two
    names = {one: "one", two: "two"} if has_names else {one: one, two: two}
    rows = [own if own == name else f"{own}  {name}" for own, name in names.items()]
    both = r"in .*, or `last` for the newest, of:\n  " + "\n  ".join(rows)
    begin = one[:2]  # the century
    unknown = {"nine": f"'nine' means no run {both}$", begin: f"'{begin}' means 2 runs {both}$"}
    if not lists_runs:
        unknown = {"last": "`WandbLogger` cannot list the runs of W&B, so it does not know"}
    for text, message in unknown.items():
        prefix = rf"^`{type(logger).__name__}\.run` cannot resume a run: "
        with pytest.raises(ValueError, match=prefix + message):
            logger.run(resume=text).__enter__()
    logger.close()
    assert {name: run.columns for name, run in read().items()} == {
        names[one]: {"x": [(0, 0.0), (1, 0.5), (3, 1.5)]},
        names[two]: {"x": [(2, 1.0), (4, 2.0)]},
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with mlflow_server(tmp_path_factory.mktemp("server")) as (address, _):
        yield address


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_real_server_of_mlflow_holds_what_a_program_says(case, folder, server):
    dataclasses.replace(MLFLOW, open=mlflow_at(server)).check(case, folder)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", ["aggregate", "group"])
def test_a_real_server_of_mlflow_holds_seeds(lanes, folder, server):
    served = dataclasses.replace(MLFLOW, open=mlflow_at(server))
    if lanes == "aggregate":
        _check_together(served, _SEEDS, folder)
    else:
        test_a_destination_holds_seeds_as_a_group(served, folder)


_NOT_IN_LINES = {
    "vectors": "of an array the mean is shown",
    "several steps": "of the steps one is shown",
    "a key of a megabyte": "a name is cut",
}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in _NOT_IN_LINES and not _are_lanes(case)],
    ids=str,
)  # fmt: skip
def test_the_console_shows_the_last_numbers_of_a_program(case):
    file = io.StringIO()
    last = Case(f"{case}, the last", lambda logger: last_of(case.program(logger)))
    last.check(ConsoleLogger(file=file), lambda: read_console(file.getvalue()))
