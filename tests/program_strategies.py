"""Hypothesis strategies for the programs of `programs`, and for the states they start from.

`programs()` draws blocks of statements, nested to depth four; the tree shrinks as any drawn value
does. Each key gets its kind first. A program makes at most `MOST_RECORDS` records, so that the
oracle stays fast and one capacity keeps everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from programs import (
    KINDS,
    PREDICATES,
    UPDATES,
    Block,
    Call,
    Cond,
    Fori,
    Log,
    Map,
    Program,
    Scan,
    State,
    Statement,
    Switch,
    Update,
    While,
    Wrapped,
)

MOST_RECORDS = 200


@dataclass
class _Author:
    """Draws the statements of one program, at most `size` of those that hold others.

    Unless it is `ragged`, the number of its records does not depend on data.
    """

    draw: Any
    kinds: dict[str, str]
    ragged: bool
    unbounded: bool
    without: tuple[str, ...]
    counted: bool
    size: int
    function: Block = field(default_factory=lambda: Block(()))

    def log(self) -> Log:
        most = self.draw(st.sampled_from([1, 1, 2]))
        names = st.sampled_from(sorted(self.kinds))
        keys = self.draw(st.lists(names, min_size=1, max_size=most, unique=True))
        entries = tuple((key, self.kinds[key], self.draw(st.integers(0, 5))) for key in keys)
        whole = st.sampled_from(["counter", "outer counter", "n", 4])
        steps = {
            name: self.draw(whole if name != "time" else st.sampled_from(["x", 0.5]))
            for name in self.draw(
                st.lists(st.sampled_from(["step", "episode", "time"]), max_size=2, unique=True)
            )
        }
        may_skip = self.ragged and "step" in steps
        every = self.draw(st.sampled_from([None, None, 2])) if may_skip else None
        tags = self.draw(st.sampled_from([(), (), ("seldom",), ("seldom", "dear")]))
        late, explicit = self.draw(st.booleans()), self.draw(st.integers(0, 9)) == 9
        return Log(entries, tuple(steps.items()), every, late, tags, explicit, self.counted)

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
        return Update(self.draw(st.sampled_from(sorted(UPDATES))))

    def holder(self, depth: int) -> Statement:
        holders: list[Any] = [Wrapped, Scan, Fori, Map, Call, *[Cond, While, Switch] * self.ragged]
        drawn = self.draw(st.sampled_from([h for h in holders if h.__name__ not in self.without]))
        trips = st.sampled_from([2, 3, 1, 0])
        if drawn is Call and self.function.statements:
            return Call((self.function,))
        if drawn is Switch:
            return Switch(tuple(self.block(depth) for _ in range(self.draw(st.integers(2, 3)))))
        blocks = (self.block(depth),)
        if drawn is Cond:
            return Cond(
                self.draw(st.sampled_from(sorted(PREDICATES))), (*blocks, self.block(depth))
            )
        if drawn is Wrapped:
            names = ("jit", "checkpoint", "custom_jvp", "custom_vjp")
            name = self.draw(st.sampled_from([n for n in names if n not in self.without]))
            return Wrapped(name, self.draw(st.booleans()), blocks)
        if drawn is Map:
            return Map(self.draw(trips), blocks)
        if drawn is Scan:
            reverse, over = self.draw(st.booleans()), self.draw(st.booleans())
            return Scan(self.draw(trips), reverse, self.draw(st.integers(1, 3)), over, blocks)
        if drawn is While and self.unbounded:
            condition = Block((self.log(),) if self.draw(st.booleans()) else ())
            return While(self.draw(st.integers(1, 4)), (*blocks, condition))
        traced = self.unbounded and self.draw(st.booleans())
        return Fori(self.draw(st.integers(0, 2)), self.draw(trips), traced, blocks)


@st.composite
def _drafts(
    draw: Any,
    kinds: tuple[str, ...],
    ragged: bool,
    unbounded: bool,
    without: tuple[str, ...],
    counted: bool,
    size: int,
) -> Program:
    table = {name: draw(st.sampled_from(kinds)) for name in ("loss", "grad/norm", "net")}
    ragged = ragged and draw(st.integers(0, 3)) > 0
    author = _Author(draw, table, ragged, ragged and unbounded, without, counted, 1)
    function = author.function = Block((*author.block(1).statements, author.log()))
    author.size = size - 1
    body = (author.holder(3), *author.block(4).statements, author.log())
    return Program(Block(body), function)


def programs(
    *,
    kinds: tuple[str, ...] = tuple(KINDS),
    ragged: bool = True,
    unbounded: bool = True,
    without: tuple[str, ...] = (),
    counted: bool = False,
    size: int = 4,
) -> st.SearchStrategy[Program]:
    """Programs whose keys are of these kinds, with at most `size` statements that hold others.

    Without `unbounded`, all loops have static bounds; without `ragged`, the number of records does
    not depend on data at all. `without` names statements and transformations that are not drawn.
    With `counted`, each log has the counters of all loops.
    """
    drafts = _drafts(kinds, ragged, unbounded, without, counted, size)
    return drafts.filter(lambda program: program.body.bound <= MOST_RECORDS)


def programs_for_gradients() -> st.SearchStrategy[Program]:
    """Programs whose gradient logs what they log.

    Around a gradient, JAX takes out of a loop whatever does not change in it, logs and all, drops
    what never runs and some branches without results, and runs a checkpointed or custom function
    as often as its rule does.
    """
    kinds = tuple(kind for kind in KINDS if " or " not in kind)
    without = ("Call", "checkpoint", "custom_jvp", "custom_vjp")
    return programs(kinds=kinds, ragged=False, without=without, counted=True)


def states() -> st.SearchStrategy[State]:
    """Starting states."""
    numbers = st.integers(0, 15)
    drawn = st.tuples(numbers, st.integers(0, 7), st.tuples(numbers, numbers, numbers))
    return drawn.map(
        lambda t: {"x": np.float32(t[0]), "n": np.int32(t[1]), "v": np.asarray(t[2], np.float32)}
    )
