"""Child processes that write text files. They import no more than that takes."""

import os
import resource

import numpy as np

from logax._delivery.record_batch import RecordBatch, RunInfo
from logax.loggers.csv import CSVSink
from logax.loggers.jsonl import JSONLSink

_SINKS = {"csv": CSVSink, "jsonl": JSONLSink}


def add_records(kind, path, name, number):
    """Each process has keys of its own that come late, and values that are long."""
    run = RunInfo(name, name)
    sink = _SINKS[kind](path)
    for index in range(number):
        values = {"x": np.full((1, 3), index), f"{name}{index // 4}": np.full((1, 3), index)}
        sink.write(RecordBatch.of([run], {**values, "v": np.zeros((1, 3, 500))}))
        sink.flush()


def fill_disk(kind, path, answers):
    sink = _SINKS[kind](path)
    runs = [RunInfo("run-0", "name 0")]
    sink.write(RecordBatch.of(runs, {"x": np.arange(3)[None]}))
    sink.flush()
    size = os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
    for key in ("x", "y"):  # the second one widens a table
        sink.write(RecordBatch.of(runs, {key: np.arange(1000)[None]}))
        try:
            sink.flush()
        except OSError as error:
            answers.put(str(error))
    sink.write(RecordBatch.of(runs, {"x": np.arange(1)[None]}))
    sink.flush()
