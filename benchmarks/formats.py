"""Ways to keep the states of a loop in a file: with logax, with kUPS, and by hand.

By hand is with h5py, and to a plain file; both write in the loop. Each way is a logger for Python
loops, and a function that reads all that it has written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from logax.storage import EveryNStep, HDF5StorageReader, HDF5StorageWriter, WriterGroupConfig

SHAPE = (512, 1024)  # 2 MB
NO_BOUND = 2**40  # bytes, since the queue of kUPS has no bound either

MakeLogger = Callable[[str, Any, int], Any]  # of a path, a state and the number of steps


@dataclasses.dataclass(frozen=True)
class Format:
    """A way to keep states in a file.

    Attributes:
      make: Makes a logger that writes such a file, anew whenever it is entered.
      read: Gives all steps of each leaf.
    """

    make: MakeLogger
    read: Callable[[str], list[Any]]


def unused_path() -> str:
    """Where a file may be made."""
    return os.path.join(tempfile.gettempdir(), f"logax-benchmarks-{uuid.uuid4().hex}.h5")


@contextlib.contextmanager
def removed(path: str) -> Iterator[None]:
    """Afterwards there is no such file."""
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _everything(state: Any) -> Any:
    return state


def logax_writer(path: str, state: Any, steps: int, **options: Any) -> HDF5StorageWriter:
    config = {"frames": WriterGroupConfig(_everything, EveryNStep(1))}
    return HDF5StorageWriter(path, config, state, steps, **options)


def _read_logax(path: str) -> list[Any]:
    with HDF5StorageReader(path) as reader:
        return jax.tree.leaves(reader.focus_group("frames")[...])


def kups_writer(path: str, state: Any, steps: int) -> Any:
    kups = importlib.import_module("kups.core.storage")
    frames = kups.WriterGroupConfig(_everything, kups.EveryNStep(1), compression=None)
    return kups.HDF5StorageWriter(path, {"frames": frames}, state, steps)


def _read_kups(path: str) -> list[Any]:
    kups = importlib.import_module("kups.core.storage")
    with kups.HDF5StorageReader(path) as reader:
        (group,) = reader.list_groups()
        return jax.tree.leaves(reader.focus_group(group)[...])


class _WithH5py:
    """A dataset for each leaf, in chunks of one step where it is an array; an assignment a step."""

    def __init__(self, path: str, state: Any, steps: int) -> None:
        self._h5py = importlib.import_module("h5py")
        self._path, self._state, self._steps = path, state, steps

    def __enter__(self) -> _WithH5py:
        self._file = self._h5py.File(self._path, "w", libver="latest")
        self._datasets = {
            name: self._file.create_dataset(
                name, (self._steps, *x.shape), x.dtype, chunks=(1, *x.shape) if x.ndim else None
            )
            for name, x in self._state.items()
        }
        return self

    def log(self, state: Any, step: int) -> None:
        for name, x in state.items():
            self._datasets[name][step] = np.asarray(x)

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        self._file.close()


def _read_h5py(path: str) -> list[Any]:
    h5py = importlib.import_module("h5py")
    with h5py.File(path) as file:
        return jax.tree.leaves({name: dataset[...] for name, dataset in file.items()})


class _ToPlainFile:
    """The bytes of an array behind those of the one before."""

    def __init__(self, path: str, state: Any, steps: int) -> None:
        self._path = path

    def __enter__(self) -> _ToPlainFile:
        self._file = open(self._path, "wb")
        return self

    def log(self, state: Any, step: int) -> None:
        np.asarray(state["x"]).tofile(self._file)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _read_plain_file(path: str) -> list[Any]:
    return [np.fromfile(path, np.float32).reshape(-1, *SHAPE)]


LOGAX = Format(functools.partial(logax_writer, mode="w", queue_bytes=NO_BOUND), _read_logax)
KUPS = Format(kups_writer, _read_kups)
H5PY = Format(_WithH5py, _read_h5py)
PLAIN_FILE = Format(_ToPlainFile, _read_plain_file)
