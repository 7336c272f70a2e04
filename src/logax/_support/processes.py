"""File locks that end with their process, and objects that are reset in forked processes.

The locks are `flock` locks: the kernel releases a lock when the last descriptor of the open file is
closed, also when the process is killed. A forked process shares the descriptors of its parent, so
that closing one of two copies does not release the lock; `unlock` does.

Some file systems have no locks, and Windows has no `flock`. There `lock` succeeds without effect,
and `is_locked` returns True, since another process may be writing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterator
from typing import Protocol

try:
    import fcntl
except ImportError:  # pragma: no cover - not on every system
    fcntl = None  # type: ignore[assignment]

# Flags for opening a lock file: child programs do not inherit it, and opening a pipe or a link that
# has its name neither blocks nor follows the link.
LOCK_FILE_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW"))

# Errors of file systems that do not support locks.
NO_LOCK_ERRNOS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK})


def lock(fd: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file, or convert the lock that this descriptor already holds.

    Args:
      fd: File descriptor.
      shared: Take a lock that other shared locks are compatible with, instead of an exclusive one.
      wait: Wait until the lock is free.

    Returns:
      False if `wait` is False and another descriptor holds a conflicting lock.

    Raises:
      OSError: The lock failed, and not because the file system has no locks.
    """
    if fcntl is None:  # pragma: no cover - not on every system
        return True
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCK_ERRNOS:
            raise
    return True


def unlock(fd: int) -> None:
    """Release the lock of an open file, also for forked processes that share the descriptor."""
    if fcntl is not None:  # pragma: no branch - not on every system
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as error:  # pragma: no cover - file systems without locks
            if error.errno not in NO_LOCK_ERRNOS:
                raise


def is_locked(fd: int, *, shared: bool = False) -> bool:
    """Return whether another descriptor holds a lock that conflicts with one of this kind.

    Returns True where the file system cannot tell: it has no locks, or it is NFS, which requires a
    file to be open for writing before it grants an exclusive lock.

    Raises:
      OSError: The test failed for another reason.
    """
    if fcntl is None:  # pragma: no cover - not on every system
        return True
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCK_ERRNOS | {errno.EBADF}:
            raise
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def is_path_locked(path: str) -> bool:
    """Return whether a process holds an exclusive lock on a file; False if there is no such file.

    Any number of processes can ask at the same time without one mistaking another for the holder.
    """
    try:
        fd = os.open(path, os.O_RDONLY | LOCK_FILE_FLAGS)
    except OSError:
        return False
    try:
        return is_locked(fd, shared=True)
    except OSError:
        return True
    finally:
        os.close(fd)


def is_current_file(fd: int, path: str) -> bool:
    """Return whether a path still names an open file, and no other process has replaced it."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Wait for the exclusive lock on a file, creating the file if necessary, and hold it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | LOCK_FILE_FLAGS, 0o666)
    try:
        with contextlib.suppress(OSError):  # a failed lock must not keep a user from resuming a run
            lock(fd)
        yield
    finally:
        os.close(fd)


class Resettable(Protocol):
    """An object with locks or threads, which do not survive a fork."""

    def _reset(self) -> None:
        """Return to the initial state: pending work belongs to the parent process."""


def reset_after_fork(each: Resettable) -> None:
    """Call `_reset` of an object in every forked process. Holds only a weak reference."""
    _registered.add(each)


def _reset_registered() -> None:
    for each in list(_registered):
        each._reset()


_registered: weakref.WeakSet[Resettable] = weakref.WeakSet()
os.register_at_fork(after_in_child=_reset_registered)
