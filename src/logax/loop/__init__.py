"""Loggers for Python loops around a compiled step.

    with CompositeLogger(TqdmLogger(1000), RingBufferLogger(5)) as logger:
        for step in range(1000):
            state = advance(state)
            logger.log(state, step)

`Logger` says what a logger is; `run_loop` is the loop above, ready to use.
"""

from logax._schedule import Between as Between
from logax._schedule import EveryNStep as EveryNStep
from logax._schedule import EverySeconds as EverySeconds
from logax._schedule import LoggingFrequency as LoggingFrequency
from logax._schedule import Once as Once
from logax._schedule import OnSteps as OnSteps
from logax._schedule import Schedule as Schedule
from logax.loop._trace import ProfileReport as ProfileReport
from logax.loop.check import CheckLogger as CheckLogger
from logax.loop.check import InvariantViolation as InvariantViolation
from logax.loop.check import nan_check as nan_check
from logax.loop.composite import CallbackLogger as CallbackLogger
from logax.loop.composite import CompositeLogger as CompositeLogger
from logax.loop.lines import PrintLogger as PrintLogger
from logax.loop.lines import PythonLogger as PythonLogger
from logax.loop.notify import NotifyLogger as NotifyLogger
from logax.loop.plot import PlotLogger as PlotLogger
from logax.loop.profile import ProfileLogger as ProfileLogger
from logax.loop.progress import TqdmLogger as TqdmLogger
from logax.loop.protocol import Logger as Logger
from logax.loop.protocol import NullLogger as NullLogger
from logax.loop.ring import RingBufferLogger as RingBufferLogger
from logax.loop.run import key_chain as key_chain
from logax.loop.run import run_loop as run_loop

__all__ = [
    "Between",
    "CallbackLogger",
    "CheckLogger",
    "CompositeLogger",
    "EveryNStep",
    "EverySeconds",
    "InvariantViolation",
    "Logger",
    "LoggingFrequency",
    "NotifyLogger",
    "NullLogger",
    "OnSteps",
    "Once",
    "PlotLogger",
    "PrintLogger",
    "ProfileLogger",
    "ProfileReport",
    "PythonLogger",
    "RingBufferLogger",
    "Schedule",
    "TqdmLogger",
    "key_chain",
    "nan_check",
    "run_loop",
]
