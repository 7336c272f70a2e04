"""Claims on runs that are to be resumed, so that of two processes only one gets a run.

A claim is a file in the folder, `<token>.claim`, with the ids of runs as JSON, which the process
holds locked until these runs have ended. A process takes the lock of the folder, `.resume`, before
it makes a claim, so that no other process looks at the same moment; then nobody may write to the
runs or have a claim on them. A killed process leaves a claim that is not locked, which the next
process removes. The place of the new part among those of its run is decided at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Sequence

from logax._runs.format import RUNNING
from logax._runs.locks import (
    Lock,
    is_locked,
    turn_of,
)
from logax._runs.runs import Runs

_SUFFIX = ".claim"


_TURN = ".resume"


_MAX_BYTES = 2**24  # of a claim that is read


class Claims:
    """The claims of one writer.

    Args:
      folder: The folder of the runs.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: list[tuple[Lock, set[str]]] = []
        self._sequences: dict[str, int] = {}
        self._mutex = threading.Lock()

    def take(self, ids: Sequence[str]) -> None:
        """Claim runs that are to be resumed, all or none; runs claimed before stay claimed.

        Raises:
          ValueError: A process writes to one of them, or has a claim on it, or a claim cannot be
            read.
          OSError: The folder cannot be written to.
        """
        taken = self._take(ids, is_partial=False)
        if taken:
            raise taken_error(taken)

    def take_free(self, ids: Sequence[str]) -> list[str]:
        """Claim those of the runs that nobody else writes or has claimed; return the others.

        Raises:
          ValueError: A claim cannot be read. None of the runs is claimed then.
          OSError: The folder cannot be written to. None of the runs is claimed then.
        """
        return self._take(ids, is_partial=True)

    def _take(self, ids: Sequence[str], is_partial: bool) -> list[str]:
        new = [each for each in ids if each not in self._sequences]
        if not new:
            return []
        with self._mutex, turn_of(os.path.join(self._folder, _TURN)):
            runs = Runs(self._folder, follow=False)
            busy = {own for own, status in runs.statuses().items() if status == RUNNING}
            busy |= self._claimed()
            taken = [each for each in new if each in busy]
            free = [each for each in new if each not in busy]
            if free and (is_partial or not taken):
                path = os.path.join(self._folder, f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}")
                self._held.append((Lock(path, json.dumps(free).encode()), set(free)))
                last = runs.sequences()
                self._sequences |= {each: last.get(each, -1) + 1 for each in free}
            return taken

    def sequence(self, identity: str) -> int:
        """Return the place of the part that is to be written among all parts of a run."""
        return self._sequences.get(identity, 0)

    def release(self, ids: Sequence[str]) -> None:
        """Give up claims: the runs have ended, or are not resumed after all."""
        with self._mutex:
            for each in ids:
                self._sequences.pop(each, None)
            for lock, own in self._held:
                own.difference_update(ids)
                if not own:
                    lock.release()
            self._held = [held for held in self._held if held[1]]

    def release_all(self) -> None:
        """Give up all claims."""
        self.release(list(self._sequences))

    def _claimed(self) -> set[str]:
        """Return the ids that processes have claimed; remove the claims of those that died."""
        found: set[str] = set()
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if not name.endswith(_SUFFIX) or not os.path.isfile(path):
                continue
            if not is_locked(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                continue
            with contextlib.suppress(FileNotFoundError):  # released since it was listed
                found.update(_ids_in(path))
        return found


def taken_error(ids: Sequence[str]) -> ValueError:
    """Return the error that says that others write to runs. It begins in lower case."""
    more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    return ValueError(
        f"another process or logger has resumed the run {ids[0]}{more}, and still writes it. Let "
        "that one finish first; records of two writers have no order."
    )


def _ids_in(path: str) -> list[str]:
    """Return the ids in a claim that a process holds.

    Raises:
      ValueError: The claim is damaged, so that nobody knows which runs the process has.
    """
    with open(path, "rb") as file:
        content = file.read(_MAX_BYTES)
    try:
        ids = json.loads(content)
    except (ValueError, RecursionError):
        ids = None
    if not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise ValueError(
            f"the claim {path} is damaged, and a process holds it, so that it is not known which "
            "runs that process writes. End that process, or remove the file if it holds no run."
        )
    return ids
