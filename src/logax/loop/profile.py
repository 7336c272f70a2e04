"""A trace of JAX's profiler over some steps of a loop.

`log` comes after a step. So the trace begins at the end of `log` of the step before the first one,
on entry if that is step 0, and ends in `log` of the last. At both edges the state is waited for:
what the device still has to do belongs to the side on which it was handed in. (Before step 0 there
is no state. What was started before the block and is not done yet is in the trace.)
"""

from __future__ import annotations

import glob
import math
import os
from typing import Any

import jax

from logax._support.messages import add_note, received, warn_user
from logax._support.validation import whole
from logax.loop import _trace
from logax.loop._base import EnteredLogger, as_step, outside
from logax.loop._trace import MARK, ProfileReport, Recording, said_steps


class ProfileLogger(EnteredLogger):
    """Traces the steps from `start_step` to `end_step`, both included, with JAX's profiler.

        with ProfileLogger("profile", 10, 12) as profile:
            for step in range(100):
                state = advance(state)
                profile.log(state, step)
        print(profile.report())

    The trace opens in TensorBoard (`tensorboard --logdir profile`), and its steps are marked there.
    At its edges the device is waited for; steps before and after cost a comparison.

    The trace can only begin and end where `log` is called. If these are other steps, because not
    every step is logged or the loop is resumed in the middle, a warning says which ones it has. So
    it does if the loop ends before `end_step`; if the loop fails, the error has it as a note.

    Args:
      log_dir: The folder for traces; each gets its own in `log_dir/plugins/profile`.
      start_step: The first step to trace. Let the loop do some before, or compilation is in it.
      end_step: The last.
      perfetto: Whether to write a file for https://ui.perfetto.dev too.
      options: What to trace, as `jax.profiler.ProfileOptions`. By default it is what JAX traces by
        default without Python's own calls, which would slow down a step with much Python in it, and
        be most of the events. `python_tracer_level = 1` brings them back.

    Raises:
      ValueError: These are no steps.
      RuntimeError: In `log` or on entry, if another trace is running; that one goes on.
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
        self._log_dir = _checked_folder(log_dir)
        self._start_step, self._end_step = _checked_steps(start_step, end_step)
        if options is not None and not isinstance(options, jax.profiler.ProfileOptions):
            raise TypeError(
                "`ProfileLogger` takes `options` as `jax.profiler.ProfileOptions()`, and got "
                f"{received(options)}."
            )
        self._perfetto, self._options = bool(perfetto), options
        # The step from which on `log` has something to do: none when the trace is done, and every
        # one while it runs, and outside of the block, where `log` must raise.
        self._edge = -math.inf
        self._recording: Recording | None = None
        self._folder: str | None = None
        self._mark: jax.profiler.StepTraceAnnotation | None = None
        self._state: Any = None
        self._first = self._last = 0

    @property
    def trace_path(self) -> str | None:
        """The file with the trace (`.xplane.pb`), if there is one."""
        return None if self._folder is None else _only(self._folder, "*.xplane.pb")

    @property
    def perfetto_path(self) -> str | None:
        """The file for https://ui.perfetto.dev, if it was asked for and there is a trace."""
        if self._folder is None or not self._perfetto:
            return None
        return _only(self._folder, "perfetto_trace.json.gz")

    def report(self) -> ProfileReport:
        """How long the steps took, and the operations that cost most.

        Raises:
          RuntimeError: There is no trace yet, or no step in it came to its end.
        """
        path = self.trace_path
        if path is None and self._folder is not None:
            raise RuntimeError(
                f"`ProfileLogger.report` reads its trace in {self._folder}, and it is not there "
                "any more. Call it before the trace is moved."
            )
        if path is None:
            raise RuntimeError(
                "`ProfileLogger.report` needs a trace, and there is none: it is there when step "
                f"{self._end_step} has been logged, or the `with` block has been left after step "
                f"{self._start_step}. Call it then."
            )
        return _trace.read_report(path)

    def _begin(self) -> None:
        self._folder = None
        if self._start_step == 0:
            self._start_at(0)
        else:
            self._edge = self._start_step - 1

    def log(self, state: Any, step: int) -> None:
        """Take in that step `step` is done."""
        if not isinstance(step, int):
            step = as_step(self, step)
        if step >= self._edge:
            self._reach(state, step)

    def _reach(self, state: Any, step: int) -> None:
        if not self._is_entered:
            raise outside(type(self))
        if self._recording is not None:
            self._follow(self._recording, state, step)
        elif step < self._end_step:
            jax.block_until_ready(state)
            self._edge = math.inf  # and so it stays, should there be no trace
            self._start_at(step + 1)
        else:
            self._edge = math.inf
            warn_user(
                f"`ProfileLogger` was to trace {self._asked}, and nothing was traced: the first "
                f"that it was told of is step {step}, when these were over. {ADVICE}"
            )

    def _start_at(self, step: int) -> None:
        """Start the trace, the next step being `step`."""
        self._recording = Recording(self._log_dir, self._perfetto, self._options)
        self._edge = -math.inf
        self._first, self._last = step, step - 1
        self._enter_mark()

    def _follow(self, recording: Recording, state: Any, step: int) -> None:
        """Take in a step that is in the trace."""
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
        self._mark = jax.profiler.StepTraceAnnotation(MARK, step_num=self._last + 1)
        self._mark.__enter__()

    def _leave_mark(self, is_whole: bool = True) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            if is_whole:
                mark.set_metadata(last_step=self._last)
            mark.__exit__(None, None, None)

    def _finish(self, recording: Recording) -> None:
        """Stop the trace."""
        self._recording, self._state = None, None
        self._folder = recording.stop()

    def _end(self, error: BaseException | None) -> None:
        is_waiting = math.isfinite(self._edge)
        self._edge = -math.inf
        if self._recording is None:
            if is_waiting and error is None:
                warn_user(
                    f"`ProfileLogger` was to trace {self._asked}, and nothing was traced: the loop "
                    f"ended before step {self._start_step}."
                )
        elif error is None:
            self._end_early(self._recording)
        else:
            self._end_failed(self._recording, error)

    def _end_early(self, recording: Recording) -> None:
        """End the trace of a loop that was shorter than it."""
        try:
            # What the last steps handed in belongs to them. The mark here is that of no step.
            leaves = jax.tree.leaves(self._state)
            jax.block_until_ready([x for x in leaves if not _is_deleted(x)])
            self._leave_mark()
        finally:
            self._leave_mark(is_whole=False)
            self._finish(recording)
        self._warn()

    def _end_failed(self, recording: Recording, error: BaseException) -> None:
        """End the trace of a loop that failed. Nothing is waited for: it might never come."""
        self._leave_mark(is_whole=False)
        try:
            self._finish(recording)
        except (OSError, RuntimeError) as failure:
            add_note(error, str(failure))
        else:
            add_note(
                error,
                f"`ProfileLogger` was to trace {self._asked}, and the trace has "
                f"{said_steps(self._steps)}, and what came after: {self.trace_path}",
            )

    @property
    def _steps(self) -> range:
        return range(self._first, self._last + 1)

    @property
    def _asked(self) -> str:
        return said_steps(range(self._start_step, self._end_step + 1))

    def _warn(self) -> None:
        """Say what is not as it was asked for, and what viewers will not show."""
        reasons = []
        if self._first > self._start_step:
            reasons.append(
                f"it was not told of step {self._start_step - 1}, and began after step "
                f"{self._first - 1}"
            )
        if self._last > self._end_step:
            reasons.append(
                f"it was not told of step {self._end_step}, and stopped after step {self._last}"
            )
        advice = f" {ADVICE}" if reasons else ""
        if self._last < self._end_step:
            reasons.append(f"the loop ended before step {self._last + 1} was logged")
        if reasons:
            warn_user(
                f"`ProfileLogger` was to trace {self._asked}, and the trace has "
                f"{said_steps(self._steps)}: {'; '.join(reasons)}.{advice}"
            )
        self._warn_of_events()

    def _warn_of_events(self) -> None:
        limit = _trace.EVENT_LIMIT
        number = _trace.count_events(self.trace_path or "")
        if number >= 0.9 * limit:
            fit = int(0.9 * limit * len(self._steps) / number)
            least = f": {fit} at most" if fit else ""
            warn_user(
                f"The trace of {said_steps(self._steps)} ({len(self._steps)} in all) has "
                f"{number:,} events, and viewers show the first {limit:,} only. Give "
                f"`ProfileLogger` fewer steps{least}."
            )


ADVICE = (
    "Call `log` after every step, and let `start_step` be a step that comes after the first one "
    "that is logged."
)


def _only(folder: str, pattern: str) -> str | None:
    """The file of a trace, unless somebody has moved it."""
    return next(iter(sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))), None)


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _checked_folder(log_dir: Any) -> str:
    if not isinstance(log_dir, (str, os.PathLike)):
        raise TypeError(
            f"`ProfileLogger` takes a folder as `log_dir`, and got {received(log_dir)}."
        )
    folder = os.fspath(log_dir)
    if "://" in folder:
        raise ValueError(
            f"`ProfileLogger` takes a folder of this machine as `log_dir`, and got {folder!r}."
        )
    return os.path.abspath(folder)


def _checked_steps(start_step: Any, end_step: Any) -> tuple[int, int]:
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
