"""Runs of MLflow's, read by its client from a database or a server."""

import hashlib
import json
import os

from loggers.mlflow_server import QUIET

os.environ.update(QUIET)  # MLflow reads these when it is imported, and would call home

import numpy as np
from mlflow import MlflowClient as MlflowClient
from mlflow import get_tracking_uri as get_tracking_uri

from logax.loggers.mlflow import original_name
from logax.testing import Seen

_STATUS = {"FINISHED": "finished", "FAILED": "crashed"}
_GREATEST = np.finfo(np.float64).max
_LONG = "k" * 2**20
_KNOWN = {hashlib.sha256(_LONG.encode()).hexdigest(): _LONG}


def found_runs(uri, experiment):
    """MLflow's client, and all runs of an experiment."""
    client = MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    runs, token = [], None
    while token != "":
        page = client.search_runs([number], max_results=1000, page_token=token)
        runs += page
        token = page.token or ""
    return client, runs


def read_mlflow(uri, experiment):
    """The runs of an `MLflowLogger`; those that others are nested in are their groups."""
    client, runs = found_runs(uri, experiment)
    groups = {run.info.run_id: run.info.run_name for run in runs if _is_group(run)}
    return {
        run.info.run_name: Seen(
            {_name(name): _history(client, run, name) for name in run.data.metrics},
            _STATUS[run.info.status],
            {original_name(name): json.loads(text) for name, text in run.data.params.items()},
            groups.get(run.data.tags.get("mlflow.parentRunId")),
        )
        for run in runs
        if not _is_group(run)
    }


def _is_group(run):
    return "logax.group" in run.data.tags


def _history(client, run, name):
    """The metric in the order in which MLflow shows it."""
    history = client.get_metric_history(run.info.run_id, name)
    history = sorted(history, key=lambda metric: (metric.timestamp, metric.step))
    return [(metric.step, _value(metric.value)) for metric in history]


def _value(value):
    """MLflow has no infinities: they come back as the greatest float."""
    return np.copysign(np.inf, value) if abs(value) == _GREATEST else value


def _name(name):
    """MLflow takes 250 characters of a name. Longer names end with a hash of the full name."""
    return _KNOWN.get(name[-64:]) or original_name(name)
