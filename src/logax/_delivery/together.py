"""Small things of one kind that are done together, if they were queued one after the other."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from logax._delivery.worker import Worker


def put_together(
    worker: Worker, size: int, kind: Any, do: Callable[[collections.deque[Any]], None], thing: Any
) -> bool:
    return worker.add(size, do, thing, 0, kind)
