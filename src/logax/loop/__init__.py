"""Loggers for Python loops around a compiled step.

    with CompositeLogger(TqdmLogger(1000), RingBufferLogger(5)) as logger:
        for step in range(1000):
            state = advance(state)
            logger.log(state, step)

`Logger` is the protocol of these loggers; `run_loop` is a ready-made version of the loop above.

| File | Contents |
| --- | --- |
| `protocol.py` | `Logger`, the protocol; `NullLogger`; `ScheduledLogger`, the base class |
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
| `_pytrees.py` | copy, fetch, name and format the leaves of states |
| `_webhook.py` | the HTTP requests of `NotifyLogger`, and their thread |
| `_profiler_trace.py` | record a trace with JAX's profiler; `ProfileReport`, its summary |

Schedules (`EveryNStep`, `Once`, ...) are those of `logax`.
"""

from logax._support.imports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "logax._schedule": (
            "Between",
            "EveryNStep",
            "EverySeconds",
            "LoggingFrequency",
            "OnSteps",
            "Once",
            "Schedule",
        ),
        "logax.loop._profiler_trace": ("ProfileReport",),
        "logax.loop.check": ("CheckLogger", "InvariantViolation", "nan_check"),
        "logax.loop.composite": ("CallbackLogger", "CompositeLogger"),
        "logax.loop.live_plot": ("PlotLogger",),
        "logax.loop.notify": ("NotifyLogger",),
        "logax.loop.profile": ("ProfileLogger",),
        "logax.loop.progress_bar": ("TqdmLogger",),
        "logax.loop.protocol": ("Logger", "NullLogger"),
        "logax.loop.ring_buffer": ("RingBufferLogger",),
        "logax.loop.runner": ("key_chain", "run_loop"),
        "logax.loop.text": ("PrintLogger", "PythonLogger"),
    },
)
