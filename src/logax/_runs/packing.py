"""Where the bytes of each array of a portion stand. `format` says the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logax._runs.format import CHUNK, LARGE


class Place(NamedTuple):
    """Where an array stands.

    Attributes:
      blob: The first of its rows in `blobs`, counted from that of the portion; None for `data`.
      offset: Where in `data` it begins.
      size: How many bytes it has.
    """

    blob: int | None
    offset: int
    size: int


class Plan(NamedTuple):
    """The places of all arrays, how many bytes `data` has, and how many rows `blobs`."""

    places: tuple[Place, ...]
    shared: int
    blobs: int


def planned(sizes: Sequence[int]) -> Plan:
    """Where arrays of these numbers of bytes stand."""
    places, shared, blobs = [], 0, 0
    for size in sizes:
        if size < LARGE and shared + size <= CHUNK:
            places.append(Place(None, shared, size))
            shared += size
        else:
            places.append(Place(blobs, 0, size))
            blobs += -(-size // CHUNK)
    return Plan(tuple(places), shared, blobs)
