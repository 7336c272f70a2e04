"""`HDF5StorageWriter`, which writes views of the state to an HDF5 file on a background thread.

`log` evaluates the views that are due, in compiled programs whose results share no memory with the
state, starts the transfer of the results to the host, and puts them into a bounded queue.
`_writer_thread` takes them from there and writes them, through `_trajectory`.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from logax._delivery.worker import WHEN_FULL
from logax._schedule import Once, Schedule
from logax._serialization.dtypes import StorageError
from logax._support.files import check_writable, validate_path
from logax._support.imports import import_optional
from logax._support.messages import raise_together, warn_user
from logax._support.processes import reset_after_fork
from logax._support.validation import validate_choice, validate_minimum, validate_seconds
from logax.loop.protocol import ScheduledLogger, as_step, not_entered_error
from logax.storage._layout import FileLayout, GroupLayout, check_names, choose_block_rows
from logax.storage._lock import WriteLock
from logax.storage._trajectory import Trajectory, plan_continuation
from logax.storage._view import View
from logax.storage._writer_thread import WriterThread, describe_write_error
from logax.storage.writer_config import flatten_config

_MODES = ("x", "w", "a")
_DEFAULT_GZIP_LEVEL = 4
_MAX_STEPS = 2**63
_MAX_INITIAL_BLOCKS = 2**14  # HDF5 visits each block of the initial extent at the end


class HDF5StorageWriter(ScheduledLogger):
    """Write views of the state to an HDF5 file, each on its own schedule.

        config = {"frames": WriterGroupConfig(lambda s: {"energy": s.energy}, EveryNStep(10))}
        with HDF5StorageWriter("run.h5", config, state, 1000) as writer:
            for step in range(1000):
                state = advance(state)
                writer.log(state, step)

    `log` waits neither for the device nor for the disk, unless they cannot keep up. A row is *safe*
    at most `flush_seconds` after `log` has returned: it survives a kill of this process, and other
    processes can read it while the run continues. All rows of a step become safe together. If the
    background thread cannot write rows fast enough for that, `log` waits.

    The end of the `with` block writes all remaining rows and completes the file, also after an
    error or an interrupt. If rows cannot be written, the next `log` raises a `StorageError` that
    reports the number of safe rows. Read the file with `HDF5StorageReader`.

    Args:
      out_path: Path of the file.
      config: A `WriterGroupConfig`, or a pytree, dataclass, dictionary or tuple of them. The keys
        that lead to a `WriterGroupConfig` are the name of its group.
      initial_state: Example of the states that `log` will get, or their shapes, from
        `jax.eval_shape`.
      total_steps: Expected number of steps, if known. The arrays are created for this many steps,
        and grow with further ones.
      mode: "x" to create a file, and raise if it exists; "w" to replace an existing file; "a" to
        continue an existing file, or to create it.
      start_step: First step of the run that continues a file in mode "a", see `resume_state`. Rows
        of this and later steps are dropped from all groups, as the run stores them again. None
        keeps all rows.
      compression: None, "gzip", or a gzip level from 1 to 9.
      flush_seconds: Maximum time in seconds until a row is safe. A value below 1 sets the time
        between commits; the guarantee is then one second. The guarantee applies to rows that the
        device has computed, while the disk accepts them.
      queue_bytes: Size of the queue of rows that wait to be written, including about 2,000 bytes
        of overhead per row.
      when_full: "block" makes `log` wait while the queue is full. "drop" drops the rows of the
        step, and warns with the number of dropped rows; the queue is then limited by `queue_bytes`
        only, so rows may become safe later than `flush_seconds`.
      sync: True to wait for the disk before rows count as safe, so that they also survive a power
        failure.

    Raises:
      FileExistsError: The file exists, in mode "x".
      StorageError: The file cannot be created; or another writer has it open; or, in mode "a", it
        is not a trajectory, or has other groups or arrays than `config`. `log` and the end of the
        block raise it if rows could not be written.
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
        import_optional("h5py", what, "hdf5")
        self._path = os.path.abspath(validate_path(what, "out_path", out_path))
        self._mode = validate_choice(what, "mode", mode, _MODES)
        self._start_step = _validate_optional_count(what, "start_step", start_step)
        if self._start_step is not None and mode != "a":
            raise ValueError(
                f"`{what}` takes `start_step` where a file is continued, and got mode {mode!r}. "
                'Write `mode="a"`.'
            )
        self._gzip_level = _parse_compression(compression)
        self._flush_seconds = validate_seconds(what, "flush_seconds", flush_seconds)
        self._queue_bytes = validate_minimum(1, what, "queue_bytes", queue_bytes)
        self._drops_when_full = validate_choice(what, "when_full", when_full, WHEN_FULL) == "drop"
        self._sync = bool(sync)
        self._total_steps = _validate_optional_count(what, "total_steps", total_steps)
        self._plan_layout(config, initial_state)
        self._check_path()
        self._thread: WriterThread | None = None
        self._was_entered = False
        reset_after_fork(self)

    @property
    def path(self) -> str:
        """Absolute path of the file."""
        return self._path

    def _plan_layout(self, config: Any, initial_state: Any) -> None:
        """Evaluate the shapes that each view returns, and so the layout of the file."""
        outline, found = flatten_config(config)
        names = ["/".join(parts) or "value" for parts, _ in found]
        self._views = [
            View(name, own.view, initial_state, adds_checksums=self._gzip_level is None)
            for name, (_, own) in zip(names, found, strict=True)
        ]
        self._schedules: list[Any] = [own.logging_frequency for _, own in found]
        expected = [_expected_rows(schedule, self._total_steps) for schedule in self._schedules]
        groups = [
            GroupLayout(
                parts,
                repr(schedule),
                _is_once(schedule),
                choose_block_rows(view.row_bytes, rows or None),
                view.outline,
                tuple(view.leaves),
            )
            for (parts, _), schedule, view, rows in zip(
                found, self._schedules, self._views, expected, strict=True
            )
        ]
        check_names(groups)
        self._extents = [
            min(rows, _MAX_INITIAL_BLOCKS * group.block_rows)
            for rows, group in zip(expected, groups, strict=True)
        ]
        self._layout = FileLayout(outline, tuple(groups))

    def _check_path(self) -> None:
        check_writable(type(self).__name__, self._path)
        if self._mode == "x" and os.path.lexists(self._path):
            raise _file_exists_error(self._path)

    def _begin(self) -> None:
        drops_rows = self._mode == "w" or self._start_step is not None
        if self._was_entered and drops_rows and os.path.exists(self._path):
            raise _reentered_error(self._path)
        self._check_path()
        trajectory = self._open_trajectory()
        self._thread = WriterThread(self._path, trajectory, self._flush_seconds, self._sync)
        self._was_entered = True
        self._thread.start(self._queue_bytes, blocks_when_full=not self._drops_when_full)
        # Write the rows of a writer that is never left, at exit at the latest.
        self._finalizer = weakref.finalize(self, self._thread.end_forgotten)
        self._groups = list(zip(self._schedules, self._views, strict=True))

    def _open_trajectory(self) -> Trajectory:
        while True:
            try:
                return self._continue_or_create()
            except FileExistsError as error:  # another process has created it since the check
                if self._mode == "x" or not os.path.exists(self._path):
                    raise _file_exists_error(self._path) from error
            except (OSError, RuntimeError) as error:
                if isinstance(error, StorageError) or not _is_hdf5_error(error):
                    raise
                raise StorageError(
                    f"`{type(self).__name__}` cannot create {self._path}: "
                    f"{describe_write_error(error)}"
                ) from error

    def _continue_or_create(self) -> Trajectory:
        lock = None
        try:
            if self._mode != "x" and os.path.exists(self._path):
                lock = WriteLock(self._path)
            if lock is not None and self._mode == "a":
                layout, commit = plan_continuation(
                    self._path, self._layout, self._start_step, self._total_steps
                )
                trajectory = Trajectory.reopen(
                    self._path, lock, layout, self._views, commit, sync=self._sync
                )
                lock = None  # the trajectory releases it
                return trajectory
            return Trajectory.create(
                self._path,
                self._layout,
                self._views,
                self._extents,
                total_steps=self._total_steps,
                gzip_level=self._gzip_level,
                replaces=lock is not None,
                sync=self._sync,
            )
        finally:
            if lock is not None:
                lock.release()

    def log(self, state: Any, step: int) -> None:
        """Store the views of the state after step `step` that are due.

        Args:
          state: The state, of the structure of `initial_state`.
          step: Number of the step, from 0 on.

        Raises:
          StorageError: Earlier rows could not be written.
          ValueError: A view returned another structure, other shapes or other dtypes than for
            `initial_state`. No view of this step is stored then.
        """
        thread = self._thread
        if thread is None:
            raise _forked_error() if self._is_entered else not_entered_error(type(self))
        if type(step) is not int:
            step = as_step(self, step)
        if not 0 <= step < _MAX_STEPS:
            raise ValueError(
                f"`{type(self).__name__}.log` takes steps from 0 to 2**63 - 1, and got {step}."
            )
        thread.raise_failure()
        errors: list[BaseException] = []
        rows, size = [], 0
        for number, (schedule, view) in enumerate(self._groups):
            try:
                if schedule.should_log(step):
                    rows.append((number, view(state)))
                    size += view.row_bytes
            except Exception as error:  # noqa: BLE001 - raised below, with those of other views
                errors.append(error)
        if errors:  # a step is stored in all groups or in none
            raise_together("several views failed", errors)
        if rows:
            thread.put(step, rows, size)
        thread.logged_steps = max(thread.logged_steps, step + 1)

    def _end(self, error: BaseException | None) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.end(error)
            finally:
                # If the end was interrupted, the finalizer tries again.
                if thread.is_over:  # pragma: no branch - where it is not, the end has raised
                    self._finalizer.detach()
            never_written = thread.trajectory.never_written
            if never_written and error is None and thread.logged_steps:
                warn_user(
                    f"{', '.join(f'`{name}`' for name in never_written)} was never written: "
                    f"`Once()` is step 0, and `{type(self).__name__}.log` was not called with it."
                )

    def _reset(self) -> None:
        """Disown the file in a forked process: it belongs to the parent process."""
        thread, self._thread = getattr(self, "_thread", None), None
        if thread is not None:
            self._finalizer.detach()
            thread.trajectory.disown()


def _validate_optional_count(what: str, name: str, value: Any) -> int | None:
    return None if value is None else validate_minimum(0, what, name, value)


def _is_hdf5_error(error: OSError | RuntimeError) -> bool:
    """Return whether HDF5 worded an error, and not the operating system."""
    number = error.errno if isinstance(error, OSError) else None
    return number is None or error.args[1] != os.strerror(number)


def _is_once(schedule: Schedule) -> bool:
    """Return whether a schedule stores one value without an axis for rows.

    This includes the `Once` of other libraries, by its `leading_shape`.
    """
    shape_of = getattr(schedule, "leading_shape", None)
    return isinstance(schedule, Once) or (shape_of is not None and shape_of(1) == ())


def _expected_rows(schedule: Schedule, total_steps: int | None) -> int:
    """Return the number of rows of a run; 0 if unknown."""
    shape_of = getattr(schedule, "leading_shape", None)
    shape = () if total_steps is None or shape_of is None else shape_of(total_steps)
    return int(shape[0]) if shape else 0


def _parse_compression(compression: Any) -> int | None:
    """Return the gzip level, None for no compression."""
    if compression is None:
        return None
    if compression == "gzip":
        return _DEFAULT_GZIP_LEVEL
    if isinstance(compression, int) and not isinstance(compression, bool) and 1 <= compression <= 9:
        return compression
    raise ValueError(
        "`HDF5StorageWriter` takes `compression` as None, 'gzip' or a level from 1 to 9, and got "
        f"{compression!r}."
    )


def _file_exists_error(path: str) -> FileExistsError:
    return FileExistsError(
        f'`HDF5StorageWriter` creates a new file, and {path} exists. Write `mode="w"` to '
        'replace it, `mode="a"` to continue it, or another path.'
    )


def _reentered_error(path: str) -> RuntimeError:
    return RuntimeError(
        f"`HDF5StorageWriter` was entered again, which would drop rows that it has written to "
        f'{path}. Make another writer: with `mode="a"` it goes on after them, with `mode="w"` it '
        "replaces them."
    )


def _forked_error() -> RuntimeError:
    return RuntimeError(
        "`HDF5StorageWriter.log` was called in a process that was forked from the one that writes. "
        "Make another writer there, for another file."
    )
