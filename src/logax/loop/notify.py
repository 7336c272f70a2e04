"""Post the progress of a loop to a webhook, without delaying the loop.

Each post is one JSON object:

    text     one line for people; chat services such as Slack and Mattermost show it
    event    "step", "finished" or "failed"
    step     number of the step; for "finished" and "failed" the last logged step, or null
    values   values of the view, by name: numbers, strings, lists. NaN and infinities, which JSON
             lacks, are "nan", "inf" and "-inf"; complex numbers are strings too
    skipped  number of due steps left out before this one, because they came too fast
    time     time of the event, in UTC
    error    for "failed" only: the exception

A background thread posts them (see `_webhook`): a slow server costs skipped steps, but neither time
nor memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._schedule import OnSteps, Schedule
from logax._support.arrays import is_key_array
from logax._support.messages import (
    add_note,
    describe_error,
    describe_value,
    format_sentence,
    note_or_warn,
    warn_user,
)
from logax._support.validation import validate_minimum, validate_seconds
from logax.loop._pytrees import copy_tree, leaves_with_names, start_host_transfer
from logax.loop._webhook import Outbox, Post, Webhook, parse_url
from logax.loop.protocol import ScheduledLogger, as_step, validate_view

MAX_ARRAY_ELEMENTS = 1000
MAX_TIMEOUT_SECONDS = 1e8  # longer waits overflow in the operating system


class NotifyLogger(ScheduledLogger):
    """Post to a webhook on the steps that are due, and when the loop finishes or fails.

        with NotifyLogger(url, EverySeconds(600), lambda state: {"energy": state.energy}) as logger:
            ...

    A background thread posts; `log` waits neither for the network nor for the device. Due steps
    that come faster than the thread can post are left out, and the next post has their number. Each
    post is a JSON object with `text`, `event`, `step`, `values`, `skipped`, `time` and, if the loop
    failed, `error`. Chat services such as Slack and Mattermost show the `text`.

    A failed post does not stop the run: one warning reports it, or a note on the exception that
    ends the loop. Messages show the scheme and host of the URL, never all of it. A redirect is
    followed on the same host, port and scheme only, so the values reach no other server.

    In a `CompositeLogger`, put it first: it then exits last, and its post about a failure includes
    the notes of the other loggers, such as the file that `RingBufferLogger` wrote.

    Args:
      url: URL of the webhook, http or https.
      schedule: Steps to post: a schedule, or a number n for every n-th step; None to post only the
        end of the loop.
      view: Function from the state to the values to post: a dictionary of numbers, arrays and
        strings, or any pytree of them. Arrays may have up to 1000 elements.
      timeout: Seconds to wait for the server. The end of the block waits for outstanding posts up
        to twice as long.
      retries: Number of retries if the server cannot be reached, does not answer, or answers with
        429, 500 or more. At the end of the block, a server that cannot be reached gets one retry at
        most.
      seconds_between: Minimum number of seconds between two posts. The post at the end of the loop
        does not wait for it.
      ends: If True, post when the loop finishes or fails.

    Raises:
      ValueError: If an option is invalid.
    """

    def __init__(
        self,
        url: str,
        schedule: int | Schedule | None = None,
        view: Callable[[Any], Tree] | None = None,
        *,
        timeout: float = 5.0,
        retries: int = 3,
        seconds_between: float = 1.0,
        ends: bool = True,
    ) -> None:
        super().__init__(OnSteps([]) if schedule is None else schedule)
        if schedule is None and (view is not None or not ends):
            raise ValueError(
                "`NotifyLogger` without a schedule posts the end of the loop only, and got "
                + ("a view, which needs steps." if ends else "`ends=False`, which leaves nothing.")
                + " Write `NotifyLogger(url, EveryNStep(1000), view)`."
            )
        self._retries = validate_minimum(0, "NotifyLogger", "retries", retries)
        if not isinstance(ends, bool):
            raise ValueError(f"`NotifyLogger` takes `ends` as True or False, and got {ends!r}.")
        seconds = validate_seconds("NotifyLogger", "timeout", timeout, zero=False)
        self._server = Webhook(parse_url(url), min(seconds, MAX_TIMEOUT_SECONDS))
        self._interval_seconds = validate_seconds(
            "NotifyLogger", "seconds_between", seconds_between
        )
        self._view = None if view is None else validate_view("NotifyLogger", view)
        self._ends = ends
        self._step: int | None = None
        self._outbox: Outbox  # one per run: posts left over from another run do not count here

    def _begin(self) -> None:
        self._step = None
        self._outbox = Outbox(self._server, self._retries, self._interval_seconds)

    def log(self, state: Any, step: int) -> None:
        """Enqueue a post about step `step`, if that step is due."""
        self._step = step if isinstance(step, int) else as_step(self, step)
        super().log(state, step)

    def _take(self, state: Any, step: int) -> None:
        warning = self._outbox.take_warning()
        if warning is not None:
            warn_user(warning)
        values: Tree = {}
        if self._view is not None:
            try:
                values = start_host_transfer(copy_tree(_validate_values(self._view(state))))
            except Exception as error:
                add_note(error, f"`NotifyLogger` was calling its view on step {step}.")
                raise
        self._outbox.offer(Post("step", step, values))

    def _end(self, error: BaseException | None) -> None:
        last = None
        if self._ends:
            event = "finished" if error is None else "failed"
            last = Post(event, self._step, {}, "" if error is None else _format_error(error))
        self._outbox.close(last)
        warning = self._outbox.take_warning()
        if warning is not None:
            note_or_warn(error, warning)


def _format_error(error: BaseException) -> str:
    """Format an exception, followed by its notes."""
    notes = getattr(error, "__notes__", [])
    text = describe_error(error).removesuffix(format_sentence("\n".join(notes)))
    return "\n".join([format_sentence(text.rstrip()), *notes]) if notes else text


def _validate_values(values: Tree) -> Tree:
    """Return the values of a view; raise if JSON cannot represent them."""
    for name, leaf in leaves_with_names(values):
        name = name or "value"
        if not (isinstance(leaf, (str, bool, int, float, complex)) or _is_array(leaf)):
            raise TypeError(
                f"`NotifyLogger` posts numbers, arrays and strings, and its view gave "
                f"{describe_value(leaf)} for `{name}`. Convert it in the view."
            )
        if np.size(leaf) > MAX_ARRAY_ELEMENTS:
            raise ValueError(
                f"`NotifyLogger` posts arrays of {MAX_ARRAY_ELEMENTS} numbers at most, and its "
                f"view gave {np.size(leaf)} for `{name}`. Reduce it in the view."
            )
    return values


def _is_array(leaf: Any) -> bool:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return False
    if is_key_array(leaf):
        return True
    return leaf.dtype.kind == "U" or any(
        jnp.issubdtype(leaf.dtype, kind) for kind in (np.bool_, jnp.number)
    )
