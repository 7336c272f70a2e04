"""What MLflow lets pass: names, parameters, a server that is there, and errors that say more.

**Names.** MLflow takes letters, digits, and `_`, `-`, `.`, `:`, `/` and spaces, and only names that
are paths in their plainest form. All else is written between colons, as the hexadecimal code of the
character: `loss%` is `loss:25:`, and a colon itself `:3a:`. The dots of a part that is `.` or `..`
are written so too, and an empty part as `::`: `../x` is `:2e::2e:/x`, `a//b` is `a/::/b`.
`original_name` turns it round. A name that would have more than 250 characters is cut, and ends
with `::` and the SHA-256 of the original.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from logax._errors import described
from logax._secrets import redacted, without_secrets
from logax.loggers._text.cells import as_json

NAME = "MLflowLogger"

_LONGEST_NAME = 250
_LONGEST_PARAM = 6000
TAG_LENGTH = 5000  # characters; what servers of all versions take
_PATIENCE = 10.0  # seconds until a server that does not answer is taken for none

_CONFIG = "logax.config"  # tags, with a number behind
_FOREIGN = re.compile(r"[^/\w.\- ]")
_ESCAPE = re.compile(r":([0-9a-f]*):")


def mlflow_name(name: str) -> str:
    """The name under which MLflow takes a metric, parameter or tag. No two are the same."""
    plain = "/".join(_part(part) for part in _FOREIGN.sub(_escaped, name).split("/"))
    if plain.startswith(".."):
        plain = f":2e:{plain[1:]}"
    if len(plain) <= _LONGEST_NAME:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    begin = plain[: _LONGEST_NAME - len(digest) - 2]
    if begin.count(":") % 2:  # within an escape
        begin = begin[: begin.rindex(":")]
    return f"{begin.rstrip('/.')}::{digest}"


def original_name(name: str) -> str:
    """The name before `mlflow_name`, unless it was cut."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", name)


def was_cut(name: str, original: str) -> bool:
    """Whether a name is not all of the original."""
    return original_name(name) != original


def params_of(config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the config of a run as parameters, and tags for what parameters cannot hold.

    Dictionaries are flattened: `{"model": {"layers": 2}}` gives `model/layers`. Lists and arrays
    are JSON. A value of more than 6,000 characters is cut; then all of the config is in the tags
    `logax.config.0`, `logax.config.1`, ... as pieces of one JSON text.
    """
    flat = dict(_flat(as_json(config)))
    params = {
        mlflow_name(name): text if len(text) <= _LONGEST_PARAM else f"{text[: _LONGEST_PARAM - 1]}…"
        for name, text in flat.items()
    }
    names = ((mlflow_name(name), name) for name in flat)
    cut = any(len(text) > _LONGEST_PARAM for text in flat.values())
    if not cut and not any(was_cut(*pair) for pair in names):
        return params, {}
    return params, config_tags(config)


def config_tags(config: Mapping[str, Any], before: Iterable[str] = ()) -> dict[str, str]:
    """Return the tags that hold a config, and empty ones for the pieces of `before` beyond them.

    `before` are the names of the tags that the run has.
    """
    tags = dict.fromkeys((x for x in before if x.startswith(f"{_CONFIG}.")), "")
    return tags | dict(pieces(_CONFIG, json.dumps(as_json(config), ensure_ascii=False)))


def stored_config(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the config that the tags of a run hold; it is empty where they do not hold one."""
    names = (f"{_CONFIG}.{number}" for number in itertools.count())
    text = "".join(tags[name] for name in itertools.takewhile(tags.__contains__, names))
    try:
        config = json.loads(text)
    except json.JSONDecodeError:  # no tags, or a user has edited them
        return {}
    return config if isinstance(config, dict) else {}


def pieces(name: str, text: str) -> Iterator[tuple[str, str]]:
    """A text of any length as tags."""
    for number, start in enumerate(range(0, len(text), TAG_LENGTH)):
        yield f"{name}.{number}", text[start : start + TAG_LENGTH]


def has_secret(uri: str) -> bool:
    """Whether an address holds a user, a password or a token."""
    return redacted(uri) != uri


def check_reachable(uri: str) -> None:
    """Raise soon where nobody listens: MLflow itself would try again for some minutes.

    How often it does is set for the whole process only. Behind a proxy nothing can be said.
    """
    if not uri.lower().startswith(("http://", "https://")):
        return
    address = _split_address(uri)
    if not address.hostname:
        return
    proxied = address.scheme in urllib.request.getproxies()
    if proxied and not urllib.request.proxy_bypass(address.hostname):
        return
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), _PATIENCE).close()
    except OSError as error:
        raise ConnectionError(
            f"`{NAME}` cannot reach the MLflow server at {address.scheme}://"
            f"{address.hostname}:{port} ({error}). Start it with `mlflow server`, or give the "
            "`tracking_uri` of another."
        ) from error


def _split_address(uri: str) -> urllib.parse.SplitResult:
    """Split an http address whose host and port can be read, or raise without showing it."""
    with contextlib.suppress(ValueError):
        address = urllib.parse.urlsplit(uri)
        _ = address.port
        if "@" in address.netloc or "@" not in uri:
            return address
    # Outside of the block above: its error may quote a part of the password.
    raise ValueError(
        f"`{NAME}` got a `tracking_uri` whose host or port cannot be read. Quote the user and the "
        'password in it: `urllib.parse.quote(password, safe="")`.'
    )


@contextlib.contextmanager
def telling_loss(errors: type[Exception], what: str) -> Iterator[None]:
    """Have an error say what could not be done.

    Raises:
      ConnectionError: Nobody answers.
      RuntimeError: MLflow does, and refuses.
    """
    try:
        yield
    except (ConnectionError, errors) as error:
        # What MLflow raises where nobody answers is the same type, raised while it had the other.
        is_gone = isinstance(error, ConnectionError) or isinstance(error.__context__, OSError)
        kind = ConnectionError if is_gone else RuntimeError
        raise kind(f"`{NAME}` could not {what}: {described(error)}") from without_secrets(error)


@contextlib.contextmanager
def telling_refusal(errors: type[Exception]) -> Iterator[None]:
    """Have an error say that it is about what users gave."""
    try:
        yield
    except errors as error:
        raise ValueError(
            f"`{NAME}` got what MLflow does not take: {described(error)}"
        ) from without_secrets(error)


def _flat(values: dict[str, Any], begin: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{begin}{key}/")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{begin}{key}", text


def _escaped(found: re.Match[str]) -> str:
    return f":{ord(found[0]):x}:"


def _part(part: str) -> str:
    if not part:
        return "::"
    return part.replace(".", ":2e:") if part in (".", "..") else part
