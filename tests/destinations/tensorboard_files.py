"""TensorBoard's files, read by TensorBoard itself."""

import pathlib

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import (
    EventMultiplexer as PluginMultiplexer,
)
from tensorboard.plugins.hparams import plugin_data_pb2

from logax.testing import Seen

_KINDS = ("scalars", "histograms", "images", "tensors")
_STATUS = {1: "finished", 2: "crashed"}


def read_events(folder):
    """All that stands in one folder."""
    events = EventAccumulator(str(folder), size_guidance=dict.fromkeys(_KINDS, 0))
    events.Reload()
    return events


def read_scalars(folder):
    """By tag, the steps and values of one folder."""
    events = read_events(folder)
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def read_session(folder, moment):
    """Return the start or end of a session as the hyperparameter page reads it."""
    return _session(PluginMultiplexer().AddRun(str(folder), "run").Reload(), "run", moment)


def read_tensorboard(log_dir):
    """The runs of a `TensorBoardLogger`. A run in a folder of a group has that as its group."""
    pages = PluginMultiplexer().AddRunsFromDirectory(str(log_dir)).Reload()
    runs = {}
    for name in pages.Runs():
        path = pathlib.PurePath(name)
        runs[path.name] = Seen(
            read_scalars(log_dir / name),
            _STATUS[_session(pages, name, "end").status],
            _nested(_session(pages, name, "start").hparams),
            path.parent.name or None,
        )
    return runs


def _session(pages, run, moment):
    found = pages.PluginRunToTagToContent("hparams")[run][f"_hparams_/session_{moment}_info"]
    return getattr(plugin_data_pb2.HParamsPluginData.FromString(found), f"session_{moment}_info")


def _nested(hyperparameters):
    """Hyperparameters have no lists: their elements are numbers of their own, `layers/0`."""
    config = {}
    for name, value in sorted(hyperparameters.items()):
        plain = getattr(value, value.WhichOneof("kind"))
        begin, _, index = name.rpartition("/")
        if begin and index.isdigit():
            config.setdefault(begin, []).append(plain)
        else:
            config[name] = plain
    return config
