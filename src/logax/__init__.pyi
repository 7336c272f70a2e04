from logax import iterations as iterations
from logax import loggers as loggers
from logax import loop as loop
from logax import storage as storage
from logax import testing as testing
from logax._delivery.control import configure as configure
from logax._delivery.control import discard as discard
from logax._delivery.control import flush as flush
from logax._delivery.errors import DeliveryError as DeliveryError
from logax._delivery.routes import record as record
from logax._harvest.live import live as live
from logax._harvest.nolog import nolog as nolog
from logax._harvest.spool import spool as spool
from logax._harvest.tap import tap as tap
from logax._log import log as log
from logax._logdict.logdict import concat as concat
from logax._logdict.logdict import logdict as logdict
from logax._logdict.logdict import stepdict as stepdict
from logax._media import Histogram as Histogram
from logax._media import HistogramBins as HistogramBins
from logax._media import Image as Image
from logax._media import ImagePixels as ImagePixels
from logax._reducers import FirstNonFinite as FirstNonFinite
from logax._reducers import RecordArrays as RecordArrays
from logax._reducers import RecordReducer as RecordReducer
from logax._reducers import Reducer as Reducer
from logax._runs.errors import DamageWarning as DamageWarning
from logax._runs.errors import RunsError as RunsError
from logax._runs.run import Run as Run
from logax._runs.runs import Runs as Runs
from logax._runs.runs import load as load
from logax._runs.save import save as save
from logax._schedule import Between as Between
from logax._schedule import EveryNStep as EveryNStep
from logax._schedule import EverySeconds as EverySeconds
from logax._schedule import LoggingFrequency as LoggingFrequency
from logax._schedule import Once as Once
from logax._schedule import OnSteps as OnSteps
from logax._schedule import Schedule as Schedule
from logax._version import __version__ as __version__

__all__ = [
    "Between",
    "DamageWarning",
    "DeliveryError",
    "EveryNStep",
    "EverySeconds",
    "FirstNonFinite",
    "Histogram",
    "HistogramBins",
    "Image",
    "ImagePixels",
    "LoggingFrequency",
    "OnSteps",
    "Once",
    "RecordArrays",
    "RecordReducer",
    "Reducer",
    "Run",
    "Runs",
    "RunsError",
    "Schedule",
    "concat",
    "configure",
    "discard",
    "flush",
    "live",
    "load",
    "log",
    "logdict",
    "nolog",
    "record",
    "save",
    "spool",
    "stepdict",
    "tap",
]
