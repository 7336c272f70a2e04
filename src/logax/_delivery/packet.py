"""Many small operands as one row of 32-bit words: each operand of a host call has its price.

Rows of the same packing can be stacked, so that the host decodes many emissions at once.

What an emission is: what its arrays mean, and the arrays as they arrive.

A `Packet` says what the operands mean. It is known while tracing, the same for every run, and both
sides go by it: the program lays out operands (`flat`), the host finds them again (`rows`, `ends`).
An `Emission` is a packet as it was lowered: with its lanes, and how its operands are packed. A
`Parcel` holds the arrays of one run of an emission, or of many runs whose records were stacked.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Aval
from logax._log_spec import ONE_ARRAY, Leaf, LogSpec

MAX_PACKED_BYTES = 1 << 16  # a larger operand travels by itself, since packing copies


class _Slot(NamedTuple):
    """Where an operand is in the row."""

    number: int
    words: slice
    dtype: Any
    shape: tuple[int, ...]


class Packing:
    """Small operands as one row of words; all others by themselves.

    The first operand is a number, and so stays the first number of what is packed.

    Args:
      avals: Types and shapes of the operands.
      in_place: Whether operands are written into the row one by one, instead of joined all at once.
        XLA does that faster on the CPU. It is also what XLA does last there, so that host calls are
        made in the order of the program.
    """

    def __init__(self, avals: Sequence[Aval], *, in_place: bool = False) -> None:
        self._number, self._in_place = len(avals), in_place
        small = [i for i, aval in enumerate(avals) if _is_small(aval)]
        self._together = small if len(small) > 1 else []
        self._alone = [i for i in range(len(avals)) if i not in set(self._together)]
        self._slots: list[_Slot] = []
        at = 0
        for i in self._together:
            words = avals[i].size * max(avals[i].dtype.itemsize // 4, 1)
            shape = tuple(avals[i].shape)
            self._slots.append(_Slot(i, slice(at, at + words), np.dtype(avals[i].dtype), shape))
            at += words
        self._widened = [n for n, slot in enumerate(self._slots) if slot.dtype.itemsize < 4]

    def pack(self, *operands: Array) -> list[Array]:
        """Pack operands, in the program."""
        alone = [operands[i] for i in self._alone]
        if not self._together:
            return alone
        return [self._joined([_words(operands[i]) for i in self._together]), *alone]

    def _joined(self, parts: list[Array]) -> Array:
        if not self._in_place:
            return jnp.concatenate(parts)
        row, at = jnp.zeros(sum(map(len, parts)), jnp.uint32), 0
        for part in parts:
            row = jax.lax.dynamic_update_slice(row, part, (at,))
            at += len(part)
        return row

    def read(self, operands: Sequence[Any]) -> list[Any]:
        """Pack operands on the host, of arrays that can be read there, into memory of its own.

        Raises `TypeError` for arrays on other devices, on several, and of types beyond Python's.
        """
        alone = [_read(operands[i]) for i in self._alone]
        if not self._together:
            return alone
        parts = [operands[i] for i in self._together]
        for i in self._widened:
            parts[i] = _read(parts[i]).view(_unsigned(self._slots[i].dtype)).astype(np.uint32)
        return [np.frombuffer(b"".join(parts), np.uint32), *alone]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Return the operands, on the host; axes may be in front of all of them."""
        result: list[Any] = [None] * self._number
        rest = packed
        if self._together:
            row, rest = np.asarray(packed[0]), packed[1:]
            views: dict[Any, Any] = {}
            for i, words, dtype, shape in self._slots:
                if dtype.itemsize < 4:
                    own = _narrowed(row[..., words], dtype)
                elif dtype.itemsize == 4:
                    if dtype not in views:
                        views[dtype] = row.view(dtype)
                    own = views[dtype][..., words]
                else:
                    own = np.ascontiguousarray(row[..., words]).view(dtype)
                result[i] = own if len(shape) == 1 else own.reshape(row.shape[:-1] + shape)
        for i, x in zip(self._alone, rest, strict=True):
            result[i] = np.asarray(x)
        return result


def _is_small(aval: Aval) -> bool:
    dtype = np.dtype(aval.dtype)
    if aval.size * dtype.itemsize > MAX_PACKED_BYTES:
        return False
    if dtype.kind in "bfiu":
        return dtype.itemsize in (1, 2, 4, 8)
    return bool(dtype == jnp.bfloat16)


def _read(x: Any) -> Any:
    """Copy to the host, without JAX keeping a copy: `np.asarray` holds on to the array's memory."""
    return np.ndarray(x.shape, x.dtype, b"".join([x]))


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"u{dtype.itemsize}")


def _narrowed(words: Any, dtype: Any) -> Any:
    if dtype.kind == "b":
        return words != 0
    return words.astype(_unsigned(dtype)).view(dtype)


def _words(x: Array) -> Array:
    if x.dtype == bool:
        return x.astype(jnp.uint32).reshape(-1)
    size = np.dtype(x.dtype).itemsize
    if size >= 4:  # 64-bit numbers become two words each
        return jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    bits = jax.lax.bitcast_convert_type(x, _unsigned(np.dtype(x.dtype)))
    return bits.astype(jnp.uint32).reshape(-1)


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
        return f"{', '.join(f'`{key}`' for key in self.keys)} (logged at {self.spec.site})"

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """What it logs."""
        return tuple(entry.key for entry in self.spec.entries)

    @functools.cached_property
    def plain(self) -> bool:
        """Whether every value is one array."""
        return all(
            entry.structure == ONE_ARRAY and not entry.leaves[0].key_impl
            for entry in self.spec.entries
        )

    def values(self, arrays: Sequence[Any]) -> Iterable[tuple[str, Any]]:
        """Return the value of each key, given the arrays of some records."""
        # There are more arrays than keys: steps come after the values.
        return zip(self.keys, arrays, strict=False) if self.plain else self._trees(arrays)

    def _trees(self, arrays: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        at = 0
        for entry in self.spec.entries:
            own = arrays[at : at + len(entry.leaves)]
            at += len(entry.leaves)
            yield entry.key, entry.value(list(map(_value, entry.leaves, own)))

    @functools.cached_property
    def width(self) -> int:
        """How many arrays a record has: its leaves and its steps."""
        return sum(len(entry.leaves) for entry in self.spec.entries) + len(self.spec.steps)


def _value(leaf: Leaf, x: Any) -> Any:
    return jax.random.wrap_key_data(x, impl=leaf.key_impl) if leaf.key_impl else x


OBJECTS = 512  # bytes that Python needs for the objects of a record or parcel


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

    They come in this order: the number of the call; in a `shard_map` the index of the shard; where
    the host is to say how many leave next, the number of rows since the last emission; where
    records have an owner, over which levels of lanes it varies, and its number; for each site its
    arrays, the places of its records in the order, and its gate; at the end of a call, how many
    records each stream had.

    Attributes:
      sites: The sites, in the order of their operands.
      gated: For each site whether there is a gate.
      stream: Which of the streams this is of.
      streams: All streams of the program.
      last: Whether this ends the call.
      on_shard: Whether the whole call is on one shard of a `shard_map` around it.
      owned: Whether there is the number of an owner.
      adapts: Whether the operands include the number of rows since the last emission.
    """

    sites: tuple[Site, ...]
    gated: tuple[bool, ...]
    stream: int
    streams: tuple[Stream, ...]
    last: bool
    on_shard: bool = False
    owned: bool = False
    adapts: bool = False

    @functools.cached_property
    def sharded(self) -> bool:
        """Whether this is of a shard."""
        return self.on_shard or bool(self.streams[self.stream].shards)

    @functools.cached_property
    def common(self) -> int:
        """How many operands come first that are the same in all lanes."""
        return 1 + self.sharded + self.adapts + self.owned

    def flat(
        self,
        call: Any,
        shard: Any,
        owner: Sequence[Any],
        rows: list[Rows],
        ends: Sequence[Any] = (),
        pending: Any = None,
    ) -> list[Any]:
        """Return the operands; those of an owner are made by `owned`."""
        operands = [call, shard] if self.sharded else [call]
        operands += [pending] if self.adapts else []
        operands += owner if self.owned else []
        for each in rows:
            operands += [*each.arrays, each.order]
            operands += [] if each.gate is None else [each.gate]
        return [*operands, *ends]

    def rows(self, operands: Sequence[Any]) -> list[Rows]:
        """Of such operands those of each site."""
        return [
            Rows(operands[at:end], operands[end], operands[end + 1] if gated else None)
            for at, end, gated in self.spans
        ]

    @functools.cached_property
    def spans(self) -> list[tuple[int, int, bool]]:
        """For each site where its arrays begin and end, and whether a gate comes after."""
        spans, at = [], self.common + self.owned
        for site, gated in zip(self.sites, self.gated, strict=True):
            spans.append((at, at + site.width, gated))
            at += site.width + 1 + gated
        return spans

    def ends(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Of such operands how many records each stream had, at the end of a call."""
        return operands[len(operands) - len(self.streams) :] if self.last else []


class Owner(NamedTuple):
    """Whose records some are: a number, for each lane where it varies over any level of them."""

    number: Any
    over: tuple[bool, ...] = ()


class Emission(NamedTuple):
    """A place in a lowered program that hands arrays to the host.

    Attributes:
      packet: Meaning of the operands.
      lanes: Number of lanes at each level of `vmap`.
      batched: For each operand, over which of these levels it varies.
      packing: How the operands are packed; None if they are not.
      size: Bytes of the arrays of one run, with what Python needs for objects.
      records: Upper bound on the number of records of one run, of all lanes together.
    """

    packet: Packet
    lanes: tuple[int, ...]
    batched: tuple[tuple[bool, ...], ...]
    packing: Packing | None
    size: int
    records: int


class Parcel(NamedTuple):
    """The arrays of an emission: its operands, whose first axes are lanes where they vary.

    Attributes:
      emission: Where they come from.
      operands: The arrays, as packed; once it is `opened`, as they were.
      is_open: Whether the operands are unpacked, with all lanes as one axis.
      dropped: Whether its values are gone.
      arrivals: For each run that was stacked, the number that says when it arrived.
    """

    emission: Emission
    operands: Sequence[Any]
    is_open: bool = False
    dropped: bool = False
    arrivals: tuple[int, ...] = (0,)

    @property
    def packet(self) -> Packet:
        """Meaning of the operands."""
        return self.emission.packet

    @property
    def lanes(self) -> tuple[int, ...]:
        """Number of lanes at each level of `vmap`."""
        return self.emission.lanes

    @property
    def batched(self) -> tuple[tuple[bool, ...], ...]:
        """For each operand, over which of the levels it varies."""
        return self.emission.batched

    def number(self) -> int:
        """Return the number of the call: the first of all numbers, packed or not."""
        return int(np.asarray(self.operands[0]).item(0))

    def opened(self) -> Parcel:
        """Return the parcel with its operands as they were in the program.

        All lanes are one axis, in front of the operands that vary over any.
        """
        return self if self.is_open else self._opened(self._unpacked(self.operands))

    def _unpacked(self, operands: Sequence[Any]) -> list[Any]:
        packing = self.emission.packing
        if packing is None:
            return [np.asarray(x) for x in operands]
        return packing.unpack(operands)

    def _opened(self, operands: list[Any]) -> Parcel:
        if len(self.lanes) > 1:
            whole = [
                x if self.dropped and x.shape == (0,) else over_all(x, over, self.lanes)
                for x, over in zip(operands, self.batched, strict=True)
            ]
            operands = whole
        return self._replace(operands=operands, is_open=True)

    def over_lanes(self) -> list[bool]:
        """For each operand whether its first axes are lanes."""
        return [any(over) for over in self.batched]

    def shard(self) -> int | None:
        """Return the index of the shard that this is of."""
        return int(self.operands[1]) if self.packet.sharded else None

    def pending(self) -> int:
        """Return the number of rows since the last emission, real or not, of an opened parcel."""
        return int(self.operands[1 + self.packet.sharded])

    def trimmed(self) -> tuple[Parcel, int, int]:
        """Return the content of a buffer without the rows behind it, its bytes, and its records.

        For opened parcels without lanes. A buffer leaves whole, however little is in it.
        """
        kept, records = list(self.operands), 0
        for at, end, _ in self.packet.spans:
            number = int(kept[end + 1])
            kept[at : end + 1] = [x[:number] for x in kept[at : end + 1]]
            records += number
        # Operands may be views of the whole of what arrived.
        kept = [np.array(x) for x in kept]
        return self._replace(operands=kept), OBJECTS + sum(x.nbytes for x in kept), records

    def owner(self) -> Owner | None:
        """Return whose records these are."""
        if not self.packet.owned:
            return None
        at = self.packet.common
        over, levels = self.batched[at], int(self.operands[at - 1])
        inner = len(over) - 1  # the level that was first, of all
        varies = [own and bool(levels >> (inner - i) & 1) for i, own in enumerate(over)]
        return Owner(self.operands[at], tuple(varies))

    def stream(self) -> tuple[int, int]:
        """Return the number of its stream, and the shard inside of the call.

        Shards of a `shard_map` around the call have calls of their own.
        """
        number = self.packet.stream
        return number, (self.shard() or 0) % math.prod(self.packet.streams[number].shards)

    def without_values(self) -> Parcel:
        """Return what is left of it where there is no room: which records there were."""
        kept = list(self.opened().operands)
        for at, end, _ in self.packet.spans:
            kept[at:end] = [np.zeros(0, bool)] * (end - at)
        return self._replace(operands=kept, is_open=True, dropped=True)


def stack(parcels: Sequence[Parcel]) -> list[Parcel]:
    """Open parcels that arrived in this order, those of one emission stacked.

    The records of parcels that are stacked follow one another. Only parcels of the same call, shard
    and owner can be.
    """
    emissions: dict[int, list[int]] = {}
    for number, parcel in enumerate(parcels):
        emissions.setdefault(-number if parcel.is_open else id(parcel.emission), []).append(number)
    stacked = []
    for numbers in emissions.values():
        first = parcels[numbers[0]]
        if len(numbers) == 1 or first.packet.last:
            stacked += [parcels[i].opened()._replace(arrivals=(i,)) for i in numbers]
            continue
        columns = zip(*(parcels[i].operands for i in numbers), strict=True)
        operands = first._unpacked([np.stack(column) for column in columns])
        which = _different(operands[: first.packet.common + first.packet.owned])
        if which is None:
            stacked.append(_joined(first, operands, tuple(numbers)))
            continue
        for rows in which:
            own = tuple(numbers[i] for i in rows)
            stacked.append(_joined(first, [x[rows] for x in operands], own))
    return stacked


def _different(operands: Sequence[Any]) -> list[list[int]] | None:
    """Return the rows that have the same operands, each set by itself; None if all have."""
    if all((x == x[:1]).all() for x in operands):
        return None
    flat = np.concatenate([x.reshape(len(x), -1).astype(np.int64) for x in operands], axis=1)
    _, kind = np.unique(flat, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    return [np.flatnonzero(kind == each).tolist() for each in dict.fromkeys(kind.tolist())]


def _joined(first: Parcel, operands: list[Any], arrivals: tuple[int, ...]) -> Parcel:
    """Return one parcel of operands that have an axis in front for the runs of the emission."""
    packet, batched = first.packet, first.batched
    joined = [x[0] for x in operands]
    for at, end, gated in packet.spans:
        rows = operands[end].shape[-1]
        if gated and operands[end + 1].dtype != bool:
            real = np.arange(rows) < operands[end + 1][..., None]
            operands[end + 1] = real
        for i in range(at, end + 1 + gated):
            joined[i] = _follow(operands[i], sum(batched[i]))
    return first._opened(joined)._replace(arrivals=arrivals)


def _follow(x: Any, lanes: int) -> Any:
    """Return an array whose first axis is runs with that axis joined to its records."""
    if lanes:
        x = np.moveaxis(x, 0, lanes)
    runs, rows = x.shape[lanes : lanes + 2]
    return x.reshape(*x.shape[:lanes], runs * rows, *x.shape[lanes + 2 :])


def over_all(x: Any, over: Sequence[bool], lanes: Sequence[int]) -> Any:
    """An array with all lanes as one axis in front, if it varies over any."""
    if not any(over):
        return x
    own = iter(x.shape)
    shape = [next(own) if varies else 1 for varies in over]
    rest = list(own)
    x = np.broadcast_to(x.reshape(*shape, *rest), (*lanes, *rest))
    return x.reshape(math.prod(lanes), *rest)
