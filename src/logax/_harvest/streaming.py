"""The harvest of `tap`: records leave the program while it runs.

Each record gets its place in the order of the program. Then it waits, with others, until there are
`buffer` of them, and all leave in one emission. They wait as what spooled records are: results of
the parts of the program (`Block`), up to the next place where they can leave. Such places are the
ends of iterations: a scan is cut into stretches of as many iterations as fill the buffer. Records
whose number is not known before they are made are moved to a buffer of constant size there, which
is emptied when the next ones would not fit; a `while` loop stops for that. What can be settled
before the program runs is in `planning`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from logax._compat import Array, Equation, Jaxpr, Tree
from logax._delivery.calls import receive
from logax._delivery.emit import emit
from logax._delivery.packets import Packet, Rows
from logax._delivery.worker import worker
from logax._entries import Entry, LogSpec
from logax._harvest import census as counting
from logax._harvest.blocks import Block, Single, cut_off
from logax._harvest.buffer import number_of_real
from logax._harvest.census import Census, Tally
from logax._harvest.choice import Choice, Part, leave
from logax._harvest.findings import Findings
from logax._harvest.harvest import Frame, Harvest
from logax._harvest.lanes import any_lane_p
from logax._harvest.planning import (
    Plan,
    bound_of,
    bytes_of,
    counters_of,
    fitting,
    plan_of,
    totals_of,
)

PLACE = "\0place"  # as no step is called


@dataclasses.dataclass(frozen=True)
class Options:
    """What a call of `tap` asks for, as far as the program depends on it.

    `owned` says that the program is told the number of an owner: one more operand, which makes it
    another program.
    """

    choice: Choice
    keep_logs: bool
    interval: int
    buffer: int
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

    def __init__(self, options: Options, outer: bool) -> None:
        super().__init__()
        self.options, self._outer = options, outer
        self.found = Findings()
        self.on_one_shard = False  # whether the whole call is, inside a `shard_map`
        self._names: dict[Any, str] = {}  # of each site and its types
        self._specs: dict[str, LogSpec] = {}
        self._apart = False  # whether each key of a log is a record by itself
        self._counters: dict[str, str] = {}  # of each site, where records are thinned
        self._size = options.buffer  # how many records wait
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
        self._size = fitting(census, self.options.buffer)
        self._plan = plan_of(census, self._specs, totals, self._size)
        return census

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

    def started(self) -> dict[str, Tree]:
        """The states before the first record."""
        states: dict[str, Tree] = {}
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
        kinds = ("place", "seen", "buffer") if emits else ("place", "seen")
        starts = tuple(f"{kind}{path}" for path in paths for kind in kinds)
        return {key: state for key, state in frame.states.items() if key.startswith(starts)}

    # Where records leave.

    def emits_inside(self, frame: Frame, census: Census, again: bool) -> bool:
        """Where there are too many to wait; in what may run twice only if there is no bound."""
        bound = bound_of(census)
        if bound is None:
            return True
        return frame.emits and not again and bound >= self._size

    def through_branches(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """Branches emit what is too much to be returned, and what shards emit by themselves."""
        emits = self.emits_inside(frame, census, again=False) or any(
            tally.shards for tally in census.values()
        )
        return frame.threaded(census, emits), emits

    def cut(self, frame: Frame, census: Census, length: int) -> int:
        """As many iterations as fill the buffer, and rather a few less if that leaves no rest."""
        bound, size = bound_of(census), self._size
        if bound is None:
            return 1
        if not frame.emits or length * bound <= size:
            return 0
        if bound >= size:
            return 1
        most = min(size // bound, length)
        return next((n for n in range(most, most // 2, -1) if length % n == 0), most)

    def waits(self, census: Census) -> bool:
        """Where the buffer has room for an iteration; shards inside have buffers of their own."""
        bound = bound_of(_outside_of_shards(census))
        return bool(self._plan.buffers) and bound is not None and 0 < bound <= self._size

    def lacks_room(self, frame: Frame, states: dict[str, Tree], census: Census) -> Array:
        """Whether the records of one iteration might not fit."""
        buffer = self._plan.buffers[frame.shards]
        bound = bound_of(_outside_of_shards(census))
        return buffer.lacks_room(states[f"buffer{frame.shards}"], bound)

    def took(self, frame: Frame) -> None:
        """Let go of what is enough for an emission."""
        rows = sum(math.prod(r.leading()) for parts in frame.blocks.values() for r in parts)
        if rows >= self._size:
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
        if key not in frame.states:
            self._emit(frame, self._all_rows(blocks))
        elif sum(block.rows() for block in blocks.values()) > self._size:
            self.empty_buffer(frame)
            self._emit(frame, self._all_rows(blocks))
        else:
            if not has_room:
                self._make_room(frame, number_of_real(blocks))
            frame.states[key] = self._plan.buffers[frame.shards].add(frame.states[key], blocks)

    def _make_room(self, frame: Frame, more: Any) -> None:
        """Empty the buffer if so many more would not fit."""
        key = f"buffer{frame.shards}"
        full = self._plan.buffers[frame.shards].lacks_room(frame.states[key], more)
        if frame.valid is not None:
            full &= frame.valid

        def emptied(buffer: Tree) -> Tree:
            child = frame.child({key: buffer}, frame.passed())
            self.empty_buffer(child)
            return child.states[key]

        frame.states[key] = jax.lax.cond(
            any_lane_p.bind(full), emptied, lambda buffer: buffer, frame.states[key]
        )

    def empty_buffer(self, frame: Frame) -> None:
        """Emit what waits."""
        buffer, key = self._plan.buffers.get(frame.shards), f"buffer{frame.shards}"
        if buffer is not None and key in frame.states:  # it is not in what may run twice
            self._emit(frame, self._waiting_rows(frame))
            frame.states[key] = buffer.emptied(frame.states[key], frame.valid)

    def _waiting_rows(self, frame: Frame) -> dict[str, Rows]:
        state = frame.states[f"buffer{frame.shards}"]
        content = self._plan.buffers[frame.shards].content(state, frame.valid)
        return {n: self._rows(n, each)._replace(gate=real) for n, (each, real) in content.items()}

    def _all_rows(self, records: Mapping[str, Block | Single]) -> dict[str, Rows]:
        return {name: self._rows(name, each.block()) for name, each in records.items()}

    def _rows(self, name: str, block: Block) -> Rows:
        steps = [block.steps[step] for step in self._specs[name].steps]
        return Rows([*block.leaves, *steps], block.steps[PLACE], block.valid)

    def _emit(self, frame: Frame, rows: dict[str, Rows], ends: Sequence[Array] = ()) -> None:
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
        )
        operands = packet.flat(given.call, given.shard, given.owner, [*rows.values()], ends)
        emit(packet, given.lanes, operands, receive)

    def end(self, frame: Frame) -> None:
        """Emit the rest, and say that it is the rest unless the host knows."""
        rows: dict[str, Rows] = {}
        if frame.shards in self._plan.buffers:
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


def _number(valid: Array | None) -> Any:
    return 1 if valid is None else valid.astype(jnp.int32)
