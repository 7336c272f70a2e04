"""State of a progress bar: positions of lanes, the key that the bar follows, the shown values.

**Lanes.** A lane has a round and a position within it. A lane starts a new round when it has made
as many records as a call has, or, if that number is unknown, when its step goes back. The bar
follows the slowest lane: the lowest round, and within it the lowest position.

Lanes that ended must not hold the bar back, but nothing announces that they ended. So time is
counted in ticks: within one tick no lane logs twice. A lane that has been silent for more than
twice its longest silence so far is assumed to have ended, until it logs again. Lanes of a batched
loop log once per tick, so an ended one is noticed after three ticks; lanes that log rarely, or in
large batches, are given the time that they are known to need.

**Leading key.** A program may log a setting at its start, a loss at each of a thousand iterations,
a score at each of ten epochs, and a result at its end. The key with the most records leads. A key
with a single record shows no progress. Neither does a key that is logged after the leading key is
complete, unless it starts something new.

**Shown values.** A value is the mean over all lanes. The values of one bar are the last that
arrived before it closed; they stay until newer ones arrive, from any lane. Records are counted by
their first key, whose number of records per call the program states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np

from logax._delivery.routes import record
from logax._logdict.logdict import leaf_name, matches

MAX_SILENCE_RATIO = 2  # current silence of a lane over its longest one so far


class LanePosition(NamedTuple):
    """Position of a lane. Positions compare in the order of progress."""

    round: int
    position: int


class LaneState:
    """State of one lane as plain numbers, or of all lanes of batched records as arrays.

    Attributes:
      round: Number of restarts.
      position: Position within the round.
      last_tick: Tick of the last record.
      longest_silence: Maximum number of ticks between two records.
    """

    __slots__ = ("last_tick", "longest_silence", "position", "round")

    def __init__(self, ticks: int, start: int, size: int | None) -> None:
        def filled(value: int) -> Any:
            return value if size is None else np.full(size, value, np.int64)

        self.round, self.position = filled(start), filled(0)
        self.last_tick, self.longest_silence = filled(ticks - 1), filled(1)

    def expand(self, size: int) -> None:
        """Convert the numbers of one lane to arrays with one element per lane."""
        for name in self.__slots__:
            setattr(self, name, np.full(size, getattr(self, name), np.int64))


class LaneProgress:
    """Progress of the lanes that log one key.

    Args:
      total: Number of records of a lane in one round, or the last position; None if unknown.
      by_step: True if positions are steps, False if they are record counts.

    Attributes:
      round: Round of the slowest lane.
      ticks: Number of ticks so far.
      reached: True if a lane of the last record is at the total.
      previous_round_end: Furthest position of any lane in the previous round; None if unknown.
    """

    def __init__(self, total: int | None, by_step: bool) -> None:
        self.total, self.by_step = total, by_step
        self.round = self.ticks = 0
        self.reached = False
        self.previous_round_end: int | None = None
        self._states: dict[Any, LaneState] = {}
        self._newest_round, self._last_complete_round = 0, -1
        self._furthest_end = LanePosition(0, 0)

    def update(self, name: tuple[Any, int | None], step: Any, real: Any) -> bool:
        """Process a record, and return True if now all lanes have started a new round.

        Args:
          name: Lane and shard.
          step: Step, if the record has one: an integer, or an array of them for several lanes.
          real: Mask of the lanes that made the record, or None.
        """
        if not self.by_step:
            step = None
        shape = real if real is not None else step
        size = shape.size if isinstance(shape, np.ndarray) and shape.ndim else None
        state = self._state_of(name, size)
        if isinstance(state.position, np.ndarray):
            self._update_many(state, step, real)
        else:
            self._update_one(state, step)
        if self._newest_round <= self.round or not self._holds_for_running_lanes(
            lambda v: v.round > self.round
        ):
            return False
        self.previous_round_end = self.furthest()
        self.round = self.slowest().round
        return True

    def _state_of(self, name: tuple[Any, int | None], size: int | None) -> LaneState:
        """Return the state of known lanes or a new one, as arrays if a size is given."""
        state = self._states.get(name)
        if state is not None and size is not None and np.size(state.position) != size:
            if np.ndim(state.position):  # a different number of lanes means another call
                self._retire(state)
                state = None
            else:
                state.expand(size)
        if state is None:
            state = self._states[name] = LaneState(self.ticks, self._first_round(name[1]), size)
        return state

    def _first_round(self, shard: int | None) -> int:
        """Return the round of a new lane: a new one if the last call is complete.

        Shards may be far apart: the first record of one may arrive after the last of another.
        """
        if shard is None:
            self._newest_round = max(self._newest_round, self._last_complete_round + 1)
        return self._newest_round

    def _retire(self, state: LaneState) -> None:
        """End the round of lanes that other lanes of the same name replace."""
        last = int(state.round.max())
        furthest = int(state.position[state.round == last].max())
        if self._may_restart(furthest):
            self._record_end(last, furthest)
            self._newest_round = max(self._newest_round, last + 1)

    def _update_one(self, state: LaneState, step: Any) -> None:
        if state.last_tick == self.ticks:
            self.ticks += 1
        silent, before = self.ticks - state.last_tick, state.position
        state.last_tick = self.ticks
        if self.by_step:
            state.position = before if step is None else max(int(step) + 1, 0)
            restarts = state.position < before and self._may_restart(before)
        else:
            restarts = before == self.total
            state.position = 1 if restarts else before + 1
        self.reached = self.total is not None and state.position >= self.total
        if not restarts:  # silence between two calls does not count
            state.longest_silence = max(state.longest_silence, silent)
        else:
            self._record_end(state.round, before)
            state.round = max(state.round, self._last_complete_round) + 1
            self._newest_round = max(self._newest_round, state.round)

    def _update_many(self, state: LaneState, step: Any, real: Any) -> None:
        where = slice(None) if real is None else real.reshape(-1)
        # Copies, because the arrays change below.
        last_tick, before = state.last_tick[where].copy(), state.position[where].copy()
        if (last_tick == self.ticks).any():
            self.ticks += 1
        state.last_tick[where] = self.ticks
        if self.by_step:
            after = before if step is None else np.maximum(_expand_step(step, state)[where] + 1, 0)
            restarts = (after < before) & self._may_restart(before)
        else:
            restarts = before == (-1 if self.total is None else self.total)
            after = np.where(restarts, 1, before + 1)
        state.position[where] = after
        silent = np.where(restarts, 0, self.ticks - last_tick)
        state.longest_silence[where] = np.maximum(state.longest_silence[where], silent)
        self.reached = self.total is not None and bool((after >= self.total).any())
        if restarts.any():
            self._record_end(int(state.round[where][restarts].max()), int(before[restarts].max()))
            begun = np.maximum(state.round[where], self._last_complete_round) + 1
            state.round[where] = np.where(restarts, begun, state.round[where])
            self._newest_round = max(self._newest_round, int(state.round.max()))

    def _may_restart(self, position: Any) -> Any:
        """Return whether a step that goes back starts a new round."""
        return True if self.total is None else position >= self.total

    def _record_end(self, number: int, position: int) -> None:
        if number >= self._furthest_end.round:
            self._furthest_end = max(self._furthest_end, LanePosition(number, position))

    @property
    def names(self) -> Collection[Any]:
        """Lane and shard of each, as given to `update`."""
        return self._states.keys()

    def slowest(self) -> LanePosition:
        """Return the position of the slowest lane that has not ended."""
        numbers, positions, silent, longest_silence = self._columns()
        running = silent <= MAX_SILENCE_RATIO * longest_silence
        least = numbers[running].min()
        return LanePosition(int(least), int(positions[running & (numbers == least)].min()))

    def furthest(self) -> int | None:
        """Return the furthest position of any lane in this round; None if it is unknown."""
        numbers, positions, _, _ = self._columns()
        ended = [self._furthest_end.position] if self._furthest_end.round == self.round else []
        return max([*positions[numbers == self.round].tolist(), *ended], default=None)

    def is_complete(self) -> bool:
        """Return whether all lanes that have not ended are at the total."""
        total = self.total
        return (
            self.reached
            and total is not None
            and self._holds_for_running_lanes(lambda v: v.position >= total)
        )

    def end_round(self) -> None:
        """Assign all later records to a new call."""
        self._last_complete_round = self.round

    def _holds_for_running_lanes(self, holds: Callable[[LaneState], Any]) -> bool:
        """Return whether a predicate is true for all lanes that have not ended.

        Lanes report in order, so the last one is checked first.
        """
        for state in reversed(self._states.values()):
            ended = self.ticks - state.last_tick > MAX_SILENCE_RATIO * state.longest_silence
            if not np.all(holds(state) | ended):
                return False
        return True

    def _columns(self) -> tuple[Any, Any, Any, Any]:
        states = list(self._states.values())

        def column(name: str) -> Any:
            return np.concatenate([np.atleast_1d(getattr(state, name)) for state in states])

        silence = self.ticks - column("last_tick")
        return column("round"), column("position"), silence, column("longest_silence")


def _expand_step(step: Any, state: LaneState) -> Any:
    return np.broadcast_to(np.reshape(step, -1).astype(np.int64), state.position.shape)


class LeadingKey:
    """Process records and choose the key that the bar follows.

    Args:
      total: Last position, if the user gave it.
      step: Name of the step that is the position.

    Attributes:
      key: Leading key, if there is one yet.
      lanes: Progress of its lanes.
      is_complete: True if all of its lanes are at the total.
    """

    def __init__(self, total: int | None, step: str) -> None:
        self._total, self._step = total, step
        self._keys: dict[str, LaneProgress] = {}
        self._finished_rounds: set[tuple[str, int]] = set()
        self.key: str | None = None
        self.lanes: LaneProgress | None = None
        self.is_complete = False

    def update(self, one: record) -> tuple[LaneProgress | None, bool]:
        """Return the record's lanes if they lead, and whether all of them start a new round."""
        key = next(iter(one), None)
        if key is None:
            return None, False
        total, step = self._total_and_step(one)
        lanes = self._keys.get(key)
        if lanes is None or lanes.total != total:
            self._keys[key] = lanes = LaneProgress(total, step is not None)
        begins = lanes.update((one.lane, one.shard), step, one.real)
        if lanes is self.lanes:
            if begins:
                self._set_leader(key, lanes)
            return lanes, begins
        if self._should_lead(key, lanes):
            self._set_leader(key, lanes)
            return lanes, False
        return None, False

    def end_round(self, lanes: LaneProgress) -> None:
        """Mark the leading key complete; keys that were logged beside it do not lead after it."""
        self.is_complete = True
        lanes.end_round()
        others = self._keys.items()
        self._finished_rounds = {(key, each.round) for key, each in others if each is not lanes}

    def _set_leader(self, key: str, lanes: LaneProgress) -> None:
        self.key, self.lanes, self._keys = key, lanes, {key: lanes}
        self.is_complete, self._finished_rounds = False, set()

    def _should_lead(self, key: str, lanes: LaneProgress) -> bool:
        shows_progress = lanes.ticks > 0 or (self._total is None and lanes.total is not None)
        if not shows_progress or (key, lanes.round) in self._finished_rounds:
            return False
        return (
            self.lanes is None
            or self.is_complete
            or self.lanes not in self._keys.values()  # the total of its key has changed
            or self._rank(lanes) > self._rank(self.lanes)
        )

    def _rank(self, lanes: LaneProgress) -> tuple[int, int, int]:
        total = 0 if self._total is not None else lanes.total or 0
        return total, lanes.by_step, lanes.ticks

    def _total_and_step(self, one: record) -> tuple[int | None, Any]:
        """Return the total that applies to a record, and its step if positions are steps.

        The program knows its number of records, wherever steps start and however often they go
        back. So where the program gives the total, records are counted.
        """
        if self._total is None and one.total is not None and one.total > 1:
            return one.total, None
        step = one.steps.get(self._step)
        if step is not None and step.dtype.kind not in "iub":
            step = np.floor(step).astype(np.int64) if np.isfinite(step).all() else None
        return self._total, step


class PendingRecords:
    """Count records by key and lane.

    Args:
      has_totals: True if the totals that the program states apply. If one bar covers several calls
        they do not, and more records may always follow.
    """

    def __init__(self, has_totals: bool) -> None:
        self._has_totals = has_totals
        self._totals: dict[str, int | None] = {}
        self._received: dict[str, dict[Any, Any]] = {}

    def clear(self) -> None:
        """Reset all counts."""
        self._totals.clear()
        self._received.clear()

    def count(self, one: record) -> None:
        """Count a record."""
        key, name = next(iter(one)), (one.lane, one.shard)
        self._totals[key] = one.total if self._has_totals else None
        counts = self._received.setdefault(key, {})
        counts[name] = _count_before(counts.get(name, 0), one) + (
            1 if one.real is None else one.real
        )

    def has_more(self, leading: str | None, lanes: Collection[Any]) -> bool:
        """Return whether more records may follow in these lanes, of any key but the leading one."""
        return any(
            total is None or not self._has_all(key, total, lanes)
            for key, total in self._totals.items()
            if key != leading
        )

    def _has_all(self, key: str, total: int, lanes: Collection[Any]) -> bool:
        counts = self._received[key]
        # Lanes report in order, so the last one is checked first.
        return all(np.all(counts.get(name, 0) >= total) for name in reversed(list(lanes)))

    def has_all_before(self, one: record) -> bool:
        """Return whether one of the record's lanes had all its records before this one."""
        key = next(iter(one), None)
        total = None if key is None else self._totals.get(key)
        if key is None or total is None:
            return False
        before = _count_before(self._received[key].get((one.lane, one.shard), 0), one)
        return bool(np.any((before >= total) & (True if one.real is None else one.real)))


def _count_before(count: Any, one: record) -> Any:
    """Return the number of earlier records in the record's lanes: 0 if the lanes changed."""
    has_changed = one.real is not None and np.shape(count) not in ((), one.real.shape)
    return 0 if has_changed else count


class ShownValues:
    """The last value of each lane for the keys and leaves that the patterns select.

    Args:
      patterns: Names and globs of keys and leaves.
      has_totals: True if a bar covers one call, whose number of records the program states.
    """

    def __init__(self, patterns: tuple[str, ...], has_totals: bool = True) -> None:
        self._patterns = patterns
        self._is_shown_by_key: dict[str, bool] = {}
        self._last: dict[str, dict[Any, tuple[Any, Any]]] = {}
        self._old: set[str] = set()
        self._unseen = set(patterns)
        self._pending = PendingRecords(has_totals)

    def update(self, one: record) -> None:
        """Store the selected values of a record."""
        is_wanted = False
        for key, value in one.items():
            wanted = self._is_shown_by_key.get(key)
            if wanted is None:
                wanted = self._is_shown_by_key[key] = self._is_selected(key, value)
            if wanted:
                is_wanted = True
                if key in self._old:
                    self._old.remove(key)
                    self._last[key] = {}  # some lanes may not log again
                lanes = self._last.setdefault(key, {})
                name = one.lane, one.shard
                lanes[name] = (
                    (value, None) if one.real is None else _merge_lanes(lanes, name, one, key)
                )
        if is_wanted:
            self._pending.count(one)

    def _is_selected(self, key: str, value: Any) -> bool:
        """Return whether a pattern selects anything of a key, which occurs for the first time."""
        names = [name for name, _ in self._leaves(key, value)]
        if not names:
            return False
        self._unseen -= {pattern for pattern in self._unseen if pattern in (key, *names)}
        return True

    def end(self) -> None:
        """Assign all later values to another bar."""
        self._old = set(self._last)
        self._pending.clear()

    def may_change(self, leading: str | None, lanes: Collection[Any]) -> bool:
        """Return whether values may still arrive once the leading key is complete in these lanes.

        A glob may always match another key.
        """
        return bool(self._unseen) or self._pending.has_more(leading, lanes)

    def starts_new_call(self, one: record) -> bool:
        """Return whether a record belongs to a new call: the last one had all its records."""
        return self._pending.has_all_before(one)

    def format_line(self) -> str:
        """Return all values as one line of text."""
        return ", ".join(f"{name}={_mean(parts):.4g}" for name, parts in self._numbers().items())

    def _numbers(self) -> dict[str, list[Any]]:
        numbers: dict[str, list[Any]] = {}
        for key, lanes in self._last.items():
            for value, known in lanes.values():
                for name, leaf in self._leaves(key, value):
                    part = np.asarray(leaf) if known is None else leaf[known]
                    numbers.setdefault(name, []).append(part)
        return numbers

    def _leaves(self, key: str, value: Any) -> Any:
        whole = matches(key, self._patterns)
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            name = leaf_name(key, path)
            is_number = not isinstance(leaf, jax.Array)  # JAX arrays here are PRNG keys
            if is_number and (whole or matches(name, self._patterns)):
                yield name, leaf


def _merge_lanes(lanes: dict[Any, tuple[Any, Any]], name: Any, one: record, key: str) -> Any:
    """Return the last values of all lanes, and the mask of the lanes that have any."""
    real, value = one.real, one[key]
    before, known = lanes.get(name, (None, None))
    if before is None or not _have_same_shapes(before, value):
        return value, real

    def newer(new: Any, old: Any) -> Any:
        if isinstance(new, jax.Array):
            return new
        return np.where(real.reshape(real.shape + (1,) * (new.ndim - real.ndim)), new, old)

    return jax.tree.map(newer, value, before), known if known is None else known | real


def _have_same_shapes(a: Any, b: Any) -> bool:
    return [np.shape(x) for x in jax.tree.leaves(a)] == [np.shape(x) for x in jax.tree.leaves(b)]


def _mean(parts: list[Any]) -> Any:
    numbers = np.concatenate([np.ravel(part) for part in parts])
    wide = numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)
    return wide.mean() if wide.size else np.nan
