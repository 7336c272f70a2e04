"""Credentials are in no message, warning, traceback or file, whoever wrote the text first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
from logax._support.messages import add_note, describe_error, describe_value, warn_user
from logax._support.redaction import redact, redact_error
from logax.loggers.mlflow import MLflowLogger
from logax.loggers.wandb import WandbLogger

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"GET http://user:{SECRET}@host:5000/api failed", "GET http://***@host:5000/api failed"),
        (f"http://{SECRET}@host", "http://***@host"),
        (f"postgresql://user:{SECRET}/@{SECRET}@host/db", "postgresql://***@host/db"),
        (f"see 'https://u:{SECRET}@h/x', or a@b", "see 'https://***@h/x', or a@b"),
        (f"https://h/x?a=1&api_key={SECRET}&b=2", "https://h/x?a=1&api_key=***&b=2"),
        (f"/x?X-Amz-Signature={SECRET} failed", "/x?X-Amz-Signature=*** failed"),
        (f"https://hooks.slack.com/services/T0/B0/{SECRET}", "https://hooks.slack.com/***"),
        (f"https://discord.com/api/webhooks/1/{SECRET}", "https://discord.com/***"),
        (f"https://api.telegram.org/bot12:{SECRET}/send", "https://api.telegram.org/***"),
        (f"https://chat.example.org/hooks/{SECRET} 404", "https://chat.example.org/*** 404"),
        (f"Authorization: Basic {SECRET}==", "Authorization: Basic ***"),
        (f"'authorization': 'bearer {SECRET}'", "'authorization': 'bearer ***'"),
        # Passwords that should have been quoted.
        (f"http://user:a'{SECRET}@host/x", "http://***@host/x"),
        (f'http://user:{SECRET}"b@host/x', "http://***@host/x"),
        (f"http://user:a`{SECRET}@host/x", "http://***@host/x"),
        (f"http://user:a {SECRET}@host:5000/x, a@b", "http://***@host:5000/x, a@b"),
        (f"http://user:12 {SECRET}@host", "http://***@host"),
        (f"http://user:12'{SECRET}@host", "http://***@host"),
        (f"http://user:a' /{SECRET}@b@host", "http://***@host"),
        (f"http://a'{SECRET}@host", "http://***@host"),
        # Webhooks, with other paths, and without their host as `urllib3` quotes them.
        (f"exceeded with url: /api/webhooks/1/{SECRET} (Caused", "exceeded with url: /*** (Caused"),
        (f"exceeded with url: /services/T0/{SECRET} (Caused", "exceeded with url: /*** (Caused"),
        (f"exceeded with url: /bot12:{SECRET}/send (Caused", "exceeded with url: /*** (Caused"),
        (f"exceeded with url: /a/hooks/{SECRET} (Caused", "exceeded with url: /*** (Caused"),
        (f"'POST /services/T0/{SECRET} HTTP/1.1'", "'POST /*** HTTP/1.1'"),
        (f"path='/hooks/{SECRET}'", "path='/***'"),
        (f"https://hooks.slack.com/workflows/T0/{SECRET}", "https://hooks.slack.com/***"),
        (f"hooks.slack.com/triggers/T0/{SECRET}", "hooks.slack.com/***"),
        (f"discord.com/api/v10/webhooks/1/{SECRET}", "discord.com/***"),
        (f"https://host//services/T0/{SECRET}", "https://host/***"),
        (f"https://host:80/prefix/hooks/{SECRET} 404", "https://host:80/*** 404"),
        (f"https://u:{SECRET}@host/a/hooks/{SECRET}", "https://***@host/***"),
        (f"https://a.office.com/webhookb2/b@c/In/{SECRET}", "https://a.office.com/***"),
        # Parameters, settings and headers.
        (f"https://h/#access_token={SECRET}", "https://h/#access_token=***"),
        (f"https://h/x?token='{SECRET}' failed", "https://h/x?token=*** failed"),
        (f"https://h/x?password=a'{SECRET}&b=2", "https://h/x?password=***&b=2"),
        (f"Server=h;Uid=u;Pwd={SECRET};", "Server=h;Uid=u;Pwd=***;"),
        (f"login(password={SECRET}) failed", "login(password=***) failed"),
        (f"login(password='a {SECRET}', b=2)", "login(password=***, b=2)"),
        (f"password: {SECRET} was refused", "password: *** was refused"),
        (f"WANDB_API_KEY={SECRET}", "WANDB_API_KEY=***"),
        (f"token={SECRET}", "token=***"),
        (f"X-Api-Key: {SECRET} refused", "X-Api-Key: *** refused"),
        (f"{{'X-Api-Key': '{SECRET}', 'b': 1}}", "{'X-Api-Key': ***, 'b': 1}"),
        (f"Authorization: Token {SECRET}", "Authorization: Token ***"),
        (f"Authorization: {SECRET}", "Authorization: ***"),
        (f'Authorization: Token token="{SECRET}", x', "Authorization: Token ***, x"),
        (f'{{"Authorization": "Key {SECRET}", "b": 1}}', '{"Authorization": "Key ***", "b": 1}'),
    ],
)
def test_a_credential_is_replaced_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss = 3, key=5",
        "http://127.0.0.1:5000/api/2.0/mlflow/runs?page=2",
        "sqlite:///mlflow.db",
        "write to someone@example.org",
        "Basic facts",
        "http://mlflow:5000 failed: ask someone@example.org",
        "{'uri': 'http://mlflow:5000', 'mail': 'a@example.org'}",
        '{"uri":"http://host","mail":"a@example.org"}',
        "http://host/x: failed, ask someone@example.org",
        "/data/me/services/x.py, .git/hooks/pre-commit, src/hooks/a",
        "https://github.com/o/r/.github/workflows/ci.yml",
        "token_accuracy=0.5",
        "loss=1;token_accuracy=0.5, token = 0.25",
        "tokens=1024, max_tokens=5, pad_token=0, bos_token='[BOS]', valid_token=3",
        "Unexpected token: }",
        "PWD=/data/me",
        "`api_key`: Input should be a valid string.",
        "api_key: Input should be a valid string.",
        "password: must not be empty",
        "secret_key = None",
    ],
)
def test_text_without_credentials_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error that cannot be changed."""

    url: str


class ComputedError(Exception):
    """An error whose text is none of its arguments."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return f"no answer from {self.url}"


def _chain(url: str) -> BaseException:
    """Return an error with a cause, a context, a group and notes, each with the URL."""
    inner = ComputedError(url)
    outer = ConnectionError(KeyError(url), "asked", url)
    outer.__context__ = inner
    inner.__cause__ = OSError(2, "No such file", url)
    group = ExceptionGroup(f"two of {url}", [outer, ValueError(url)])
    group.add_note(f"while asking {url}")
    frozen = FrozenError(url)
    top = RuntimeError("top")
    top.__cause__ = group
    group.__context__ = frozen
    return top


def _printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_all_of_a_chain_is_redacted() -> None:
    error = _chain(f"http://user:{SECRET}@host/x")
    assert _printed(error).count(SECRET) == 8
    assert redact_error(error) is error
    printed = _printed(error)
    assert SECRET not in printed
    assert printed.count("http://***@host/x") == 8
    assert "no answer from http://***@host/x" in printed
    assert SECRET not in _printed(redact_error(FrozenError(f"http://user:{SECRET}@host")))


def test_a_chain_without_credentials_stays_as_it_is() -> None:
    error = _chain("http://host/x")
    before = _printed(error)
    assert redact_error(error) is error
    assert _printed(error) == before


def test_a_chain_that_is_a_circle_is_redacted_once() -> None:
    one, two = ValueError(f"http://{SECRET}@one"), ValueError(f"http://{SECRET}@two")
    one.__context__, two.__context__ = two, one
    redact_error(one)
    assert [str(one), str(two)] == ["http://***@one", "http://***@two"]


def test_words_about_errors_and_values_show_no_credentials() -> None:
    url = f"http://user:{SECRET}@host"
    assert describe_error(ValueError(f"no {url}")) == "ValueError: no http://***@host."
    assert describe_value(url) == "'http://***@host' of type `str`"
    long = describe_value(f"http://user:{SECRET * 20}@host")
    assert long == "'http://***@host' of type `str`"
    error = ValueError()
    add_note(error, f"from {url}")
    assert error.__notes__ == ["from http://***@host"]
    with pytest.warns(UserWarning, match=r"^no http://\*\*\*@host$"):
        warn_user(f"no {url}")


def test_what_a_callback_raises_is_shown_without_credentials() -> None:
    def post(record: Any) -> None:
        raise ConnectionError(f"https://hooks.slack.com/services/T0/B0/{SECRET} did not answer")

    logax.tap(lambda: logax.log({"x": 1.0}), post)()
    with pytest.raises(logax.DeliveryError, match=r"https://hooks.slack.com/\*\*\*") as caught:
        logax.flush()
    assert SECRET not in _printed(caught.value)


# Services.


class _Server:
    """An MLflow server as far as a run needs one, that fails in one way."""

    def __init__(self, fails: Callable[[str], bool], hangs: bool) -> None:
        asked = self.asked = threading.Event()
        gate = self.gate = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if fails(self.path):
                    asked.set()
                    if hangs:
                        gate.wait()
                        return
                    self._send(500, f"refused {self.headers['Authorization']}")
                elif "experiments/get-by-name" in self.path:
                    found = {"experiment_id": "1", "name": "Default", "lifecycle_stage": "active"}
                    self._send(200, json.dumps({"experiment": found}))
                elif "runs/update" in self.path:
                    self._send(200, json.dumps({"run_info": {"run_id": "r", "status": "FINISHED"}}))
                else:
                    info = {"run_id": "r", "experiment_id": "1", "status": "RUNNING"}
                    self._send(200, json.dumps({"run": {"info": info}}))

            do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - as `http.server` calls them

            def _send(self, code: int, text: str) -> None:
                with contextlib.suppress(OSError):  # who asked may be gone
                    self.send_response(code)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"127.0.0.1:{self._http.server_address[1]}"
        self.uri = f"http://user:{SECRET}@{self.address}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextlib.contextmanager
def _server(fails: Callable[[str], bool], hangs: bool = False) -> Iterator[_Server]:
    server = _Server(fails, hangs)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("no_proxy", "*")


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_server_of_mlflow_that_fails_is_named_without_its_password(
    hangs: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with _server(lambda path: "log-batch" in path, hangs) as server:
        logger = MLflowLogger(tracking_uri=server.uri)
        state = logger.init(np.array([0, 0], np.uint32))
        logger.log(state, {"x": 1.0}, step=0)
        with pytest.raises(logax.DeliveryError) as caught:
            logax.flush()
        logger.close()
        assert server.asked.is_set()
    text = str(caught.value)
    assert "`MLflowLogger` could not send 1 metrics, which are lost: " in text
    assert f"http://***@{server.address}/api/2.0/mlflow/runs/log-batch" in text
    _assert_no_secret(_printed(caught.value), caplog.text, *capfd.readouterr())


def _assert_no_secret(*texts: str) -> None:
    hidden = "dXNlcjpodW50ZXIy"  # the base64 of user and password
    for text in texts:
        assert SECRET not in text
        assert hidden not in text


@pytest.mark.usefixtures("_impatient")
def test_a_uri_that_mlflow_refuses_is_named_without_its_password() -> None:
    with pytest.raises(
        ValueError, match="`MLflowLogger` got arguments that MLflow does not accept"
    ) as caught:
        MLflowLogger(tracking_uri=f"nonsense://user:{SECRET}@host")
    _assert_no_secret(_printed(caught.value))
    with (
        _server(lambda path: "experiments" in path) as server,
        pytest.raises(ValueError, match=r"`MLflowLogger` got .*http://\*\*\*@127") as caught,
    ):
        MLflowLogger(tracking_uri=server.uri)
    _assert_no_secret(_printed(caught.value))
    with pytest.raises(ConnectionError, match=r"server at http://127.0.0.1:9 ") as refused:
        MLflowLogger(tracking_uri=f"http://user:{SECRET}@127.0.0.1:9")
    _assert_no_secret(_printed(refused.value))
    with pytest.raises(TypeError, match=r"and got b'http://\*\*\*@host' of type") as wrong:
        MLflowLogger(tracking_uri=f"http://user:{SECRET}@host".encode())  # type: ignore[arg-type]
    _assert_no_secret(_printed(wrong.value))


@pytest.mark.parametrize("password", [f"{SECRET}/1", f"1/{SECRET}", "[" + SECRET])
def test_a_password_that_is_not_quoted_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(ValueError, match=r"host or port cannot be read\. Quote ") as caught:
        MLflowLogger(tracking_uri=f"http://user:{password}@127.0.0.1:9")
    _assert_no_secret(_printed(caught.value))
    assert caught.value.__context__ is None


_RUN = """
import sys
from logax.loggers import JSONLLogger, MLflowLogger, MultiLogger
logger = MultiLogger(MLflowLogger(tracking_uri=sys.argv[1]), JSONLLogger("records.jsonl"))
with logger.run(name="one") as state:
    logger.log(state, {"x": 1.0}, step=0)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_a_process_prints_and_writes_no_password(tmp_path: Path, fails: bool) -> None:
    """MLflow itself prints the address of a run that ends."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "no_proxy": "*",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }  # fmt: skip
    with _server(lambda path: fails and "log-batch" in path) as server:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, server.uri],
            cwd=tmp_path,
            env={**os.environ, **quiet},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, "done" in done.stdout) == ((1, False) if fails else (0, True))
    assert (f"http://***@{server.address}" in done.stderr) == fails
    _assert_no_secret(done.stdout, done.stderr)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["records.jsonl"]
    _assert_no_secret(*(path.read_text() for path in files))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_url": f"ftp://user:{SECRET}@h"}, "`base_url`: URL scheme should be 'http' or 'ht"),
        ({"api_key": [SECRET]}, "`api_key`: Input should be a valid string."),
    ],
)
def test_settings_that_wandb_refuses_are_named_without_their_values(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(
        ValueError, match="`WandbLogger` got `settings` that W&B does not"
    ) as caught:
        WandbLogger(mode="offline", settings=settings)
    assert message in str(caught.value)
    _assert_no_secret(_printed(caught.value))
    assert caught.value.__context__ is None


def test_warnings_that_are_errors_show_no_credentials() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"http://\*\*\*@host"):
            warn_user(f"http://user:{SECRET}@host")
