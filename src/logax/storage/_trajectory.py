"""The file that is being written, as the thread behind a writer sees it.

Rows are gathered in blocks. A whole block is written to the datasets, chunk by chunk, each once and
with its checksum; a block that is not whole goes into the commits. `commit` makes all that was
added so far safe: it first has HDF5 pass on what is in the datasets, and then writes a commit.
Rows are added by the step, in all groups at once, so that every commit ends all groups at the same
step.

The file comes under its name when it can be read: it is made under another name before. From
then on it is in HDF5's mode for one writer and many readers, in which HDF5 orders its writes such
that the file can be read at any moment, also if no further one follows.

From where a file that is there goes on.

Rows at and after the step that a run begins with are dropped. Where these are the last ones of a
group, the group ends before them; where rows that stay stand among them, a cut says which are void
(see `_commits`). Blocks that are whole stay in the datasets, and what is left of the one after them
goes back into the commit until it is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from logax._serialization.dtypes import StorageError
from logax._support.files import part_beside
from logax._support.imports import imported
from logax._support.messages import described
from logax.storage._commits import HEAD, Commit, Numbers, Stand, encoded
from logax.storage._datasets import OnceStore, RowStore, create_datasets
from logax.storage._layout import COMMITS, Group, Layout
from logax.storage._lock import Claim, cut_off, mend_after_kill
from logax.storage._source import Source, valid
from logax.storage._view import View

_BOUNDS = ("v110", "v110")  # HDF5 1.10 and all later ones can read it


class Trajectory:
    """An open file, to which rows are added."""

    def __init__(
        self,
        path: str,
        file: Any,
        claim: Claim,
        layout: Layout,
        views: Sequence[View],
        commit: Commit,
    ) -> None:
        self._file, self._claim, self._layout = file, claim, layout
        self._path = path
        self._handle = file.id.get_vfd_handle()
        self._size = 0  # of the file, as far as this process has written it
        self._head, self._head_place = b"", 0  # first bytes of the last commit
        self._commit = commit
        self._is_gone = False
        self._is_whole = True  # no step is only partly in the stores
        self._start = file[COMMITS].id.get_offset()
        self.stores: list[OnceStore | RowStore] = [
            (OnceStore if group.is_once else RowStore)(file, group, view, stand)
            for group, view, stand in zip(layout.groups, views, commit.groups, strict=True)
        ]

    @classmethod
    def created(
        cls,
        path: str,
        layout: Layout,
        views: Sequence[View],
        extents: Sequence[int],
        *,
        total_steps: int | None,
        level: int | None,
        replaces: bool,
        sync: bool,
    ) -> Trajectory:
        """A new file, of datasets that have so many rows to begin with."""
        h5py = imported("h5py", "HDF5StorageWriter", "hdf5")
        whole = os.path.realpath(path)
        part = part_beside(whole)
        file = claim = None
        try:
            file = h5py.File(part, "x", libver=_BOUNDS, locking=False)
            create_datasets(file, layout, extents, level)
            file.swmr_mode = True
            claim = Claim(part)
            claim.let_readers_in()
            stands = [Stand.at_start(group) for group in layout.groups]
            commit = Commit(0, 0, 0, total_steps, False, stands)
            trajectory = cls(whole, file, claim, layout, views, commit)
            trajectory._write_commit(everywhere=True)
            file.flush()
            if sync:
                os.fsync(claim.fd)
            _move(part, whole, replaces)
            if sync:
                _sync_folder(whole)
        except BaseException:
            if file is not None:
                _close_spoilt(file)
            if claim is not None:
                claim.release()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        return trajectory

    @classmethod
    def continued(
        cls,
        path: str,
        claim: Claim,
        layout: Layout,
        views: Sequence[View],
        commit: Commit,
        *,
        sync: bool,
    ) -> Trajectory:
        """Go on with a file from a commit, which replaces all others.

        The commit says that rows are dropped. It must be in all slots before others are written
        over these rows: no damage may bring them back.
        """
        h5py = imported("h5py", "HDF5StorageWriter", "hdf5")
        mend_after_kill(claim.fd)
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
        access.set_file_locking(False, True)
        flags = h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
        try:
            file = h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
        except (OSError, RuntimeError) as error:
            raise StorageError(
                f"`HDF5StorageWriter` cannot continue {path}: {described(error)} If this process "
                "has it open, in a reader or in h5py, close it there first."
            ) from error
        try:
            trajectory = cls(path, file, claim, layout, views, commit)
            trajectory._write_commit(everywhere=True)
            if sync:
                os.fsync(claim.fd)
            claim.let_readers_in()
        except BaseException:
            _close_spoilt(file)
            raise
        return trajectory

    @property
    def actual_steps(self) -> int:
        """How many steps have run, by the last commit."""
        return self._commit.actual_steps

    @property
    def never_written(self) -> list[str]:
        """The groups that are written once and were not."""
        groups = zip(self._layout.groups, self._commit.groups, strict=True)
        return [group.name for group, own in groups if group.is_once and own.checks is None]

    @property
    def safe_rows(self) -> dict[str, int]:
        """How many rows of each group are safe."""
        groups = zip(self._layout.groups, self._commit.groups, strict=True)
        return {group.name: 0 if self._is_gone else stand.number for group, stand in groups}

    def add(self, rows: Sequence[tuple[int, Sequence[Numbers]]], step: int) -> None:
        """Add the rows of one step, each with the number of its group: all of them or none."""
        stores = [(self.stores[number], row) for number, row in rows]
        self._write_full(stores)  # blocks that could not be written in an earlier run
        self._is_whole = False
        for store, row in stores:
            store.append(row, step)
        self._is_whole = True
        self._write_full(stores)

    def _write_full(self, stores: Sequence[tuple[OnceStore | RowStore, Any]]) -> None:
        full = [store for store, _ in stores if store.is_full]
        if full:
            self._check_size()
            for store in full:
                store.write()
            self._size = os.fstat(self._claim.fd).st_size

    def commit(self, actual_steps: int, *, sync: bool) -> None:
        """Make all rows safe that were added."""
        self._check_contents()
        self._flush(sync)
        self._commit_stands(actual_steps, sync=sync)
        self._check_name()

    def finish(self, actual_steps: int, *, sync: bool, is_complete: bool) -> None:
        """Write all that is left, and close the file."""
        self._check_contents()
        for store in self.stores:
            store.finish()
        self._flush(sync)
        self._commit_stands(actual_steps, is_complete=is_complete, sync=sync)
        self._check_name()
        self._file.close()
        self._claim.release()

    def abandon(self, actual_steps: int) -> None:
        """Leave the file after a failure, with the rows that need no more room.

        A commit counts the same steps in all groups. Where HDF5 still holds rows of one group, or a
        step is only partly there, the last commit stays.
        """
        try:
            is_flushed = all(store.is_flushed for store in self.stores)
            if self._is_whole and is_flushed and not self._is_gone:
                self._commit_stands(actual_steps)
        except (OSError, StorageError):  # then those of the last commit are safe
            pass
        finally:
            _close_spoilt(self._file)
            self._claim.release()

    def disown(self) -> None:
        """Never touch the file again, in a process that was forked."""
        cut_off(self._handle)
        self._claim.release()

    def _check_size(self) -> None:
        """Raise if another program has truncated the file, before HDF5 writes behind the hole."""
        size = os.fstat(self._claim.fd).st_size
        if size < self._size:
            self._is_gone = True
            raise StorageError(
                "another program truncated the file while it was being written, from "
                f"{self._size} to {size} bytes"
            )

    def _check_contents(self) -> None:
        """Raise if another program has truncated the file, or has written over the last commit."""
        self._check_size()
        if os.pread(self._claim.fd, len(self._head), self._head_place) != self._head:
            self._is_gone = True
            raise StorageError(
                "another program truncated the file, or wrote to it, while it was being written"
            )

    def _check_name(self) -> None:
        """Raise if the file is not the one of its name any more.

        Nobody finds the rows of a deleted file; those of a renamed one are safe.
        """
        own = os.fstat(self._claim.fd)
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            what = "renamed" if own.st_nlink else "deleted"
        else:
            if os.path.samestat(found, own):
                return
            what = "replaced by another one"
        self._is_gone = not own.st_nlink
        raise StorageError(f"the file was {what} while it was being written")

    def _flush(self, sync: bool) -> None:
        self._file.flush()
        if sync:
            os.fsync(self._claim.fd)
        self._size = os.fstat(self._claim.fd).st_size
        for store in self.stores:
            store.flushed()

    def _commit_stands(
        self, actual_steps: int, *, is_complete: bool = False, sync: bool = False
    ) -> None:
        before = self._commit
        stands = [store.stand() for store in self.stores]
        self._commit = dataclasses.replace(
            before,
            sequence=before.sequence + 1,
            actual_steps=actual_steps,
            is_complete=is_complete,
            groups=stands,
        )
        try:
            self._write_commit(everywhere=is_complete)
            if sync:
                os.fsync(self._claim.fd)
        except BaseException:
            self._commit = before
            raise

    def _write_commit(self, *, everywhere: bool = False) -> None:
        """Write the commit over the last but one, or into all slots."""
        data = encoded(self._commit, self._layout.version)
        room = self._layout.slot_bytes
        if len(data) > room:
            raise StorageError(
                f"A commit takes {len(data)} bytes, and there is room for {room}: the file was "
                "continued too often in the middle of rows out of order. Write to a new one."
            )
        copies, first = self._layout.commit_copies, self._commit.sequence % 2
        self._head, self._head_place = data[:HEAD], self._start + first * copies * room
        for pair in (first, 1 - first) if everywhere else (first,):
            for slot in range(pair * copies, (pair + 1) * copies):
                _write_all(self._claim.fd, data, self._start + slot * room)


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _move(part: str, whole: str, replaces: bool) -> None:
    """Give a file its name; where that is taken, only if it is to be replaced."""
    if replaces:
        os.replace(part, whole)
        return
    try:
        os.link(part, whole)
    except FileExistsError:
        raise
    except OSError:  # pragma: no cover - of a file system without links
        if os.path.lexists(whole):
            raise FileExistsError(whole) from None
        os.rename(part, whole)


def _sync_folder(path: str) -> None:
    """Have the disk know the name of a file."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _close_spoilt(file: Any) -> None:
    """Close a file that HDF5 could not write to; what it still wants to write goes nowhere."""
    if file.id.valid:
        cut_off(file.id.get_vfd_handle())
        with contextlib.suppress(OSError, RuntimeError):
            file.close()


def resumed(
    path: str, layout: Layout, start: int | None, total: int | None
) -> tuple[Layout, Commit]:
    """The layout of a file, and the commit with which it goes on: with the rows before `start`.

    Raises:
      StorageError: It cannot be read, or rows of `layout` do not fit into it.
    """
    with Source(path, "HDF5StorageWriter") as source:
        difference = source.layout.difference(layout)
        if difference is not None:
            raise StorageError(
                f"`HDF5StorageWriter` cannot continue {path} with other groups or arrays: "
                f"{difference}. Write to another file."
            )
        before = source.commit
        groups = [_kept(source, number, start) for number in range(len(before.groups))]
        steps = before.actual_steps if start is None else min(before.actual_steps, start)
        total = before.total_steps if total is None else total
        runs = before.runs + 1
        kept = before.kept_by(runs, groups)
        return source.layout, Commit(before.sequence + 1, runs, steps, total, False, groups, kept)


def _kept(source: Source, number: int, start: int | None) -> Stand:
    group, stand = source.layout.groups[number], source.commit.groups[number]
    if group.is_once:
        return Stand.at_start(group) if start == 0 else stand
    steps = source.steps(number)
    end, cuts = len(steps), stand.cuts
    if start is not None:
        late = np.flatnonzero(steps >= start)
        first = int(late[0]) if len(late) else end
        if (valid(steps, cuts) & (steps < start))[first:].any():
            cuts = [*cuts, (end, start)]  # rows that stay stand among those that go
        else:
            end = first
    return _at(source, number, group, end, steps, _merged(cuts, end))


def _merged(cuts: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Those that say something about the first rows, and nothing that a later one says too."""
    merged: list[tuple[int, int]] = []
    for last, step in cuts:  # each ends where the ones before it end, or later
        merged = [own for own in merged if own[1] < step]
        merged.append((min(last, end), step))
    return merged if end else []


def _at(
    source: Source,
    number: int,
    group: Group,
    end: int,
    steps: Numbers,
    cuts: list[tuple[int, int]],
) -> Stand:
    """The first rows, of which whole blocks that are in the datasets stay where they are."""
    written = min(end, source.commit.groups[number].rows) // group.block * group.block
    places = np.arange(written, end)
    columns = [source.rows(number, leaf, places) for leaf in range(len(group.leaves))]
    void = int(np.count_nonzero(~valid(steps[:end], cuts)))
    return Stand(written, steps[written:end], columns, cuts, None, void)
