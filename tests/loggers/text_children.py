"""What other processes do to files of text. They import no more than that takes."""

import os
import resource

import numpy as np

from logax.loggers.csv import CSVSink
from logax.loggers.jsonl import JSONLSink
from logax.loggers.sink import Portion, RunInfo


def add_lines(path, name, number):
    run = RunInfo(name, name)
    sink = JSONLSink(path)
    for index in range(number):
        sink.write(Portion.of([run], {"x": np.full((1, 3), index), "v": np.zeros((1, 3, 500))}))
        sink.flush()


def fill_disk_with_lines(path, answer):
    sink = JSONLSink(path)
    runs = [RunInfo("run-0", "name 0")]
    sink.write(Portion.of(runs, {"x": np.arange(3)[None]}))
    sink.flush()
    size = os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
    sink.write(Portion.of(runs, {"x": np.arange(1000)[None]}))
    try:
        sink.flush()
    except OSError as error:
        answer.put(str(error))
    sink.write(Portion.of(runs, {"x": np.arange(1)[None]}))
    sink.flush()


def add_rows(path, name, number):
    run = RunInfo(name, name)
    sink = CSVSink(path)
    for index in range(number):
        # Each has columns of its own that come late.
        values = {"x": np.full((1, 3), index), f"{name}{index // 4}": np.full((1, 3), index)}
        sink.write(Portion.of([run], values))
        sink.flush()


def fill_disk_with_rows(path, answers):
    sink = CSVSink(path)
    runs = [RunInfo("run-0", "name 0")]
    sink.write(Portion.of(runs, {"x": np.arange(3)[None]}))
    sink.flush()
    size = os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
    for key in ("x", "y"):  # the second one widens
        sink.write(Portion.of(runs, {key: np.arange(1000)[None]}))
        try:
            sink.flush()
        except OSError as error:
            answers.put(str(error))
    sink.write(Portion.of(runs, {"x": np.arange(1)[None]}))
    sink.flush()
