"""Post JSON to a webhook from a background thread, with retries.

`Webhook` makes one HTTP request, `Post` is the content of one, and `Outbox` queues them for the
thread. The queue holds one step: a newer step replaces it, so a slow server costs skipped steps,
but neither time nor memory. The outbox retries a post that fails, and counts those that fail for
good. Closing the outbox cuts all pauses short.

The URL may contain a secret and appears in no message.
"""

from __future__ import annotations

import dataclasses
import email.utils
import http.client
import json
import math
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from typing import Any

import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._delivery.worker import Worker
from logax._support.messages import describe_error
from logax._support.processes import reset_after_fork
from logax.loop._pytrees import fetch_leaves_by_name, format_line


@dataclasses.dataclass(frozen=True)
class PostResult:
    """Result of one HTTP request.

    Attributes:
      failure: Reason of the failure, or None if the server accepted the post.
      again: True if a retry may succeed.
      wait: Seconds to wait before a retry, if the server asked for that.
      reached: False if there was no connection to the server.
    """

    failure: str | None = None
    again: bool = False
    wait: float | None = None
    reached: bool = True


class Webhook:
    """An HTTP endpoint that takes posts.

    Attributes:
      timeout: Seconds to wait for an answer.
      shown: Scheme and host, for messages.
    """

    def __init__(self, url: urllib.parse.SplitResult, timeout: float) -> None:
        self._url, self.timeout = url.geturl(), timeout
        self.shown = f"{url.scheme}://{url.netloc}"
        self._make_opener = _make_opener(url.scheme)

    def post(self, body: bytes, deadline: float) -> PostResult:
        """Post once. The result quotes no text of the server, which may repeat the URL."""
        request = urllib.request.Request(
            self._url, body, {"Content-Type": "application/json", "User-Agent": "logax"}
        )
        seconds = min(self.timeout, max(deadline - time.monotonic(), 0.001))
        try:
            with self._make_opener.open(request, timeout=seconds):
                return PostResult()
        except urllib.error.HTTPError as error:
            error.close()
            failure = f"it answered with {error.code}"
            if 300 <= error.code < 400:
                failure += _refusal(error.code, self._url, error.headers)
            return PostResult(
                failure, error.code == 429 or error.code >= 500, _retry_after(error.headers)
            )
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return PostResult(f"it did not answer within {seconds:.3g} s", again=True)
            what = (
                describe_error(reason).rstrip(".")
                if isinstance(reason, OSError)
                else "no connection"
            )
            return PostResult(what, again=True, reached=False)
        except (http.client.HTTPException, ValueError) as error:
            return PostResult(f"it answered with no HTTP ({type(error).__name__})", again=True)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only if it repeats the post, and only on the same server.

    A redirect to another server would reveal the values to it. Redirects other than 307 and 308
    would send a request without the body, which looks like a success.
    """

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request that follows the redirect, or None to refuse it."""
        if code not in (307, 308) or _server(req.full_url) != _server(newurl):
            return None
        return urllib.request.Request(newurl, req.data, dict(req.headers), method="POST")


def _server(url: str, location: str = "") -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of a URL, or of a location relative to it.

    Return None if they cannot be parsed, or if the URL has a user before the host.
    """
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(url, location))
        port = parts.port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


def _refusal(code: int, url: str, headers: Any) -> str:
    """Explain why a redirect was not followed, without its location, which may repeat the URL."""
    if _server(url) != _server(url, headers.get("Location", "")):
        return (
            ", which redirects to another host, port or scheme, and the values are not posted "
            "there; use the URL that it redirects to, if you trust it"
        )
    if code in (307, 308):
        return ", which redirects again and again"
    return ", which is a redirect that drops the values; use the URL that it redirects to"


def _make_opener(scheme: str) -> urllib.request.OpenerDirector:
    """Return an opener for URLs of this scheme only, unlike `build_opener`."""
    opener = urllib.request.OpenerDirector()
    # The handler for https loads all certificates of the machine, which is slow.
    opener.add_handler(_HANDLERS[scheme]())
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
        _Redirects,
    ):
        opener.add_handler(handler())
    return opener


_HANDLERS = {"http": urllib.request.HTTPHandler, "https": urllib.request.HTTPSHandler}


def _retry_after(headers: Any) -> float | None:
    """Return the seconds that the server asks to wait, or None."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
        return max(date.timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


def parse_url(url: Any) -> urllib.parse.SplitResult:
    """Parse and validate a URL. The errors do not show it, since it may contain a secret."""
    want = "`NotifyLogger` takes the URL of a webhook, such as `https://example.org/hooks/1`, and "
    if not isinstance(url, str):
        raise ValueError(f"{want}got something of type `{type(url).__name__}`.")
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ValueError(f"{want}got one with characters that must be quoted (`%20` for a space).")
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(f"{want}got one whose host or port cannot be read.") from None
    if parts.scheme not in _HANDLERS:
        kind = f"one that begins with `{parts.scheme}:`" if parts.scheme else "one without `https:`"
        raise ValueError(f"{want}got {kind}. It posts to http and https only.")
    if not parts.hostname:
        raise ValueError(f"{want}got one without a host.")
    if "@" in parts.netloc:
        raise ValueError(f"{want}got one with a user before the host, which is not sent. Drop it.")
    return parts


FIRST_RETRY_SECONDS = 0.5  # pause before the first retry; each further pause is twice as long
MAX_RETRY_SECONDS = 8.0
MAX_RETRY_AFTER_SECONDS = 30.0  # if the server asks for a pause
MAX_TEXT_CHARACTERS = 1000
THREAD_NAME = "logax-notify"


@dataclasses.dataclass(frozen=True)
class Post:
    """Content of one post; its values may still be on the device.

    Attributes:
      event: "step", "finished" or "failed".
      step: Number of the step, or None if there was none.
      values: Values of the view.
      error: The exception that ended the loop, as text.
      time: Time of the event, in UTC.
    """

    event: str
    step: int | None
    values: Tree
    error: str = ""
    time: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat())

    def body(self, skipped: int) -> bytes:
        """Return the JSON; waits for the values."""
        values = fetch_leaves_by_name(self.values)
        parts = {
            "text": self._text(values),
            "event": self.event,
            "step": self.step,
            "values": {name: _to_json(leaf) for name, leaf in values.items()},
            "skipped": skipped,
            "time": self.time,
        }
        if self.error:
            parts["error"] = self.error
        return json.dumps(parts, allow_nan=False).encode()

    def _text(self, values: dict[str, Any]) -> str:
        if self.event == "step":
            detail = format_line(values)
            begin = f"step {self.step}"
        else:
            detail = self.error
            when = "before the first step" if self.step is None else f"after step {self.step}"
            begin = f"{self.event} {when}"
        text = " ".join(f"{begin}: {detail}".split() if detail else begin.split())
        return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[: MAX_TEXT_CHARACTERS - 3]}..."


_RUNNING, _CLOSING, _CLOSED = range(3)


class Outbox:
    """Posts of one run, made by a thread: at most one step waits, and a newer one replaces it.

    Each step that does not replace another enqueues one job, which posts the step that waits when
    the job runs.
    """

    def __init__(self, server: Webhook, retries: int, interval_seconds: float) -> None:
        self._server, self._retries, self._interval_seconds = server, retries, interval_seconds
        self._worker = Worker(THREAD_NAME, short_turns=False)
        self._stage = _RUNNING
        self._reset()
        reset_after_fork(self)
        self._next = 0.0  # earliest time of the next step
        self._deadline = math.inf
        self._failed = 0  # number of posts
        self._first_failure = ""
        self._has_warned = False

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Post] = []  # one at most
        self._skipped = 0
        self._outstanding = 0

    def offer(self, post: Post) -> None:
        """Enqueue a post, in place of the one that is waiting."""
        with self._changed:
            replaces = bool(self._waiting)
            self._waiting = [post]
            self._skipped += replaces
            self._outstanding += not replaces
        if not replaces:
            self._worker.put(0, self._post_newest)

    def close(self, last: Post | None) -> None:
        """Post `last`, and wait for all posts, for at most twice the timeout."""
        deadline = time.monotonic() + 2 * self._server.timeout
        ended = False
        try:
            with self._changed:
                self._stage, self._deadline = _CLOSING, deadline
                self._outstanding += last is not None
                self._changed.notify_all()
            if last is not None:
                self._worker.put(0, self._send, last)
            ended = self._worker.drain(deadline)
        finally:
            with self._changed:
                self._stage = _CLOSED
                if not ended:
                    self._failed += self._outstanding
                    self._first_failure = (
                        self._first_failure or "it was not done in time at the end of the loop"
                    )
                self._changed.notify_all()
            self._worker.stop()

    def take_warning(self) -> str | None:
        """Return the warning about posts that failed, once; else None."""
        with self._changed:
            if self._has_warned or not self._failed:
                return None
            self._has_warned = True
            posts = "1 post" if self._failed == 1 else f"{self._failed} posts"
            more = " so far, and further failures will not be reported. The run continues."
            return (
                f"`NotifyLogger` could not post to {self._server.shown}: {self._first_failure}. "
                f"{posts} failed{more if self._stage == _RUNNING else '.'}"
            )

    def _post_newest(self) -> None:
        with self._changed:
            seconds = max(self._next - time.monotonic(), 0)
            self._changed.wait_for(lambda: self._stage != _RUNNING, seconds)
            post = self._waiting.pop()
        self._send(post)
        self._next = time.monotonic() + self._interval_seconds

    def _send(self, post: Post) -> None:
        with self._changed:
            skipped, self._skipped = self._skipped, 0
            if self._stage == _CLOSED:
                return
        try:
            failure = self._post_with_retries(post.body(skipped))
        except Exception as error:  # noqa: BLE001 - reported in the thread of the loop
            failure = (
                f"the values of step {post.step} could not be computed: "
                f"{describe_error(error).rstrip('.')}"
            )
        with self._changed:
            self._outstanding -= 1
            if failure is not None:
                self._skipped += skipped
                self._failed += 1
                self._first_failure = self._first_failure or failure

    def _post_with_retries(self, body: bytes) -> str | None:
        """Post, with retries. Return the last failure, or None."""
        pause, tries = FIRST_RETRY_SECONDS, 0
        while True:
            answer = self._server.post(body, self._deadline)
            if answer.failure is None or not answer.again or tries >= self._max_retries(answer):
                return answer.failure
            wait = pause if answer.wait is None else min(answer.wait, MAX_RETRY_AFTER_SECONDS)
            if time.monotonic() + wait >= self._deadline or not self._pause(wait):
                return answer.failure
            pause, tries = min(2 * pause, MAX_RETRY_SECONDS), tries + 1

    def _max_retries(self, answer: PostResult) -> int:
        """Return the number of retries: fewer at the end, where a bad server must not delay."""
        if self._stage == _RUNNING or (answer.reached and not self._failed):
            return self._retries
        return 0 if self._failed else min(self._retries, 1)

    def _pause(self, seconds: float) -> bool:
        """Wait, at most until the stage changes. Return False if the outbox has given up."""
        with self._changed:
            stage = self._stage
            self._changed.wait_for(lambda: self._stage != stage, seconds)
            return self._stage != _CLOSED


def _to_json(leaf: Any) -> Any:
    """Convert a value on the host to JSON types."""
    if isinstance(leaf, (str, bool, int)):
        return leaf
    array = np.asarray(leaf)
    if jnp.issubdtype(array.dtype, jnp.floating):  # also dtypes that NumPy lacks
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
