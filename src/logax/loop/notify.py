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

A thread posts. One step may wait for it, and a newer one takes its place, so that a slow server
costs steps that are not posted, and neither time nor memory. A post that fails is tried again; one
that fails for good is counted. The end of the block cuts all pauses short.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._checks import at_least, in_seconds
from logax._columns.rows import is_key_array
from logax._compat import Tree
from logax._delivery.forks import renew_after_fork
from logax._delivery.worker import Worker
from logax._errors import add_note, as_sentence, described, received, warn_user
from logax._schedule import OnSteps, Schedule
from logax.loop._copies import copied, in_order, line, named, on_their_way
from logax.loop._entered import EnteredLogger, as_step, checked_view
from logax.loop._webhook import Answer, Webhook, checked_url

FIRST_PAUSE = 0.5  # seconds before the first retry; each further one waits twice as long,
LONGEST_PAUSE = 8.0  # up to this
LONGEST_ASKED = 30.0  # where the server says how long
LONGEST_TEXT = 1000  # characters
MOST_NUMBERS = 1000
THREAD = "logax-notify"
COUNTABLE = 1e8  # seconds: what the operating system can count


class NotifyLogger(EnteredLogger):
    """Posts to a webhook on the steps that are due, and when the loop ends or fails.

        with NotifyLogger(url, EverySeconds(600), lambda state: {"energy": state.energy}) as logger:
            ...

    The posts are made on a thread of their own; `log` neither waits for the network nor for the
    device. Due steps that come faster than they can be posted are left out, and the next post says
    how many. What cannot be posted does not stop the run: one warning says so. The URL is never
    shown, only its scheme and host. In a `CompositeLogger` put it first: then it is left last, and
    what the others have to say of a failure, such as where states were dumped, is in its post.

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
        self._outbox: _Outbox  # of one run: what is left of another is not its own

    def _begin(self) -> None:
        self._step = None
        self._outbox = _Outbox(self._server, self._retries, self._between)

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
        self._outbox.offer(_Post("step", step, values))

    def _end(self, error: BaseException | None) -> None:
        last = None
        if self._ends:
            event = "finished" if error is None else "failed"
            last = _Post(event, self._step, {}, "" if error is None else _told(error))
        self._outbox.close(last)
        trouble = self._outbox.trouble()
        if trouble is not None:
            try:
                warn_user(trouble)
            except UserWarning:  # where warnings are errors
                if error is None:
                    raise
                add_note(error, trouble)


@dataclasses.dataclass(frozen=True)
class _Post:
    """What to post, with values that may still be on the device."""

    event: str
    step: int | None
    values: Tree
    error: str = ""
    time: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat())

    def body(self, skipped: int) -> bytes:
        """The JSON, once the device has the values."""
        values = named(self.values)
        parts = {
            "text": self._text(values),
            "event": self.event,
            "step": self.step,
            "values": {name: _plain(leaf) for name, leaf in values.items()},
            "skipped": skipped,
            "time": self.time,
        }
        if self.error:
            parts["error"] = self.error
        return json.dumps(parts, allow_nan=False).encode()

    def _text(self, values: dict[str, Any]) -> str:
        if self.event == "step":
            said = line(values)
            begin = f"step {self.step}"
        else:
            said = self.error
            when = "before the first step" if self.step is None else f"after step {self.step}"
            begin = f"{self.event} {when}"
        text = " ".join(f"{begin}: {said}".split() if said else begin.split())
        return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."


_RUNNING, _LEAVING, _GIVEN_UP = range(3)


class _Outbox:
    """What one run posts: a step that may wait, and the thread that posts it.

    For each step that begins to wait there is one job, which takes whatever waits by then.
    """

    def __init__(self, server: Webhook, retries: int, between: float) -> None:
        self._server, self._retries, self._between = server, retries, between
        self._worker = Worker(THREAD, short_turns=False)
        self._stage = _RUNNING
        self._reset()
        renew_after_fork(self)
        self._next = 0.0  # not before that time
        self._deadline = math.inf
        self._failed = 0
        self._first = ""  # failure
        self._told = False

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: _Post | None = None
        self._skipped = 0
        self._undone = 0

    def offer(self, post: _Post) -> None:
        """Have this posted, unless a newer one comes first."""
        with self._changed:
            replaces = self._waiting is not None
            self._waiting = post
            self._skipped += replaces
            self._undone += not replaces
        if not replaces:
            self._worker.put(0, self._post_what_waits)

    def close(self, last: _Post | None) -> None:
        """Wait for what is still to be posted, and for this, but not for long."""
        deadline = time.monotonic() + 2 * self._server.timeout
        ended = False
        try:
            with self._changed:
                self._stage, self._deadline = _LEAVING, deadline
                self._undone += last is not None
                self._changed.notify_all()
            if last is not None:
                self._worker.put(0, self._send, last)
            ended = self._worker.drain(deadline)
        finally:
            with self._changed:
                self._stage = _GIVEN_UP
                if not ended:
                    self._failed += self._undone
                    self._first = self._first or "the end of the block waited for it in vain"
                self._changed.notify_all()
            self._worker.stop()

    def trouble(self) -> str | None:
        """What to warn of, if something failed and was not told."""
        with self._changed:
            if self._told or not self._failed:
                return None
            self._told = True
            posts = "1 post" if self._failed == 1 else f"{self._failed} posts"
            more = " until now, and of further ones nothing will be said. The run goes on."
            return (
                f"`NotifyLogger` could not post to {self._server.shown}: {self._first}. {posts} "
                f"failed{more if self._stage == _RUNNING else '.'}"
            )

    def _post_what_waits(self) -> None:
        with self._changed:
            seconds = max(self._next - time.monotonic(), 0)
            self._changed.wait_for(lambda: self._stage != _RUNNING, seconds)
            post, self._waiting = self._waiting, None
        if post is not None:
            self._send(post)
        self._next = time.monotonic() + self._between

    def _send(self, post: _Post) -> None:
        with self._changed:
            skipped, self._skipped = self._skipped, 0
            if self._stage == _GIVEN_UP:
                return
        try:
            failure = self._tried(post.body(skipped))
        except Exception as error:  # noqa: BLE001 - told in the thread of the loop
            failure = f"there are no values of step {post.step}: {described(error).rstrip('.')}"
        with self._changed:
            self._undone -= 1
            if failure is not None:
                self._skipped += skipped
                self._failed += 1
                self._first = self._first or failure

    def _tried(self, body: bytes) -> str | None:
        """Post, if need be again and again; what failed in the end, or None."""
        pause, tries = FIRST_PAUSE, 0
        while True:
            answer = self._server.post(body, self._deadline)
            if answer.failure is None or not answer.again or tries >= self._most_retries(answer):
                return answer.failure
            wait = pause if answer.wait is None else min(answer.wait, LONGEST_ASKED)
            if time.monotonic() + wait >= self._deadline or not self._paused(wait):
                return answer.failure
            pause, tries = min(2 * pause, LONGEST_PAUSE), tries + 1

    def _most_retries(self, answer: Answer) -> int:
        """Whoever leaves is not to be kept by a server that is not there, or not well."""
        if self._stage == _RUNNING or (answer.reached and not self._failed):
            return self._retries
        return 0 if self._failed else min(self._retries, 1)

    def _paused(self, seconds: float) -> bool:
        """Wait, but not into the next stage: who leaves does not wait. Then, whether to go on."""
        with self._changed:
            stage = self._stage
            self._changed.wait_for(lambda: self._stage != stage, seconds)
            return self._stage != _GIVEN_UP


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


def _plain(leaf: Any) -> Any:
    """A value on the host, as JSON can hold it."""
    if isinstance(leaf, (str, bool, int)):
        return leaf
    array = np.asarray(leaf)
    if jnp.issubdtype(array.dtype, jnp.floating):  # those that NumPy lacks, too
        array = array.astype(np.float64)
    elif array.dtype.kind == "V":
        array = array.astype(np.int64)
    return _json_numbers(array.tolist())


def _json_numbers(x: Any) -> Any:
    if isinstance(x, list):
        return [_json_numbers(each) for each in x]
    if isinstance(x, complex) or (isinstance(x, float) and not math.isfinite(x)):
        return str(x)
    return x
