"""Remove credentials from text and errors before they are shown.

Errors of services quote the URL of the request. A URL may contain a password or a token, and the
URL of a webhook is a secret as a whole. `redact` replaces these parts with `***` and keeps host and
port. It also replaces the values of parameters, settings and headers with secret names. For
ambiguous text the patterns hide too much rather than too little, but logged names and numbers, such
as `token_accuracy=0.5`, stay.
"""

from __future__ import annotations

import re
import traceback

HIDDEN = "***"

_END = r"\s'\"<>`"  # characters that end a URL in running text
_QUOTE = r"['\"`]"
_QUOTED = r"'[^'\n]+'|\"[^\"\n]+\"|`[^`\n]+`"
_INNER_QUOTE = rf"{_QUOTE}(?=\w)"  # a quote within a word, which does not end it
_HIDDEN = re.escape(HIDDEN)
# A number after a host: a port, unless an "@" in the next word says that it begins a password.
_PORT = rf"\d{{1,5}}(?=[/?#,;:.)\]}}>]|{_QUOTE}(?:[\s,;:.)\]}}>]|$)|\s+[^\s@]*(?:\s|$)|$)"
_MEASURED = r"[-+]?(?:\d+\.\d*|\.\d+|nan|inf)(?:e[-+]?\d+)?(?![^\s,;&#)\]}'\"])"  # not a secret
_UNSET = r"(?:None|null|True|False)\b"

_WEBHOOK = (
    re.compile(
        # The host, or the words of `urllib3` and of servers before a path; then any first folders.
        rf"(\bhttps?://(?:{_HIDDEN}@)?[\w.\-\[\]]+(?::\d+)?"
        r"|\burl: ?|\b(?:GET|POST|PUT|PATCH|HEAD) )"
        rf"(?:/[^/?#{_END}]*)*?/(?:services/|hooks/|\w*webhook|bot\d+:)[^{_END}]*",
        re.IGNORECASE,
    ),
    rf"\1/{HIDDEN}",
)
_PATTERNS = (
    # Webhooks, whose path is the secret: Slack, Mattermost, Discord, Teams, Telegram. Those of
    # Teams hold "@", so they come before the passwords of URLs, and again after these.
    _WEBHOOK,
    (re.compile(rf"(\bhooks\.slack\.com(?::\d+)?)/[^{_END}]*", re.IGNORECASE), rf"\1/{HIDDEN}"),
    # The user and the password of a URL. A password may hold "/", "@", quotes and spaces, although
    # it should not.
    (
        re.compile(
            rf"(\b[a-z][a-z0-9+.\-]{{0,30}}://)(?!{_HIDDEN}@)"
            rf"(?:(?:[^{_END}]|{_INNER_QUOTE}){{0,2048}}@"
            rf"|[^/?#:{_END}]*:(?!{_PORT})[^\n]{{0,256}}?@(?:[^{_END}]*@)?)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}@",
    ),
    _WEBHOOK,
    # The path of a webhook without its host.
    (
        re.compile(
            rf"(?:(?<![\w.~\-/*])/{{1,2}}(?:services|hooks|webhooks?)/"
            rf"|/{{1,2}}api/(?:v\d+/)?webhooks/|/{{1,2}}bot\d+:)[^{_END}]+",
            re.IGNORECASE,
        ),
        f"/{HIDDEN}",
    ),
    # Parameters of a query or fragment whose name says that they are secret.
    (
        re.compile(
            rf"([?&;#][^=&;#{_END}]*(?:token|key|secret|passw|pwd|auth|sig|cred|session|jwt)"
            rf"[^=&;#{_END}]*=)(?!{_MEASURED})"
            rf"(?:{_QUOTED}|{_QUOTE}?(?:[^&;#{_END}]|{_INNER_QUOTE})+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # The header of a request, as servers quote it.
    (
        re.compile(
            rf"\b(authorization['\"]?\s?[:=]\s?{_QUOTE}?(?:[a-z][\w\-]*[ ]+)?)"
            rf"(?:(?<=\w)=\"[^\s\",:]+\"|[^,{_END}]|,[ ]?(?=\w+=))+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._~\-]{6,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    # Other headers, settings and variables whose whole name says that they are secret. A word after
    # a colon that begins a sentence is not a value.
    (
        re.compile(
            r"((?:\bx-(?:[\w\-]{0,40}-)?(?:key|token|secret|auth)['\"]?\s?[:=]\s?"
            r"|(?:passw(?:or)?d|passphrase|(?<![a-z0-9])(?:(?:client[_\-]?)?secret"
            r"|(?:api|access|secret|private|account|auth)[_\-]?key"
            r"|(?:access|api|auth|bearer|bot|hf|id|private|refresh|secret|security|session|tracking)"
            r"[_\-]?token|(?<![\w.\-])token(?=['\"]?\s?=|['\"]:)))"
            r"['\"]?\s?(?:=|:(?!\s?[a-z]+[,.]? [a-z]))\s?)"
            rf"(?!=|{_HIDDEN}|{_UNSET}|{_MEASURED}))"
            rf"(?:{_QUOTED}|{_QUOTE}?(?:[^{_END}]|{_INNER_QUOTE})+?(?=[),.;:\]}}]*(?:[{_END}]|$)))",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)


def redact(text: str) -> str:
    """Replace each credential in a text with `***`."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_error(error: BaseException) -> BaseException:
    """Redact an error and all errors that its traceback shows, in place.

    Returns:
      The same error, or a substitute if its text cannot be changed.
    """
    return _redact_chain(error, {})


def _redact_chain(error: BaseException, done: dict[int, BaseException]) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    done[id(error)] = error
    if _shows_secret(error):
        _redact_text(error, done)
    children = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    cleaned = [_redact_chain(each, done) for each in children]
    if _shows_secret(error) or any(a is not b for a, b in zip(children, cleaned, strict=True)):
        done[id(error)] = error = _substitute(error, cleaned)
    for link in ("__cause__", "__context__"):
        before = getattr(error, link)
        after = None if before is None else _redact_chain(before, done)
        if after is not before:
            suppressed = error.__suppress_context__  # assigning a cause sets it
            setattr(error, link, after)
            error.__suppress_context__ = suppressed
    return error


def _substitute(error: BaseException, children: list[BaseException]) -> BaseException:
    """Return a redacted substitute for an error whose text cannot be changed."""
    other: BaseException
    if isinstance(error, BaseExceptionGroup):
        other = BaseExceptionGroup(redact(error.message), children)
    else:
        other = RuntimeError(f"{type(error).__name__}: {redact(str(error))}")
    for note in getattr(error, "__notes__", ()):
        other.add_note(redact(note))
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other.with_traceback(error.__traceback__)


def _redact_text(error: BaseException, done: dict[int, BaseException]) -> None:
    """Redact the strings of an error and the errors in its arguments, if its class allows it."""
    try:
        error.args = tuple(
            _redact_chain(each, done) if isinstance(each, BaseException) else _redact_value(each)
            for each in error.args
        )
        for name, value in vars(error).items():
            setattr(error, name, _redact_value(value))
    except (AttributeError, TypeError):  # of a frozen class
        return


def _redact_value(value: object) -> object:
    if isinstance(value, list):  # of notes
        return [_redact_value(each) for each in value]
    return redact(value) if isinstance(value, str) else value


def _shows_secret(error: BaseException) -> bool:
    text = "".join(traceback.format_exception_only(error))
    return redact(text) != text
