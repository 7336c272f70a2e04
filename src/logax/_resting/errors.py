"""What goes wrong with files, as one type of error."""

from __future__ import annotations


class StorageError(RuntimeError):
    """A trajectory could not be written, or a file cannot be read as one.

    What the disk or HDF5 said is its `__cause__`.
    """

    __module__ = "logax.storage"
