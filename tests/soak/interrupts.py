"""Programs that stream into a logger without end, and are ended."""

from __future__ import annotations

import itertools
import sys
from typing import NoReturn

import numpy as np

import logax
from logax.loggers import SaveLogger
from soak.counting import counter

STEPS = 500

count = counter(STEPS)


def stream(folder: str, way: str, buffer: int) -> NoReturn:
    """Stream until interrupted; says each time how many records are known to be delivered.

    Args:
      folder: Where to.
      way: What is done then: nothing ("uncaught"), an exit with a code ("code"), or `logax.discard`
        before that ("discard"). For "terminated" a signal ends it.
      buffer: Of `tap`.
    """
    logger = SaveLogger(folder)
    try:
        with logger.run(name="streamed") as state:
            for number in itertools.count():
                logger.tap(count, state, buffer=buffer)(np.float32(number * STEPS))
                if number % 10 == 9:
                    logax.flush()
                    print((number + 1) * STEPS, flush=True)  # noqa: T201 - to whoever started it
    except KeyboardInterrupt:
        if way == "uncaught":
            raise
        if way == "discard":
            logax.discard()
        sys.exit(7)
    raise AssertionError("it has no end")
