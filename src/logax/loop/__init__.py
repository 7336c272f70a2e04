"""Loggers for Python loops around a compiled step.

    with CompositeLogger(TqdmLogger(1000), RingBufferLogger(5)) as logger:
        for step in range(1000):
            state = advance(state)
            logger.log(state, step)

`Logger` is the protocol of these loggers; `run_loop` is a ready-made version of the loop above.

| File | Contents |
| --- | --- |
| `protocol.py` | `Logger`, the protocol; `NullLogger` |
| `runner.py` | `run_loop`; `key_chain`, one PRNG key per step |
| `composite.py` | `CompositeLogger`, several loggers; `CallbackLogger`, a function as a logger |
| `progress_bar.py` | `TqdmLogger`, a progress bar |
| `text.py` | `PrintLogger` and `PythonLogger`, lines of text |
| `check.py` | `CheckLogger` and `nan_check`, which stop an invalid run |
| `ring_buffer.py` | `RingBufferLogger`, the last states |
| `live_plot.py` | `PlotLogger`, a live plot |
| `notify.py` | `NotifyLogger`, posts to a webhook |
| `profile.py` | `ProfileLogger`, a trace of some steps |
| `run_logger.py` | `logger.loop(view)`: a loop logged to a destination of `logax.loggers` |
| `_base.py` | `ScheduledLogger`, the base class of the loggers |
| `_pytrees.py` | copy, fetch, name and format the leaves of states |
| `_figure_targets.py` | the file or notebook cell that shows a live plot |
| `_webhook.py` | the HTTP requests of `NotifyLogger`, and their thread |
| `_profiler_trace.py` | record a trace with JAX's profiler; `ProfileReport`, its summary |

Schedules (`EveryNStep`, `Once`, ...) are those of `logax`.
"""

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
