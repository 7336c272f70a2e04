"""The harvest behind `tap`: records leave the program while it runs.

Each record gets its position in the order of the program. Then it waits until there are `buffer`
records, which leave in one emission. Until then it is a result of a part of the program (`Block`),
as under `spool`. Records leave at the ends of iterations: a scan is cut into chunks of as many
iterations as fill the buffer. Records whose number is not known in advance go to a buffer of
constant size, which is emptied when the next ones might not fit; a `while` loop stops for that. The
decisions that are made before the program runs are in `stream_plan`.

If the user gives no `buffer` and the program is not transformed any further, the size of the buffer
adapts: records of loops wait until there are as many as the host last asked for, and a scan becomes
a `while` loop that stops for that. Invalid rows count too, so a log that happens rarely leaves as
soon as others. Records outside of loops leave at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from logax._compat import Array, Equation, Jaxpr, Tree
from logax._delivery.calls import receive_block, receive_packet
from logax._delivery.emit import emit
from logax._delivery.packet import PacketSchema, site_operands
from logax._delivery.worker import worker
from logax._harvest.census import Census, Tally, census_of_entries
from logax._harvest.harvest import Frame, Harvest
from logax._harvest.record_blocks import Block, stop_gradient
from logax._harvest.rules.control_flow import any_lane_p
from logax._harvest.selection import LogPart, SeenLogs, Selection, pass_to_outer
from logax._harvest.stream_plan import (
    StreamPlan,
    adaptive_buffer_size,
    assign_counters,
    count_valid,
    fitting_buffer_size,
    make_plan,
    record_bound,
    record_bytes,
    records_per_key,
)
from logax._log_spec import KeySpec, LogSpec

POSITION = "\0position"  # not a valid name of a step
# States are named by their kind and their path of shards, which is () outside of any `shard_map`.
LIMIT = "limit()"  # number of rows that leave together
PENDING = "pending()"  # number of rows since the last emission, valid or not


@dataclasses.dataclass(frozen=True)
class TapOptions:
    """Options of a call of `tap` on which the program depends.

    Attributes:
      selection: The logs to stream.
      keep_logs: Whether to pass the streamed logs to an outer harvest too.
      interval: Interval of the records to stream.
      buffer: Number of records that leave together; None if it adapts.
      owned: True if the program takes the number of an owner, which is one more operand.
    """

    selection: Selection
    keep_logs: bool
    interval: int
    buffer: int | None
    owned: bool = False


class CallContext(NamedTuple):
    """Values that every part of the program needs.

    Attributes:
      call: Number of the call.
      lanes: Lanes of the call (see `lane_marker`).
      shard: Index of the shard.
      owner: Operands that identify the owner of the records (see `owner_operands`), if there is
        one.
    """

    call: Array
    lanes: Array
    shard: Array
    owner: tuple[Array, ...] = ()


class TapHarvest(Harvest):
    """The harvest that emits the selected logs and passes the others to the outer harvest."""

    streams = True

    def __init__(self, options: TapOptions, has_outer: bool, *, adapts: bool = False) -> None:
        super().__init__()
        self.options, self._has_outer = options, has_outer
        self.adapts = adapts
        self.seen = SeenLogs()
        self.inside_shard_map = False  # whether the whole call runs on one shard
        self._names: dict[Any, str] = {}  # by site and types
        self._specs: dict[str, LogSpec] = {}
        self._splits_keys = False  # whether each key of a log makes its own record
        self._counters: dict[str, str] = {}  # by site, if records are thinned
        self._size = 1  # maximum number of records that wait
        self._plan = StreamPlan({}, (), {}, {})

    # Census and plan.

    def census_of_log(self, equation: Equation) -> Census:
        """Return the census of the selected part of the log, as one record."""
        spec = equation.params["spec"]
        self.seen.add(spec)
        chosen, _ = self.options.selection.split(spec, [atom.aval for atom in equation.invars])
        census: Census = {}
        for name, part in self._split_records(chosen):
            self._specs[name] = own_spec = part.to_spec()
            (tally,) = census_of_entries(
                [_merge_entries(own_spec)], own_spec, part.flat_operands()
            ).values()
            self._check_record_fits_queue(own_spec, tally)
            steps = {**tally.steps, POSITION: jax.ShapeDtypeStruct((), jnp.int32)}
            if self.options.interval > 1:
                tally = tally.conditional()
            census[name] = dataclasses.replace(tally, steps=steps)
        return census

    def _split_records(self, chosen: LogPart) -> Iterator[tuple[str, LogPart]]:
        """Yield the records that one log makes, each with a name for its site and types.

        That is one record, unless its keys must be thinned separately.
        """
        parts = [chosen] if chosen.entries else []
        for part in chosen.split_entries() if self._splits_keys else parts:
            site = (part.to_spec(), *((x.shape, x.dtype) for x in part.flat_operands()))
            yield self._names.setdefault(site, f"{len(self._names)}: {part.to_spec()}"), part

    def _check_record_fits_queue(self, spec: LogSpec, tally: Tally) -> None:
        size = record_bytes(tally)
        if size > worker.queue_bytes:
            raise ValueError(
                f"A record of {', '.join(f'`{e.key}`' for e in spec.entries)}, logged at "
                f"{spec.site}, has {size} bytes, and the queue on the host takes "
                f"{worker.queue_bytes}. Increase it with `logax.configure(queue_bytes=...)`, or "
                "log less."
            )

    def plan(self, jaxpr: Jaxpr) -> Census:
        """Return the census of the program, after planning its buffers and streams."""
        census = self.census(jaxpr)
        if self.options.interval > 1:
            census = self._assign_counters(census, jaxpr)
        totals = self._records_per_key(census, jaxpr)
        self._size = adaptive_buffer_size(census) if self.adapts else 0
        self.adapts = self._size > 1
        if not self.adapts:
            self._size = fitting_buffer_size(census, self.options.buffer or 1)
        self._plan = make_plan(census, self._specs, totals, self._size, adapts=self.adapts)
        return census

    def _size_on(self, frame: Frame) -> int:
        """Return the number of records that wait in a frame; 1 on shards if the number adapts."""
        return 1 if self.adapts and frame.shards else self._size

    def _adapts_outside_shards(self, frame: Frame) -> bool:
        """Return whether the number of records that leave this frame together adapts."""
        return self.adapts and not frame.shards

    def _assign_counters(self, census: Census, jaxpr: Jaxpr) -> Census:
        """Assign a counter to each site.

        If the keys of a site cannot share one, take the census again with a record per key.
        """
        counters = assign_counters(census, self._specs)
        if counters is None:
            self._splits_keys = True
            self.memo.clear()
            self._specs.clear()
            census = self.census(jaxpr)
            counters = assign_counters(census, self._specs)
        self._counters = counters or {}
        return census

    def _records_per_key(self, census: Census, jaxpr: Jaxpr) -> dict[str, int]:
        """Return the number of records of each key, if it is known."""
        interval = self.options.interval
        if interval == 1:
            return records_per_key(census, self._specs, interval)
        # The count of a thinned log is not exact, so take the census without thinning.
        whole = TapHarvest(dataclasses.replace(self.options, interval=1), self._has_outer)
        return records_per_key(whole.census(jaxpr), whole._specs, interval)

    # States: the position in each stream, the number of records per site, the buffers.

    def start_states(self, block_size: Array | None = None) -> dict[str, Tree]:
        """Return the states before the first record; `block_size` is the first limit."""
        states: dict[str, Tree] = {}
        if self.adapts:
            states |= {LIMIT: self._limit(block_size), PENDING: jnp.zeros((), jnp.int32)}
        for path, tallies in self._plan.paths.items():
            zero = jnp.zeros(path, jnp.int32)
            states[f"position{path}"] = zero
            if self.options.interval > 1:
                states |= {f"seen{path}{self._counters[name]}": zero for name in tallies}
            if path in self._plan.buffers:
                states[f"buffer{path}"] = self._plan.buffers[path].start(path)
        return states

    def states_for(self, frame: Frame, census: Census, emits: bool) -> dict[str, Tree]:
        """Return the counts and, if the part emits, the buffers; records before it leave first."""
        if emits and frame.emits:
            self.drain(frame)
        paths = {(*frame.shards, *tally.shards) for tally in census.values()}
        kinds = (
            ("position", "seen", "buffer", "limit", "pending") if emits else ("position", "seen")
        )
        starts = tuple(f"{kind}{path}" for path in paths for kind in kinds)
        return {key: state for key, state in frame.states.items() if key.startswith(starts)}

    # Emission.

    def emits_inside(self, frame: Frame, census: Census, may_repeat: bool) -> bool:
        """Emit if there are too many records to wait.

        A part that may run twice emits only if its records have no bound.
        """
        bound = record_bound(census)
        if bound is None:
            return True
        if not frame.emits or may_repeat:
            return False
        if self._adapts_outside_shards(frame):
            return not frame.in_loop or _has_long_loop(census)
        return bound >= self._size_on(frame)

    def branch_states(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """Emit in branches if there are too many records to return, or if shards inside emit."""
        emits = self.emits_inside(frame, census, may_repeat=False) or any(
            tally.shards for tally in census.values()
        )
        return frame.states_for(census, emits), emits

    def iterations_per_emission(self, frame: Frame, census: Census, length: int) -> int:
        """Return the number of iterations that fill the buffer, or fewer to leave no remainder."""
        bound, size = record_bound(census), self._size_on(frame)
        if bound is None:
            return 1
        if self._adapts_outside_shards(frame):
            is_short = frame.in_loop and not _has_long_loop(_repeat(census, length))
            return int(frame.emits and not is_short)
        if not frame.emits or length * bound <= size:
            return 0
        if bound >= size:
            return 1
        longest = min(size // bound, length)
        return next((n for n in range(longest, longest // 2, -1) if length % n == 0), longest)

    def runs_in_chunks(self, frame: Frame, census: Census, length: int) -> bool:
        """Return whether the size adapts and an iteration has no long loop to cut instead."""
        bound = record_bound(census)
        return (
            self._adapts_outside_shards(frame)
            and length > 0
            and self.iterations_per_emission(frame, census, length) == 1
            and bound is not None
            and 0 < bound <= self._size
            and not _has_long_loop(census)
        )

    def uses_buffer(self, frame: Frame, census: Census) -> bool:
        """Return whether the buffer has room for an iteration; shards inside have other buffers."""
        if frame.shards not in self._plan.buffers:
            return False
        bound = record_bound(_outside_of_shards(census))
        short = not (self.adapts and _has_long_loop(census))
        return short and bound is not None and 0 < bound <= self._size

    def is_full(
        self, frame: Frame, states: dict[str, Tree], census: Census, group: int = 1
    ) -> Array:
        """Return whether the records of the next iterations might not fit, or enough wait."""
        bound = record_bound(_outside_of_shards(census)) or 0
        if not self.adapts:
            buffer = self._plan.buffers[frame.shards]
            return buffer.lacks_room(states[f"buffer{frame.shards}"], bound)
        more: Any = bound
        if group > 1:
            more = jnp.where(self.iterates_in_groups(states, census, group), group * bound, bound)
        return (states[PENDING] > 0) & (states[PENDING] + more > states[LIMIT])

    def iterates_in_groups(self, states: dict[str, Tree], census: Census, group: int) -> Array:
        """Return whether an emission has room for a group of iterations."""
        return states[LIMIT] >= group * (record_bound(census) or 0)

    def end_chunk(self, frame: Frame, census: Census, group: int = 1) -> None:
        """Empty the buffer; in an outer loop whose chunks adapt, only if it is full."""
        if self._adapts_outside_shards(frame) and frame.in_loop:
            self._empty_if(frame, self.is_full(frame, frame.states, census, group))
        else:
            self.empty_buffer(frame)

    def end_loop(self, frame: Frame) -> None:
        """Empty the buffer after the outermost loop."""
        if self._adapts_outside_shards(frame) and not frame.in_loop:
            self.empty_buffer(frame)

    def after_record(self, frame: Frame) -> None:
        """Drain the frame if it has enough records for an emission."""
        rows = sum(math.prod(r.rows_shape()) for parts in frame.blocks.values() for r in parts)
        if rows >= (
            1 if self._adapts_outside_shards(frame) and not frame.in_loop else self._size_on(frame)
        ):
            self.drain(frame)

    def drain(self, frame: Frame, *, has_room: bool = False) -> None:
        """Emit all records of the frame, or buffer them."""
        collected, frame.blocks = frame.collect_blocks(), {}
        blocks = {name: records.with_record_axis() for name, records in collected.items()}
        blocks = {name: block for name, block in blocks.items() if block.num_rows()}
        if not blocks:
            return
        # The records of one emission must be contiguous in the order of the program.
        key = f"buffer{frame.shards}"
        rows = sum(block.num_rows() for block in blocks.values())
        if key not in frame.states or (self._adapts_outside_shards(frame) and not frame.in_loop):
            self._emit(frame, self._all_rows(blocks))
        elif rows > self._size:
            self.empty_buffer(frame)
            self._emit(frame, self._all_rows(blocks))
        else:
            if not (has_room or self.adapts):
                self._make_room(frame, count_valid(blocks))
            frame.states[key] = self._plan.buffers[frame.shards].add(frame.states[key], blocks)
            if self.adapts:
                frame.states[PENDING] += rows
                if not has_room:
                    self._empty_if(frame, frame.states[PENDING] >= frame.states[LIMIT])

    def _make_room(self, frame: Frame, more: Any) -> None:
        """Empty the buffer if `more` records do not fit."""
        buffer = frame.states[f"buffer{frame.shards}"]
        full = self._plan.buffers[frame.shards].lacks_room(buffer, more)
        self._empty_if(frame, full if frame.valid is None else full & frame.valid)

    def _empty_if(self, frame: Frame, full: Array) -> None:
        """Empty the buffer if it is full in any lane."""
        keys = [f"buffer{frame.shards}", *([LIMIT, PENDING] if self.adapts else [])]

        def empty(states: dict[str, Tree]) -> dict[str, Tree]:
            child = frame.child(states, frame.scope())
            self.empty_buffer(child)
            return child.states

        states = {key: frame.states[key] for key in keys}
        full = any_lane_p.bind(full)
        frame.states |= jax.lax.cond(full, empty, lambda states: states, states)

    def empty_buffer(self, frame: Frame) -> None:
        """Emit the buffered records."""
        buffer, key = self._plan.buffers.get(frame.shards), f"buffer{frame.shards}"
        if buffer is None or key not in frame.states:  # parts that may run twice have none
            return
        rows, valid = self._waiting_rows(frame), frame.valid
        if self.adapts:
            next_size = self._emit(frame, rows, pending=frame.states[PENDING])
            frame.states[LIMIT] = self._limit(next_size)
            frame.states[PENDING] = jnp.zeros((), jnp.int32)
            valid = None  # there are no lanes, and buffered records are valid
        else:
            self._emit(frame, rows)
        frame.states[key] = buffer.empty(frame.states[key], valid)

    def _limit(self, block_size: Any) -> Array:
        """Return the number of rows that leave together, given the number the host asks for."""
        return jnp.clip(block_size, 1, self._size)

    def _waiting_rows(self, frame: Frame) -> dict[str, list[Array]]:
        state = frame.states[f"buffer{frame.shards}"]
        valid = None if self.adapts else frame.valid
        content = self._plan.buffers[frame.shards].content(state, valid)
        return {n: self._rows(n, each, count) for n, (each, count) in content.items()}

    def _all_rows(self, records: Mapping[str, Block]) -> dict[str, list[Array]]:
        blocks = {name: each.with_record_axis() for name, each in records.items()}
        return {name: self._rows(name, each, each.valid) for name, each in blocks.items()}

    def _rows(self, name: str, block: Block, gate: Array | None) -> list[Array]:
        steps = [block.steps[step] for step in self._specs[name].steps]
        return site_operands([*block.leaves, *steps], block.steps[POSITION], gate)

    def _emit(
        self,
        frame: Frame,
        rows: dict[str, list[Array]],
        ends: Sequence[Array] = (),
        pending: Array | None = None,
    ) -> Array | None:
        """Emit records; if rows were pending, return how many should leave next."""
        context: CallContext = frame.call_context
        paths = list(self._plan.paths)
        stream = paths.index(frame.shards) if frame.shards in paths else 0
        sites = self._plan.sites
        schema = PacketSchema(
            tuple(sites[name] for name in rows),
            tuple(sites[name].has_gate(each) for name, each in rows.items()),
            stream,
            self._plan.streams,
            bool(ends),
            self.inside_shard_map,
            bool(context.owner),
            pending is not None,
        )
        operands = schema.to_operands(
            context.call, context.shard, context.owner, rows.values(), ends, pending
        )
        if pending is None:
            return emit(schema, context.lanes, operands, receive_packet)
        return emit(schema, context.lanes, operands, receive_block, answers=True)

    def end_call(self, frame: Frame) -> None:
        """Emit the remaining records, and the length of each stream unless the host knows it."""
        rows: dict[str, list[Array]] = {}
        if frame.shards in self._plan.buffers and not self.adapts:
            self.drain(frame)
            rows = self._waiting_rows(frame)
        else:
            rows = self._all_rows(frame.collect_blocks())
        ends = []
        if any(stream.total is None for stream in self._plan.streams):
            ends = [
                frame.states[f"position{path}"].reshape(-1)
                if path
                else frame.states[f"position{path}"]
                for path in self._plan.paths
            ]
        if rows or ends:
            self._emit(frame, rows, ends)

    # Logs.

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        """Record the selected part of a log, and bind the rest for an outer harvest."""
        spec = equation.params["spec"]
        args = [jnp.asarray(x) for x in args]
        chosen, rest = self.options.selection.split(spec, args)
        for name, part in self._split_records(chosen):
            if frame.takes(name):
                self._record(frame, name, part)
            elif self._has_outer and not self.options.keep_logs:
                frame.bind_for_outer(part.flat_operands(), part.to_spec())
        if self._has_outer:
            pass_to_outer(frame.bind_for_outer, args, spec, rest, self.options.keep_logs)

    def _record(self, frame: Frame, name: str, part: LogPart) -> None:
        valid, path = frame.valid, frame.shards
        if self.options.interval > 1:
            counter = f"seen{path}{self._counters[name]}"
            seen = frame.states[counter]
            due = seen % self.options.interval == 0
            frame.states[counter] = seen + _as_count(valid)
            valid = due if valid is None else due & valid
        position = frame.states[f"position{path}"]
        frame.states[f"position{path}"] = position + _as_count(valid)
        arrays = [stop_gradient(x) for own in part.operands for x in own]
        steps = dict(zip(part.spec.steps, map(stop_gradient, part.steps), strict=True))
        steps[POSITION] = position
        frame.record(name, Block(tuple(arrays), steps, valid, is_single=True))

    def context_on_shard(self, context: CallContext, index: Array, number: int) -> CallContext:
        """Count shards through all levels of `shard_map`."""
        return context._replace(shard=context.shard * number + index)


def _merge_entries(spec: LogSpec) -> KeySpec:
    """Return all entries of a log as one entry with all their leaves."""
    leaves = tuple(leaf for entry in spec.entries for leaf in entry.leaves)
    return KeySpec(", ".join(entry.key for entry in spec.entries), None, leaves)


def _outside_of_shards(census: Census) -> Census:
    return {name: tally for name, tally in census.items() if not tally.shards}


def _has_long_loop(census: Census) -> bool:
    return any(tally.has_long_loop for tally in census.values())


def _repeat(census: Census, number: int) -> Census:
    return {name: tally.times(number) for name, tally in census.items()}


def _as_count(valid: Array | None) -> Any:
    return 1 if valid is None else valid.astype(jnp.int32)
