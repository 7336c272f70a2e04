"""Whether somebody writes to a file of runs now.

Beside the file stands one with the same name and `.lock` at its end, which its writer holds locked
as long as it lives (`flock`, which ends with the process, whatever happens to it). The file of runs
itself must not be used for this: to close a second descriptor of it would end the locks of SQLite.
Where the system has no such locks, a run that was not ended counts as running.
"""

from __future__ import annotations

import contextlib
import os

try:
    import fcntl
except ImportError:  # pragma: no cover - not on every system
    fcntl = None  # type: ignore[assignment]

from logax._runs.format import LOCK, SUFFIX

# Not passed on to other programs, and no waiting for what only looks like a file.
_CAREFULLY = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW"))


def lock_of(path: str) -> str:
    """The path of the lock that belongs to a file."""
    return path.removesuffix(SUFFIX) + LOCK


class Lock:
    """Held from the moment it is made until `release`, by this process and no other."""

    def __init__(self, path: str) -> None:
        self._path = lock_of(path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CAREFULLY, 0o666)
        if fcntl is not None:  # pragma: no branch - not on every system
            with contextlib.suppress(OSError):  # of file systems without locks
                fcntl.flock(self._fd, fcntl.LOCK_EX)

    def let_go(self) -> None:
        """Close what a fork has copied, so that it does not outlive the other process.

        This does not end the lock of that one.
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def release(self) -> None:
        """Have the file be nobody's."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self.let_go()


def is_alive(path: str) -> bool:
    """Whether somebody writes to a file."""
    try:
        fd = os.open(lock_of(path), os.O_RDONLY | _CAREFULLY)
    except OSError:
        return False
    try:
        if fcntl is None:  # pragma: no cover - not on every system
            return True
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # which others who look may have too
    except OSError:  # its writer has it, or the file system has no locks
        return True
    finally:
        os.close(fd)
    return False
