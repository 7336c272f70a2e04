"""Read a trajectory from a file that may be damaged, truncated or malicious.

`TrajectorySource` checks everything that it reads from the file before using it. It runs nothing
from the file, opens no other file because of it, and allocates no more memory than its contents
need. (A single compressed chunk may take about a thousand times its stored size while HDF5
decompresses it, whatever size the schema states.) All defects raise `StorageError`; the functions
of this module raise `ValueError`, which `TrajectorySource` converts.

A source shows the file as of its `commit`, until `refresh`. While one run writes, existing rows do
not move. Another run that continues the file may overwrite rows; its first commit announces that
before it happens, so the source looks for such a commit after every read.

The place of a row is its index in the order in which rows were written.
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
from logax._support.imports import import_optional
from logax._support.messages import describe_error, warn_user
from logax._support.processes import is_locked, reset_after_fork
from logax.storage._commits import HEAD_BYTES, Commit, latest_commit, read_run_count
from logax.storage._layout import (
    COMMITS_PATH,
    LAYOUT_VERSION,
    SCHEMA_PATH,
    STEP_DTYPE,
    FileLayout,
)
from logax.storage._lock import SUPERBLOCK_BYTES, has_write_mark, read_clean_superblock

Numbers = np.ndarray[Any, Any]
Result = TypeVar("Result")

_DEFLATE, _SHUFFLE, _FLETCHER_32 = 1, 2, 3  # numbers of HDF5's filters
# The combinations that `_datasets` uses. Filters that are repeated, or in another order, could
# expand a few bytes to very many.
_FILTERS = {(), (_FLETCHER_32,), (_SHUFFLE, _DEFLATE, _FLETCHER_32)}
_MAX_DEFLATE_RATIO = 1100
_MAX_SCHEMA_BYTES = 64 * 2**20
_ASSUMED_FILE_BYTES = 2**62  # the file may grow; reading past its real end raises
_READ_ATTEMPTS = 5  # a read may find a record that is only partly written
_READ_RETRY_SECONDS = 0.002
_DAMAGE_ERRORS = (OSError, RuntimeError, ValueError, LookupError, TypeError, OverflowError)


def valid_row_mask(steps: Numbers, cuts: Sequence[tuple[int, int]]) -> Numbers:
    """Return a mask of the rows that no cut has made void."""
    result = np.ones(len(steps), bool)
    for end, step in cuts:
        result[:end] &= steps[:end] < step
    return result


def order_by_step(steps: Numbers, cuts: Sequence[tuple[int, int]]) -> Numbers:
    """Return the places of the valid rows in the order of their steps.

    Only the last of several rows of the same step is included.
    """
    places = np.flatnonzero(valid_row_mask(steps, cuts))
    valid = steps[places]
    if len(valid) < 2 or bool(np.all(valid[1:] > valid[:-1])):
        return places
    order = np.argsort(valid, kind="stable")
    is_last = np.append(valid[order][1:] != valid[order][:-1], True)
    return np.asarray(places[order[is_last]])


def is_consecutive(numbers: Numbers) -> bool:
    """Return whether each number is one more than the number before it."""
    return bool(np.all(np.diff(numbers) == 1))


def split_reads(
    places: Numbers, indices: Numbers, block_rows: int
) -> Iterator[tuple[Any, int, int]]:
    """Split the reading of rows into contiguous ranges: one if possible, else one per block.

    Args:
      places: Places of the rows.
      indices: Indices of the elements of `places` to read.
      block_rows: Number of rows per block.

    Yields:
      Indices of the rows in the range, and the first and last place of the range.
    """
    if not len(indices):
        return
    requested = places[indices]
    if is_consecutive(requested):
        yield indices, int(requested[0]), int(requested[-1])
        return
    order = np.argsort(requested, kind="stable")
    ends = np.flatnonzero(np.diff(requested[order] // block_rows)) + 1
    for part in np.split(order, ends):
        in_block = requested[part]
        yield indices[part], int(in_block.min()), int(in_block.max())


def find_dataset(file: Any, path: str) -> Any:
    """Return a dataset by its path; None if it does not exist.

    Raises:
      ValueError: The path contains a link that is not a hard link.
    """
    h5py = import_optional("h5py", "HDF5StorageReader", "hdf5")
    node = file
    for part in path.split("/"):
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"`{path}` is a link to another place")
        node = node[part]
    return node if isinstance(node, h5py.Dataset) else None


def check_storage(dataset: Any, path: str) -> None:
    """Raise if reading a dataset would open another file or run the code of a plugin."""
    plist = dataset.id.get_create_plist()
    filters = tuple(plist.get_filter(i)[0] for i in range(plist.get_nfilters()))
    if dataset.external or dataset.is_virtual or filters not in _FILTERS:
        raise ValueError(f"`{path}` is stored in a way that logax does not use")


def open_dataset(file: Any, path: str, dtype: Any) -> Any:
    """Return a dataset of the given dtype that is safe to read."""
    dataset = find_dataset(file, path)
    if dataset is None:
        raise ValueError(f"`{path}` is missing")
    check_storage(dataset, path)
    if dataset.dtype != dtype:
        raise ValueError(f"`{path}` does not match the schema")
    return dataset


def check_size(dataset: Any, size: int, path: str, file_size: int) -> None:
    """Raise if a dataset cannot hold `size` bytes, before memory is allocated for them."""
    stored = dataset.id.get_storage_size()
    if stored * (_MAX_DEFLATE_RATIO if dataset.compression else 1) < size:
        raise ValueError(f"`{path}` has fewer rows than there should be")
    if stored > file_size:
        raise ValueError("it is truncated")


class ReadOnlyFile:
    """A file-like object for h5py, which reads from a descriptor that it does not own.

    HDF5 shares one state between all handles that a process has on one file: a reader would see
    data that a writer in the same process has not flushed, and could not be open at the same time
    as a plain h5py file. HDF5 also needs to know that a writer has the file open. A file-like
    object avoids both: HDF5 sees only bytes, of a file that appears to have no writer. HDF5 caches
    what it reads, so the file must be opened again to see new data.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._position = fd, 0
        self._superblock = read_clean_superblock(fd, _ASSUMED_FILE_BYTES)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        origins = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: _ASSUMED_FILE_BYTES,
        }
        self._position = origins[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int) -> bytes:  # pragma: no cover - h5py requires it, and never calls it
        """Return bytes from the position on."""
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with bytes from the position on.

        HDF5 reads ahead, past the end of the file, and gets zeros there. A read that starts after
        the end raises `OSError`.
        """
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(self._fd, [view[done:]], self._position + done)
            if not count:
                break
            done += count
        if not done and len(view):
            raise OSError(f"the file ends before offset {self._position}, where data should be")
        view[done:] = bytes(len(view) - done)
        if self._position < SUPERBLOCK_BYTES:
            begin = self._superblock[self._position : self._position + len(view)]
            view[: len(begin)] = begin
        self._position += len(view)
        return len(view)


class TrajectorySource:
    """A trajectory that is open for reading.

    Threads may share it. Hold `lock` to get several answers as of the same commit.

    Args:
      path: Path of the file.
      caller: Public name of the class that reads, for messages.

    Raises:
      StorageError: The file is not a trajectory, or it is damaged.
    """

    def __init__(self, path: str, caller: str = "HDF5StorageReader") -> None:
        self.path, self._caller = os.path.abspath(path), caller
        self._h5py = import_optional("h5py", "HDF5StorageReader", "hdf5")
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        self._reset()
        reset_after_fork(self)
        self._file: Any = None
        self._datasets: dict[str, Any] = {}
        self.commit = Commit(-1, 0, 0, None, False, [])
        try:
            self.layout = self._read_with_retries("open", self._read_layout)
            self.refresh()
        except BaseException:
            self.close()
            raise

    def _reset(self) -> None:
        """Replace the lock in a forked process, where no thread can release it."""
        self.lock = threading.RLock()

    def _read_layout(self) -> FileLayout:
        text = self._read_schema()
        try:
            layout = FileLayout.from_json(text)
        except StorageError as error:
            raise self._unreadable_error(str(error)) from error.__cause__
        self._commits_offset = self._find_commits(layout)
        return layout

    @property
    def _hdf5_file(self) -> Any:
        """The h5py file, which is opened on first use."""
        if self._file is None:
            self._file = self._h5py.File(ReadOnlyFile(self._fd), "r")
        return self._file

    def _close_hdf5_file(self) -> None:
        """Close the h5py file, so that HDF5 reads new data when it is opened again."""
        self._datasets = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self._close_hdf5_file()
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refresh(self) -> Commit:
        """Read the last commit, and return it."""
        with self.lock:
            self._check_open()
            before: list[bytes] = []
            for _ in range(_READ_ATTEMPTS):
                slots = self._read_slots(self.layout.slot_bytes)
                commit, damage = latest_commit(slots, self.layout)
                # A commit that is older than the known one was read during the next two writes.
                is_newer = commit is not None and commit.sequence >= self.commit.sequence
                # Damage that the next read does not find is a commit that was being written.
                if is_newer and (damage is None or slots == before):
                    break
                before = slots
            if commit is None:
                raise self._unreadable_error("it is damaged: none of its commits is whole.")
            if commit.sequence > self.commit.sequence:
                self._close_hdf5_file()
                self.commit = commit
                if damage is not None:
                    warn_user(f"`{self._caller}` reads {self.path}, which is damaged: {damage}")
            return self.commit

    def is_current(self, commit: Commit) -> bool:
        """Return whether no other run has continued the file since a commit.

        An incomplete commit does not count: its run has not written anything else yet.
        """
        with self.lock:
            self._check_open()
            if self.commit.runs > commit.runs:
                return False
            heads = self._read_slots(HEAD_BYTES)
            if all(read_run_count(head, self.layout) <= commit.runs for head in heads):
                return True
            before: list[bytes] = []
            for _ in range(_READ_ATTEMPTS):
                slots = self._read_slots(self.layout.slot_bytes)
                found, _ = latest_commit(slots, self.layout)
                if found is not None and found.runs > commit.runs:
                    return False
                if slots == before:
                    return True
                before = slots
            return False

    def has_writer(self) -> bool:
        """Return whether a writer has the file open now, also after it was renamed.

        The answer is True where the file system cannot tell.
        """
        with self.lock:
            self._check_open()
            return is_locked(self._fd)

    def describe_incomplete(self) -> str:
        """Explain why a file without a writer is not complete."""
        with self.lock:
            self._check_open()
            own = os.fstat(self._fd)
        try:
            found = os.stat(self.path)
        except OSError:
            return f"{self.path} is gone: it was deleted or renamed before it was complete."
        if os.path.samestat(found, own):
            return (
                f"{self.path} is not complete, and has no writer any more: its writer was killed, "
                "or has failed."
            )
        return (
            f"{self.path} is another file now, which replaced this one before it was complete. "
            "Open it with another `HDF5StorageReader`."
        )

    def read_steps(self, number: int) -> Numbers:
        """Return the steps of all rows of a group, including void ones, by place."""
        group = self.layout.groups[number]

        def read() -> Numbers:
            commit = self.commit.groups[number]
            if group.is_once:
                return np.zeros(commit.valid_rows, STEP_DTYPE)
            dataset = self._row_dataset(
                group.step_path, (), STEP_DTYPE, group.block_rows, commit.rows
            )
            return np.concatenate([dataset[: commit.rows], commit.steps])

        return self._read_with_retries(f"read the steps of `{group.name}` in", read)

    def read_rows(self, number: int, leaf: int, places: Numbers) -> Numbers:
        """Return rows of one array of a group, by their places."""
        group = self.layout.groups[number]
        array, path = group.leaves[leaf], group.paths[leaf]
        shape, dtype = array.stored_shape, array.kind.stored_dtype
        if not array.row_bytes:
            return np.empty((len(places), *shape), dtype)

        def read() -> Numbers:
            commit = self.commit.groups[number]
            dataset = self._row_dataset(path, shape, dtype, group.block_rows, commit.rows)
            result = np.empty((len(places), *shape), dtype)
            written = places < commit.rows
            result[~written] = commit.columns[leaf][places[~written] - commit.rows]
            reads = split_reads(places, np.flatnonzero(written), group.block_rows)
            for target, first, last in reads:
                if is_consecutive(target) and is_consecutive(places[target]):  # saves a copy
                    there = np.s_[target[0] : target[-1] + 1]
                    dataset.read_direct(result, np.s_[first : last + 1], there)
                else:
                    result[target] = dataset[first : last + 1][places[target] - first]
            return result

        return self._read_with_retries(f"read `{path}` in", read)

    def read_once(self, number: int, leaf: int) -> Numbers:
        """Return an array of a group that is written once."""
        group = self.layout.groups[number]
        array, path = group.leaves[leaf], group.paths[leaf]
        shape, dtype = array.stored_shape, array.kind.stored_dtype

        def read() -> Numbers:
            commit = self.commit.groups[number]
            if not array.row_bytes:
                value = np.empty(shape, dtype)
            else:
                dataset = open_dataset(self._hdf5_file, path, dtype)
                if dataset.shape != shape:
                    raise ValueError(f"it has the shape {dataset.shape}")
                check_size(dataset, array.row_bytes, path, self._file_size())
                value = np.asarray(dataset[...], dtype).reshape(shape)
            check = zlib.crc32(np.ascontiguousarray(value).data)
            if commit.checksums is None or check != commit.checksums[leaf]:
                raise ValueError("its checksum does not match")
            return value

        return self._read_with_retries(f"read `{path}` in", read)

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return not self._finalizer.alive

    def _check_open(self) -> None:
        if self.is_closed:
            raise ValueError("`HDF5StorageReader` was closed. Read inside of its `with` block.")

    def _read_slots(self, size: int) -> list[bytes]:
        """Return the first `size` bytes of each slot for commits."""
        slots, slot_bytes = self.layout.commits_shape
        offsets = (self._commits_offset + slot_bytes * slot for slot in range(slots))
        return [os.pread(self._fd, size, offset) for offset in offsets]

    def _read_schema(self) -> bytes:
        dataset = find_dataset(self._hdf5_file, SCHEMA_PATH)
        if dataset is None:
            layout = self._hdf5_file.attrs.get("logax_layout")
            if layout is not None and layout > LAYOUT_VERSION:
                raise self._unreadable_error(
                    f"it has layout {layout}, and this logax reads layouts up to {LAYOUT_VERSION}. "
                    "Read it with a newer logax."
                )
            raise self._unreadable_error(
                f"it is an HDF5 file, but not a trajectory of logax: it has no `{SCHEMA_PATH}`."
            )
        check_storage(dataset, SCHEMA_PATH)
        is_text = dataset.dtype == np.uint8 and dataset.ndim == 1
        is_one_chunk = dataset.chunks == dataset.shape
        max_bytes = min(_MAX_SCHEMA_BYTES, self._file_size())
        if not is_text or not is_one_chunk or dataset.size > max_bytes:
            raise ValueError("its schema is not text")
        return bytes(dataset[...].tobytes())

    def _find_commits(self, layout: FileLayout) -> int:
        """Return the offset of the commits in the file."""
        dataset = find_dataset(self._hdf5_file, COMMITS_PATH)
        if dataset is None or dataset.shape != layout.commits_shape or dataset.dtype != np.uint8:
            raise ValueError("its commits have another shape")
        offset = dataset.id.get_offset()
        if offset is None or offset + math.prod(layout.commits_shape) > self._file_size():
            raise ValueError("it is truncated before the end of its commits")
        return int(offset)

    def _row_dataset(
        self, path: str, shape: tuple[int, ...], dtype: Any, block_rows: int, rows: int
    ) -> Any:
        """Return a dataset that matches the schema, and has at least `rows` rows.

        HDF5 visits all chunks to compute the stored size, so each dataset is checked only once
        until the file is opened again.
        """
        if path not in self._datasets:
            dataset = open_dataset(self._hdf5_file, path, dtype)
            if dataset.shape[1:] != shape or dataset.chunks != (block_rows, *shape):
                raise ValueError(f"`{path}` does not match the schema")
            if dataset.shape[0] < rows:
                raise ValueError(f"`{path}` has fewer rows than there should be")
            size = rows * math.prod(shape) * dtype.itemsize
            check_size(dataset, size, path, self._file_size())
            self._datasets[path] = dataset
        return self._datasets[path]

    def _unreadable_error(self, reason: str) -> StorageError:
        return StorageError(f"`{self._caller}` cannot read {self.path}: {reason}")

    def _file_size(self) -> int:
        return os.fstat(self._fd).st_size

    def _read_with_retries(self, action: str, read: Callable[[], Result]) -> Result:
        """Call `read`; if it fails while a writer has the file open, call it again."""
        with self.lock:
            self._check_open()
            attempts = _READ_ATTEMPTS if has_write_mark(self._fd) else 1
            while True:
                try:
                    result = read()
                except StorageError:
                    raise
                except _DAMAGE_ERRORS as error:
                    self._check_current()
                    attempts -= 1
                    if not attempts:
                        raise StorageError(
                            f"`{self._caller}` cannot {action} {self.path}, which is damaged, or "
                            f"not a trajectory of logax: {describe_error(error)}"
                        ) from error
                    self._close_hdf5_file()
                    time.sleep(_READ_RETRY_SECONDS)
                    continue
                self._check_current()
                return result

    def _check_current(self) -> None:
        """Raise if another run may have overwritten the rows that were read."""
        if self.commit.sequence >= 0 and not self.is_current(self.commit):
            raise StorageError(
                f"{self.path} was continued by another run since it was last read. Write "
                "`reader.refresh()` to read it again."
            )
