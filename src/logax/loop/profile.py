"""Trace some steps of a loop with JAX's profiler.

The loop calls `log` after a step. The trace therefore starts at the end of `log` of the step before
`start_step`, or on entry if that is step 0, and stops in `log` of `end_step`. It waits for the
state at both ends, so that work counts for the step that dispatched it. (Before step 0 there is no
state to wait for: work dispatched before the block and still running is in the trace.)
"""

from __future__ import annotations

import glob
import math
import os
from typing import Any

import jax

from logax._support.messages import add_note, describe_value, warn_user
from logax._support.validation import whole
from logax.loop import _profiler_trace
from logax.loop._profiler_trace import STEP_MARK, ProfileReport, Recording, format_steps
from logax.loop.protocol import ScheduledLogger, as_step, not_entered_error


class ProfileLogger(ScheduledLogger):
    """Trace the steps from `start_step` to `end_step`, both included, with JAX's profiler.

        with ProfileLogger("profile", 10, 12) as profile:
            for step in range(100):
                state = advance(state)
                profile.log(state, step)
        print(profile.report())

    TensorBoard shows the trace with its steps marked (`tensorboard --logdir profile`). The logger
    waits for the device at both ends of the trace; other steps cost one comparison.

    The trace can start and stop only where the loop calls `log`. A warning names the traced steps
    if they differ, because the loop does not log every step, is resumed in the middle, or ends
    before `end_step`. If the loop fails, the exception gets a note instead.

    Args:
      log_dir: Folder for traces; each trace has its own folder in `log_dir/plugins/profile`.
      start_step: First step to trace. Leave some steps before it, or the trace includes
        compilation.
      end_step: Last step to trace.
      perfetto: If True, also write a file for https://ui.perfetto.dev.
      options: Options of the profiler, a `jax.profiler.ProfileOptions`. The default is JAX's own,
        without calls of Python functions, which slow down steps with much Python code and would be
        most of the events. `python_tracer_level = 1` includes them.

    Raises:
      ValueError: If the steps are not whole numbers with `0 <= start_step <= end_step`.
      RuntimeError: On entry or in `log`, if another trace is running, which continues.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        start_step: int,
        end_step: int,
        *,
        perfetto: bool = False,
        options: jax.profiler.ProfileOptions | None = None,
    ) -> None:
        super().__init__()
        self._log_dir = _validate_folder(log_dir)
        self._start_step, self._end_step = _validate_steps(start_step, end_step)
        if options is not None and not isinstance(options, jax.profiler.ProfileOptions):
            raise TypeError(
                "`ProfileLogger` takes `options` as `jax.profiler.ProfileOptions()`, and got "
                f"{describe_value(options)}."
            )
        self._perfetto, self._options = bool(perfetto), options
        # First step on which `log` has work: infinity after the trace, and minus infinity during it
        # and outside of the block, where `log` must raise.
        self._edge = -math.inf
        self._recording: Recording | None = None
        self._folder: str | None = None
        self._mark: jax.profiler.StepTraceAnnotation | None = None
        self._state: Any = None
        self._first = self._last = 0

    @property
    def trace_path(self) -> str | None:
        """Path of the trace file (`.xplane.pb`), or None before the trace has ended."""
        return None if self._folder is None else _find_file(self._folder, "*.xplane.pb")

    @property
    def perfetto_path(self) -> str | None:
        """Path of the file for https://ui.perfetto.dev, or None without `perfetto` or a trace."""
        if self._folder is None or not self._perfetto:
            return None
        return _find_file(self._folder, "perfetto_trace.json.gz")

    def report(self) -> ProfileReport:
        """Return the times of the steps, and the most expensive operations.

        Raises:
          RuntimeError: If there is no trace yet, or it contains no complete step.
        """
        path = self.trace_path
        if path is None and self._folder is not None:
            raise RuntimeError(
                f"`ProfileLogger.report` reads the trace in {self._folder}, which no longer "
                "exists. Call `report` before you move the trace."
            )
        if path is None:
            raise RuntimeError(
                "`ProfileLogger.report` needs a trace, and there is none yet. Call `report` after "
                f"step {self._end_step} is logged, or after a `with` block that reached step "
                f"{self._start_step}."
            )
        return _profiler_trace.read_report(path)

    def _begin(self) -> None:
        self._folder = None
        if self._start_step == 0:
            self._start_at(0)
        else:
            self._edge = self._start_step - 1

    def log(self, state: Any, step: int) -> None:
        """Mark step `step` as done; start or stop the trace if it is at one of its ends."""
        if not isinstance(step, int):
            step = as_step(self, step)
        if step >= self._edge:
            self._reach(state, step)

    def _reach(self, state: Any, step: int) -> None:
        if not self._is_entered:
            raise not_entered_error(type(self))
        if self._recording is not None:
            self._follow(self._recording, state, step)
        elif step < self._end_step:
            jax.block_until_ready(state)
            self._edge = math.inf  # stays so if the trace cannot start
            self._start_at(step + 1)
        else:
            self._edge = math.inf
            warn_user(
                f"`ProfileLogger` was to trace {self._requested_steps}, and nothing was traced: "
                f"the first step that was logged, step {step}, comes after them. {ADVICE}"
            )

    def _start_at(self, step: int) -> None:
        """Start the trace with `step`, the next step."""
        self._recording = Recording(self._log_dir, self._perfetto, self._options)
        self._edge = -math.inf
        self._first, self._last = step, step - 1
        self._enter_mark()

    def _follow(self, recording: Recording, state: Any, step: int) -> None:
        """Mark a traced step as done, and stop after the last one."""
        if step <= self._last:
            return
        if step >= self._end_step:
            jax.block_until_ready(state)
        self._last = step
        self._leave_mark()
        if step < self._end_step:
            self._state = state
            self._enter_mark()
            return
        self._edge = math.inf
        self._finish(recording)
        self._warn()

    def _enter_mark(self) -> None:
        self._mark = jax.profiler.StepTraceAnnotation(STEP_MARK, step_num=self._last + 1)
        self._mark.__enter__()

    def _leave_mark(self, is_complete: bool = True) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            if is_complete:
                mark.set_metadata(last_step=self._last)
            mark.__exit__(None, None, None)

    def _finish(self, recording: Recording) -> None:
        """Stop the recording, and keep the path of its folder."""
        self._recording, self._state = None, None
        self._folder = recording.stop()

    def _end(self, error: BaseException | None) -> None:
        is_waiting = math.isfinite(self._edge)
        self._edge = -math.inf
        if self._recording is None:
            if is_waiting and error is None:
                warn_user(
                    f"`ProfileLogger` was to trace {self._requested_steps}, and nothing was "
                    f"traced: the loop ended before step {self._start_step}."
                )
        elif error is None:
            self._end_early(self._recording)
        else:
            self._end_failed(self._recording, error)

    def _end_early(self, recording: Recording) -> None:
        """Stop the trace of a loop that ended before `end_step`."""
        try:
            # The work that the last steps dispatched belongs to them. This mark has no step.
            leaves = jax.tree.leaves(self._state)
            jax.block_until_ready([x for x in leaves if not _is_deleted(x)])
            self._leave_mark()
        finally:
            self._leave_mark(is_complete=False)
            self._finish(recording)
        self._warn()

    def _end_failed(self, recording: Recording, error: BaseException) -> None:
        """Stop the trace of a loop that failed, without waiting for a state that may never come."""
        self._leave_mark(is_complete=False)
        try:
            self._finish(recording)
        except (OSError, RuntimeError) as failure:
            add_note(error, str(failure))
        else:
            add_note(
                error,
                f"`ProfileLogger` was to trace {self._requested_steps}, and the trace has "
                f"{format_steps(self._steps)} and later work: {self.trace_path}",
            )

    @property
    def _steps(self) -> range:
        return range(self._first, self._last + 1)

    @property
    def _requested_steps(self) -> str:
        return format_steps(range(self._start_step, self._end_step + 1))

    def _warn(self) -> None:
        """Warn if other steps were traced than requested, or more events than viewers show."""
        reasons = []
        if self._first > self._start_step:
            reasons.append(
                f"step {self._start_step - 1} was not logged, so it started after step "
                f"{self._first - 1}"
            )
        if self._last > self._end_step:
            reasons.append(
                f"step {self._end_step} was not logged, so it stopped after step {self._last}"
            )
        advice = f" {ADVICE}" if reasons else ""
        if self._last < self._end_step:
            reasons.append(f"the loop ended before step {self._last + 1} was logged")
        if reasons:
            warn_user(
                f"`ProfileLogger` was to trace {self._requested_steps}, and the trace has "
                f"{format_steps(self._steps)}: {'; '.join(reasons)}.{advice}"
            )
        self._warn_of_events()

    def _warn_of_events(self) -> None:
        limit = _profiler_trace.MAX_VIEWER_EVENTS
        number = _profiler_trace.count_events(self.trace_path or "")
        if number >= 0.9 * limit:
            fit = int(0.9 * limit * len(self._steps) / number)
            advice = f": {fit} at most" if fit else ""
            warn_user(
                f"The trace of {format_steps(self._steps)} ({len(self._steps)} in all) has "
                f"{number:,} events, and viewers show the first {limit:,} only. Give "
                f"`ProfileLogger` fewer steps{advice}."
            )


ADVICE = (
    "Call `log` after every step, and choose a `start_step` after the first step that is logged."
)


def _find_file(folder: str, pattern: str) -> str | None:
    """Return the file of a trace, or None if it was moved."""
    return next(iter(sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))), None)


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _validate_folder(log_dir: Any) -> str:
    if not isinstance(log_dir, (str, os.PathLike)):
        raise TypeError(
            f"`ProfileLogger` takes a folder as `log_dir`, and got {describe_value(log_dir)}."
        )
    folder = os.fspath(log_dir)
    if "://" in folder:
        raise ValueError(
            f"`ProfileLogger` takes a folder of this machine as `log_dir`, and got {folder!r}."
        )
    return os.path.abspath(folder)


def _validate_steps(start_step: Any, end_step: Any) -> tuple[int, int]:
    start, end = whole(start_step, 0), whole(end_step, 0)
    if start is not None and end is not None and start <= end:
        return start, end
    hint = "whole numbers of 0 or more"
    if start is not None and end is not None:
        hint = f"`ProfileLogger(log_dir, {end}, {start})`"
    raise ValueError(
        "`ProfileLogger` traces the steps from `start_step` to `end_step`, both included, and got "
        f"{start_step!r} and {end_step!r}. Write {hint}."
    )
