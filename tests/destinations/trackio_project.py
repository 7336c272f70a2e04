"""A project of Trackio's, read by its own API."""

import trackio
from trackio.sqlite_storage import SQLiteStorage

from logax.testing import Seen

_TAKEN = "__"


def read_rows(project):
    """For each run, by its id, the rows that Trackio gives, without their time."""
    found = {}
    for run in trackio.Api().runs(project):
        rows = SQLiteStorage.get_logs(project, run.name, run_id=run.id)
        found[run.id] = [{k: v for k, v in row.items() if k != "timestamp"} for row in rows]
    return found


def read_trackio(project):
    """The runs of a `TrackioLogger`. Trackio does not know how a run ended."""
    rows = read_rows(project)
    return {
        run.name: Seen(_columns(rows[run.id]), None, _info(run.config), run.config["_Group"])
        for run in trackio.Api().runs(project)
    }


def _columns(rows):
    columns = {}
    for row in rows:
        step = row.pop("step")
        for name, value in row.items():
            # A step of another name is Trackio's step, and a number beside it.
            if name != "update":
                columns.setdefault(name.removeprefix(_TAKEN), []).append((step, value))
    return columns


def _info(config):
    return {k: v for k, v in config.items() if not k.startswith(("_", "logax/"))}
