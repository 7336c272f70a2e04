from logax._delivery.record_batch import KnownRuns as KnownRuns
from logax._delivery.record_batch import RecordBatch as RecordBatch
from logax._delivery.record_batch import RunInfo as RunInfo
from logax._delivery.record_batch import RunRecord as RunRecord
from logax._delivery.record_batch import Stream as Stream
from logax.loggers._core.logger import Logger as Logger
from logax.loggers._core.state import RunState as RunState
from logax.loggers.callback import CallbackLogger as CallbackLogger
from logax.loggers.console import ConsoleLogger as ConsoleLogger
from logax.loggers.csv import CSVLogger as CSVLogger
from logax.loggers.jsonl import JSONLLogger as JSONLLogger
from logax.loggers.mlflow import MLflowLogger as MLflowLogger
from logax.loggers.multi import MultiLogger as MultiLogger
from logax.loggers.progress import ProgressLogger as ProgressLogger
from logax.loggers.save import SaveLogger as SaveLogger
from logax.loggers.sink import Sink as Sink
from logax.loggers.tensorboard import TensorBoardLogger as TensorBoardLogger
from logax.loggers.trackio import TrackioLogger as TrackioLogger
from logax.loggers.wandb import WandbLogger as WandbLogger

__all__ = [
    "CSVLogger",
    "CallbackLogger",
    "ConsoleLogger",
    "JSONLLogger",
    "KnownRuns",
    "Logger",
    "MLflowLogger",
    "MultiLogger",
    "ProgressLogger",
    "RecordBatch",
    "RunInfo",
    "RunRecord",
    "RunState",
    "SaveLogger",
    "Sink",
    "Stream",
    "TensorBoardLogger",
    "TrackioLogger",
    "WandbLogger",
]
