"""The file that is being written, as the thread behind a writer sees it.

Rows are gathered in blocks. A whole block is written to the datasets, chunk by chunk, each once and
with its checksum; a block that is not whole goes into the commits. `commit` makes all that was
added so far safe: it first has HDF5 pass on what is in the datasets, and then writes a commit.
Rows are added by the step, in all groups at once, so that every commit ends all groups at the same
step.

The file comes under its name when it can be read: it is made under another name before. From
then on it is in HDF5's mode for one writer and many readers, in which HDF5 orders its writes such
that the file can be read at any moment, also if no further one follows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from logax._errors import described
from logax._extras import imported
from logax._files import part_beside
from logax._resting.errors import StorageError
from logax.storage._claims import Claim, cut_off, mend_after_kill
from logax.storage._commits import Commit, Numbers, Stand, encoded
from logax.storage._datasets import create_datasets
from logax.storage._layout import COMMITS, Layout
from logax.storage._stores import OnceStore, RowStore
from logax.storage._view import View

_BOUNDS = ("v110", "v110")  # HDF5 1.10 and all later ones can read it


class Trajectory:
    """An open file, to which rows are added."""

    def __init__(
        self, file: Any, claim: Claim, layout: Layout, views: Sequence[View], commit: Commit
    ) -> None:
        self._file, self._claim, self._layout = file, claim, layout
        self._handle = file.id.get_vfd_handle()
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
            trajectory = cls(file, claim, layout, views, commit)
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
            trajectory = cls(file, claim, layout, views, commit)
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
        for store, _ in stores:
            if store.is_full:
                store.write()

    def commit(self, actual_steps: int, *, sync: bool) -> None:
        """Make all rows safe that were added."""
        self._check_is_there()
        self._flush(sync)
        self._commit_stands(actual_steps, sync=sync)

    def finish(self, actual_steps: int, *, sync: bool, is_complete: bool) -> None:
        """Write all that is left, and close the file."""
        for store in self.stores:
            store.finish()
        self._flush(sync)
        self._commit_stands(actual_steps, is_complete=is_complete, sync=sync)
        self._check_is_there()
        self._file.close()
        self._claim.release()

    def abandon(self, actual_steps: int) -> None:
        """Leave the file after a failure, with the rows that need no more room.

        A commit counts the same steps in all groups. Where HDF5 still holds rows of one group, or a
        step is only partly there, the last commit stays.
        """
        try:
            if self._is_whole and all(store.is_flushed for store in self.stores):
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

    def _check_is_there(self) -> None:
        """Raise if the file has no name any more, since nobody will find what is in it."""
        self._is_gone = not os.fstat(self._claim.fd).st_nlink
        if self._is_gone:
            raise StorageError("the file was deleted while it was being written")

    def _flush(self, sync: bool) -> None:
        self._file.flush()
        if sync:
            os.fsync(self._claim.fd)
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
