"""The checksums that logax computes itself are those of HDF5."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax.storage import _transfer
from logax.storage._checksums import fletcher32, lookup3
from logax.storage._transfer import append_checksum
from slow_cases import slow

SIZES = [1, 2, 3, 4, 5, 1023, 1024, 1025, 4096, 100_003]


def of_hdf5(data: np.ndarray, path: Path) -> int:  # type: ignore[type-arg]
    """Return the checksum that HDF5's filter appends to a chunk."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=data.shape, fletcher32=True)
        return int.from_bytes(dataset.id.read_direct_chunk((0,))[1][-4:], "little")


@pytest.mark.parametrize("kind", ["random", "zeros", "ones"])
def test_fletcher32_is_that_of_hdf5(kind: str, tmp_path: Path) -> None:
    for size in SIZES:
        data = np.frombuffer(np.random.default_rng(size).bytes(size), np.uint8)
        if kind != "random":
            data = np.full(size, 0 if kind == "zeros" else 255, np.uint8)
        assert fletcher32(data) == of_hdf5(data, tmp_path / "a.h5")


@pytest.mark.slow
def test_fletcher32_of_many_bytes_does_not_overflow() -> None:
    data = np.full(40_000_001, 255, np.uint8)
    words = np.append(data, np.uint8(0)).view(">u2").astype(np.int64)
    weighted = int((words * np.arange(len(words), 0, -1) % 65535).sum())
    low, high = (x % 65535 or 65535 for x in (int(words.sum()), weighted))
    assert fletcher32(data) == high << 16 | low


@pytest.mark.parametrize("words", [33, 16_385, *slow(8192, 2**20 + 1, 2**25)])
@pytest.mark.parametrize("way", [None, _transfer._sum_by_rows], ids=["cpu", "others"])
def test_the_device_computes_the_same(
    way: Any, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other devices compute the sums in another way, which is tested on the CPU here."""
    if way is not None:
        monkeypatch.setattr(_transfer, "_sum_by_columns", way)
    checked = jax.jit(functools.partial(append_checksum))  # traced again
    given = np.frombuffer(np.random.default_rng(words).bytes(4 * words), np.float32)
    for numbers in (given, np.zeros(words, np.float32), np.full(words, -1, np.int32)):
        found = np.asarray(checked(jnp.asarray(numbers)))
        np.testing.assert_array_equal(found[:-1], numbers.view(np.uint32))
        assert found[-1] == fletcher32(numbers.view(np.uint8))


def test_lookup3_is_that_of_hdf5(tmp_path: Path) -> None:
    """Every superblock has one. `test_kills` covers the other lengths."""
    for number in range(5):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w", libver="latest") as file:
            file["x"] = np.arange(number * 1000)
        block = path.read_bytes()[:48]
        assert lookup3(block[:44]) == int.from_bytes(block[44:], "little")


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)],
)
def test_lookup3_gives_the_values_that_its_author_published(text: bytes, value: int) -> None:
    assert lookup3(text) == value
