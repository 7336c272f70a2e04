"""The harvest of `tap`: records leave the program while it runs.

Each record gets its place in the order of the program. Then it waits, with others, until there are
`buffer` of them, and all leave in one emission. They wait as what spooled records are: results of
the parts of the program (`Block`), up to the next place where they can leave. Such places are the
ends of iterations: a scan is cut into stretches of as many iterations as fill the buffer. Records
whose number is not known before they are made are moved to a buffer of constant size there, which
is emptied when the next ones would not fit; a `while` loop stops for that. What can be settled
before the program runs is in `planning`.

Where users give no `buffer` and nobody transforms the program any more, its size adapts. Records of
loops wait in a buffer until there are as many as the host asked for last, and a scan becomes a
`while` loop that stops for that. Rows count whether they are real or not, so that a log which
happens rarely leaves as soon as others. Records outside of loops leave at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from logax._compat import Array, Equation, Jaxpr, Tree
from logax._delivery.calls import receive, receive_block
from logax._delivery.emit import emit
from logax._delivery.packet import Packet, Rows
from logax._delivery.worker import worker
from logax._harvest import census as counting
from logax._harvest.blocks import Block, Single, cut_off
from logax._harvest.census import Census, Tally
from logax._harvest.harvest import Frame, Harvest
from logax._harvest.rules.control_flow import any_lane_p
from logax._harvest.selection import Choice, Findings, Part, leave
from logax._harvest.stream_plan import (
    Plan,
    adapted_size,
    bound_of,
    bytes_of,
    counters_of,
    fitting,
    number_of_real,
    plan_of,
    totals_of,
)
from logax._log_spec import Entry, LogSpec

PLACE = "\0place"  # as no step is called
# States are named by their kind and their path of shards, which is () outside of any `shard_map`.
LIMIT = "limit()"  # number of rows that leave together
PENDING = "pending()"  # number of rows since the last emission, real or not


@dataclasses.dataclass(frozen=True)
class Options:
    """What a call of `tap` asks for, as far as the program depends on it.

    `owned` says that the program is told the number of an owner: one more operand, which makes it
    another program.
    """

    choice: Choice
    keep_logs: bool
    interval: int
    buffer: int | None
    owned: bool = False


class Given(NamedTuple):
    """What is at hand everywhere.

    Attributes:
      call: Its number.
      lanes: Its lanes (`lanes_of`).
      shard: The index of the shard.
      owner: Whose its records are (`owned`), if they have an owner.
    """

    call: Array
    lanes: Array
    shard: Array
    owner: tuple[Array, ...] = ()


class Tap(Harvest):
    """The harvest that emits the chosen logs and leaves the others to the one outside."""

    streams = True

    def __init__(self, options: Options, outer: bool, *, adapts: bool = False) -> None:
        super().__init__()
        self.options, self._outer = options, outer
        self.adapts = adapts
        self.found = Findings()
        self.on_one_shard = False  # whether the whole call is, inside a `shard_map`
        self._names: dict[Any, str] = {}  # of each site and its types
        self._specs: dict[str, LogSpec] = {}
        self._apart = False  # whether each key of a log is a record by itself
        self._counters: dict[str, str] = {}  # of each site, where records are thinned
        self._size = 1  # number of records that wait, at most
        self._plan = Plan({}, (), {}, {})

    # What there is.

    def census_of_log(self, equation: Equation) -> Census:
        """The chosen part of the log, as one record."""
        spec = equation.params["spec"]
        self.found.add(spec)
        chosen, _ = self.options.choice.split(spec, [atom.aval for atom in equation.invars])
        census: Census = {}
        for name, part in self._parts(chosen):
            self._specs[name] = taken = part.as_spec()
            (tally,) = counting.of_log([_whole(taken)], taken, part.flat()).values()
            self._check_size(taken, tally)
            steps = {**tally.steps, PLACE: jax.ShapeDtypeStruct((), jnp.int32)}
            if self.options.interval > 1:
                tally = tally.maybe()
            census[name] = dataclasses.replace(tally, steps=steps)
        return census

    def _parts(self, chosen: Part) -> Iterator[tuple[str, Part]]:
        """The records that one log makes, each with a name for its site and types.

        There is one record, unless its keys must be thinned apart.
        """
        for part in chosen.apart() if self._apart else [chosen] if chosen.entries else []:
            site = (part.as_spec(), *((x.shape, x.dtype) for x in part.flat()))
            yield self._names.setdefault(site, f"{len(self._names)}: {part.as_spec()}"), part

    def _check_size(self, spec: LogSpec, tally: Tally) -> None:
        size = bytes_of(tally)
        if size > worker.limit:
            raise ValueError(
                f"A record of {', '.join(f'`{e.key}`' for e in spec.entries)}, logged at "
                f"{spec.site}, has {size} bytes, and the queue on the host takes {worker.limit}. "
                "Write `logax.configure(queue_bytes=...)` with more, or log less."
            )

    def planned(self, jaxpr: Jaxpr) -> Census:
        """The census of the program; decides where records wait, and what the host must know."""
        census = self.census(jaxpr)
        if self.options.interval > 1:
            census = self._counted(census, jaxpr)
        totals = self._totals(census, jaxpr)
        self._size = adapted_size(census) if self.adapts else 0
        self.adapts = self._size > 1
        if not self.adapts:
            self._size = fitting(census, self.options.buffer or 1)
        self._plan = plan_of(census, self._specs, totals, self._size, adapts=self.adapts)
        return census

    def _size_on(self, frame: Frame) -> int:
        """Return how many records wait here; where their number adapts, none of shards do."""
        return 1 if self.adapts and frame.shards else self._size

    def _adapts_outside_shards(self, frame: Frame) -> bool:
        """Whether the number of records that leave here together adapts."""
        return self.adapts and not frame.shards

    def _counted(self, census: Census, jaxpr: Jaxpr) -> Census:
        """Give each site its counter; where keys cannot share one, count again with them apart."""
        counters = counters_of(census, self._specs)
        if counters is None:
            self._apart = True
            self.memo.clear()
            self._specs.clear()
            census = self.census(jaxpr)
            counters = counters_of(census, self._specs)
        self._counters = counters or {}
        return census

    def _totals(self, census: Census, jaxpr: Jaxpr) -> dict[str, int]:
        """How many records each key has, where the program says so."""
        interval = self.options.interval
        if interval == 1:
            return totals_of(census, self._specs, interval)
        # A log that is thinned is one that may not happen: only all of them can be counted.
        whole = Tap(dataclasses.replace(self.options, interval=1), self._outer)
        return totals_of(whole.census(jaxpr), whole._specs, interval)

    # States: how many records there were, how many of each site, and what waits.

    def started(self, block_size: Array | None = None) -> dict[str, Tree]:
        """Return the states before the first record, given how many leave first if that adapts."""
        states: dict[str, Tree] = {}
        if self.adapts:
            states |= {LIMIT: self._limit(block_size), PENDING: jnp.zeros((), jnp.int32)}
        for path, tallies in self._plan.paths.items():
            zero = jnp.zeros(path, jnp.int32)
            states[f"place{path}"] = zero
            if self.options.interval > 1:
                states |= {f"seen{path}{self._counters[name]}": zero for name in tallies}
            if path in self._plan.buffers:
                states[f"buffer{path}"] = self._plan.buffers[path].start(path)
        return states

    def threaded(self, frame: Frame, census: Census, emits: bool) -> dict[str, Tree]:
        """The counts, and where a part emits, what waits; records before it go first."""
        if emits and frame.emits:
            self.settle(frame)
        paths = {(*frame.shards, *tally.shards) for tally in census.values()}
        kinds = ("place", "seen", "buffer", "limit", "pending") if emits else ("place", "seen")
        starts = tuple(f"{kind}{path}" for path in paths for kind in kinds)
        return {key: state for key, state in frame.states.items() if key.startswith(starts)}

    # Where records leave.

    def emits_inside(self, frame: Frame, census: Census, again: bool) -> bool:
        """Where there are too many to wait; in what may run twice only if there is no bound."""
        bound = bound_of(census)
        if bound is None:
            return True
        if not frame.emits or again:
            return False
        if self._adapts_outside_shards(frame):
            return not frame.in_loop or _has_long_loop(census)
        return bound >= self._size_on(frame)

    def through_branches(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """Branches emit what is too much to be returned, and what shards emit by themselves."""
        emits = self.emits_inside(frame, census, again=False) or any(
            tally.shards for tally in census.values()
        )
        return frame.threaded(census, emits), emits

    def cut(self, frame: Frame, census: Census, length: int) -> int:
        """As many iterations as fill the buffer, and rather a few less if that leaves no rest."""
        bound, size = bound_of(census), self._size_on(frame)
        if bound is None:
            return 1
        if self._adapts_outside_shards(frame):
            is_short = frame.in_loop and not _has_long_loop(_times(census, length))
            return int(frame.emits and not is_short)
        if not frame.emits or length * bound <= size:
            return 0
        if bound >= size:
            return 1
        most = min(size // bound, length)
        return next((n for n in range(most, most // 2, -1) if length % n == 0), most)

    def runs_in_stretches(self, frame: Frame, census: Census, length: int) -> bool:
        """Where an iteration has no loop of its own that is long enough to be cut."""
        bound = bound_of(census)
        return (
            self._adapts_outside_shards(frame)
            and length > 0
            and self.cut(frame, census, length) == 1
            and bound is not None
            and 0 < bound <= self._size
            and not _has_long_loop(census)
        )

    def waits(self, frame: Frame, census: Census) -> bool:
        """Where the buffer has room for an iteration; shards inside have buffers of their own."""
        if frame.shards not in self._plan.buffers:
            return False
        bound = bound_of(_outside_of_shards(census))
        short = not (self.adapts and _has_long_loop(census))
        return short and bound is not None and 0 < bound <= self._size

    def is_full(
        self, frame: Frame, states: dict[str, Tree], census: Census, group: int = 1
    ) -> Array:
        """Where the records of the next iterations might not fit, or enough wait."""
        bound = bound_of(_outside_of_shards(census)) or 0
        if not self.adapts:
            buffer = self._plan.buffers[frame.shards]
            return buffer.lacks_room(states[f"buffer{frame.shards}"], bound)
        more: Any = bound
        if group > 1:
            more = jnp.where(self.iterates_in_groups(states, census, group), group * bound, bound)
        return (states[PENDING] > 0) & (states[PENDING] + more > states[LIMIT])

    def iterates_in_groups(self, states: dict[str, Tree], census: Census, group: int) -> Array:
        """Where a block has room for that many iterations."""
        return states[LIMIT] >= group * (bound_of(census) or 0)

    def end_stretch(self, frame: Frame, census: Census, group: int = 1) -> None:
        """Empty the buffer; in an outer loop whose stretches adapt, only once it is full."""
        if self._adapts_outside_shards(frame) and frame.in_loop:
            self._empty_if(frame, self.is_full(frame, frame.states, census, group))
        else:
            self.empty_buffer(frame)

    def leave_loop(self, frame: Frame) -> None:
        """Behind the outermost loop nothing waits."""
        if self._adapts_outside_shards(frame) and not frame.in_loop:
            self.empty_buffer(frame)

    def took(self, frame: Frame) -> None:
        """Let go of what is enough for an emission."""
        rows = sum(math.prod(r.leading()) for parts in frame.blocks.values() for r in parts)
        if rows >= (
            1 if self._adapts_outside_shards(frame) and not frame.in_loop else self._size_on(frame)
        ):
            self.settle(frame)

    def settle(self, frame: Frame, *, has_room: bool = False) -> None:
        """Emit all records of the frame, or put them into the buffer."""
        collected, frame.blocks = frame.collected(), {}
        blocks = {name: records.block() for name, records in collected.items()}
        blocks = {name: block for name, block in blocks.items() if block.rows()}
        if not blocks:
            return
        # What leaves together must be without gaps in the order of the program.
        key = f"buffer{frame.shards}"
        rows = sum(block.rows() for block in blocks.values())
        if key not in frame.states or (self._adapts_outside_shards(frame) and not frame.in_loop):
            self._emit(frame, self._all_rows(blocks))
        elif rows > self._size:
            self.empty_buffer(frame)
            self._emit(frame, self._all_rows(blocks))
        else:
            if not (has_room or self.adapts):
                self._make_room(frame, number_of_real(blocks))
            frame.states[key] = self._plan.buffers[frame.shards].add(frame.states[key], blocks)
            if self.adapts:
                frame.states[PENDING] += rows
                if not has_room:
                    self._empty_if(frame, frame.states[PENDING] >= frame.states[LIMIT])

    def _make_room(self, frame: Frame, more: Any) -> None:
        """Empty the buffer if so many more would not fit."""
        buffer = frame.states[f"buffer{frame.shards}"]
        full = self._plan.buffers[frame.shards].lacks_room(buffer, more)
        self._empty_if(frame, full if frame.valid is None else full & frame.valid)

    def _empty_if(self, frame: Frame, full: Array) -> None:
        """Empty the buffer if it is full in any lane."""
        keys = [f"buffer{frame.shards}", *([LIMIT, PENDING] if self.adapts else [])]

        def emptied(states: dict[str, Tree]) -> dict[str, Tree]:
            child = frame.child(states, frame.passed())
            self.empty_buffer(child)
            return child.states

        states = {key: frame.states[key] for key in keys}
        full = any_lane_p.bind(full)
        frame.states |= jax.lax.cond(full, emptied, lambda states: states, states)

    def empty_buffer(self, frame: Frame) -> None:
        """Emit what waits."""
        buffer, key = self._plan.buffers.get(frame.shards), f"buffer{frame.shards}"
        if buffer is None or key not in frame.states:  # it is not in what may run twice
            return
        rows, valid = self._waiting_rows(frame), frame.valid
        if self.adapts:
            next_size = self._emit(frame, rows, pending=frame.states[PENDING])
            frame.states[LIMIT] = self._limit(next_size)
            frame.states[PENDING] = jnp.zeros((), jnp.int32)
            valid = None  # there are no lanes, and what waits is real whatever runs here
        else:
            self._emit(frame, rows)
        frame.states[key] = buffer.emptied(frame.states[key], valid)

    def _limit(self, block_size: Any) -> Array:
        """Return how many rows leave together, given how many the host asks for."""
        return jnp.clip(block_size, 1, self._size)

    def _waiting_rows(self, frame: Frame) -> dict[str, Rows]:
        state = frame.states[f"buffer{frame.shards}"]
        valid = None if self.adapts else frame.valid
        content = self._plan.buffers[frame.shards].content(state, valid)
        return {n: self._rows(n, each)._replace(gate=real) for n, (each, real) in content.items()}

    def _all_rows(self, records: Mapping[str, Block | Single]) -> dict[str, Rows]:
        return {name: self._rows(name, each.block()) for name, each in records.items()}

    def _rows(self, name: str, block: Block) -> Rows:
        steps = [block.steps[step] for step in self._specs[name].steps]
        return Rows([*block.leaves, *steps], block.steps[PLACE], block.valid)

    def _emit(
        self,
        frame: Frame,
        rows: dict[str, Rows],
        ends: Sequence[Array] = (),
        pending: Array | None = None,
    ) -> Array | None:
        """Emit some records; if rows were pending, return how many are to leave next."""
        given: Given = frame.given
        paths = list(self._plan.paths)
        stream = paths.index(frame.shards) if frame.shards in paths else 0
        packet = Packet(
            tuple(self._plan.sites[name] for name in rows),
            tuple(each.gate is not None for each in rows.values()),
            stream,
            self._plan.streams,
            bool(ends),
            self.on_one_shard,
            bool(given.owner),
            pending is not None,
        )
        columns = [*rows.values()]
        operands = packet.flat(given.call, given.shard, given.owner, columns, ends, pending)
        if pending is None:
            return emit(packet, given.lanes, operands, receive)
        return emit(packet, given.lanes, operands, receive_block, answers=True)

    def end(self, frame: Frame) -> None:
        """Emit the rest, and say that it is the rest unless the host knows."""
        rows: dict[str, Rows] = {}
        if frame.shards in self._plan.buffers and not self.adapts:
            self.settle(frame)
            rows = self._waiting_rows(frame)
        else:
            rows = self._all_rows(frame.collected())
        ends = []
        if any(stream.total is None for stream in self._plan.streams):
            ends = [
                frame.states[f"place{path}"].reshape(-1) if path else frame.states[f"place{path}"]
                for path in self._plan.paths
            ]
        if rows or ends:
            self._emit(frame, rows, ends)

    # What is done with a log.

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        """Give the chosen part its place; bind the rest, or all of it, for an outer harvest."""
        spec = equation.params["spec"]
        args = [jnp.asarray(x) for x in args]
        chosen, rest = self.options.choice.split(spec, args)
        for name, part in self._parts(chosen):
            if frame.takes(name):
                self._record(frame, name, part)
            elif self._outer and not self.options.keep_logs:
                frame.leave(part.flat(), part.as_spec())
        if self._outer:
            leave(frame.leave, args, spec, rest, self.options.keep_logs)

    def _record(self, frame: Frame, name: str, part: Part) -> None:
        valid, path = frame.valid, frame.shards
        if self.options.interval > 1:
            counter = f"seen{path}{self._counters[name]}"
            seen = frame.states[counter]
            due = seen % self.options.interval == 0
            frame.states[counter] = seen + _number(valid)
            valid = due if valid is None else due & valid
        place = frame.states[f"place{path}"]
        frame.states[f"place{path}"] = place + _number(valid)
        arrays = [cut_off(x) for own in part.operands for x in own]
        steps = dict(zip(part.spec.steps, map(cut_off, part.steps), strict=True))
        frame.record(name, Single(tuple(arrays), {**steps, PLACE: place}, valid))

    def on_shard(self, given: Given, index: Array, number: int) -> Given:
        """Shards are counted through all levels."""
        return given._replace(shard=given.shard * number + index)


def _whole(spec: LogSpec) -> Entry:
    """All entries of a log as one, as far as their arrays go."""
    leaves = tuple(leaf for entry in spec.entries for leaf in entry.leaves)
    return Entry(", ".join(entry.key for entry in spec.entries), None, leaves)


def _outside_of_shards(census: Census) -> Census:
    return {name: tally for name, tally in census.items() if not tally.shards}


def _has_long_loop(census: Census) -> bool:
    return any(tally.has_long_loop for tally in census.values())


def _times(census: Census, number: int) -> Census:
    return {name: tally.times(number) for name, tally in census.items()}


def _number(valid: Array | None) -> Any:
    return 1 if valid is None else valid.astype(jnp.int32)
