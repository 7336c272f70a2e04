"""The file that a writer thread writes.

Rows are gathered in blocks. A whole block is written to the datasets, chunk by chunk, each once and
with its checksum; an incomplete block is stored in the commits. `Trajectory.commit` makes all rows
safe: it makes HDF5 flush the datasets, and then writes a commit. `Trajectory.add` adds the rows of
a step to all groups at once, so every commit ends at the same step in all groups.

A new file is created under a temporary name, and gets its own name once it can be read. From then
on it is in HDF5's single-writer, multiple-reader mode, in which HDF5 orders its writes so that the
file can be read at any moment, even if no further write follows.

A run that continues a file drops the rows at and after its first step. If these are the last rows
of a group, the group ends before them; if other rows are among them, a cut marks the void ones (see
`_commits`). Whole blocks stay in the datasets, and the remaining rows go back into the commit until
their block is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from logax._serialization.dtypes import StorageError
from logax._support.files import partial_path
from logax._support.imports import import_optional
from logax._support.messages import describe_error
from logax.storage._commits import HEAD_BYTES, Commit, GroupCommit, Numbers, encode_commit
from logax.storage._datasets import OnceStore, RowStore, create_datasets
from logax.storage._layout import COMMITS_PATH, FileLayout, GroupLayout
from logax.storage._lock import WriteLock, clear_write_mark, redirect_to_devnull
from logax.storage._trajectory_source import TrajectorySource, valid_row_mask
from logax.storage._view import View

_HDF5_VERSION_BOUNDS = ("v110", "v110")  # HDF5 1.10 and later read the file


class Trajectory:
    """A trajectory that is open for writing.

    Args:
      path: Path of the file.
      file: The h5py file.
      lock: Lock on the file, which this object releases.
      layout: Layout of the file.
      views: View of each group.
      commit: Commit to continue from.
    """

    def __init__(
        self,
        path: str,
        file: Any,
        lock: WriteLock,
        layout: FileLayout,
        views: Sequence[View],
        commit: Commit,
    ) -> None:
        self._file, self._lock, self._layout = file, lock, layout
        self._path = path
        self._hdf5_fd = file.id.get_vfd_handle()
        self._file_size = 0  # minimum, after the writes of this process
        self._head, self._head_offset = b"", 0  # first bytes of the last commit
        self._commit = commit
        self._is_lost = False  # another program has deleted or truncated the file
        self._has_whole_steps = True  # no step is only partly in the stores
        self._commits_offset = file[COMMITS_PATH].id.get_offset()
        self.stores: list[OnceStore | RowStore] = [
            (OnceStore if group.is_once else RowStore)(file, group, view, group_commit)
            for group, view, group_commit in zip(layout.groups, views, commit.groups, strict=True)
        ]

    @classmethod
    def create(
        cls,
        path: str,
        layout: FileLayout,
        views: Sequence[View],
        extents: Sequence[int],
        *,
        total_steps: int | None,
        gzip_level: int | None,
        replaces: bool,
        sync: bool,
    ) -> Trajectory:
        """Create a file.

        Args:
          path: Path of the file.
          layout: Layout of the file.
          views: View of each group.
          extents: Initial number of rows of each group.
          total_steps: Number of steps of the run, None if unknown.
          gzip_level: Compression level, None for no compression.
          replaces: True to replace an existing file.
          sync: True to wait for the disk.

        Raises:
          FileExistsError: The file exists, and `replaces` is False.
        """
        h5py = import_optional("h5py", "HDF5StorageWriter", "hdf5")
        final = os.path.realpath(path)
        partial = partial_path(final)
        file = lock = None
        try:
            file = h5py.File(partial, "x", libver=_HDF5_VERSION_BOUNDS, locking=False)
            create_datasets(file, layout, extents, gzip_level)
            file.swmr_mode = True
            lock = WriteLock(partial)
            lock.admit_readers()
            groups = [GroupCommit.empty(group) for group in layout.groups]
            commit = Commit(0, 0, 0, total_steps, False, groups)
            trajectory = cls(final, file, lock, layout, views, commit)
            trajectory._write_commit(all_slots=True)
            file.flush()
            if sync:
                os.fsync(lock.fd)
            _move(partial, final, replaces)
            if sync:
                _sync_directory(final)
        except BaseException:
            if file is not None:
                _close_discarding(file)
            if lock is not None:
                lock.release()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
        return trajectory

    @classmethod
    def reopen(
        cls,
        path: str,
        lock: WriteLock,
        layout: FileLayout,
        views: Sequence[View],
        commit: Commit,
        *,
        sync: bool,
    ) -> Trajectory:
        """Continue a file from a commit, which replaces all others.

        The commit drops rows. It must be in all slots before new rows overwrite these: otherwise
        damage to a slot could bring the dropped rows back.
        """
        h5py = import_optional("h5py", "HDF5StorageWriter", "hdf5")
        clear_write_mark(lock.fd)
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
        access.set_file_locking(False, True)
        flags = h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
        try:
            file = h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
        except (OSError, RuntimeError) as error:
            raise StorageError(
                f"`HDF5StorageWriter` cannot continue {path}: {describe_error(error)} If this "
                "process has it open, in a reader or in h5py, close it there first."
            ) from error
        try:
            trajectory = cls(path, file, lock, layout, views, commit)
            trajectory._write_commit(all_slots=True)
            if sync:
                os.fsync(lock.fd)
            lock.admit_readers()
        except BaseException:
            _close_discarding(file)
            raise
        return trajectory

    @property
    def actual_steps(self) -> int:
        """Number of steps that have run, as of the last commit."""
        return self._commit.actual_steps

    @property
    def never_written(self) -> list[str]:
        """Names of the groups that are written once, and have not been written."""
        pairs = zip(self._layout.groups, self._commit.groups, strict=True)
        return [group.name for group, own in pairs if group.is_once and own.checksums is None]

    @property
    def safe_rows(self) -> dict[str, int]:
        """Number of safe rows of each group."""
        pairs = zip(self._layout.groups, self._commit.groups, strict=True)
        return {group.name: 0 if self._is_lost else own.valid_rows for group, own in pairs}

    def add(self, rows: Sequence[tuple[int, Sequence[Numbers]]], step: int) -> None:
        """Add the rows of one step, each with the number of its group: all of them or none."""
        stores = [(self.stores[number], row) for number, row in rows]
        self._write_full(stores)  # an earlier run may have failed to write a full block
        self._has_whole_steps = False
        for store, row in stores:
            store.append(row, step)
        self._has_whole_steps = True
        self._write_full(stores)

    def _write_full(self, stores: Sequence[tuple[OnceStore | RowStore, Any]]) -> None:
        full = [store for store, _ in stores if store.is_full]
        if full:
            self._check_size()
            for store in full:
                store.write()
            self._file_size = os.fstat(self._lock.fd).st_size

    def commit(self, actual_steps: int, *, sync: bool) -> None:
        """Make all added rows safe."""
        self._check_contents()
        self._flush(sync)
        self._commit_groups(actual_steps, sync=sync)
        self._check_path()

    def finish(self, actual_steps: int, *, sync: bool, is_complete: bool) -> None:
        """Write all remaining rows, and close the file."""
        self._check_contents()
        for store in self.stores:
            store.finish()
        self._flush(sync)
        self._commit_groups(actual_steps, is_complete=is_complete, sync=sync)
        self._check_path()
        self._file.close()
        self._lock.release()

    def abandon(self, actual_steps: int) -> None:
        """Close the file after a failure, with a last commit of the rows that fit into it.

        A commit counts the same steps in all groups. If HDF5 still buffers rows of a group, or a
        step is only partly in the stores, the previous commit remains the last one.
        """
        try:
            is_flushed = all(store.is_flushed for store in self.stores)
            if self._has_whole_steps and is_flushed and not self._is_lost:
                self._commit_groups(actual_steps)
        except (OSError, StorageError):  # the rows of the previous commit are safe
            pass
        finally:
            _close_discarding(self._file)
            self._lock.release()

    def disown(self) -> None:
        """Never touch the file again, in a forked process."""
        redirect_to_devnull(self._hdf5_fd)
        self._lock.release()

    def _check_size(self) -> None:
        """Raise if another program has truncated the file, before HDF5 writes behind the hole."""
        size = os.fstat(self._lock.fd).st_size
        if size < self._file_size:
            self._is_lost = True
            raise StorageError(
                "another program truncated the file while it was being written, from "
                f"{self._file_size} to {size} bytes"
            )

    def _check_contents(self) -> None:
        """Raise if another program has truncated the file, or overwritten the last commit."""
        self._check_size()
        if os.pread(self._lock.fd, len(self._head), self._head_offset) != self._head:
            self._is_lost = True
            raise StorageError(
                "another program truncated the file, or wrote to it, while it was being written"
            )

    def _check_path(self) -> None:
        """Raise if the path does not lead to the file any more.

        The rows of a deleted file are lost; those of a renamed one are safe.
        """
        own = os.fstat(self._lock.fd)
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            what = "renamed" if own.st_nlink else "deleted"
        else:
            if os.path.samestat(found, own):
                return
            what = "replaced by another one"
        self._is_lost = not own.st_nlink
        raise StorageError(f"the file was {what} while it was being written")

    def _flush(self, sync: bool) -> None:
        self._file.flush()
        if sync:
            os.fsync(self._lock.fd)
        self._file_size = os.fstat(self._lock.fd).st_size
        for store in self.stores:
            store.mark_flushed()

    def _commit_groups(
        self, actual_steps: int, *, is_complete: bool = False, sync: bool = False
    ) -> None:
        """Write a commit of all rows in the stores."""
        before = self._commit
        groups = [store.group_commit() for store in self.stores]
        self._commit = dataclasses.replace(
            before,
            sequence=before.sequence + 1,
            actual_steps=actual_steps,
            is_complete=is_complete,
            groups=groups,
        )
        try:
            self._write_commit(all_slots=is_complete)
            if sync:
                os.fsync(self._lock.fd)
        except BaseException:
            self._commit = before
            raise

    def _write_commit(self, *, all_slots: bool = False) -> None:
        """Write the commit over the last but one, or into all slots."""
        data = encode_commit(self._commit, self._layout.version)
        slot_bytes = self._layout.slot_bytes
        if len(data) > slot_bytes:
            raise StorageError(
                f"A commit takes {len(data)} bytes, and there is room for {slot_bytes}: the file "
                "was continued too often in the middle of rows out of order. Write to a new one."
            )
        copies, first = self._layout.commit_copies, self._commit.sequence % 2
        self._head = data[:HEAD_BYTES]
        self._head_offset = self._commits_offset + first * copies * slot_bytes
        for pair in (first, 1 - first) if all_slots else (first,):
            for slot in range(pair * copies, (pair + 1) * copies):
                _write_all(self._lock.fd, data, self._commits_offset + slot * slot_bytes)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _move(partial: str, final: str, replaces: bool) -> None:
    """Rename a file; raise if a file of that name exists, unless it is to be replaced."""
    if replaces:
        os.replace(partial, final)
        return
    try:
        os.link(partial, final)
    except FileExistsError:
        raise
    except OSError:  # pragma: no cover - file systems without links
        if os.path.lexists(final):
            raise FileExistsError(final) from None
        os.rename(partial, final)


def _sync_directory(path: str) -> None:
    """Wait until the name of a file is on the disk."""
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _close_discarding(file: Any) -> None:
    """Close a file that HDF5 could not write to, and discard the buffers of HDF5."""
    if file.id.valid:
        redirect_to_devnull(file.id.get_vfd_handle())
        with contextlib.suppress(OSError, RuntimeError):
            file.close()


def plan_continuation(
    path: str, layout: FileLayout, start_step: int | None, total_steps: int | None
) -> tuple[FileLayout, Commit]:
    """Return the layout of an existing file, and the commit to continue it with.

    Args:
      path: Path of the file.
      layout: Layout of the writer.
      start_step: First step of the run; the commit drops rows at and after it. None keeps all rows.
      total_steps: Number of steps of the run, None for the number in the file.

    Raises:
      StorageError: The file cannot be read, or has other groups or arrays than `layout`.
    """
    with TrajectorySource(path, "HDF5StorageWriter") as source:
        difference = source.layout.describe_difference(layout)
        if difference is not None:
            raise StorageError(
                f"`HDF5StorageWriter` cannot continue {path} with other groups or arrays: "
                f"{difference}. Write to another file."
            )
        last = source.commit
        groups = [_drop_rows(source, number, start_step) for number in range(len(last.groups))]
        steps = last.actual_steps if start_step is None else min(last.actual_steps, start_step)
        total = last.total_steps if total_steps is None else total_steps
        runs = last.runs + 1
        kept = last.kept_entries(runs, groups)
        return source.layout, Commit(last.sequence + 1, runs, steps, total, False, groups, kept)


def _drop_rows(source: TrajectorySource, number: int, start_step: int | None) -> GroupCommit:
    """Return the commit of a group without the rows at and after `start_step`."""
    group, commit = source.layout.groups[number], source.commit.groups[number]
    if group.is_once:
        return GroupCommit.empty(group) if start_step == 0 else commit
    steps = source.read_steps(number)
    end, cuts = len(steps), commit.cuts
    if start_step is not None:
        late = np.flatnonzero(steps >= start_step)
        first = int(late[0]) if len(late) else end
        if (valid_row_mask(steps, cuts) & (steps < start_step))[first:].any():
            cuts = [*cuts, (end, start_step)]  # rows to keep are among those to drop
        else:
            end = first
    return _truncate(source, number, group, end, steps, _merge_cuts(cuts, end))


def _merge_cuts(cuts: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return the cuts that affect rows before `end`, without those that a later cut includes."""
    merged: list[tuple[int, int]] = []
    for cut_end, step in cuts:  # in ascending order of their ends
        merged = [cut for cut in merged if cut[1] < step]
        merged.append((min(cut_end, end), step))
    return merged if end else []


def _truncate(
    source: TrajectorySource,
    number: int,
    group: GroupLayout,
    end: int,
    steps: Numbers,
    cuts: list[tuple[int, int]],
) -> GroupCommit:
    """Return the commit of the rows before `end`, of which only whole blocks stay in datasets."""
    rows = source.commit.groups[number].rows
    written = min(end, rows) // group.block_rows * group.block_rows
    places = np.arange(written, end)
    columns = [source.read_rows(number, leaf, places) for leaf in range(len(group.leaves))]
    void_rows = int(np.count_nonzero(~valid_row_mask(steps[:end], cuts)))
    return GroupCommit(written, steps[written:end], columns, cuts, None, void_rows)
