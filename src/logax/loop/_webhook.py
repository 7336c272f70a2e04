"""Where `NotifyLogger` posts to. The URL may hold a secret: it is in no message."""

from __future__ import annotations

import dataclasses
import email.utils
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from logax._errors import described


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
