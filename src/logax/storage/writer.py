"""Writes what a loop computes to an HDF5 file, off the loop's thread.

`log` evaluates the views that are due, in compiled programs whose results nobody else owns, starts
their way to the host, and puts them into a bounded queue. A thread takes them from there, see
`_trajectory` for what it does with them. What fails on the thread comes out of the next `log` and
of the end of the block.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from logax._bars import Bar
from logax._checks import at_least, in_seconds
from logax._delivery.worker import Worker, renew_after_fork
from logax._errors import add_note, described, raise_together, warn_user
from logax._extras import imported
from logax._files import as_path, check_place
from logax._schedule import Once, Schedule
from logax.loop._entered import EnteredLogger, as_step, outside
from logax.storage._claims import Claim
from logax.storage._layout import Group, Layout, block_rows, check_names
from logax.storage._resume import resumed
from logax.storage._trajectory import Trajectory
from logax.storage._view import Row, View
from logax.storage.config import groups_of
from logax.storage.errors import StorageError

THREAD = "logax-storage"
_MODES = ("x", "w", "a")
_GZIP = 4
_MOST_STEPS = 2**63
_MOST_BLOCKS = 2**14  # that are laid out: HDF5 visits each of them at the end
_TOGETHER = 2**18  # bytes of rows that are one job for the thread
_MOST_TOGETHER = 256
_ENOUGH = 3  # interrupts, after which nothing is waited for
_PATIENCE = 1.0  # seconds before the end of a block shows what it waits for


_Entry: TypeAlias = tuple[Any, Row, int]  # a store, a row for it, and its step


class HDF5StorageWriter(EnteredLogger):
    """Writes views of the state to an HDF5 file, each as its schedule says.

        config = {"frames": WriterGroupConfig(lambda s: {"energy": s.energy}, EveryNStep(10))}
        with HDF5StorageWriter("run.h5", config, state, 1000) as writer:
            for step in range(1000):
                state = advance(state)
                writer.log(state, step)

    `log` waits neither for the device nor for the disk, unless the queue is full. Every
    `flush_seconds` all rows are made safe: from then on they can be read, also by others while the
    run goes on, and also if this process is killed. When the block is left, by an error or an
    interrupt too, all rows are written and the file is complete. If rows cannot be written, the
    next `log` raises, and says how many are safe. `HDF5StorageReader` reads the file.

    Args:
      path: Of the file.
      config: A `WriterGroupConfig`, or any pytree, dataclass, dictionary or tuple of them, which
        gives each group its name.
      initial_state: A state as `log` will get, or the shapes of one, by `jax.eval_shape`.
      total_steps: How many steps there will be, if that is known. Arrays are laid out for them;
        further steps make them longer.
      mode: "x" for a new file, which must not exist; "w" to replace one; "a" to continue one, or
        begin it where there is none.
      start_step: With "a": the step that the run goes on with. Rows at and after it are dropped, as
        they will come again. By default the file goes on after its last row.
      compression: None, "gzip", or a level from 1 to 9.
      flush_seconds: How often rows are made safe.
      queue_bytes: How much may wait to be written; what is more waits in `log`.
      when_full: "block", or "drop": rows are left out where the queue is full, and a warning says
        how many.
      sync: Whether making rows safe waits for the disk itself, so that they also outlive a power
        cut.

    Raises:
      FileExistsError: Mode "x", and the file is there.
      StorageError: Mode "a", and the file has other groups or arrays, or is none of ours; or
        somebody else writes to it. From `log` and the end: rows could not be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Any,
        initial_state: Any,
        total_steps: int | None = None,
        *,
        mode: str = "x",
        start_step: int | None = None,
        compression: str | int | None = None,
        flush_seconds: float = 1.0,
        queue_bytes: int = 256 * 2**20,
        when_full: str = "block",
        sync: bool = False,
    ) -> None:
        super().__init__()
        what = type(self).__name__
        imported("h5py", what, "hdf5")
        self._path = os.path.abspath(as_path(what, "path", path))
        self._mode = _one_of("mode", mode, _MODES)
        self._start = None if start_step is None else at_least(0, what, "start_step", start_step)
        if self._start is not None and mode != "a":
            raise ValueError(
                f"`{what}` takes `start_step` where a file is continued, and got mode {mode!r}. "
                'Write `mode="a"`.'
            )
        self._level = _level(compression)
        self._seconds = in_seconds(what, "flush_seconds", flush_seconds)
        self._limit = at_least(1, what, "queue_bytes", queue_bytes)
        self._drops = _one_of("when_full", when_full, ("block", "drop")) == "drop"
        self._sync = bool(sync)
        total = None if total_steps is None else at_least(0, what, "total_steps", total_steps)
        outline, found = groups_of(config)
        names = ["/".join(parts) or "value" for parts, _ in found]
        self._views = [
            View(name, own.view, initial_state, seals=self._level is None)
            for name, (_, own) in zip(names, found, strict=True)
        ]
        self._schedules: list[Any] = [own.logging_frequency for _, own in found]
        self._extents = [_extent(schedule, total) for schedule in self._schedules]
        groups = [
            Group(
                parts,
                repr(schedule),
                isinstance(schedule, Once),
                block_rows(view.row_bytes, extent or None),
                view.outline,
                tuple(view.leaves),
            )
            for (parts, _), schedule, view, extent in zip(
                found, self._schedules, self._views, self._extents, strict=True
            )
        ]
        check_names(groups)
        self._extents = [
            min(extent, _MOST_BLOCKS * group.block)
            for extent, group in zip(self._extents, groups, strict=True)
        ]
        self._layout, self._total = Layout(outline, tuple(groups)), total
        self._check_path()
        self._run: _Run | None = None
        renew_after_fork(self)

    @property
    def path(self) -> str:
        """Of the file."""
        return self._path

    def _check_path(self) -> None:
        check_place(type(self).__name__, self._path)
        if self._mode == "x" and os.path.lexists(self._path):
            raise _exists(self._path)

    def _begin(self) -> None:
        self._check_path()
        self._run = _Run(self._path, self._opened(), self._seconds, self._sync)
        self._run.begin(self._limit, self._drops)
        # Who enters and never leaves has their rows all the same, at the latest when Python exits.
        self._forgotten = weakref.finalize(self, self._run.end)
        self._groups = list(
            zip(self._schedules, self._views, self._run.trajectory.stores, strict=True)
        )

    def _opened(self) -> Trajectory:
        exists = os.path.exists(self._path)
        claim = None
        try:
            if exists and self._mode != "x":
                claim = Claim(self._path)
            if claim is not None and self._mode == "a":
                layout, commit = resumed(self._path, self._layout, self._start, self._total)
                opened = Trajectory.continued(self._path, claim, layout, self._views, commit)
                claim = None  # it is the trajectory's now
                return opened
            try:
                return Trajectory.created(
                    self._path,
                    self._layout,
                    self._views,
                    self._extents,
                    total_steps=self._total,
                    level=self._level,
                    replaces=claim is not None,
                    sync=self._sync,
                )
            except FileExistsError as error:
                raise _exists(self._path) from error
        except (OSError, RuntimeError) as error:
            if isinstance(error, StorageError) or not _is_of_hdf5(error):
                raise
            raise StorageError(
                f"`{type(self).__name__}` cannot make {self._path}: {_told(error)}"
            ) from error
        finally:
            if claim is not None:
                claim.release()

    def log(self, state: Any, step: int) -> None:
        """Store what is due of the state after step `step`."""
        run = self._run
        if run is None:
            raise _forked() if self._is_entered else outside(self)
        if type(step) is not int:
            step = as_step(self, step)
        if not 0 <= step < _MOST_STEPS:
            raise ValueError(
                f"`{type(self).__name__}.log` takes steps from 0 to 2**63 - 1, and got {step}."
            )
        run.tell()
        errors: list[BaseException] = []
        for schedule, view, store in self._groups:
            try:
                if schedule.should_log(step):
                    run.put(view.row_bytes, (store, view(state), step))
            except Exception as error:  # noqa: BLE001 - the other groups must have theirs
                errors.append(error)
        run.actual_steps = max(run.actual_steps, step + 1)
        if errors:
            raise_together("several views failed", errors)

    def _end(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._forgotten.detach()
            run.end(error)
            never = [x for x in run.trajectory.never_written if error is None]
            if never and run.actual_steps:
                warn_user(
                    f"{', '.join(f'`{name}`' for name in never)} was never written: `Once()` is "
                    f"step 0, and `{type(self).__name__}.log` was not called with it."
                )

    def _reset(self) -> None:
        """In a process that was forked the file is not ours."""
        run, self._run = getattr(self, "_run", None), None
        if run is not None:
            self._forgotten.detach()
            run.trajectory.disown()


class _Rows:
    """A job: rows that were put in one after the other, as long as they are small."""

    def __init__(self, add: Callable[[list[_Entry]], None], first: _Entry, size: int) -> None:
        self._add, self._entries, self._size = add, [first], size

    def take(self, entry: _Entry, size: int) -> bool:
        """Take in one more, if there is room."""
        if self._size + size > _TOGETHER or len(self._entries) >= _MOST_TOGETHER:
            return False
        self._entries.append(entry)
        self._size += size
        return True

    def __call__(self) -> None:
        self._entries.reverse()
        self._add(self._entries)


class _Run:
    """A file that is open, and the thread that writes to it."""

    def __init__(self, path: str, trajectory: Trajectory, seconds: float, sync: bool) -> None:
        self._path, self.trajectory = path, trajectory
        self.actual_steps = trajectory.actual_steps
        self._seconds, self._sync = seconds, sync
        self._worker = Worker(THREAD, short_turns=False, grows=False)
        self._failure: StorageError | None = None
        self._is_dirty = False
        self._lost = self._dropped = 0
        self._put_in = self._written = 0  # rows
        self._entrance, self._ends = threading.Lock(), False
        self._given_up = self._is_over = False

    def begin(self, limit: int, drops: bool) -> None:
        """Start the thread, with a queue of so many bytes."""
        self._worker.limit, self._worker.blocks = limit, not drops
        self._worker.start()

    def put(self, size: int, entry: _Entry) -> None:
        """Have a row written."""
        with self._entrance:
            if self._ends:
                raise RuntimeError(
                    "`HDF5StorageWriter.log` was called while its block ended, and the row of step "
                    f"{entry[-1]} was not stored. Leave the block when all threads are done."
                )
            takes = self._worker.extend_last(
                lambda job: isinstance(job, _Rows) and job.take(entry, size), size
            )
            takes = takes or self._worker.put(size, _Rows(self._add, entry, size))
        self._put_in += takes
        if not takes:
            if not self._dropped:
                warn_user(
                    "`HDF5StorageWriter` leaves out rows, since its queue of "
                    f"{self._worker.limit} bytes is full. At the end it says how many."
                )
            self._dropped += 1

    def tell(self) -> None:
        """Raise what went wrong on the thread."""
        if self._failure is not None:
            raise self._failure

    def end(self, error: BaseException | None = None) -> None:
        """Write all that is left, close the file, and tell what went wrong."""
        # Who interrupts the end gets all rows all the same, unless they do so again.
        interrupts = [] if error is None or isinstance(error, Exception) else [error]
        self._ends = True
        with self._entrance:  # whoever is in there has their row stored
            pass
        self._insist(self._drain, interrupts)
        self._worker.put(0, self._finish, waits=False)
        self._insist(lambda: self._worker.drain(None), interrupts)
        self._worker.stop()
        interrupt = next((each for each in interrupts if each is not error), None)
        if self._dropped:
            warn_user(
                f"`HDF5StorageWriter` left out {self._dropped} rows, since its queue of "
                f"{self._worker.limit} bytes was full. Make it larger, or wait for room: "
                '`HDF5StorageWriter(..., queue_bytes=..., when_full="block")`.'
            )
        if interrupt is not None:
            if self._lost:
                add_note(interrupt, _left_out(self._lost))
            raise interrupt
        self._tell_at_end(error)

    def _insist(self, wait: Callable[[], object], interrupts: list[BaseException]) -> None:
        """Wait for something, through an interrupt; after the second one rows are given up."""
        while True:
            try:
                wait()
                return
            except BaseException as interrupt:
                interrupts.append(interrupt)
                self._given_up = len(interrupts) > 1
                if len(interrupts) > _ENOUGH:
                    raise

    def _tell_at_end(self, error: BaseException | None) -> None:
        failure = self._failure
        if failure is None or _leads_to(error, failure):
            return
        if error is None:
            raise failure
        if isinstance(error, Exception):
            add_note(error, str(failure))
        else:  # notes of an interrupt or an exit are seen by nobody
            with contextlib.suppress(UserWarning):
                warn_user(str(failure))

    def _drain(self) -> None:
        """Wait until all rows are written; where that takes long, show how many are left."""
        if self._worker.drain(time.monotonic() + _PATIENCE):
            return
        bar, first = None, self._put_in - self._written
        try:
            while not self._worker.drain(time.monotonic() + 0.1):
                left = self._put_in - self._written
                if bar is None:
                    bar = Bar(None, first, 0, "writing rows")
                if time.monotonic() >= bar.due:
                    bar.draw(first - left)
        finally:
            if bar is not None:
                bar.close(first - (self._put_in - self._written))

    # On the thread.

    def _add(self, rows: list[_Entry]) -> None:
        if self._failure is None and not self._given_up:
            try:
                while rows:
                    store, row, step = rows[-1]
                    store.add(row, step)
                    rows.pop()
                    self._written += 1
                    if self._given_up:
                        break
            except BaseException as error:  # noqa: BLE001 - raised by the next `log`, and at the end
                self._fail(error)
        self._lost += len(rows)
        if not self._is_dirty:
            self._is_dirty = True
            self._worker.after(self._seconds, self._commit)

    def _commit(self) -> None:
        self._is_dirty = False
        self._unless_failed(self.trajectory.commit)

    def _finish(self) -> None:
        self._unless_failed(self.trajectory.finish, is_complete=not self._given_up)
        self._is_over = True

    def _unless_failed(self, act: Callable[..., None], **options: Any) -> None:
        if self._failure is None and not self._is_over:
            try:
                act(self.actual_steps, sync=self._sync, **options)
            except BaseException as error:  # noqa: BLE001 - as above
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Leave the file as it is, and keep the error for the loop."""
        try:
            self.trajectory.abandon(self.actual_steps)
        finally:
            safe = self.trajectory.safe_rows
            rows = ", ".join(f"{number} of `{name}`" for name, number in safe.items())
            failure = StorageError(
                f"`HDF5StorageWriter` could not write to {self._path}: {_told(error)} Rows that "
                f'are safe in it: {rows}. When the cause is mended, go on with `mode="a"`.'
            )
            failure.__cause__ = error
            self._failure = failure


def _told(error: BaseException) -> str:
    """What was raised; of what HDF5 says of the system's errors, what the system said."""
    found = re.search(r"errno = (\d+)", str(error))
    return described(error if found is None else OSError(int(found[1]), os.strerror(int(found[1]))))


def _is_of_hdf5(error: BaseException) -> bool:
    """Whether it has no number of the system's errors of its own."""
    return not (isinstance(error, OSError) and error.strerror)


def _left_out(number: int) -> str:
    return f"`HDF5StorageWriter` was interrupted at its end, and {number} rows were not written."


def _leads_to(error: BaseException | None, failure: BaseException) -> bool:
    """Whether one is the other, or came of it."""
    if error is None:
        return False
    if error is failure:
        return True
    others = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(_leads_to(each, failure) for each in (*others, error.__cause__, error.__context__))


def _extent(schedule: Schedule, total: int | None) -> int:
    """How many rows to lay out."""
    shape_of = getattr(schedule, "leading_shape", None)
    shape = () if total is None or shape_of is None else shape_of(total)
    return int(shape[0]) if shape else 0


def _level(compression: Any) -> int | None:
    if compression is None:
        return None
    if compression == "gzip":
        return _GZIP
    if isinstance(compression, int) and not isinstance(compression, bool) and 1 <= compression <= 9:
        return compression
    raise ValueError(
        "`HDF5StorageWriter` takes `compression` as None, 'gzip' or a level from 1 to 9, and got "
        f"{compression!r}."
    )


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    listed = ", ".join(map(repr, choices[:-1]))
    raise ValueError(
        f"`HDF5StorageWriter` takes `{name}` as {listed} or {choices[-1]!r}, and got {value!r}."
    )


def _exists(path: str) -> FileExistsError:
    return FileExistsError(
        f'`HDF5StorageWriter` writes to a new file, and {path} is there. Write `mode="w"` to '
        'replace it, `mode="a"` to continue it, or another path.'
    )


def _forked() -> RuntimeError:
    return RuntimeError(
        "`HDF5StorageWriter.log` was called in a process that was forked from the one that writes. "
        "Make a writer of its own there, for another file."
    )
