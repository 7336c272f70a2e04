"""Small things of one kind that are done together, if they were queued one after the other.

A job has its price on the thread, and whoever queues things quickly queues many alike.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from logax._delivery.worker import Worker

_MANY = 256
_MUCH = 2**20  # bytes


def put_together(
    worker: Worker, size: int, kind: Any, do: Callable[[collections.deque[Any]], None], thing: Any
) -> bool:
    """Queue a thing that holds so many bytes; False if the queue is full and nobody may wait.

    Args:
      worker: Has the queue.
      size: In bytes.
      kind: What things have in common that may be done together.
      do: Does some of this kind, in order, and takes away what is done.
      thing: One of them.
    """
    return worker.extend_last(
        lambda job: isinstance(job, _Together) and job.take(kind, thing, size), size
    ) or worker.put(size, _Together(kind, do, thing, size))


class _Together:
    """A job: things that were put in one after the other, as long as they are small."""

    def __init__(
        self, kind: Any, do: Callable[[collections.deque[Any]], None], first: Any, size: int
    ) -> None:
        self._kind, self._do = kind, do
        self._things, self._size = collections.deque([first]), size

    def take(self, kind: Any, thing: Any, size: int) -> bool:
        """Take in one more, if it is of the same kind and there is room."""
        if kind != self._kind or len(self._things) >= _MANY or self._size + size > _MUCH:
            return False
        self._things.append(thing)
        self._size += size
        return True

    def __call__(self) -> None:
        self._do(self._things)
