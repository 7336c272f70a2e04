"""What the arrays of an emission mean: known while tracing, the same for every run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from logax._log import LogSpec


@dataclasses.dataclass(frozen=True)
class Site:
    """One `log` call of a program, as far as it is taken.

    Attributes:
      spec: What it logs.
      total: How many records its first key has in a call, if that is known.
    """

    spec: LogSpec
    total: int | None = None

    def named(self) -> str:
        """What it logs, and where."""
        keys = ", ".join(f"`{entry.key}`" for entry in self.spec.entries)
        return f"{keys} (logged at {self.spec.site})"

    @property
    def width(self) -> int:
        """How many arrays a record has: its leaves and its steps."""
        return sum(len(entry.leaves) for entry in self.spec.entries) + len(self.spec.steps)


class Rows(NamedTuple):
    """Some records of one site: arrays with a record axis, their place in the order, which count.

    `gate` is a mask of the rows, how many of the first are real, or None where all are.
    """

    arrays: Any
    order: Any
    gate: Any


@dataclasses.dataclass(frozen=True)
class Stream:
    """Records that are in one order: those outside of any `shard_map`, or of shards.

    Attributes:
      shards: How many shards there are at each level of `shard_map`, none outside.
      total: How many records it has in one call, where that is known.
    """

    shards: tuple[int, ...] = ()
    total: int | None = None


@dataclasses.dataclass(frozen=True)
class Packet:
    """What the operands of one emission are.

    They come in this order: the number of the call; in a `shard_map` the index of the shard; for
    each site its arrays, the places of its records in the order, and its gate; at the end of a
    call, how many records each stream had.

    Attributes:
      sites: The sites, in the order of their operands.
      gated: For each site whether there is a gate.
      stream: Which of the streams this is of.
      streams: All streams of the program.
      last: Whether this ends the call.
    """

    sites: tuple[Site, ...]
    gated: tuple[bool, ...]
    stream: int
    streams: tuple[Stream, ...]
    last: bool

    @property
    def sharded(self) -> bool:
        """Whether this is of a shard."""
        return bool(self.streams[self.stream].shards)

    def flat(self, call: Any, shard: Any, rows: list[Rows], ends: list[Any]) -> list[Any]:
        """The operands."""
        operands = [call, shard] if self.sharded else [call]
        for each in rows:
            operands += [*each.arrays, each.order]
            operands += [] if each.gate is None else [each.gate]
        return operands + ends

    def rows(self, operands: list[Any]) -> list[Rows]:
        """Of such operands those of each site."""
        result, at = [], 2 if self.sharded else 1
        for site, gated in zip(self.sites, self.gated, strict=True):
            end = at + site.width
            gate = operands[end + 1] if gated else None
            result.append(Rows(operands[at:end], operands[end], gate))
            at = end + 1 + gated
        return result

    def ends(self, operands: list[Any]) -> list[Any]:
        """Of such operands how many records each stream had, at the end of a call."""
        return operands[len(operands) - len(self.streams) :] if self.last else []


class Parcel(NamedTuple):
    """An emission as it arrives: operands whose first axes are lanes where they vary over them.

    `batched` says for each operand over which of the `lanes` it varies.
    """

    packet: Packet
    lanes: tuple[int, ...]
    batched: tuple[tuple[bool, ...], ...]
    operands: list[Any]
    dropped: bool = False

    def over_lanes(self) -> list[bool]:
        """For each operand whether its first axes are lanes."""
        return [any(over) for over in self.batched]

    def shard(self) -> int | None:
        """Which shard this is of."""
        return int(self.operands[1]) if self.packet.sharded else None

    def without_values(self) -> Parcel:
        """What is left of it where there is no room: which records there were."""
        kept = list(self.operands)
        at = 2 if self.packet.sharded else 1
        for site, gated in zip(self.packet.sites, self.packet.gated, strict=True):
            kept[at : at + site.width] = [np.zeros(0, bool)] * site.width
            at += site.width + 1 + gated
        return self._replace(operands=kept, dropped=True)

    def size(self) -> int:
        """Bytes."""
        return sum(x.nbytes for x in self.operands)

    def spread(self) -> Parcel:
        """The same with all lanes as one axis in front of those that vary over any."""
        if len(self.lanes) < 2:
            return self
        whole = []
        for x, over in zip(self.operands, self.batched, strict=True):
            if any(over) and not (self.dropped and x.shape == (0,)):
                own = iter(x.shape)
                shape = [next(own) if b else 1 for b in over]
                rest = list(own)
                x = np.broadcast_to(x.reshape(*shape, *rest), (*self.lanes, *rest))
                x = x.reshape(math.prod(self.lanes), *rest)
            whole.append(x)
        return self._replace(operands=whole, batched=tuple((over,) for over in self.over_lanes()))
