"""Datasets of a file that may mean harm: found without leaving it, looked at before they are read.

Whatever is wrong is a `ValueError` that says what.
"""

from __future__ import annotations

from typing import Any

from logax._extras import imported

_DEFLATE, _SHUFFLE, _FLETCHER_32 = 1, 2, 3  # HDF5's own
# As `_datasets` has them. In another order, or twice, they would make much more of few bytes.
_FILTERS = {(), (_FLETCHER_32,), (_SHUFFLE, _DEFLATE, _FLETCHER_32)}
_DENSEST = 1100  # no deflated byte stands for more


def linked(file: Any, path: str) -> Any:
    """A dataset by its name, unless that leads elsewhere; None if there is none."""
    h5py = imported("h5py", "HDF5StorageReader", "hdf5")
    place = file
    for part in path.split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"`{path}` leads to another place")
        place = place[part]
    return place if isinstance(place, h5py.Dataset) else None


def check_safe(dataset: Any, path: str) -> None:
    """Raise where reading would open another file or run somebody's code."""
    plist = dataset.id.get_create_plist()
    filters = tuple(plist.get_filter(i)[0] for i in range(plist.get_nfilters()))
    if dataset.external or dataset.is_virtual or filters not in _FILTERS:
        raise ValueError(f"`{path}` is stored in a way that logax does not use")


def safe_dataset(file: Any, path: str, dtype: Any) -> Any:
    """A dataset that is safe to read, of this type."""
    dataset = linked(file, path)
    if dataset is None:
        raise ValueError(f"`{path}` is not there")
    check_safe(dataset, path)
    if dataset.dtype != dtype:
        raise ValueError(f"`{path}` is not what the schema says")
    return dataset


def check_size(dataset: Any, size: int, path: str, file_size: int) -> None:
    """Raise where there is less in the file than is said, before memory is taken for it."""
    stored = dataset.id.get_storage_size()
    if stored * (_DENSEST if dataset.compression else 1) < size:
        raise ValueError(f"`{path}` has fewer rows than there should be")
    if stored > file_size:
        raise ValueError("it is cut off")
