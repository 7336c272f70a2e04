"""Where `NotifyLogger` posts to. The URL may hold a secret: it is in no message.

What `NotifyLogger` posts, and the thread that posts it.

One step may wait for the thread, and a newer one takes its place, so that a slow server costs steps
that are not posted, and neither time nor memory. A post that fails is tried again; one that fails
for good is counted. The end of the block cuts all pauses short.
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
from logax._support.forks import renew_after_fork
from logax._support.messages import described
from logax.loop._states import line, named


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of a post."""

    failure: str | None = None
    again: bool = False  # whether to try it again
    wait: float | None = None  # for how long before, if the server says so
    reached: bool = True  # whether there is a server


class Webhook:
    """Where the posts go."""

    def __init__(self, url: urllib.parse.SplitResult, timeout: float) -> None:
        self._url, self.timeout = url.geturl(), timeout
        self.shown = f"{url.scheme}://{url.netloc}"
        self._opener = _opener(url.scheme)

    def post(self, body: bytes, deadline: float) -> Answer:
        """Post once. No text that the server sent comes back: it may repeat the URL."""
        request = urllib.request.Request(
            self._url, body, {"Content-Type": "application/json", "User-Agent": "logax"}
        )
        seconds = min(self.timeout, max(deadline - time.monotonic(), 0.001))
        try:
            with self._opener.open(request, timeout=seconds):
                return Answer()
        except urllib.error.HTTPError as error:
            error.close()
            failure = f"it answered with {error.code}"
            if 300 <= error.code < 400:
                failure += _refusal(error.code, self._url, error.headers)
            return Answer(failure, error.code == 429 or error.code >= 500, _asked(error.headers))
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                return Answer(f"it did not answer within {seconds:.3g} s", again=True)
            what = described(reason).rstrip(".") if isinstance(reason, OSError) else "no connection"
            return Answer(what, again=True, reached=False)
        except (http.client.HTTPException, ValueError) as error:
            return Answer(f"it answered with no HTTP ({type(error).__name__})", again=True)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect only where the same is to be posted again to the same server.

    A redirect to another server would hand the values to it. Other kinds of redirect would make a
    request without the body, which looks like a success.
    """

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request to make in its place."""
        if code not in (307, 308) or _server(req.full_url) != _server(newurl):
            return None
        return urllib.request.Request(newurl, req.data, dict(req.headers), method="POST")


def _server(url: str, location: str = "") -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of a URL, or of a location relative to it.

    None where they cannot be read, or where there is a user in front of the host.
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
    """Say why a redirect was not followed. The location is not shown: it may repeat the URL."""
    if _server(url) != _server(url, headers.get("Location", "")):
        return (
            ", which redirects to another host, port or scheme, and the values are not posted "
            "there; use the URL that it redirects to, if you trust it"
        )
    if code in (307, 308):
        return ", which redirects again and again"
    return ", which is a redirect that drops the values; use the URL that it redirects to"


def _opener(scheme: str) -> urllib.request.OpenerDirector:
    """What opens URLs of this scheme, and unlike the usual one nothing else."""
    opener = urllib.request.OpenerDirector()
    # The one for https reads all certificates of the machine, which takes a while.
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


def _asked(headers: Any) -> float | None:
    """For how many seconds the server asks to wait."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
        return max(date.timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


def checked_url(url: Any) -> urllib.parse.SplitResult:
    """The URL, in parts. Whatever is wrong with it, it is not shown: it may hold a secret."""
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


FIRST_PAUSE = 0.5  # seconds before the first retry; each further one waits twice as long,
LONGEST_PAUSE = 8.0  # up to this
LONGEST_ASKED = 30.0  # where the server says how long
LONGEST_TEXT = 1000  # characters
THREAD = "logax-notify"


@dataclasses.dataclass(frozen=True)
class Post:
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


class Outbox:
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
        self._waiting: list[Post] = []  # one at most
        self._skipped = 0
        self._undone = 0

    def offer(self, post: Post) -> None:
        """Have this posted, unless a newer one comes first."""
        with self._changed:
            replaces = bool(self._waiting)
            self._waiting = [post]
            self._skipped += replaces
            self._undone += not replaces
        if not replaces:
            self._worker.put(0, self._post_what_waits)

    def close(self, last: Post | None) -> None:
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
            post = self._waiting.pop()
        self._send(post)
        self._next = time.monotonic() + self._between

    def _send(self, post: Post) -> None:
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
