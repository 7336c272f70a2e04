"""logax: log from inside compiled JAX programs.

Call `logax.log({"loss": loss}, step=i)` anywhere in code that JAX traces. The caller of the
function decides what happens to the values:

- nothing, at no cost, without a harvest;
- `logax.spool(fun)` returns them as arrays next to the result, in a `logax.logdict`;
- `logax.tap(fun, callback)` streams them to a Python callback while the program runs;
- `logax.live(callback)` does so for every function that is called inside a `with` block;
- a logger of `logax.loggers` writes them to the console, to disk or to a service.

`logax.loop` has loggers for Python loops, `logax.storage` stores trajectories, and `logax.testing`
tests logging code.
"""

import logax._support.exit_functions  # noqa: F401 - its place among the exit functions is here
from logax._support.imports import lazy_exports
from logax._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "logax._delivery.control": ("configure", "discard", "flush"),
        "logax._delivery.errors": ("DeliveryError",),
        "logax._delivery.routes": ("record",),
        "logax._harvest.live": ("live",),
        "logax._harvest.nolog": ("nolog",),
        "logax._harvest.spool": ("spool",),
        "logax._harvest.tap": ("tap",),
        "logax._log": ("log",),
        "logax._logdict.logdict": ("concat", "logdict", "stepdict"),
        "logax._media": ("Histogram", "HistogramBins", "Image", "ImagePixels"),
        "logax._reducers": ("FirstNonFinite", "RecordArrays", "RecordReducer", "Reducer"),
        "logax._runs.errors": ("DamageWarning", "RunsError"),
        "logax._runs.run": ("Run",),
        "logax._runs.runs": ("Runs", "load"),
        "logax._runs.save": ("save",),
        "logax._schedule": (
            "Between",
            "EveryNStep",
            "EverySeconds",
            "LoggingFrequency",
            "OnSteps",
            "Once",
            "Schedule",
        ),
    },
    subpackages=("iterations", "loggers", "loop", "storage", "testing"),
)
