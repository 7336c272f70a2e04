"""W&B's files, as it writes them offline, read with W&B's own reader."""

import contextlib
import json
import os
import pathlib

import pytest
import wandb
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

from logax.testing import Seen

_STATUS = {0: "finished", 1: "crashed"}


def environment(home):
    """Variables that keep W&B in a folder, and what it must not know out."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    names = ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")
    return {
        **known,
        **{f"WANDB_{name}": str(home) for name in names},
        "HOME": str(home),
        "NETRC": str(home / "netrc"),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB__SAVE_REQUIREMENTS": "false",  # a list of all packages takes half a second a run
        "WANDB__DISABLE_STATS": "true",
    }


@contextlib.contextmanager
def own_service(home):
    """W&B in a folder of its own, its process ended with the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name, value in environment(home).items():
            patch.setenv(name, value)
        wandb.teardown()
        yield
        wandb.teardown()


class WandbFile:
    """A run as it stands in W&B's file.

    Attributes:
      folder: Folder of the file.
      rows: The rows of its history, without what W&B itself adds.
      metrics: By name or glob, the metric over which it is shown.
      config: Config of the run.
      run: W&B's own message about it.
      exit_code: How it ended.
    """

    def __init__(self, path):
        self.folder, self.rows, self.metrics, self.config = path.parent, [], {}, {}
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            self._take(wandb_internal_pb2.Record.FromString(data))
        store.close()

    def _take(self, record):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {_name(item): json.loads(item.value_json) for item in record.history.item}
            self.rows.append({name: x for name, x in row.items() if name[0] != "_"})
        elif kind == "metric":
            name = record.metric.name or record.metric.glob_name
            self.metrics[name] = record.metric.step_metric
        elif kind == "run":
            self.run = record.run
            self.config = {x.key: json.loads(x.value_json) for x in record.run.config.update}
        elif kind == "exit":
            self.exit_code = record.exit.exit_code

    @property
    def columns(self):
        """By name, each number with its x: what W&B was told to show it over."""
        columns = {}
        for row in self.rows:
            for name, value in row.items():
                axis = self.metrics.get(name, self.metrics["*"])
                if name not in self.metrics.values():
                    columns.setdefault(name, []).append((row[axis], value))
        return columns


def _name(item):
    return item.key or "/".join(item.nested_key)


def wandb_files(folder, number="*"):
    """The files of all runs in a folder, or of some."""
    wandb.teardown()  # waits until W&B's process has written all
    paths = sorted(pathlib.Path(folder).glob(f"wandb/offline-run-*-{number}/*.wandb"))
    return [WandbFile(path) for path in paths]


def read_wandb(folder):
    """The runs of a `WandbLogger`. One that was resumed offline has a file for each time."""
    runs = {}
    for file in wandb_files(folder):
        runs.setdefault(file.run.run_id, []).append(file)
    return {
        files[0].run.display_name: Seen(
            _joined(files),
            _STATUS[files[-1].exit_code],
            {k: v for file in files for k, v in file.config.items() if k != "_wandb"},
            files[0].run.run_group or None,
        )
        for files in runs.values()
    }


def _joined(files):
    columns = {}
    for file in files:
        for name, column in file.columns.items():
            columns.setdefault(name, []).extend(column)
    return columns
