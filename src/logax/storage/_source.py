"""Rows by their places in the file: which of them count, in which order, and how to read them.

The place of a row is its number in the order in which rows came.

Datasets of a file that may mean harm: found without leaving it, looked at before they are read.

Whatever is wrong is a `ValueError` that says what.

A file as HDF5 is shown it for reading.

HDF5 keeps one state for all that a process has open of one file: a reader would read what a writer
of the same process has not passed on yet, and could not be opened beside a plain h5py. It also
notes in the file that somebody writes to it, and then wants to be told how to read it. Neither
matters to who looks at the file through a window: it gives HDF5 bytes, of a file that nobody
seems to write to. Who looks at one that is written to must open it anew now and then.

A trajectory as it is read: everything that comes out of the file is looked at before it is used.

A file may be damaged, cut, or made by somebody who means harm. Nothing in it is run, no other file
is opened because of it, and no more memory is taken than what it really holds needs. (One chunk
that is compressed may, while HDF5 unpacks it, take some thousand times its bytes in the file,
whatever size the schema says that it has.) Whatever is wrong with it is one type of error.

A source shows the file as its `commit` says, until it looks again. While one run writes, rows that
were there stay where they are. Another run that continues the file may write over them; it says so
in its first commit, before it does, and whoever reads asks for that after they have read.
"""

from __future__ import annotations

import io
import math
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from logax._serialization.dtypes import StorageError
from logax._support.forks import renew_after_fork
from logax._support.imports import imported
from logax._support.messages import described, warn_user
from logax.storage._commits import HEAD, Commit, latest, runs_of
from logax.storage._layout import COMMITS, SCHEMA, STEP, VERSION, Layout
from logax.storage._lock import SUPERBLOCK, is_marked, is_written, unmarked

Numbers = np.ndarray[Any, Any]


def valid(steps: Numbers, cuts: Sequence[tuple[int, int]]) -> Numbers:
    """Which rows no cut has made void."""
    result = np.ones(len(steps), bool)
    for end, step in cuts:
        result[:end] &= steps[:end] < step
    return result


def in_order(steps: Numbers, cuts: Sequence[tuple[int, int]]) -> Numbers:
    """The places of the rows that count, by step; of several of one step the last one counts."""
    places = np.flatnonzero(valid(steps, cuts))
    own = steps[places]
    if len(own) < 2 or bool(np.all(own[1:] > own[:-1])):
        return places
    order = np.argsort(own, kind="stable")
    is_last = np.append(own[order][1:] != own[order][:-1], True)
    return np.asarray(places[order[is_last]])


def is_run(numbers: Numbers) -> bool:
    """Whether each is one more than the one before."""
    return bool(np.all(np.diff(numbers) == 1))


def stretches(places: Numbers, chosen: Numbers, block: int) -> Iterator[tuple[Any, int, int]]:
    """What to read for rows that are wanted: all at once, or from each block what it has.

    Gives which of the rows, and the first and the last place to read.
    """
    if not len(chosen):
        return
    wanted = places[chosen]
    if is_run(wanted):
        yield chosen, int(wanted[0]), int(wanted[-1])
        return
    order = np.argsort(wanted, kind="stable")
    ends = np.flatnonzero(np.diff(wanted[order] // block)) + 1
    for part in np.split(order, ends):
        own = wanted[part]
        yield chosen[part], int(own.min()), int(own.max())


_DEFLATE, _SHUFFLE, _FLETCHER_32 = 1, 2, 3  # HDF5's own
# As `_datasets` has them. In another order, or twice, they would make much more of few bytes.
_FILTERS = {(), (_FLETCHER_32,), (_SHUFFLE, _DEFLATE, _FLETCHER_32)}
_DENSEST = 1100  # no deflated byte stands for more


def linked(file: Any, path: str) -> Any:
    """A dataset by its name, unless that leads elsewhere; None if there is none."""
    h5py = imported("h5py", "HDF5StorageReader", "hdf5")
    place = file
    for part in path.split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"`{path}` leads to another place")
        place = place[part]
    return place if isinstance(place, h5py.Dataset) else None


def check_safe(dataset: Any, path: str) -> None:
    """Raise where reading would open another file or run somebody's code."""
    plist = dataset.id.get_create_plist()
    filters = tuple(plist.get_filter(i)[0] for i in range(plist.get_nfilters()))
    if dataset.external or dataset.is_virtual or filters not in _FILTERS:
        raise ValueError(f"`{path}` is stored in a way that logax does not use")


def safe_dataset(file: Any, path: str, dtype: Any) -> Any:
    """A dataset that is safe to read, of this type."""
    dataset = linked(file, path)
    if dataset is None:
        raise ValueError(f"`{path}` is not there")
    check_safe(dataset, path)
    if dataset.dtype != dtype:
        raise ValueError(f"`{path}` is not what the schema says")
    return dataset


def check_size(dataset: Any, size: int, path: str, file_size: int) -> None:
    """Raise where there is less in the file than is said, before memory is taken for it."""
    stored = dataset.id.get_storage_size()
    if stored * (_DENSEST if dataset.compression else 1) < size:
        raise ValueError(f"`{path}` has fewer rows than there should be")
    if stored > file_size:
        raise ValueError("it is cut off")


_FAR = 2**62  # where the file ends, which may grow; what is not there is found when it is read


class Window:
    """What h5py takes for a file: it reads from a descriptor, which stays its owner's."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at = fd, 0
        self._begin = unmarked(fd, _FAR)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: _FAR}
        self._at = begin[whence] + offset
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def read(self, size: int) -> bytes:  # pragma: no cover - h5py asks for it, and uses `readinto`
        """So many bytes from there on."""
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer from there on.

        HDF5 reads ahead, past the end of the file, and gets zeros. Where it wants something that
        lies wholly beyond the end, there is an error.
        """
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], self._at + done)
            if not count:
                break
            done += count
        if not done and len(view):
            raise OSError(f"the file ends before {self._at}, where something should be")
        view[done:] = bytes(len(view) - done)
        if self._at < SUPERBLOCK:
            begin = self._begin[self._at : self._at + len(view)]
            view[: len(begin)] = begin
        self._at += len(view)
        return len(view)


_MOST_SCHEMA = 64 * 2**20  # bytes
_TRIES = 5  # what is being written may be half there when it is read
_PAUSE = 0.002  # seconds
_DAMAGE = (OSError, RuntimeError, ValueError, LookupError, TypeError, OverflowError)

Result = TypeVar("Result")


class Source:
    """An open file.

    Threads may share it. `lock` is for those who must have several answers as of one commit.

    Args:
      path: Of the file.
      who: The public name of who reads it, for messages.

    Raises:
      StorageError: It is no trajectory that this can read.
    """

    def __init__(self, path: str, who: str = "HDF5StorageReader") -> None:
        self.path, self._who = os.path.abspath(path), who
        self._h5py = imported("h5py", "HDF5StorageReader", "hdf5")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._closes = weakref.finalize(self, os.close, self._fd)
        self._reset()
        renew_after_fork(self)
        self._file: Any = None
        self._datasets: dict[str, Any] = {}
        self.commit = Commit(-1, 0, 0, None, False, [])
        try:
            self.layout = self._attempt("open", self._begin)
            self.refresh()
        except BaseException:
            self.close()
            raise

    def _reset(self) -> None:
        """In a process that was forked nobody else reads."""
        self.lock = threading.RLock()

    def _begin(self) -> Layout:
        text = self._schema()
        try:
            layout = Layout.from_json(text)
        except StorageError as error:
            raise self._unreadable(str(error)) from error.__cause__
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
        with self.lock:
            self._forget()
            self._closes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> Commit:
        """Look at what has been written since."""
        with self.lock:
            self._check_open()
            before: list[bytes] = []
            for _ in range(_TRIES):
                slots = self._slots(self.layout.slot_bytes)
                commit, damaged = latest(slots, self.layout)
                # One that is older than what is known was read while the next two were written.
                is_newer = commit is not None and commit.sequence >= self.commit.sequence
                if is_newer and (damaged is None or slots == before):  # else it is being written
                    break
                before = slots
            if commit is None:
                raise self._unreadable("it is damaged: none of its commits is whole.")
            if commit.sequence > self.commit.sequence:
                self._forget()
                self.commit = commit
                if damaged is not None:
                    warn_user(f"`{self._who}` reads {self.path}, which is damaged: {damaged}")
            return self.commit

    def is_current(self, commit: Commit) -> bool:
        """Whether no other run has continued the file since a commit.

        A commit that is not whole does not count: whoever began it has written nothing else yet.
        """
        with self.lock:
            self._check_open()
            if self.commit.runs > commit.runs:
                return False
            if all(runs_of(head, self.layout) <= commit.runs for head in self._slots(HEAD)):
                return True
            before: list[bytes] = []
            for _ in range(_TRIES):
                slots = self._slots(self.layout.slot_bytes)
                found, _ = latest(slots, self.layout)
                if found is not None and found.runs > commit.runs:
                    return False
                if slots == before:
                    return True
                before = slots
            return False

    def is_written(self) -> bool:
        """Whether somebody writes to the file now, whatever its name is."""
        with self.lock:
            self._check_open()
            return is_written(self._fd)

    def fate(self) -> str:
        """What became of a file that is not complete, and that nobody writes to."""
        with self.lock:
            self._check_open()
            own = os.fstat(self._fd)
        try:
            found = os.stat(self.path)
        except OSError:
            return f"{self.path} is gone: it was deleted or renamed before it was complete."
        if os.path.samestat(found, own):
            return (
                f"{self.path} is not complete, and nobody writes to it: its writer was killed, or "
                "has failed."
            )
        return (
            f"{self.path} is another file now, which took the place of this one before it was "
            "complete. Open it with another `HDF5StorageReader`."
        )

    def steps(self, number: int) -> Numbers:
        """The steps of all rows of a group, void ones too, in the order in which they came."""
        group = self.layout.groups[number]

        def read() -> Numbers:
            stand = self.commit.groups[number]
            if group.is_once:
                return np.zeros(stand.number, STEP)
            dataset = self._rows_of(group.step_path, (), STEP, group.block, stand.rows)
            return np.concatenate([dataset[: stand.rows], stand.steps])

        return self._attempt(f"read the steps of `{group.name}` in", read)

    def rows(self, number: int, leaf: int, places: Numbers) -> Numbers:
        """Rows of one array of a group, by their places in the order in which they came."""
        group = self.layout.groups[number]
        own, path = group.leaves[leaf], group.paths[leaf]
        shape = own.stored_shape
        if not own.row_bytes:
            return np.empty((len(places), *shape), own.kind.stored)

        def read() -> Numbers:
            stand = self.commit.groups[number]
            dataset = self._rows_of(path, shape, own.kind.stored, group.block, stand.rows)
            result = np.empty((len(places), *shape), own.kind.stored)
            written = places < stand.rows
            result[~written] = stand.columns[leaf][places[~written] - stand.rows]
            for target, first, last in stretches(places, np.flatnonzero(written), group.block):
                if is_run(target) and is_run(places[target]):  # then nothing need be copied again
                    there = np.s_[target[0] : target[-1] + 1]
                    dataset.read_direct(result, np.s_[first : last + 1], there)
                else:
                    result[target] = dataset[first : last + 1][places[target] - first]
            return result

        return self._attempt(f"read `{path}` in", read)

    def once(self, number: int, leaf: int) -> Numbers:
        """An array of a group that is written once."""
        group = self.layout.groups[number]
        own, path = group.leaves[leaf], group.paths[leaf]

        def read() -> Numbers:
            stand = self.commit.groups[number]
            if not own.row_bytes:
                value = np.empty(own.stored_shape, own.kind.stored)
            else:
                dataset = safe_dataset(self._opened, path, own.kind.stored)
                if dataset.shape != own.stored_shape:
                    raise ValueError(f"it has the shape {dataset.shape}")
                check_size(dataset, own.row_bytes, path, self._size())
                value = np.asarray(dataset[...], own.kind.stored).reshape(own.stored_shape)
            check = zlib.crc32(np.ascontiguousarray(value).data)
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

    def _slots(self, size: int) -> list[bytes]:
        """Return the first bytes of all slots for commits, as they are in the file now."""
        slots, room = self.layout.commits_shape
        return [os.pread(self._fd, size, self._start + room * slot) for slot in range(slots)]

    def _schema(self) -> bytes:
        dataset = linked(self._opened, SCHEMA)
        if dataset is None:
            layout = self._opened.attrs.get("logax_layout")
            if layout is not None and layout > VERSION:
                raise self._unreadable(
                    f"it has layout {layout}, and this logax reads layouts up to {VERSION}. Read "
                    "it with a newer logax."
                )
            raise self._unreadable(
                f"it is an HDF5 file, and no trajectory of logax: it has no `{SCHEMA}`."
            )
        check_safe(dataset, SCHEMA)
        whole = dataset.dtype == np.uint8 and dataset.ndim == 1 and dataset.chunks == dataset.shape
        if not whole or dataset.size > min(_MOST_SCHEMA, self._size()):
            raise ValueError("its schema is no text")
        return bytes(dataset[...].tobytes())

    def _commits_start(self, layout: Layout) -> int:
        dataset = linked(self._opened, COMMITS)
        if dataset is None or dataset.shape != layout.commits_shape or dataset.dtype != np.uint8:
            raise ValueError("its commits have another shape")
        start = dataset.id.get_offset()
        if start is None or start + math.prod(layout.commits_shape) > self._size():
            raise ValueError("it is cut off before the end of its commits")
        return int(start)

    def _rows_of(self, path: str, shape: tuple[int, ...], dtype: Any, block: int, rows: int) -> Any:
        """A dataset of rows that is what the schema says, and holds what the commit says.

        HDF5 visits all chunks to say how much it holds: once for each look at the file is enough.
        """
        if path not in self._datasets:
            dataset = safe_dataset(self._opened, path, dtype)
            if dataset.shape[1:] != shape or dataset.chunks != (block, *shape):
                raise ValueError(f"`{path}` is not what the schema says")
            if dataset.shape[0] < rows:
                raise ValueError(f"`{path}` has fewer rows than there should be")
            size = rows * math.prod(shape) * dtype.itemsize
            check_size(dataset, size, path, self._size())
            self._datasets[path] = dataset
        return self._datasets[path]

    def _unreadable(self, why: str) -> StorageError:
        return StorageError(f"`{self._who}` cannot read {self.path}: {why}")

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def _attempt(self, what: str, read: Callable[[], Result]) -> Result:
        """Read something; where that fails in a file that is written to, look again."""
        with self.lock:
            self._check_open()
            tries = _TRIES if is_marked(self._fd) else 1
            while True:
                try:
                    result = read()
                except StorageError:
                    raise
                except _DAMAGE as error:
                    self._check_current()
                    tries -= 1
                    if not tries:
                        raise StorageError(
                            f"`{self._who}` cannot {what} {self.path}, which is damaged, or no "
                            f"trajectory of logax: {described(error)}"
                        ) from error
                    self._forget()
                    time.sleep(_PAUSE)
                    continue
                self._check_current()
                return result

    def _check_current(self) -> None:
        """Raise where another run may have written over what is being read."""
        if self.commit.sequence >= 0 and not self.is_current(self.commit):
            raise StorageError(
                f"{self.path} was continued by another run since it was looked at. Write "
                "`reader.refresh()` to look again."
            )
