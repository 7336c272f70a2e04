"""An MLflow server on a free port of this machine, for as long as a block lasts."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
_PATIENCE = 120  # seconds


@contextlib.contextmanager
def mlflow_server(folder):
    """The server's address and a function that kills it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/server.db"),
        *("--artifacts-destination", f"{folder}/artifacts"),
    ]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **QUIET},
            start_new_session=True,  # so that its workers can be ended with it
        )

    def kill():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        _await_silence(port)  # its workers are children of nobody here

    try:
        _await_health(server, f"http://127.0.0.1:{port}/health", folder / "server.log")
        yield f"http://127.0.0.1:{port}", kill
    finally:
        kill()


def _await_silence(port):
    give_up = time.monotonic() + _PATIENCE
    while time.monotonic() < give_up:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return
    raise RuntimeError(f"Somebody still answers at port {port}.")


def _await_health(server, address, log):
    give_up = time.monotonic() + _PATIENCE
    while time.monotonic() < give_up:
        try:
            # Ends early where the server did.
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError, urllib.error.URLError):
                if urllib.request.urlopen(address, timeout=5).read() == b"OK":
                    return
        else:
            break
    raise RuntimeError(f"No MLflow server came up:\n{log.read_text()[-2000:]}")
