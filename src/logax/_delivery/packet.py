"""The wire format: the arrays that one emission of a program hands to the host, and their schema.

A `PacketSchema` describes the operands of an emission. It is known while tracing and the same for
every run; the program lays out operands by it (`to_operands`), and the host finds them again
(`spans`, `stream_ends`). A `PacketLayout` is a schema after lowering: it adds the lanes and the
packing of the operands. A `Packet` holds the arrays of one run of an emission, or of several runs
whose records were stacked. On the host, its `record_index` lists its records in order.

Each operand of a host call has a fixed cost, so `Packing` joins small operands to one row of 32-bit
words. Rows of the same packing can be stacked, so that the host decodes many emissions at once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, Aval
from logax._log_spec import SINGLE_ARRAY, LeafSpec, LogSpec

MAX_PACKED_BYTES = 1 << 16  # larger operands are not packed, since packing copies them
OBJECT_OVERHEAD_BYTES = 512  # estimate of the memory of Python's objects per packet or record


class _Slot(NamedTuple):
    """Position of an operand in the packed row."""

    number: int
    words: slice
    dtype: Any
    shape: tuple[int, ...]


class Packing:
    """Packs small operands into one row of 32-bit words; other operands stay as they are.

    The first operand is a scalar, and so stays the first number after packing.

    Args:
      avals: Types and shapes of the operands.
      in_place: Write operands into the row one by one, instead of concatenating them. XLA does this
        faster on the CPU, and schedules it last, so that host calls keep the order of the program.
    """

    def __init__(self, avals: Sequence[Aval], *, in_place: bool = False) -> None:
        self._num_operands, self._in_place = len(avals), in_place
        small = [i for i, aval in enumerate(avals) if _is_small(aval)]
        self._packed = small if len(small) > 1 else []
        self._unpacked = [i for i in range(len(avals)) if i not in set(self._packed)]
        self._slots: list[_Slot] = []
        at = 0
        for i in self._packed:
            words = avals[i].size * max(avals[i].dtype.itemsize // 4, 1)
            shape = tuple(avals[i].shape)
            self._slots.append(_Slot(i, slice(at, at + words), np.dtype(avals[i].dtype), shape))
            at += words
        self._narrow = [n for n, slot in enumerate(self._slots) if slot.dtype.itemsize < 4]

    def pack(self, *operands: Array) -> list[Array]:
        """Pack operands, in the program."""
        others = [operands[i] for i in self._unpacked]
        if not self._packed:
            return others
        return [self._join([_as_words(operands[i]) for i in self._packed]), *others]

    def _join(self, parts: list[Array]) -> Array:
        if not self._in_place:
            return jnp.concatenate(parts)
        row, at = jnp.zeros(sum(map(len, parts)), jnp.uint32), 0
        for part in parts:
            row = jax.lax.dynamic_update_slice(row, part, (at,))
            at += len(part)
        return row

    def read(self, operands: Sequence[Any]) -> list[Any]:
        """Pack operands on the host into new memory, from arrays that the host can read.

        Raises:
          TypeError: An array is on another device or on several, or Python's buffer protocol does
            not know its type.
        """
        others = [_copy_to_host(operands[i]) for i in self._unpacked]
        if not self._packed:
            return others
        parts = [operands[i] for i in self._packed]
        for i in self._narrow:
            bits = _copy_to_host(parts[i]).view(_unsigned(self._slots[i].dtype))
            parts[i] = bits.astype(np.uint32)
        return [np.frombuffer(b"".join(parts), np.uint32), *others]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Return the operands, on the host. All of them may have additional leading axes."""
        result: list[Any] = [None] * self._num_operands
        rest = packed
        if self._packed:
            row, rest = np.asarray(packed[0]), packed[1:]
            views: dict[Any, Any] = {}
            for i, words, dtype, shape in self._slots:
                if dtype.itemsize < 4:
                    own = _narrow_words(row[..., words], dtype)
                elif dtype.itemsize == 4:
                    if dtype not in views:
                        views[dtype] = row.view(dtype)
                    own = views[dtype][..., words]
                else:
                    own = np.ascontiguousarray(row[..., words]).view(dtype)
                result[i] = own if len(shape) == 1 else own.reshape(row.shape[:-1] + shape)
        for i, x in zip(self._unpacked, rest, strict=True):
            result[i] = np.asarray(x)
        return result


def _is_small(aval: Aval) -> bool:
    dtype = np.dtype(aval.dtype)
    if aval.size * dtype.itemsize > MAX_PACKED_BYTES:
        return False
    if dtype.kind in "bfiu":
        return dtype.itemsize in (1, 2, 4, 8)
    return bool(dtype == jnp.bfloat16)


def _copy_to_host(x: Any) -> Any:
    """Copy an array to the host. `np.asarray` would make the JAX array keep a second copy."""
    return np.ndarray(x.shape, x.dtype, b"".join([x]))


def _unsigned(dtype: Any) -> Any:
    return np.dtype(f"u{dtype.itemsize}")


def _narrow_words(words: Any, dtype: Any) -> Any:
    if dtype.kind == "b":
        return words != 0
    return words.astype(_unsigned(dtype)).view(dtype)


def _as_words(x: Array) -> Array:
    if x.dtype == bool:
        return x.astype(jnp.uint32).reshape(-1)
    size = np.dtype(x.dtype).itemsize
    if size >= 4:  # a 64-bit number becomes two words
        return jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    bits = jax.lax.bitcast_convert_type(x, _unsigned(np.dtype(x.dtype)))
    return bits.astype(jnp.uint32).reshape(-1)


@dataclasses.dataclass(frozen=True)
class Site:
    """One `log` call of a program, with the keys that the harvest selects.

    Attributes:
      spec: Keys, steps and tags of the `log` call.
      total: Number of records of its first key in a call, if known.
    """

    spec: LogSpec
    total: int | None = None

    def describe(self) -> str:
        """Return the keys and the source line, for messages."""
        return f"{', '.join(f'`{key}`' for key in self.keys)} (logged at {self.spec.site})"

    @functools.cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys of the `log` call."""
        return tuple(entry.key for entry in self.spec.entries)

    @functools.cached_property
    def is_plain(self) -> bool:
        """True if every value is one array."""
        return all(
            entry.structure == SINGLE_ARRAY and not entry.leaves[0].key_impl
            for entry in self.spec.entries
        )

    def values(self, arrays: Sequence[Any]) -> Iterable[tuple[str, Any]]:
        """Return each key with its value, given the arrays of some records."""
        # There are more arrays than keys: steps come after the values.
        return zip(self.keys, arrays, strict=False) if self.is_plain else self._trees(arrays)

    def _trees(self, arrays: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        at = 0
        for entry in self.spec.entries:
            own = arrays[at : at + len(entry.leaves)]
            at += len(entry.leaves)
            yield entry.key, entry.value(list(map(_value, entry.leaves, own)))

    @functools.cached_property
    def num_arrays(self) -> int:
        """Number of arrays of a record: its leaves and its steps."""
        return sum(len(entry.leaves) for entry in self.spec.entries) + len(self.spec.steps)

    def has_gate(self, operands: Sequence[Any]) -> bool:
        """Return whether its operands, from `site_operands`, include a gate."""
        return len(operands) > self.num_arrays + 1


def _value(leaf: LeafSpec, x: Any) -> Any:
    return jax.random.wrap_key_data(x, impl=leaf.key_impl) if leaf.key_impl else x


def site_operands(arrays: Sequence[Any], positions: Any, gate: Any = None) -> list[Any]:
    """Return the operands for the records of one site.

    Args:
      arrays: Leaves, then steps, each with a record axis.
      positions: Position of each record in the order of the program.
      gate: Mask of the real rows, or the number of real rows at the front; None if all are real.
    """
    return [*arrays, positions] if gate is None else [*arrays, positions, gate]


@dataclasses.dataclass(frozen=True)
class RecordStream:
    """A sequence of records with one order: those outside of any `shard_map`, or those of shards.

    Attributes:
      shards: Number of shards at each level of `shard_map`; () outside.
      total: Number of records in one call, if known.
    """

    shards: tuple[int, ...] = ()
    total: int | None = None


@dataclasses.dataclass(frozen=True)
class PacketSchema:
    """Meaning of the operands of one emission.

    The operands have this order: the number of the call; in a `shard_map` the index of the shard;
    with `is_adaptive` the number of rows since the last emission; with `has_owner` the levels of
    lanes over which the owner varies, and its number; for each site its arrays, the positions of
    its records, and its gate; with `is_last` the number of records of each stream.

    Attributes:
      sites: The sites, in the order of their operands.
      has_gate: For each site, whether its operands include a gate.
      stream: Index of the stream that the records belong to.
      streams: All streams of the program.
      is_last: True if this emission ends the call.
      on_shard: True if the whole call runs on one shard of a `shard_map` around it.
      has_owner: True if the operands include the number of an owner.
      is_adaptive: True if the operands include the number of rows since the last emission.
    """

    sites: tuple[Site, ...]
    has_gate: tuple[bool, ...]
    stream: int
    streams: tuple[RecordStream, ...]
    is_last: bool
    on_shard: bool = False
    has_owner: bool = False
    is_adaptive: bool = False

    @functools.cached_property
    def is_sharded(self) -> bool:
        """True if the records belong to a shard."""
        return self.on_shard or bool(self.streams[self.stream].shards)

    @functools.cached_property
    def num_common(self) -> int:
        """Number of leading operands that are the same in all lanes."""
        return 1 + self.is_sharded + self.is_adaptive + self.has_owner

    def to_operands(
        self,
        call: Any,
        shard: Any,
        owner: Sequence[Any],
        rows: Iterable[Sequence[Any]],
        ends: Sequence[Any] = (),
        pending: Any = None,
    ) -> list[Any]:
        """Return the operands in order.

        `owner` comes from `owner_operands`, and the operands of each site from `site_operands`.
        """
        operands = [call, shard] if self.is_sharded else [call]
        operands += [pending] if self.is_adaptive else []
        operands += owner if self.has_owner else []
        return [*operands, *itertools.chain.from_iterable(rows), *ends]

    @functools.cached_property
    def spans(self) -> list[tuple[int, int, bool]]:
        """Start and end of the arrays of each site, and whether the site has a gate.

        The positions of its records come right behind its arrays, and then its gate.
        """
        spans, at = [], self.num_common + self.has_owner
        for site, gated in zip(self.sites, self.has_gate, strict=True):
            spans.append((at, at + site.num_arrays, gated))
            at += site.num_arrays + 1 + gated
        return spans

    def stream_ends(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the number of records of each stream, if this ends a call."""
        return operands[len(operands) - len(self.streams) :] if self.is_last else []


class RecordOwner(NamedTuple):
    """Number of the run that records belong to.

    Attributes:
      number: The number; an array with one for each lane if it varies over any level of lanes.
      over: For each level of `vmap`, whether the number varies over it.
    """

    number: Any
    over: tuple[bool, ...] = ()


class PacketLayout(NamedTuple):
    """A schema after lowering.

    Attributes:
      schema: Meaning of the operands.
      lanes: Number of lanes at each level of `vmap`.
      batched: For each operand, whether it varies over each of these levels.
      packing: Packing of the operands; None if they are not packed.
      size: Number of bytes of one packet, with the overhead of Python's objects.
      records: Upper bound on the number of records of one packet, of all lanes together.
    """

    schema: PacketSchema
    lanes: tuple[int, ...]
    batched: tuple[tuple[bool, ...], ...]
    packing: Packing | None
    size: int
    records: int


class Packet(NamedTuple):
    """The arrays of one run of an emission, or of several runs that were stacked.

    Attributes:
      layout: Layout of the operands.
      operands: The arrays, as packed; after `unpack`, as in the program. Lanes are leading axes.
      is_unpacked: True if the operands are unpacked, with all lanes merged into one axis.
      is_dropped: True if its values were dropped because the queue was full.
      arrivals: For each run that was stacked, its position in the order of arrival.
      record_index: Integers of shape (records, 3): site, row and lane of the records in the order
        of the program; lane -1 means all. Other rows are not delivered. None until the host has
        put the records in order (see `ordering`).
    """

    layout: PacketLayout
    operands: Sequence[Any]
    is_unpacked: bool = False
    is_dropped: bool = False
    arrivals: tuple[int, ...] = (0,)
    record_index: Any = None

    @property
    def schema(self) -> PacketSchema:
        """Meaning of the operands."""
        return self.layout.schema

    @property
    def lanes(self) -> tuple[int, ...]:
        """Number of lanes at each level of `vmap`."""
        return self.layout.lanes

    @property
    def batched(self) -> tuple[tuple[bool, ...], ...]:
        """For each operand, whether it varies over each level of `vmap`."""
        return self.layout.batched

    def call_number(self) -> int:
        """Return the number of the call, which comes first whether packed or not."""
        return int(np.asarray(self.operands[0]).item(0))

    def unpack(self) -> Packet:
        """Return the packet with its operands as in the program.

        Operands that vary over lanes have one leading axis for all lanes.
        """
        return self if self.is_unpacked else self._merge_lanes(self._unpack_operands(self.operands))

    def _unpack_operands(self, operands: Sequence[Any]) -> list[Any]:
        packing = self.layout.packing
        if packing is None:
            return [np.asarray(x) for x in operands]
        return packing.unpack(operands)

    def _merge_lanes(self, operands: list[Any]) -> Packet:
        if len(self.lanes) > 1:
            whole = [
                x if self.is_dropped and x.shape == (0,) else merge_lane_axes(x, over, self.lanes)
                for x, over in zip(operands, self.batched, strict=True)
            ]
            operands = whole
        return self._replace(operands=operands, is_unpacked=True)

    def columns(self) -> list[Sequence[Any]]:
        """Return the arrays of each site, with axes for lanes (if the array varies) and records."""
        return [self.operands[at:end] for at, end, _ in self.schema.spans]

    def over_lanes(self) -> list[list[bool]]:
        """Return for each array of each site whether its first axis is that of lanes."""
        return [[any(over) for over in self.batched[at:end]] for at, end, _ in self.schema.spans]

    def count_records(self) -> list[int]:
        """Return the number of records of each site, of all lanes; for packets with an index."""
        site, _, lane = self.record_index.T
        number = np.where(lane < 0, math.prod(self.lanes), 1)
        return [int(number[site == i].sum()) for i in range(len(self.schema.sites))]

    def shard(self) -> int | None:
        """Return the index of the shard that emitted the packet, if any."""
        return int(self.operands[1]) if self.schema.is_sharded else None

    def pending_rows(self) -> int:
        """Return the number of rows since the last emission, real or not; for unpacked packets."""
        return int(self.operands[1 + self.schema.is_sharded])

    def trim(self) -> tuple[Packet, int, int]:
        """Remove the unused rows of a buffer; return the packet, its bytes and its records.

        A buffer leaves the program whole, however few rows it holds. For unpacked packets without
        lanes.
        """
        kept, records = list(self.operands), 0
        for at, end, _ in self.schema.spans:
            number = int(kept[end + 1])
            kept[at : end + 1] = [x[:number] for x in kept[at : end + 1]]
            records += number
        # Copy: operands may be views that keep the whole buffer alive.
        kept = [np.array(x) for x in kept]
        return (
            self._replace(operands=kept),
            OBJECT_OVERHEAD_BYTES + sum(x.nbytes for x in kept),
            records,
        )

    def owner(self) -> RecordOwner | None:
        """Return the run that the records belong to, if any."""
        if not self.schema.has_owner:
            return None
        at = self.schema.num_common
        over, levels = self.batched[at], int(self.operands[at - 1])
        inner = len(over) - 1  # index of the innermost level, which is bit 0
        varies = [own and bool(levels >> (inner - i) & 1) for i, own in enumerate(over)]
        return RecordOwner(self.operands[at], tuple(varies))

    def stream(self) -> tuple[int, int]:
        """Return the index of the stream, and the shard inside of the call.

        Each shard of a `shard_map` around the call has its own call.
        """
        number = self.schema.stream
        return number, (self.shard() or 0) % math.prod(self.schema.streams[number].shards)

    def drop_values(self) -> Packet:
        """Return the packet without its values, so that its records can still be counted."""
        kept = list(self.unpack().operands)
        for at, end, _ in self.schema.spans:
            kept[at:end] = [np.zeros(0, bool)] * (end - at)
        return self._replace(operands=kept, is_unpacked=True, is_dropped=True)


def make_packet(site: Site, arrays: Sequence[Any], number: int) -> Packet:
    """Return a packet of records that were logged on the host, in order.

    Args:
      site: The site.
      arrays: Its arrays, with a record axis.
      number: Number of records.
    """
    schema = PacketSchema((site,), (False,), 0, (RecordStream(),), is_last=False)
    index = np.zeros((number, 3), np.int64)
    index[:, 1], index[:, 2] = np.arange(number), -1
    operands = [np.zeros((), np.uint32), *arrays, index[:, 1]]
    layout = PacketLayout(schema, (), ((),) * len(operands), None, 0, number)
    return Packet(layout, operands, is_unpacked=True, record_index=index)


def select_sites(
    parts: Sequence[tuple[Packet, int, Site, Sequence[int] | None]], index: Any
) -> Packet:
    """Return one packet of parts of unpacked packets with the same lanes, shard and owner.

    Args:
      parts: For each site of the new packet: the packet that holds its rows, the number of the site
        there, the new site, and which arrays of the old one it has; None for all.
      index: `record_index` of the new packet.
    """
    first, has_gate = parts[0][0], []
    schema = first.schema
    common = schema.num_common + schema.has_owner
    operands, batched = list(first.operands[:common]), list(first.batched[:common])
    for packet, number, _, which in parts:
        at, end, gated = packet.schema.spans[number]
        if which is not None:
            operands += [packet.operands[at + i] for i in which]
            batched += [packet.batched[at + i] for i in which]
            at = end
        operands += packet.operands[at : end + 1 + gated]
        batched += packet.batched[at : end + 1 + gated]
        has_gate.append(gated)
    schema = PacketSchema(
        tuple([site for _, _, site, _ in parts]),
        tuple(has_gate),
        schema.stream,
        schema.streams,
        is_last=False,
        on_shard=schema.on_shard,
        has_owner=schema.has_owner,
        is_adaptive=schema.is_adaptive,
    )
    layout = PacketLayout(schema, first.lanes, tuple(batched), None, 0, len(index))
    return Packet(layout, operands, True, first.is_dropped, record_index=index)


def stack_packets(packets: Sequence[Packet]) -> list[Packet]:
    """Unpack packets that arrived in this order, and stack those of one emission.

    The records of stacked packets follow one another. Only packets of the same call, shard and
    owner are stacked.
    """
    by_layout: dict[int, list[int]] = {}
    for number, packet in enumerate(packets):
        by_layout.setdefault(-number if packet.is_unpacked else id(packet.layout), []).append(
            number
        )
    stacked = []
    for numbers in by_layout.values():
        first = packets[numbers[0]]
        if len(numbers) == 1 or first.schema.is_last:
            stacked += [packets[i].unpack()._replace(arrivals=(i,)) for i in numbers]
            continue
        columns = zip(*(packets[i].operands for i in numbers), strict=True)
        operands = first._unpack_operands([np.stack(column) for column in columns])
        groups = _group_equal_rows(operands[: first.schema.num_common + first.schema.has_owner])
        if groups is None:
            stacked.append(_join_runs(first, operands, tuple(numbers)))
            continue
        for rows in groups:
            own = tuple(numbers[i] for i in rows)
            stacked.append(_join_runs(first, [x[rows] for x in operands], own))
    return stacked


def _group_equal_rows(operands: Sequence[Any]) -> list[list[int]] | None:
    """Return the indices of rows with equal operands, in groups; None if all are equal."""
    if all((x == x[:1]).all() for x in operands):
        return None
    flat = np.concatenate([x.reshape(len(x), -1).astype(np.int64) for x in operands], axis=1)
    _, kind = np.unique(flat, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    return [np.flatnonzero(kind == each).tolist() for each in dict.fromkeys(kind.tolist())]


def _join_runs(first: Packet, operands: list[Any], arrivals: tuple[int, ...]) -> Packet:
    """Return one packet from operands that have a leading axis for the runs of the emission."""
    schema, batched = first.schema, first.batched
    joined = [x[0] for x in operands]
    for at, end, gated in schema.spans:
        rows = operands[end].shape[-1]
        if gated and operands[end + 1].dtype != bool:
            real = np.arange(rows) < operands[end + 1][..., None]
            operands[end + 1] = real
        for i in range(at, end + 1 + gated):
            joined[i] = _merge_runs_with_rows(operands[i], sum(batched[i]))
    return first._merge_lanes(joined)._replace(arrivals=arrivals)


def _merge_runs_with_rows(x: Any, lanes: int) -> Any:
    """Merge the leading axis, which is that of runs, with the record axis behind the lane axes."""
    if lanes:
        x = np.moveaxis(x, 0, lanes)
    runs, rows = x.shape[lanes : lanes + 2]
    return x.reshape(*x.shape[:lanes], runs * rows, *x.shape[lanes + 2 :])


def merge_lane_axes(x: Any, over: Sequence[bool], lanes: Sequence[int]) -> Any:
    """Return an array with all lanes as one leading axis, if it varies over any of them."""
    if not any(over):
        return x
    own = iter(x.shape)
    shape = [next(own) if varies else 1 for varies in over]
    rest = list(own)
    x = np.broadcast_to(x.reshape(*shape, *rest), (*lanes, *rest))
    return x.reshape(math.prod(lanes), *rest)
