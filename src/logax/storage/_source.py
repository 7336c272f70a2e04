"""A trajectory as it is read: everything that comes out of the file is looked at before it is used.

A file may be damaged, cut, or made by somebody who means harm. Nothing in it is run, no other file
is opened because of it, and no more memory is taken than what it really holds needs. Whatever is
wrong with it is one type of error.
"""

from __future__ import annotations

import math
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import numpy as np

from logax._errors import described
from logax._extras import imported
from logax._resting.errors import StorageError
from logax.storage._claims import is_marked
from logax.storage._commits import HEAD, Commit, latest, runs_of
from logax.storage._layout import COMMITS, SCHEMA, STEP, VERSION, Layout
from logax.storage._window import Window

Numbers = np.ndarray[Any, Any]

_FILTERS = {1, 2, 3}  # deflate, shuffle, Fletcher-32: HDF5's own
_MOST_SCHEMA = 64 * 2**20  # bytes
_DENSEST = 1100  # no deflated byte stands for more
_TRIES = 5  # what is being written may be half there when it is read
_PAUSE = 0.002  # seconds

Result = TypeVar("Result")


class Source:
    """An open file.

    Raises:
      StorageError: It is no trajectory that this can read.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._h5py = imported("h5py", "HDF5StorageReader", "hdf5")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._closes = weakref.finalize(self, os.close, self._fd)
        self._file: Any = None
        self._datasets: dict[str, Any] = {}
        self.commit = Commit(-1, 0, 0, None, False, [])
        try:
            self.layout = self._attempt("open", self._begin)
            self.refresh()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Layout:
        layout = Layout.from_json(self._schema())
        self._start = self._commits_start(layout)
        return layout

    @property
    def _opened(self) -> Any:
        """The file as HDF5 sees it, which is opened when it is needed."""
        if self._file is None:
            self._file = self._h5py.File(Window(self._fd), "r")
        return self._file

    def _forget(self) -> None:
        """Have HDF5 look anew."""
        self._datasets = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Let go of the file."""
        self._forget()
        self._closes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Look at what has been written since."""
        self._check_open()
        room = self.layout.slot_bytes
        for _ in range(_TRIES):
            slots = [os.pread(self._fd, room, self._start + room * slot) for slot in (0, 1)]
            commit = latest(slots, self.layout)
            if commit is not None:
                break
        else:
            raise StorageError(f"{self.path} is damaged: none of its two commits is whole.")
        if commit.sequence != self.commit.sequence:
            self._forget()
            self.commit = commit

    def steps(self, number: int) -> Numbers:
        """The steps of all rows of a group, void ones too, in the order in which they came."""
        group, stand = self.layout.groups[number], self.commit.groups[number]
        if group.is_once:
            return np.zeros(0 if stand.checks is None else 1, STEP)

        def read() -> Numbers:
            dataset = self._rows_of(group.step_path, (), STEP, group.block, stand.rows)
            return np.concatenate([dataset[: stand.rows], stand.steps])

        return self._attempt(f"read the steps of `{group.name}` in", read)

    def rows(self, number: int, leaf: int, places: Numbers) -> Numbers:
        """Rows of one array of a group, by their places in the order in which they came."""
        group, stand = self.layout.groups[number], self.commit.groups[number]
        own, path = group.leaves[leaf], group.paths[leaf]
        shape = own.stored_shape
        if not own.row_bytes:
            return np.empty((len(places), *shape), own.kind.stored)

        def read() -> Numbers:
            dataset = self._rows_of(path, shape, own.kind.stored, group.block, stand.rows)
            result = np.empty((len(places), *shape), own.kind.stored)
            written = places < stand.rows
            result[~written] = stand.columns[leaf][places[~written] - stand.rows]
            for target, first, last in _runs(places, np.flatnonzero(written), group.block):
                block = dataset[first : last + 1]
                result[target] = block[places[target] - first]
            return result

        return self._attempt(f"read `{path}` in", read)

    def once(self, number: int, leaf: int) -> Numbers:
        """An array of a group that is written once."""
        group, stand = self.layout.groups[number], self.commit.groups[number]
        own, path = group.leaves[leaf], group.paths[leaf]

        def read() -> Numbers:
            if not own.row_bytes:
                value = np.empty(own.stored_shape, own.kind.stored)
            else:
                dataset = self._dataset(path, own.kind.stored)
                if dataset.shape != own.stored_shape:
                    raise ValueError(f"it has the shape {dataset.shape}")
                if own.shape:
                    self._check_size(dataset, own.row_bytes, path)
                value = np.asarray(dataset[...], own.kind.stored).reshape(own.stored_shape)
            check = zlib.crc32(value.tobytes())
            if stand.checks is None or check != stand.checks[leaf]:
                raise ValueError("its checksum is another one")
            return value

        return self._attempt(f"read `{path}` in", read)

    @property
    def is_closed(self) -> bool:
        """Whether it was let go of."""
        return not self._closes.alive

    def _check_open(self) -> None:
        if self.is_closed:
            raise ValueError("`HDF5StorageReader` was closed. Read inside of its `with` block.")

    def _schema(self) -> bytes:
        dataset = self._linked(SCHEMA)
        if dataset is None:
            layout = self._opened.attrs.get("logax_layout")
            if layout is not None and layout != VERSION:
                raise StorageError(
                    f"{self.path} has layout {layout}, and this logax reads layout {VERSION}. "
                    "Read it with a newer logax."
                )
            raise StorageError(
                f"{self.path} is an HDF5 file, and no trajectory of logax: it has no `{SCHEMA}`."
            )
        self._check_safe(dataset, SCHEMA)
        whole = dataset.dtype == np.uint8 and dataset.ndim == 1 and dataset.chunks == dataset.shape
        if not whole or dataset.size > min(_MOST_SCHEMA, os.fstat(self._fd).st_size):
            raise ValueError("its schema is no text")
        return bytes(dataset[...].tobytes())

    def _commits_start(self, layout: Layout) -> int:
        dataset = self._linked(COMMITS)
        room = layout.slot_bytes
        if dataset is None or dataset.shape != (2, room) or dataset.dtype != np.uint8:
            raise ValueError("its commits have another shape")
        start = dataset.id.get_offset()
        if start is None or start + 2 * room > os.fstat(self._fd).st_size:
            raise ValueError("it is cut off before the end of its commits")
        return int(start)

    def _rows_of(self, path: str, shape: tuple[int, ...], dtype: Any, block: int, rows: int) -> Any:
        """A dataset of rows that is what the schema says, and holds what the commit says.

        HDF5 visits all chunks to say how much it holds: once for each look at the file is enough.
        """
        if path not in self._datasets:
            dataset = self._dataset(path, dtype)
            if dataset.shape[1:] != shape or dataset.chunks != (block, *shape):
                raise ValueError(f"`{path}` is not what the schema says")
            if dataset.maxshape[0] is None and dataset.shape[0] < rows:
                raise ValueError(f"`{path}` has fewer rows than there should be")
            self._check_size(dataset, rows * math.prod(shape) * dtype.itemsize, path)
            self._datasets[path] = dataset
        return self._datasets[path]

    def _dataset(self, path: str, dtype: Any) -> Any:
        """A dataset that is safe to read, of this type."""
        dataset = self._linked(path)
        if dataset is None:
            raise ValueError(f"`{path}` is not there")
        self._check_safe(dataset, path)
        if dataset.dtype != dtype:
            raise ValueError(f"`{path}` is not what the schema says")
        return dataset

    def _linked(self, path: str) -> Any:
        """A dataset by its name, unless that leads elsewhere."""
        place = self._opened
        for part in path.split("/"):
            link = place.get(part, getlink=True) if isinstance(place, self._h5py.Group) else None
            if link is None:
                return None
            if not isinstance(link, self._h5py.HardLink):
                raise ValueError(f"`{path}` leads to another place")
            place = place[part]
        return place if isinstance(place, self._h5py.Dataset) else None

    def _check_safe(self, dataset: Any, path: str) -> None:
        """Raise where reading would open another file or run somebody's code."""
        plist = dataset.id.get_create_plist()
        filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
        if dataset.external or dataset.is_virtual or not filters <= _FILTERS:
            raise ValueError(f"`{path}` is stored in a way that logax does not use")

    def _check_size(self, dataset: Any, size: int, path: str) -> None:
        """Raise where there is less in the file than is said."""
        stored = dataset.id.get_storage_size()
        if stored * (_DENSEST if dataset.compression else 1) < size:
            raise ValueError(f"`{path}` has fewer rows than there should be")
        if stored > os.fstat(self._fd).st_size:
            raise ValueError("it is cut off")

    def _attempt(self, what: str, read: Callable[[], Result]) -> Result:
        """Read something; where that fails in a file that is written to, look again."""
        self._check_open()
        tries = _TRIES if is_marked(self._fd) else 1
        while True:
            try:
                result = read()
            except StorageError:
                raise
            except (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
                tries -= 1
                if not tries:
                    raise StorageError(
                        f"Cannot {what} {self.path}, which is damaged, or no trajectory of logax: "
                        f"{described(error)}"
                    ) from error
                self._forget()
                time.sleep(_PAUSE)
                continue
            self._check_current()
            return result

    def _check_current(self) -> None:
        """Raise where another run has written over what is being read."""
        if self.commit.sequence < 0:
            return
        heads = [
            os.pread(self._fd, HEAD, self._start + self.layout.slot_bytes * slot) for slot in (0, 1)
        ]
        if any(runs_of(head) > self.commit.runs for head in heads):
            raise StorageError(
                f"{self.path} was continued by another run since it was looked at. Write "
                "`reader.refresh()` to look again."
            )


def _runs(places: Numbers, chosen: Numbers, block: int) -> Iterator[tuple[Any, int, int]]:
    """What to read for rows that are wanted: all at once, or from each block what it has.

    Gives which of the rows, and the first and the last place to read.
    """
    if not len(chosen):
        return
    wanted = places[chosen]
    low, high = int(wanted.min()), int(wanted.max())
    if high - low + 1 == len(wanted) and bool(np.all(np.diff(wanted) == 1)):
        yield chosen, low, high
        return
    order = np.argsort(wanted, kind="stable")
    ends = np.flatnonzero(np.diff(wanted[order] // block)) + 1
    for part in np.split(order, ends):
        own = wanted[part]
        yield chosen[part], int(own.min()), int(own.max())
