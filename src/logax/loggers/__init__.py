"""Loggers that send the logs of functions to the terminal, to disk, and to tracking services.

    logger = SaveLogger("runs")
    state = logger.init(key)            # inside jit and vmap too: one run per key
    y = logger.tap(f, state)(xs)        # streams while f runs
    logger.finish(state)

`Logger` documents the methods of all loggers. Each destination is a sink; derive from `Sink` to
write another one. `ProgressLogger` is a callback for `tap` and `live`, and has no runs.

| File or folder | Contents |
| --- | --- |
| `_core/` | common to all loggers: runs, batching, lanes, threads, errors |
| `sink.py` | `Sink`, the contract of a destination |
| `save.py` | `SaveLogger`, the run store |
| `console.py`, `_console/` | `ConsoleLogger`, a live table in the terminal |
| `csv.py`, `jsonl.py`, `_text/` | `CSVLogger` and `JSONLLogger`, text files |
| `tensorboard.py`, `wandb.py`, `mlflow.py`, `trackio.py` | one tracking service each |
| `_numbers/` | records as plain numbers over one x-axis, for tracking services |
| `callback.py`, `multi.py` | `CallbackLogger`, a function; `MultiLogger`, several loggers as one |
| `progress.py`, `_progress_state.py` | `ProgressLogger`, a progress bar |
"""

from logax._support.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "logax._delivery.record_batch": (
            "KnownRuns",
            "RecordBatch",
            "RunInfo",
            "RunRecord",
            "Stream",
        ),
        "logax.loggers._core.logger": ("Logger",),
        "logax.loggers._core.state": ("RunState",),
        "logax.loggers.callback": ("CallbackLogger",),
        "logax.loggers.console": ("ConsoleLogger",),
        "logax.loggers.csv": ("CSVLogger",),
        "logax.loggers.jsonl": ("JSONLLogger",),
        "logax.loggers.mlflow": ("MLflowLogger",),
        "logax.loggers.multi": ("MultiLogger",),
        "logax.loggers.progress": ("ProgressLogger",),
        "logax.loggers.save": ("SaveLogger",),
        "logax.loggers.sink": ("Sink",),
        "logax.loggers.tensorboard": ("TensorBoardLogger",),
        "logax.loggers.trackio": ("TrackioLogger",),
        "logax.loggers.wandb": ("WandbLogger",),
    },
)
