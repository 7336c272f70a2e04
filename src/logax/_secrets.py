"""Remove credentials from text and errors before anybody sees them.

Errors of services quote the URL that was used, and a URL may hold a password, a token, or be a
secret as a whole, as those of webhooks are. `redacted` replaces these parts with `***`; host and
port stay. The patterns rather hide too much than too little.
"""

from __future__ import annotations

import re
import traceback

HIDDEN = "***"

_END = r"\s'\"<>`"  # characters that end a URL in running text
_PATTERNS = (
    # The user and the password of a URL. A password may hold "/" and "@", although it should not.
    (re.compile(rf"(\b[a-z][a-z0-9+.\-]*://)[^{_END}]*@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    # Webhooks, whose path is the secret: Slack, Mattermost, Discord, Teams, Telegram.
    (
        re.compile(
            rf"(\bhttps?://[^/{_END}]+)/(?:services|hooks|api/(?:v\d+/)?webhooks|webhook\w*|bot\d+:)"
            rf"[^{_END}]*",
            re.IGNORECASE,
        ),
        rf"\1/{HIDDEN}",
    ),
    # Parameters of a query whose name says that they are secret.
    (
        re.compile(
            rf"([?&;][^=&;#{_END}]*(?:token|key|secret|passw|pwd|auth|sig|cred|session|jwt)"
            rf"[^=&;#{_END}]*=)[^&;#{_END}]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # The header of a request, as servers quote it.
    (re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._~\-]{6,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
)


def redacted(text: str) -> str:
    """Return the text with `***` in place of each credential."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def without_secrets(error: BaseException) -> BaseException:
    """Redact an error and all errors that its traceback shows, in place.

    Returns:
      The same error; or, where its text cannot be changed, one that stands for it.
    """
    return _cleaned(error, {})


def _cleaned(error: BaseException, done: dict[int, BaseException]) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    done[id(error)] = error
    if _shows_secret(error):
        _redact_text(error, done)
    children = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    cleaned = [_cleaned(each, done) for each in children]
    if _shows_secret(error) or any(a is not b for a, b in zip(children, cleaned, strict=True)):
        done[id(error)] = error = _stand_in(error, cleaned)
    for link in ("__cause__", "__context__"):
        before = getattr(error, link)
        after = None if before is None else _cleaned(before, done)
        if after is not before:
            suppressed = error.__suppress_context__  # assigning a cause sets it
            setattr(error, link, after)
            error.__suppress_context__ = suppressed
    return error


def _stand_in(error: BaseException, children: list[BaseException]) -> BaseException:
    """Return an error that shows what this one does, which does not let itself be changed."""
    other: BaseException
    if isinstance(error, BaseExceptionGroup):
        other = BaseExceptionGroup(redacted(error.message), children)
    else:
        other = RuntimeError(f"{type(error).__name__}: {redacted(str(error))}")
    for note in getattr(error, "__notes__", ()):
        other.add_note(redacted(note))
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other.with_traceback(error.__traceback__)


def _redact_text(error: BaseException, done: dict[int, BaseException]) -> None:
    """Redact the strings of an error, and the errors in its arguments."""
    try:
        error.args = tuple(
            _cleaned(each, done) if isinstance(each, BaseException) else _redacted_value(each)
            for each in error.args
        )
        for name, value in vars(error).items():
            setattr(error, name, _redacted_value(value))
    except (AttributeError, TypeError):  # of a frozen class
        return


def _redacted_value(value: object) -> object:
    if isinstance(value, list):  # of notes
        return [_redacted_value(each) for each in value]
    return redacted(value) if isinstance(value, str) else value


def _shows_secret(error: BaseException) -> bool:
    text = "".join(traceback.format_exception_only(error))
    return redacted(text) != text
