"""Claims on runs that are to be resumed, so that of two processes only one gets a run.

A claim is a file in the folder, `<token>.claim`, with the ids of runs as JSON, which the process
holds locked until these runs have ended. Who makes one first takes the lock of the folder,
`.resume`, so that nobody else looks at the same moment; then nobody may write to the runs or have a
claim on them. A process that is killed leaves a claim that is not locked, which the next one
removes. The place of the new part among those of its run is decided at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Sequence

from logax._runs.alive import Lock, is_locked, turn_of
from logax._runs.format import RUNNING
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
        """Claim runs that are to be resumed; those that this writer has claimed stay so.

        Raises:
          ValueError: A process writes to one of them, or has a claim on it.
          OSError: The folder cannot be written to.
        """
        new = [each for each in ids if each not in self._sequences]
        if not new:
            return
        with self._mutex, turn_of(os.path.join(self._folder, _TURN)):
            runs = Runs(self._folder, follow=False)
            taken = {own for own, status in runs.statuses().items() if status == RUNNING}
            taken |= self._claimed()
            for each in new:
                if each in taken:
                    raise ValueError(
                        f"another process or logger has resumed the run {each}, and still writes "
                        "it. Let that one finish first; records of two writers have no order."
                    )
            path = os.path.join(self._folder, f"{os.getpid()}-{secrets.token_hex(6)}{_SUFFIX}")
            lock = Lock(path, json.dumps(new).encode())
            self._held.append((lock, set(new)))
            last = runs.sequences()
            self._sequences |= {each: last.get(each, -1) + 1 for each in new}

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
            with open(path, "rb") as file:
                found.update(json.loads(file.read(_MAX_BYTES)))
        return found
