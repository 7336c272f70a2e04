"""Writes what a loop computes to an HDF5 file, off the loop's thread.

`log` evaluates the views that are due, in compiled programs whose results nobody else owns, starts
their way to the host, and puts them into a bounded queue. A thread takes them from there: `_run`
has it, and `_trajectory` is what it does with them.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from logax._delivery.worker import WHEN_FULL
from logax._schedule import Once, Schedule
from logax._serialization.dtypes import StorageError
from logax._support.files import as_path, check_place
from logax._support.forks import renew_after_fork
from logax._support.imports import imported
from logax._support.messages import raise_together, warn_user
from logax._support.validation import at_least, in_seconds, one_of
from logax.loop._base import EnteredLogger, as_step, outside
from logax.storage._layout import Group, Layout, block_rows, check_names
from logax.storage._lock import Claim
from logax.storage._trajectory import Trajectory, resumed
from logax.storage._view import View
from logax.storage._writer_thread import Run, told
from logax.storage.config import groups_of

_MODES = ("x", "w", "a")
_GZIP = 4
_MOST_STEPS = 2**63
_MOST_BLOCKS = 2**14  # that are laid out: HDF5 visits each of them at the end


class HDF5StorageWriter(EnteredLogger):
    """Writes views of the state to an HDF5 file, each as its schedule says.

        config = {"frames": WriterGroupConfig(lambda s: {"energy": s.energy}, EveryNStep(10))}
        with HDF5StorageWriter("run.h5", config, state, 1000) as writer:
            for step in range(1000):
                state = advance(state)
                writer.log(state, step)

    `log` waits neither for the device nor for the disk, unless they fall behind. Rows are safe at
    most `flush_seconds` after `log` has returned: from then on they can be read, also by others
    while the run goes on, and also if this process is killed. A step is safe in all groups at once.
    Where the thread that writes cannot keep up with that, `log` waits for it. When the block is
    left, by an error or an interrupt too, all rows are written and the file is complete. If rows
    cannot be written, the next `log` raises, and says how many are safe. `HDF5StorageReader` reads
    the file.

    Args:
      out_path: Path of the file.
      config: A `WriterGroupConfig`, or any pytree, dataclass, dictionary or tuple of them, which
        gives each group its name.
      initial_state: A state as `log` will get, or the shapes of one, by `jax.eval_shape`.
      total_steps: How many steps there will be, if that is known. Arrays are laid out for them;
        further steps make them longer.
      mode: "x" for a new file, which must not exist; "w" to replace one; "a" to continue one, or
        begin it where there is none.
      start_step: With "a": the step that the run goes on with, see `resume_state`. Rows at and
        after it are dropped in all groups, as they will come again. By default the file goes on
        after its last row.
      compression: None, "gzip", or a level from 1 to 9.
      flush_seconds: Upper bound on the time after `log` until a row is safe; of values below 1,
        the time between commits. It holds for rows that the device has computed, as long as the
        disk takes them.
      queue_bytes: How much may wait to be written, with some 2,000 bytes for each row besides its
        numbers; what is more waits in `log`.
      when_full: "block", or "drop": steps are left out where the queue is full, and a warning says
        how many rows. What waits is then bounded by `queue_bytes` alone, and may take longer.
      sync: Whether making rows safe waits for the disk itself, so that they also outlive a power
        cut.

    Raises:
      FileExistsError: Mode "x", and the file is there.
      StorageError: The file cannot be made; or somebody else writes to it; or, in mode "a", it has
        other groups or arrays, or is none of ours. From `log` and the end: rows could not be
        written.
    """

    def __init__(
        self,
        out_path: str | os.PathLike[str],
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
        self._path = os.path.abspath(as_path(what, "out_path", out_path))
        self._mode = one_of(what, "mode", mode, _MODES)
        self._start = None if start_step is None else at_least(0, what, "start_step", start_step)
        if self._start is not None and mode != "a":
            raise ValueError(
                f"`{what}` takes `start_step` where a file is continued, and got mode {mode!r}. "
                'Write `mode="a"`.'
            )
        self._level = _level(compression)
        self._seconds = in_seconds(what, "flush_seconds", flush_seconds)
        self._limit = at_least(1, what, "queue_bytes", queue_bytes)
        self._drops = one_of(what, "when_full", when_full, WHEN_FULL) == "drop"
        self._sync = bool(sync)
        self._total = None if total_steps is None else at_least(0, what, "total_steps", total_steps)
        self._lay_out(config, initial_state)
        self._check_path()
        self._run: Run | None = None
        self._has_run = False
        renew_after_fork(self)

    @property
    def path(self) -> str:
        """Of the file."""
        return self._path

    def _lay_out(self, config: Any, initial_state: Any) -> None:
        """Find out what each view gives, and so what the file will hold."""
        outline, found = groups_of(config)
        names = ["/".join(parts) or "value" for parts, _ in found]
        self._views = [
            View(name, own.view, initial_state, seals=self._level is None)
            for name, (_, own) in zip(names, found, strict=True)
        ]
        self._schedules: list[Any] = [own.logging_frequency for _, own in found]
        extents = [_extent(schedule, self._total) for schedule in self._schedules]
        groups = [
            Group(
                parts,
                repr(schedule),
                _is_once(schedule),
                block_rows(view.row_bytes, extent or None),
                view.outline,
                tuple(view.leaves),
            )
            for (parts, _), schedule, view, extent in zip(
                found, self._schedules, self._views, extents, strict=True
            )
        ]
        check_names(groups)
        self._extents = [
            min(extent, _MOST_BLOCKS * group.block)
            for extent, group in zip(extents, groups, strict=True)
        ]
        self._layout = Layout(outline, tuple(groups))

    def _check_path(self) -> None:
        check_place(type(self).__name__, self._path)
        if self._mode == "x" and os.path.lexists(self._path):
            raise _exists(self._path)

    def _begin(self) -> None:
        drops = self._mode == "w" or self._start is not None
        if self._has_run and drops and os.path.exists(self._path):
            raise _entered_again(self._path)
        self._check_path()
        self._run = Run(self._path, self._opened(), self._seconds, self._sync)
        self._has_run = True
        self._run.begin(self._limit, self._drops)
        # Who enters and never leaves has their rows all the same, at the latest when Python exits.
        self._forgotten = weakref.finalize(self, self._run.end_forgotten)
        self._groups = list(zip(self._schedules, self._views, strict=True))

    def _opened(self) -> Trajectory:
        while True:
            try:
                return self._continued_or_created()
            except FileExistsError as error:  # somebody else has made it since we looked
                if self._mode == "x" or not os.path.exists(self._path):
                    raise _exists(self._path) from error
            except (OSError, RuntimeError) as error:
                if isinstance(error, StorageError) or not _is_of_hdf5(error):
                    raise
                raise StorageError(
                    f"`{type(self).__name__}` cannot make {self._path}: {told(error)}"
                ) from error

    def _continued_or_created(self) -> Trajectory:
        claim = None
        try:
            if self._mode != "x" and os.path.exists(self._path):
                claim = Claim(self._path)
            if claim is not None and self._mode == "a":
                layout, commit = resumed(self._path, self._layout, self._start, self._total)
                opened = Trajectory.continued(
                    self._path, claim, layout, self._views, commit, sync=self._sync
                )
                claim = None  # it is the trajectory's now
                return opened
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
        finally:
            if claim is not None:
                claim.release()

    def log(self, state: Any, step: int) -> None:
        """Store what is due of the state after step `step`."""
        run = self._run
        if run is None:
            raise _forked() if self._is_entered else outside(type(self))
        if type(step) is not int:
            step = as_step(self, step)
        if not 0 <= step < _MOST_STEPS:
            raise ValueError(
                f"`{type(self).__name__}.log` takes steps from 0 to 2**63 - 1, and got {step}."
            )
        run.tell()
        errors: list[BaseException] = []
        rows, size = [], 0
        for number, (schedule, view) in enumerate(self._groups):
            try:
                if schedule.should_log(step):
                    rows.append((number, view(state)))
                    size += view.row_bytes
            except Exception as error:  # noqa: BLE001 - raised below, with those of other views
                errors.append(error)
        if errors:  # a step is in all groups or in none
            raise_together("several views failed", errors)
        if rows:
            run.put(step, rows, size)
        run.logged_steps = max(run.logged_steps, step + 1)

    def _end(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        if run is not None:
            try:
                run.end(error)
            finally:
                # Else it is tried again when this is forgotten.
                if run.is_over:  # pragma: no branch - where it is not, the end has raised
                    self._forgotten.detach()
            never = run.trajectory.never_written
            if never and error is None and run.logged_steps:
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


def _is_of_hdf5(error: OSError | RuntimeError) -> bool:
    """Whether it is in the words of HDF5, and not in those of the system."""
    number = error.errno if isinstance(error, OSError) else None
    return number is None or error.args[1] != os.strerror(number)


def _is_once(schedule: Schedule) -> bool:
    """Whether it stores one value without an axis, as `Once` of whatever library says."""
    shape_of = getattr(schedule, "leading_shape", None)
    return isinstance(schedule, Once) or (shape_of is not None and shape_of(1) == ())


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


def _exists(path: str) -> FileExistsError:
    return FileExistsError(
        f'`HDF5StorageWriter` writes to a new file, and {path} is there. Write `mode="w"` to '
        'replace it, `mode="a"` to continue it, or another path.'
    )


def _entered_again(path: str) -> RuntimeError:
    return RuntimeError(
        f"`HDF5StorageWriter` was entered once more, which would drop rows that it has written to "
        f'{path}. Make another writer: with `mode="a"` it goes on after them, with `mode="w"` it '
        "replaces them."
    )


def _forked() -> RuntimeError:
    return RuntimeError(
        "`HDF5StorageWriter.log` was called in a process that was forked from the one that writes. "
        "Make a writer of its own there, for another file."
    )
