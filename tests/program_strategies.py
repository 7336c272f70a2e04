"""Hypothesis strategies for the programs of `programs`, and for the states they start from.

`programs()` draws blocks of statements, nested to depth four; the tree shrinks as any drawn value
does. Each key gets its kind first. A program makes at most `MOST_RECORDS` records, so that the
oracle stays fast and one capacity keeps everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from program_transformations import (
    DERIVATIVES,
    WRAPPINGS,
    Constant,
    Custom,
    Derivative,
    Lanes,
    Shards,
    Wrapped,
)
from programs import (
    COLLECTIVES,
    KINDS,
    PREDICATES,
    SHARED_PREDICATES,
    UPDATES,
    Block,
    Call,
    Cond,
    Fori,
    Invariant,
    Log,
    Map,
    Program,
    Scan,
    State,
    Statement,
    Switch,
    Update,
    While,
)

MOST_RECORDS = 200


@dataclass
class _Author:
    """Draws the statements of one program, at most `size` of those that hold others.

    Unless it is `ragged`, the number of its records does not depend on data. The last fields say
    what is around: how many `vmap`s, whether a `shard_map`, a loop, a branch or custom function, a
    derivative, and whether that is of a kind that knows no `while`.
    """

    draw: Any
    kinds: dict[str, str]
    ragged: bool
    unbounded: bool
    without: tuple[str, ...]
    steady: bool
    devices: int
    size: int
    function: Block = field(default_factory=lambda: Block(()))
    lanes: int = 0
    sharded: bool = False
    looped: bool = False
    apart: bool = False
    custom: bool = False
    differentiated: bool = False
    backwards: bool = False

    @contextlib.contextmanager
    def inside(self, *without: str, **changes: Any) -> Iterator[None]:
        """With other fields for a while, and without these statements."""
        before = vars(self).copy()
        vars(self).update(changes, without=(*self.without, *without))
        try:
            yield
        finally:
            vars(self).update(before, size=self.size)

    def log(self, *keys: str) -> Log:
        most = self.draw(st.sampled_from([1, 1, 2]))
        names = st.sampled_from(sorted(self.kinds))
        keys = keys or self.draw(st.lists(names, min_size=1, max_size=most, unique=True))
        entries = tuple((key, self.kinds[key], self.draw(st.integers(0, 5))) for key in keys)
        whole = st.sampled_from(["counter", "outer counter", "n", 4] if not self.steady else [4])
        real = st.sampled_from(["x", 0.5] if not self.steady else [0.5])
        steps = {
            name: self.draw(whole if name != "time" else real)
            for name in self.draw(
                st.lists(st.sampled_from(["step", "episode", "time"]), max_size=2, unique=True)
            )
        }
        may_skip = self.ragged and "step" in steps and not self.sharded
        every = self.draw(st.sampled_from([None, None, None, 2, (1, 2, 5)])) if may_skip else None
        tags = self.draw(st.sampled_from([(), (), ("seldom",), ("seldom", "dear")]))
        late, explicit = self.draw(st.booleans()), self.draw(st.integers(0, 9)) == 9
        return Log(entries, tuple(steps.items()), every, late, tags, explicit)

    def block(self, depth: int) -> Block:
        statements: list[Statement] = []
        for _ in range(self.draw(st.integers(1, 2))):
            if depth and self.size and self.draw(st.integers(0, 7)):
                self.size -= 1
                statements.append(self.holder(depth - 1))
            statements.append(self.leaf())
        return Block(tuple(statements))

    def leaf(self) -> Statement:
        if self.draw(st.booleans()):
            return self.log()
        # JAX 0.8 refuses collectives over lanes of a shard. In a custom function that is jitted and
        # then differentiated, JAX does not find the axis of lanes, with or without a harvest. Where
        # some lanes take a branch, JAX and the recorder disagree about their derivatives.
        together = bool(self.lanes) != self.sharded and not self.custom
        together = together and not (self.differentiated and self.apart)
        updates = [*UPDATES, *COLLECTIVES] if together else [*UPDATES]
        return Update(self.draw(st.sampled_from(updates)))

    def holder(self, depth: int) -> Statement:
        names = [
            "Wrapped",
            "Scan",
            "Fori",
            "Map",
            "Invariant",
            "Call",
            "Custom",
            "Lanes",
            "Derivative",
            "Shards",
        ]
        names += ["Cond", "While", "Switch"] * self.ragged
        name = self.draw(st.sampled_from([n for n in names if n not in self.without]))
        statement: Statement = getattr(self, f"_{name.lower()}")(depth)
        return statement

    def _trips(self) -> int:
        trips: int = self.draw(st.sampled_from([2, 3, 1, 0]))
        return trips

    def _loop(self, depth: int) -> tuple[Block]:
        with self.inside(looped=True):
            return (self.block(depth),)

    def _call(self, depth: int) -> Statement:
        return Call((self.function,)) if self.function.statements else self._wrapped(depth)

    def _wrapped(self, depth: int) -> Statement:
        ways = [way for way in WRAPPINGS if way not in self.without]
        way, block = self.draw(st.sampled_from(ways)), self.block(depth)
        if way.startswith("harvest"):  # there must be what it takes, and no step that is not due
            block = Block((*block.statements, replace(self.log("loss"), every=None)))
        return Wrapped(way, (block,))

    def _custom(self, depth: int) -> Statement:
        ways = [way for way in ("custom_jvp", "custom_vjp") if way not in self.without]
        # JAX gives a rule no values of arrays without elements where it runs in Python.
        keys = [key for key in sorted(self.kinds) if self.kinds[key] != "no elements"]
        # In a loop the rule may run although no derivative goes in, which JAX leaves out in Python.
        # And JAX maps rules over axes without a name, which the recorder does not know.
        may_log = bool(keys) and not (self.differentiated and (self.looped or self.lanes))
        logs = may_log and self.draw(st.booleans())
        rule = self.log(self.draw(st.sampled_from(keys))) if logs else None
        quiet = not self.differentiated and self.draw(st.booleans())
        way = self.draw(st.sampled_from(ways))
        with self.inside(apart=True, custom=True):
            return Custom(way, quiet, rule, (self.block(depth),))

    def _scan(self, depth: int) -> Statement:
        reverse, over = self.draw(st.booleans()), self.draw(st.booleans())
        unroll = self.draw(st.integers(1, 3))
        return Scan(self._trips(), reverse, unroll, over, self._loop(depth))

    def _fori(self, depth: int) -> Statement:
        traced = self.unbounded and self.draw(st.booleans())
        first, trips = self.draw(st.integers(0, 2)), self._trips()
        loop = Fori(first, trips, traced, self._loop(depth))
        return self._without_gradient(loop) if traced else loop

    def _invariant(self, depth: int) -> Statement:
        return Invariant((self.block(depth),))

    def _map(self, depth: int) -> Statement:
        return Map(self._trips(), self._loop(depth))

    def _cond(self, depth: int) -> Statement:
        predicates = sorted(SHARED_PREDICATES if self.sharded else PREDICATES)
        return Cond(self.draw(st.sampled_from(predicates)), self._branches(2, depth))

    def _switch(self, depth: int) -> Statement:
        return Switch(self._branches(self.draw(st.integers(2, 3)), depth))

    def _branches(self, number: int, depth: int) -> tuple[Block, ...]:
        with self.inside(apart=True):
            return tuple(self.block(depth) for _ in range(number))

    def _while(self, depth: int) -> Statement:
        if not self.unbounded:
            return self._fori(depth)
        condition = Block((self.log(),) if self.draw(st.booleans()) else ())
        loop = While(self.draw(st.integers(1, 4)), (*self._loop(depth), condition))
        return self._without_gradient(loop)

    def _without_gradient(self, loop: Statement) -> Statement:
        """The loop with constants for its state, where JAX cannot differentiate it."""
        return Constant((Block((loop,)),)) if self.backwards else loop

    def _lanes(self, depth: int) -> Statement:
        before, after = self.draw(st.integers(0, 1)), self.draw(st.integers(0, 1))
        size = (3, 2)[self.lanes]
        deepest = ("Lanes",) if self.lanes else ()
        with self.inside("Shards", *deepest, lanes=self.lanes + 1):
            return Lanes(size, before, after, (self.block(depth),))

    def _shards(self, depth: int) -> Statement:
        with self.inside("Shards", "While", "Switch", "Call", sharded=True, unbounded=False):
            return Shards(self.devices, (self.block(depth),))

    def _derivative(self, depth: int) -> Statement:
        way = self.draw(st.sampled_from(list(DERIVATIVES)))
        with self.inside("Call"), self.differentiating(way):
            return Derivative(way, (self.block(depth),))

    @contextlib.contextmanager
    def differentiating(self, way: str) -> Iterator[None]:
        """Draw only statements that can be differentiated this way."""
        # Forward mode knows no `custom_vjp`, and `jacrev` runs its backward rule under `vmap`; JAX
        # drops a `shard_map` whose results nobody needs.
        without = ["Derivative", "Shards"]
        without += ["custom_vjp"] * (way in ("jvp", "linearize", "jacrev"))
        with self.inside(*without, differentiated=True, backwards=way != "jvp"):
            yield


@st.composite
def _drafts(
    draw: Any,
    kinds: tuple[str, ...],
    ragged: bool,
    unbounded: bool,
    without: tuple[str, ...],
    steady: bool,
    size: int,
    way: str | None,
) -> Program:
    table = {name: draw(st.sampled_from(kinds)) for name in ("loss", "grad/norm", "net")}
    ragged = ragged and draw(st.integers(0, 3)) > 0
    devices = draw(st.sampled_from([2, 4]))  # of all shards: JAX takes one mesh in one program
    author = _Author(draw, table, ragged, ragged and unbounded, without, steady, devices, 1)
    with author.differentiating(way) if way else contextlib.nullcontext():
        with author.inside("Lanes", "Shards", "Derivative"):
            function = Block((*author.block(1).statements, author.log()))
        author.function = function
        author.size = size - 1
        body = Block((author.holder(3), *author.block(4).statements, author.log()))
    return Program(Block((Derivative(way, (body,)), author.log())) if way else body, function)


def programs(
    *,
    kinds: tuple[str, ...] = tuple(KINDS),
    ragged: bool = True,
    unbounded: bool = True,
    without: tuple[str, ...] = (),
    steady: bool = False,
    size: int = 4,
) -> st.SearchStrategy[Program]:
    """Programs whose keys are of these kinds, with at most `size` statements that hold others.

    Without `unbounded`, all loops have static bounds; without `ragged`, the number of records does
    not depend on data at all. `without` names statements and transformations that are not drawn.
    With `steady`, steps are constants.
    """
    return _bounded(_drafts(kinds, ragged, unbounded, without, steady, size, None))


def derivatives(size: int = 4) -> st.SearchStrategy[Program]:
    """Programs that are differentiated as a whole, in all ways."""
    ways = st.sampled_from(list(DERIVATIVES))
    return ways.flatmap(
        lambda way: _bounded(_drafts(tuple(KINDS), True, True, (), False, size, way))
    )


def _bounded(drafts: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    return drafts.filter(lambda program: program.body.bound <= MOST_RECORDS)


def states() -> st.SearchStrategy[State]:
    """Starting states."""
    numbers = st.integers(0, 15)
    drawn = st.tuples(numbers, st.integers(0, 7), st.tuples(numbers, numbers, numbers))
    return drawn.map(
        lambda t: {"x": np.float32(t[0]), "n": np.int32(t[1]), "v": np.asarray(t[2], np.float32)}
    )
