from logax._schedule import Between as Between
from logax._schedule import EveryNStep as EveryNStep
from logax._schedule import EverySeconds as EverySeconds
from logax._schedule import LoggingFrequency as LoggingFrequency
from logax._schedule import Once as Once
from logax._schedule import OnSteps as OnSteps
from logax._schedule import Schedule as Schedule
from logax.loop._profiler_trace import ProfileReport as ProfileReport
from logax.loop.check import CheckLogger as CheckLogger
from logax.loop.check import InvariantViolation as InvariantViolation
from logax.loop.check import nan_check as nan_check
from logax.loop.composite import CallbackLogger as CallbackLogger
from logax.loop.composite import CompositeLogger as CompositeLogger
from logax.loop.live_plot import PlotLogger as PlotLogger
from logax.loop.notify import NotifyLogger as NotifyLogger
from logax.loop.profile import ProfileLogger as ProfileLogger
from logax.loop.progress_bar import TqdmLogger as TqdmLogger
from logax.loop.protocol import Logger as Logger
from logax.loop.protocol import NullLogger as NullLogger
from logax.loop.ring_buffer import RingBufferLogger as RingBufferLogger
from logax.loop.runner import key_chain as key_chain
from logax.loop.runner import run_loop as run_loop
from logax.loop.text import PrintLogger as PrintLogger
from logax.loop.text import PythonLogger as PythonLogger

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
