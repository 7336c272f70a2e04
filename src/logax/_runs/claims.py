"""Claims on runs to resume: of two processes that resume a run, only one gets it.

A claim is a file in the folder, `<token>.claim`, that contains ids of runs as JSON. The process
holds a lock on it until these runs have ended. To make a claim, a process first takes the lock of
the folder, `.resume`, so that no other process checks at the same time; then it checks that no
process writes to these runs or has claimed them. At the same time it determines the sequence number
of the new part of each run. A killed process leaves a claim that is not locked, which the next
process removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Sequence

from logax._runs.format import RUNNING
from logax._runs.lock_files import LockFile
from logax._runs.runs import Runs
from logax._support.processes import hold_lock, is_path_locked

_CLAIM_SUFFIX = ".claim"
_FOLDER_LOCK = ".resume"
_MAX_CLAIM_BYTES = 2**24


class Claims:
    """Claims of one writer.

    Args:
      folder: Folder of the runs.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: list[tuple[LockFile, set[str]]] = []
        self._sequences: dict[str, int] = {}
        self._mutex = threading.Lock()

    def claim(self, ids: Sequence[str]) -> None:
        """Claim runs to resume, all or none; runs claimed before stay claimed.

        Raises:
          ValueError: A process writes to one of them or has claimed it, or a claim cannot be read.
          OSError: The folder cannot be written to.
        """
        taken = self._claim(ids, is_partial=False)
        if taken:
            raise claimed_error(taken)

    def claim_available(self, ids: Sequence[str]) -> list[str]:
        """Claim the runs that no other process writes or has claimed; return the others.

        Raises:
          ValueError: A claim cannot be read. None of the runs is claimed then.
          OSError: The folder cannot be written to. None of the runs is claimed then.
        """
        return self._claim(ids, is_partial=True)

    def _claim(self, ids: Sequence[str], is_partial: bool) -> list[str]:
        new = [each for each in ids if each not in self._sequences]
        if not new:
            return []
        with self._mutex, hold_lock(os.path.join(self._folder, _FOLDER_LOCK)):
            runs = Runs(self._folder, follow=False)
            busy = {own for own, status in runs.statuses().items() if status == RUNNING}
            busy |= self._claimed_ids()
            taken = [each for each in new if each in busy]
            free = [each for each in new if each not in busy]
            if free and (is_partial or not taken):
                path = os.path.join(
                    self._folder, f"{os.getpid()}-{secrets.token_hex(6)}{_CLAIM_SUFFIX}"
                )
                self._held.append((LockFile(path, json.dumps(free).encode()), set(free)))
                last = runs.sequences()
                self._sequences |= {each: last.get(each, -1) + 1 for each in free}
            return taken

    def sequence(self, identity: str) -> int:
        """Return the sequence number of the part that is about to be written to a run."""
        return self._sequences.get(identity, 0)

    def release(self, ids: Sequence[str]) -> None:
        """Release claims: the runs have ended, or are not resumed after all."""
        with self._mutex:
            for each in ids:
                self._sequences.pop(each, None)
            for lock, own in self._held:
                own.difference_update(ids)
                if not own:
                    lock.release()
            self._held = [held for held in self._held if held[1]]

    def release_all(self) -> None:
        """Release all claims."""
        self.release(list(self._sequences))

    def _claimed_ids(self) -> set[str]:
        """Return the ids that processes have claimed; remove the claims of dead processes."""
        found: set[str] = set()
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if not name.endswith(_CLAIM_SUFFIX) or not os.path.isfile(path):
                continue
            if not is_path_locked(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                continue
            with contextlib.suppress(FileNotFoundError):  # released since it was listed
                found.update(_read_claim(path))
        return found


def claimed_error(ids: Sequence[str]) -> ValueError:
    """Return the error for runs that another process has claimed; it begins in lower case."""
    more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    return ValueError(
        f"another process or logger has resumed the run {ids[0]}{more}, and still writes to it. "
        "Wait until it has finished; records of two writers have no order."
    )


def _read_claim(path: str) -> list[str]:
    """Return the ids in a claim that a process holds.

    Raises:
      ValueError: The claim is damaged, so that the runs of the process are unknown.
    """
    with open(path, "rb") as file:
        content = file.read(_MAX_CLAIM_BYTES)
    try:
        ids = json.loads(content)
    except (ValueError, RecursionError):
        ids = None
    if not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise ValueError(
            f"the claim {path} is damaged, and a process holds it, so that the runs of that "
            "process are unknown. End that process, or remove the file if the process has no run."
        )
    return ids
