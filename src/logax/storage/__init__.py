"""Trajectories: what a loop computes, written to an HDF5 file and read back.

    config = {"frames": WriterGroupConfig(lambda state: {"energy": state.energy}, EveryNStep(10))}
    with HDF5StorageWriter("run.h5", config, state, 1000) as writer:
        for step in range(1000):
            state = advance(state)
            writer.log(state, step)

    with HDF5StorageReader("run.h5") as reader:
        energy = reader.focus_group("frames")[...]["energy"]

It needs h5py: `pip install "logax[hdf5]"`.
"""

from logax._schedule import Between as Between
from logax._schedule import EveryNStep as EveryNStep
from logax._schedule import EverySeconds as EverySeconds
from logax._schedule import LoggingFrequency as LoggingFrequency
from logax._schedule import Once as Once
from logax._schedule import OnSteps as OnSteps
from logax._schedule import Schedule as Schedule
from logax._serialization.dtypes import StorageError as StorageError
from logax.storage.config import WriterGroupConfig as WriterGroupConfig
from logax.storage.group import StoredGroup as StoredGroup
from logax.storage.reader import HDF5StorageReader as HDF5StorageReader
from logax.storage.reader import resume_state as resume_state
from logax.storage.writer import HDF5StorageWriter as HDF5StorageWriter

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
