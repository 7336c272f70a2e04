"""A trace of JAX's profiler that is running, and where it comes to rest.

JAX has one trace at a time, and names a trace by the second. So each is written to a temporary
folder and then copied to a place of its own, which is never seen in part. That also keeps the
profiler free if the folder for traces is full or gone: up to JAX 0.11 a trace that could not be
written counts as running.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile

import jax

from logax._errors import described
from logax._files import make_folder


class Recording:
    """A trace that is running, and ours to stop.

    Args:
      log_dir: The folder for traces.
      perfetto: Whether to write a file for Perfetto too.
      options: What to trace; by default what JAX does, without Python's calls.

    Raises:
      RuntimeError: Another trace is running.
    """

    def __init__(
        self, log_dir: str, perfetto: bool, options: jax.profiler.ProfileOptions | None
    ) -> None:
        self._log_dir = log_dir
        # Now, and not when the steps are done.
        make_folder("ProfileLogger", log_dir, "a folder as `log_dir`", "Give another one.")
        # `start_trace` does not see a trace that something else has started, and what it starts
        # then can never be stopped.
        if jax.profiler.TraceAnnotation.is_enabled():
            raise _not_started("another one is running.")
        if options is None:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
        self._scratch = tempfile.mkdtemp(prefix="logax-trace-")
        try:
            jax.profiler.start_trace(
                self._scratch, create_perfetto_trace=perfetto, profiler_options=options
            )
        except BaseException as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            if isinstance(error, RuntimeError):
                raise _not_started(described(error)) from error
            raise

    def stop(self) -> str:
        """Stop it, and give the folder that it is in."""
        try:
            jax.profiler.stop_trace()
            (written,) = glob.glob(os.path.join(glob.escape(self._scratch), "plugins/profile/*"))
        except BaseException as error:
            self._release()
            if isinstance(error, (RuntimeError, OSError, ValueError)):
                raise RuntimeError(
                    f"`ProfileLogger` could not write its trace: {described(error)}"
                ) from error
            raise
        try:
            folder = _copied(written, os.path.join(self._log_dir, "plugins", "profile"))
        except OSError as error:
            raise OSError(
                f"`ProfileLogger` could not put its trace into {self._log_dir}: "
                f"{described(error)} It is in {written}"
            ) from error
        shutil.rmtree(self._scratch, ignore_errors=True)
        return folder

    def _release(self) -> None:
        """Let JAX forget a trace that it could not write: stop it again, now that it is empty."""
        with contextlib.suppress(OSError):
            os.unlink(self._scratch)  # whatever may stand in the place of the folder
        shutil.rmtree(self._scratch, ignore_errors=True)
        with contextlib.suppress(RuntimeError):  # since JAX 0.12 it is forgotten already
            jax.profiler.stop_trace()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _not_started(reason: str) -> RuntimeError:
    return RuntimeError(
        f"`ProfileLogger` could not start its trace: {reason} JAX has one trace at a time, and one "
        "that is running goes on. Stop it before with `jax.profiler.stop_trace()`, or let one "
        "`ProfileLogger` end before the next begins."
    )


def _copied(folder: str, home: str) -> str:
    """Copy a folder into another, under a name that is free."""
    os.makedirs(home, exist_ok=True)
    part = tempfile.mkdtemp(prefix=".part-", dir=home)
    try:
        shutil.copytree(folder, part, dirs_exist_ok=True)
        name = target = os.path.join(home, os.path.basename(folder))
        number = 0
        while not _renamed(part, target):
            number += 1
            target = f"{name}_{number}"
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return target


def _renamed(source: str, target: str) -> bool:
    """Whether the name was free."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.lexists(target):
            raise
        return False
    return True
