from logax._schedule import Between as Between
from logax._schedule import EveryNStep as EveryNStep
from logax._schedule import EverySeconds as EverySeconds
from logax._schedule import LoggingFrequency as LoggingFrequency
from logax._schedule import Once as Once
from logax._schedule import OnSteps as OnSteps
from logax._schedule import Schedule as Schedule
from logax._serialization.dtypes import StorageError as StorageError
from logax.storage.group import StoredGroup as StoredGroup
from logax.storage.reader import HDF5StorageReader as HDF5StorageReader
from logax.storage.reader import resume_state as resume_state
from logax.storage.writer import HDF5StorageWriter as HDF5StorageWriter
from logax.storage.writer_config import WriterGroupConfig as WriterGroupConfig

__all__ = [
    "Between",
    "EveryNStep",
    "EverySeconds",
    "HDF5StorageReader",
    "HDF5StorageWriter",
    "LoggingFrequency",
    "OnSteps",
    "Once",
    "Schedule",
    "StorageError",
    "StoredGroup",
    "WriterGroupConfig",
    "resume_state",
]
