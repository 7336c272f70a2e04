"""Trajectories: write views of a loop's state to an HDF5 file, and read them back.

    config = {"frames": WriterGroupConfig(lambda state: {"energy": state.energy}, EveryNStep(10))}
    with HDF5StorageWriter("run.h5", config, state, 1000) as writer:
        for step in range(1000):
            state = advance(state)
            writer.log(state, step)

    with HDF5StorageReader("run.h5") as reader:
        energy = reader.focus_group("frames")[...]["energy"]

This needs h5py: `pip install "logax[hdf5]"`.

| File | Contents |
| --- | --- |
| `writer_config.py` | `WriterGroupConfig`: a view of the state and its schedule |
| `writer.py` | `HDF5StorageWriter`: evaluates the views that are due |
| `_view.py` | evaluation of a view, compiled where possible |
| `_transfer.py` | packing and checksums of the arrays of a row, on the way to the host |
| `_writer_thread.py` | the thread that writes queued rows and commits them in time |
| `_trajectory.py` | the file that is being written: create, continue, add, commit, finish |
| `_datasets.py` | creation of the datasets, and their rows, block by block |
| `_commits.py` | commits: records of the rows that are safely in the file |
| `_layout.py` | names, shapes and schema of a file |
| `_checksums.py` | the checksums of HDF5 |
| `_lock.py` | the lock of a writer, and HDF5's mark in files open for writing |
| `reader.py` | `HDF5StorageReader` and `resume_state` |
| `group.py` | `StoredGroup`: the rows of a group, read on demand |
| `_trajectory_source.py` | the file that is being read, checked for damage and malice |
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
        "logax._serialization.dtypes": ("StorageError",),
        "logax.storage.writer_config": ("WriterGroupConfig",),
        "logax.storage.group": ("StoredGroup",),
        "logax.storage.reader": ("HDF5StorageReader", "resume_state"),
        "logax.storage.writer": ("HDF5StorageWriter",),
    },
)
