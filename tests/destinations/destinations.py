"""All destinations: functions that create their loggers in a folder and read the records back.

Only this file and the readers know what a destination cannot hold:

| destination | difference |
| --- | --- |
| CSV | a table of records: no name, no status, no config, no group, no run without records |
| callback | called with records: not with the end of a run, nor for a run without records |
| TensorBoard | the elements of a list in a config are separate hyperparameters |
| MLflow | infinities are the largest floats; a name of a megabyte is kept as a hash |
| Trackio | no status, no run without records; a step of another name is a number too |
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from destinations.mlflow_runs import read_mlflow
from destinations.objects import read_calls, read_memory, read_saved
from destinations.tables import read_csv, read_jsonl
from destinations.tensorboard_files import read_tensorboard
from destinations.trackio_project import read_trackio
from destinations.wandb_files import read_wandb
from logax.loggers import (
    CallbackLogger,
    CSVLogger,
    JSONLLogger,
    MLflowLogger,
    MultiLogger,
    SaveLogger,
    TensorBoardLogger,
    TrackioLogger,
    WandbLogger,
)
from logax.testing import MemoryLogger


@dataclasses.dataclass(frozen=True)
class Destination:
    """A destination.

    Attributes:
      name: Name of the destination.
      open: Function of a folder and `lanes`; returns a logger and a function that reads it back.
      numbers_only: True if it holds only scalars.
      empty_runs: True if it shows runs without records.
      groups: True if it stores groups.
      expensive: True if some cases belong to the slow tests.
    """

    name: str
    open: Callable[[Any, str], tuple[Any, Callable[[], Any]]]
    numbers_only: bool = False
    empty_runs: bool = True
    groups: bool = True
    expensive: bool = False

    def __str__(self):
        return self.name

    def check(self, case, folder, lanes="split"):
        """Run a case, compare what is there, and give it."""
        logger, read = self.open(folder, lanes)
        seen = {}

        def remembered():
            seen.update(read())
            return seen

        case.check(logger, remembered, numbers_only=self.numbers_only, empty_runs=self.empty_runs)
        return seen


def _memory(folder, lanes):
    logger = MemoryLogger(lanes=lanes)
    return logger, lambda: read_memory(logger)


def _calls(folder, lanes):
    records = []
    return CallbackLogger(records.append, lanes=lanes), lambda: read_calls(records)


def _save(folder, lanes):
    return SaveLogger(folder, lanes=lanes), lambda: read_saved(folder)


def _jsonl(folder, lanes):
    path = folder / "runs.jsonl"
    return JSONLLogger(path, lanes=lanes), lambda: read_jsonl(path)


def _csv_alone(folder, lanes):
    """A table whose runs can be resumed: it goes by their ids."""
    path = folder / "runs.csv"
    return CSVLogger(path, lanes=lanes), lambda: read_csv(path)


def _csv(folder, lanes):
    path, memory = folder / "runs.csv", MemoryLogger(lanes=lanes)
    logger = MultiLogger(CSVLogger(path, lanes=lanes), memory)
    # Only ids stand in the table: somebody must know the names.
    return logger, lambda: read_csv(path, {run.info.id: run.name for run in memory.runs})


def _tensorboard(folder, lanes):
    return TensorBoardLogger(folder, lanes=lanes), lambda: read_tensorboard(folder)


def _wandb(folder, lanes):
    logger = WandbLogger(project="p", mode="offline", dir=str(folder), lanes=lanes)
    return logger, lambda: read_wandb(folder)


def mlflow_at(uri):
    """An experiment of a server or database, which has the name of the folder."""

    def opened(folder, lanes):
        logger = MLflowLogger(experiment=folder.name, tracking_uri=uri, lanes=lanes)
        return logger, lambda: read_mlflow(uri, folder.name)

    return opened


def _mlflow(folder, lanes):
    # Making a database takes seconds: all folders beside each other share one.
    return mlflow_at(f"sqlite:///{folder.parent}/mlflow.db")(folder, lanes)


def _trackio(folder, lanes):
    return TrackioLogger(folder.name, lanes=lanes), lambda: read_trackio(folder.name)


MLFLOW = Destination("MLflow", _mlflow, numbers_only=True, expensive=True)
DESTINATIONS = (
    Destination("memory", _memory),
    Destination("callback", _calls, empty_runs=False),
    Destination("save", _save),
    Destination("JSONL", _jsonl),
    Destination("CSV", _csv, empty_runs=False, groups=False),
    Destination("TensorBoard", _tensorboard, numbers_only=True),
    Destination("W&B", _wandb, numbers_only=True, expensive=True),
    MLFLOW,
    Destination("Trackio", _trackio, numbers_only=True, empty_runs=False, expensive=True),
)
KEEPING_RUNS = (
    Destination("CSV", _csv_alone),
    *(each for each in DESTINATIONS if each.name not in ("memory", "callback", "CSV")),
)
"""Those whose runs a later logger can resume."""
