"""Tells a webhook how a loop gets on, without ever holding it up.

Each post is one JSON object:

    text     one line for people; chat services such as Slack and Mattermost show it
    event    "step", "finished" or "failed"
    step     the step that it is about: of the last two, the last that the logger was told of, or
             null if there was none
    values   what the view gave, by name: numbers, texts, lists; NaN and infinities, which JSON
             lacks, as "nan", "inf" and "-inf", complex numbers as texts too
    skipped  how many due steps were left out before this one, because they came too fast
    time     of the step, UTC
    error    of "failed" only: what was raised

A thread posts (see `_outbox`): a slow server costs steps that are not posted, and neither time nor
memory.
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
    as_sentence,
    described,
    received,
    tell_at_end,
    warn_user,
)
from logax._support.validation import at_least, in_seconds
from logax.loop._base import EnteredLogger, as_step, checked_view
from logax.loop._states import copied, in_order, on_their_way
from logax.loop._webhook import Outbox, Post, Webhook, checked_url

MOST_NUMBERS = 1000
COUNTABLE = 1e8  # seconds: what the operating system can count


class NotifyLogger(EnteredLogger):
    """Posts to a webhook on the steps that are due, and when the loop ends or fails.

        with NotifyLogger(url, EverySeconds(600), lambda state: {"energy": state.energy}) as logger:
            ...

    The posts are made on a thread of their own; `log` neither waits for the network nor for the
    device. Due steps that come faster than they can be posted are left out, and the next post says
    how many. What cannot be posted does not stop the run: one warning says so, or a note of the
    error that ends the loop. The URL is never shown, only its scheme and host. A redirect is
    followed on the same host, port and scheme only, so that no other server gets the values. In a
    `CompositeLogger` put it first: then it is left last, and what the others have to say of a
    failure, such as where states were dumped, is in its post.

    Args:
      url: Where to, http or https.
      schedule: When: a schedule, or a number n for every n-th step; None for the ends only.
      view: What to tell of the state: a dictionary of numbers, arrays and texts, or any pytree.
      timeout: Seconds to wait for the server. When the block is left, the posts that are still to
        be made are waited for up to twice as long.
      retries: How often to try again where the server cannot be reached or does not answer, and
        where it answers with 429, 500 or more. When the block is left, a server that cannot be
        reached is tried once more only.
      seconds_between: At least so many between one post and the next. The end does not wait for
        that.
      ends: Whether to post how the loop ended.

    Raises:
      ValueError: An option is wrong.
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
                "`NotifyLogger` without a schedule posts the ends only, and got "
                + ("a view, which needs steps." if ends else "`ends=False`, which leaves nothing.")
                + " Write `NotifyLogger(url, EveryNStep(1000), view)`."
            )
        self._retries = at_least(0, "NotifyLogger", "retries", retries)
        if not isinstance(ends, bool):
            raise ValueError(f"`NotifyLogger` takes `ends` as True or False, and got {ends!r}.")
        seconds = in_seconds("NotifyLogger", "timeout", timeout, zero=False)
        self._server = Webhook(checked_url(url), min(seconds, COUNTABLE))
        self._between = in_seconds("NotifyLogger", "seconds_between", seconds_between)
        self._view = None if view is None else checked_view("NotifyLogger", view)
        self._ends = ends
        self._step: int | None = None
        self._outbox: Outbox  # of one run: what is left of another is not its own

    def _begin(self) -> None:
        self._step = None
        self._outbox = Outbox(self._server, self._retries, self._between)

    def log(self, state: Any, step: int) -> None:
        """Post what the view gives, if that is due, soon."""
        self._step = step if isinstance(step, int) else as_step(self, step)
        super().log(state, step)

    def _take(self, state: Any, step: int) -> None:
        trouble = self._outbox.trouble()
        if trouble is not None:
            warn_user(trouble)
        values: Tree = {}
        if self._view is not None:
            try:
                values = on_their_way(copied(_checked(self._view(state))))
            except Exception as error:
                add_note(error, f"`NotifyLogger` was looking at step {step} with its view.")
                raise
        self._outbox.offer(Post("step", step, values))

    def _end(self, error: BaseException | None) -> None:
        last = None
        if self._ends:
            event = "finished" if error is None else "failed"
            last = Post(event, self._step, {}, "" if error is None else _told(error))
        self._outbox.close(last)
        trouble = self._outbox.trouble()
        if trouble is not None:
            tell_at_end(error, trouble)


def _told(error: BaseException) -> str:
    """An error in words, and then what was added to it."""
    notes = getattr(error, "__notes__", [])
    text = described(error).removesuffix(as_sentence("\n".join(notes)))
    return "\n".join([as_sentence(text.rstrip()), *notes]) if notes else text


def _checked(values: Tree) -> Tree:
    """What a view gave, if JSON can hold it."""
    for name, leaf in in_order(values):
        name = name or "value"
        if not (isinstance(leaf, (str, bool, int, float, complex)) or _is_array(leaf)):
            raise TypeError(
                f"`NotifyLogger` posts numbers, arrays and texts, and its view gave "
                f"{received(leaf)} for `{name}`. Convert it in the view."
            )
        if np.size(leaf) > MOST_NUMBERS:
            raise ValueError(
                f"`NotifyLogger` posts arrays of {MOST_NUMBERS} numbers at most, and its view gave "
                f"{np.size(leaf)} for `{name}`. Reduce it in the view."
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
