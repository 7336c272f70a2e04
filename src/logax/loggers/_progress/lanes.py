"""Where the lanes that log one key are, and which of them leads.

A lane has a round and a position in it. It starts a new round when it begins again: when it has
made as many records as there are in a call, or, where that is not known, when its step goes back.
The slowest lane leads: the least round, and in that the least position.

Lanes that have ended must not hold it back, and nothing says that they have. So time is counted in
ticks: in one tick no lane logs twice. A lane that has been silent for more than twice as many ticks
as ever before is taken to have ended, until it logs again. Lanes of a batched loop log side by
side, once in a tick, so that one that ends is noticed after three; lanes that log now and then, or
come in large parcels, are given the time that they are known to take.

Which of a program's keys says how far it is.

A program may log a setting at its start, a loss at each of a thousand iterations, a score at each
of ten epochs, and a result at its end. The key with the most records leads. A key of which there
is one record says nothing, and neither does what is logged after the leading key is through,
unless it is the beginning of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from logax._delivery.routes import record

PATIENCE = 2


class Place(NamedTuple):
    """How far a lane is. They compare as lanes do."""

    round: int
    position: int


class Voice:
    """One lane, in plain numbers; or the lanes of records that hold all of them, in arrays.

    Attributes:
      round: How often it has begun again.
      position: How far it is.
      heard: The tick of its last record.
      longest: How many ticks it was silent at most.
    """

    __slots__ = ("heard", "longest", "position", "round")

    def __init__(self, clock: int, start: int, size: int | None) -> None:
        def made(value: int) -> Any:
            return value if size is None else np.full(size, value, np.int64)

        self.round, self.position = made(start), made(0)
        self.heard, self.longest = made(clock - 1), made(1)

    def spread(self, size: int) -> None:
        """One number for all lanes becomes a number for each."""
        for name in self.__slots__:
            setattr(self, name, np.full(size, getattr(self, name), np.int64))


class Lanes:
    """The lanes that log one key.

    Args:
      total: How many records a lane makes in one round, or the last position; None if unknown.
      by_step: Whether positions are steps, and not numbers of records.

    Attributes:
      round: The round of the slowest lane.
      clock: How many ticks there were.
      reached: Whether a lane of the last record is at the total.
      left_at: Where the round before this one was left, by the lane that came furthest in it; None
        if nobody knows any more.
    """

    def __init__(self, total: int | None, by_step: bool) -> None:
        self.total, self.by_step = total, by_step
        self.round = self.clock = 0
        self.reached = False
        self.left_at: int | None = None
        self._voices: dict[Any, Voice] = {}
        self._begun, self._over = 0, -1
        self._end = Place(0, 0)

    def hear(self, name: tuple[Any, int | None], step: Any, real: Any) -> bool:
        """Take in a record of these lanes; True if now all of them have begun a new round.

        Args:
          name: The lane and the shard.
          step: Its step, if it has one: a whole number or, for several lanes, an array of them.
          real: Of several lanes, which the record is of, or None.
        """
        if not self.by_step:
            step = None
        shape = real if real is not None else step
        size = shape.size if isinstance(shape, np.ndarray) and shape.ndim else None
        voice = self._voice(name, size)
        if isinstance(voice.position, np.ndarray):
            self._hear_many(voice, step, real)
        else:
            self._hear_one(voice, step)
        if self._begun <= self.round or not self._each(lambda v: v.round > self.round):
            return False
        self.left_at = self.furthest()
        self.round = self.slowest().round
        return True

    def _voice(self, name: tuple[Any, int | None], size: int | None) -> Voice:
        """Of lanes that were heard before theirs, else a new one; in arrays of a size if given."""
        voice = self._voices.get(name)
        if voice is not None and size is not None and np.size(voice.position) != size:
            if np.ndim(voice.position):  # other lanes than before, so another call
                self._leave(voice)
                voice = None
            else:
                voice.spread(size)
        if voice is None:
            voice = self._voices[name] = Voice(self.clock, self._first_round(name[1]), size)
        return voice

    def _first_round(self, shard: int | None) -> int:
        """Of a lane that was not there before: it is of a new call if the last one is over.

        Shards may be far apart, so that the first record of one comes after the last of another.
        """
        if shard is None:
            self._begun = max(self._begun, self._over + 1)
        return self._begun

    def _leave(self, voice: Voice) -> None:
        """These lanes make no records any more: others have their name, in a new round."""
        last = int(voice.round.max())
        furthest = int(voice.position[voice.round == last].max())
        if self._may_return(furthest):
            self._ended(last, furthest)
            self._begun = max(self._begun, last + 1)

    def _hear_one(self, voice: Voice, step: Any) -> None:
        if voice.heard == self.clock:
            self.clock += 1
        silent, before = self.clock - voice.heard, voice.position
        voice.heard = self.clock
        if self.by_step:
            voice.position = before if step is None else max(int(step) + 1, 0)
            again = voice.position < before and self._may_return(before)
        else:
            again = before == self.total
            voice.position = 1 if again else before + 1
        self.reached = self.total is not None and voice.position >= self.total
        if not again:  # silence between two calls does not count
            voice.longest = max(voice.longest, silent)
        else:
            self._ended(voice.round, before)
            voice.round = max(voice.round, self._over) + 1
            self._begun = max(self._begun, voice.round)

    def _hear_many(self, voice: Voice, step: Any, real: Any) -> None:
        where = slice(None) if real is None else real.reshape(-1)
        # Not as views of what is about to change.
        heard, before = voice.heard[where].copy(), voice.position[where].copy()
        if (heard == self.clock).any():
            self.clock += 1
        voice.heard[where] = self.clock
        if self.by_step:
            after = before if step is None else np.maximum(_spread(step, voice)[where] + 1, 0)
            again = (after < before) & self._may_return(before)
        else:
            again = before == (-1 if self.total is None else self.total)
            after = np.where(again, 1, before + 1)
        voice.position[where] = after
        silent = np.where(again, 0, self.clock - heard)
        voice.longest[where] = np.maximum(voice.longest[where], silent)
        self.reached = self.total is not None and bool((after >= self.total).any())
        if again.any():
            self._ended(int(voice.round[where][again].max()), int(before[again].max()))
            begun = np.maximum(voice.round[where], self._over) + 1
            voice.round[where] = np.where(again, begun, voice.round[where])
            self._begun = max(self._begun, int(voice.round.max()))

    def _may_return(self, position: Any) -> Any:
        """Whether a step that goes back begins a new round: with a total, once it was reached."""
        return True if self.total is None else position >= self.total

    def _ended(self, number: int, position: int) -> None:
        if number >= self._end.round:
            self._end = max(self._end, Place(number, position))

    @property
    def names(self) -> Collection[Any]:
        """The lane and the shard of each, as `hear` was given them."""
        return self._voices.keys()

    def slowest(self) -> Place:
        """The lane that is furthest behind, of those that have not ended."""
        numbers, positions, silent, longest = self._columns()
        running = silent <= PATIENCE * longest
        least = numbers[running].min()
        return Place(int(least), int(positions[running & (numbers == least)].min()))

    def furthest(self) -> int | None:
        """Where the lane that came furthest in this round is or was; None if it was long ago."""
        numbers, positions, _, _ = self._columns()
        ended = [self._end.position] if self._end.round == self.round else []
        return max([*positions[numbers == self.round].tolist(), *ended], default=None)

    def complete(self) -> bool:
        """Whether all lanes that have not ended are at the total."""
        total = self.total
        return self.reached and total is not None and self._each(lambda v: v.position >= total)

    def end_round(self) -> None:
        """All that comes now is of a new call."""
        self._over = self.round

    def _each(self, holds: Callable[[Voice], Any]) -> bool:
        """Whether it holds for all lanes that have not ended.

        Lanes come in order: the last is the one to ask first.
        """
        for voice in reversed(self._voices.values()):
            ended = self.clock - voice.heard > PATIENCE * voice.longest
            if not np.all(holds(voice) | ended):
                return False
        return True

    def _columns(self) -> tuple[Any, Any, Any, Any]:
        voices = list(self._voices.values())

        def column(name: str) -> Any:
            return np.concatenate([np.atleast_1d(getattr(voice, name)) for voice in voices])

        return column("round"), column("position"), self.clock - column("heard"), column("longest")


def _spread(step: Any, voice: Voice) -> Any:
    return np.broadcast_to(np.reshape(step, -1).astype(np.int64), voice.position.shape)


class Leader:
    """Takes records, and knows the lanes of the key that leads.

    Args:
      total: The last position, if the user knows it.
      step: The name of the step that counts.

    Attributes:
      key: The one that leads, if there is one yet.
      lanes: Its lanes.
      is_through: Whether all of them are at the total.
    """

    def __init__(self, total: int | None, step: str) -> None:
        self._total, self._step = total, step
        self._keys: dict[str, Lanes] = {}
        self._spent: set[tuple[str, int]] = set()
        self.key: str | None = None
        self.lanes: Lanes | None = None
        self.is_through = False

    def take(self, one: record) -> tuple[Lanes | None, bool]:
        """The lanes of this record if they lead, and whether all of them begin a new round."""
        key = next(iter(one), None)
        if key is None:
            return None, False
        total, step = self._counted(one)
        lanes = self._keys.get(key)
        if lanes is None or lanes.total != total:
            self._keys[key] = lanes = Lanes(total, step is not None)
        begins = lanes.hear((one.lane, one.shard), step, one.real)
        if lanes is self.lanes:
            if begins:
                self._lead(key, lanes)
            return lanes, begins
        if self._takes_over(key, lanes):
            self._lead(key, lanes)
            return lanes, False
        return None, False

    def end_round(self, lanes: Lanes) -> None:
        """The lanes that lead are through: what was logged beside them does not lead after them."""
        self.is_through = True
        lanes.end_round()
        others = self._keys.items()
        self._spent = {(key, each.round) for key, each in others if each is not lanes}

    def _lead(self, key: str, lanes: Lanes) -> None:
        self.key, self.lanes, self._keys = key, lanes, {key: lanes}
        self.is_through, self._spent = False, set()

    def _takes_over(self, key: str, lanes: Lanes) -> bool:
        says_something = lanes.clock > 0 or (self._total is None and lanes.total is not None)
        if not says_something or (key, lanes.round) in self._spent:
            return False
        return (
            self.lanes is None
            or self.is_through
            or self.lanes not in self._keys.values()  # its key has another total now
            or self._rank(lanes) > self._rank(self.lanes)
        )

    def _rank(self, lanes: Lanes) -> tuple[int, int, int]:
        total = 0 if self._total is not None else lanes.total or 0
        return total, lanes.by_step, lanes.clock

    def _counted(self, one: record) -> tuple[int | None, Any]:
        """The total that holds for a record, and its step if positions are steps.

        The program knows how many records there will be, wherever the steps begin and however
        often they go back; so where its total is used, records are counted.
        """
        if self._total is None and one.total is not None and one.total > 1:
            return one.total, None
        step = one.steps.get(self._step)
        if step is not None and step.dtype.kind not in "iub":
            step = np.floor(step).astype(np.int64) if np.isfinite(step).all() else None
        return self._total, step
