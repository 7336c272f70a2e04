"""Random programs that log, as small trees that print as code.

A program takes and returns a state of three arrays: `x` (float32), `n` (int32) and `v` (float32, 3
elements). All arithmetic is on small integers (`wrap` brings every value back into 0..15), so every
result is exact in every dtype, whatever the compiler fuses. `program_strategies` draws them.

A statement is a frozen dataclass with three abilities: `run(scope, state)` gives the next state,
`lines()` is its text for a failing example, and `bound` is the most records it can make. `Scope`
carries the namespace that the program is run against (see `recorder`), its one jitted function, the
counters of the loops around, and what stands around it of lanes and shards. Here are the
statements with control flow; `program_transformations` has those that transform a block.

The value of a key is made by its kind (`KINDS`), a function of the state and a constant: one key
has one kind in the whole program, so that its shape and structure agree everywhere. Inside lanes
and shards, where arrays have more axes, keys have a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recorder import Namespace, ignore

State = Any  # a dict of `x`, `n` and `v`


def wrap(x: Any) -> Any:
    """A float brought into 0..15, exactly and never to a negative zero."""
    return x - 16.0 * jnp.floor(x * 0.0625)


KINDS: dict[str, Callable[[State, int], Any]] = {
    "float32": lambda s, c: s["x"] + c,
    "int32": lambda s, c: s["n"] + c,
    "vector": lambda s, c: s["v"] + c,
    "matrix": lambda s, c: s["v"][:, None] + jnp.arange(2.0) * c,
    "bfloat16": lambda s, c: (s["x"] + c).astype(jnp.bfloat16),
    "float16": lambda s, c: (s["v"] + c).astype(jnp.float16),
    "int8": lambda s, c: s["n"].astype(jnp.int8) - c,
    "uint8": lambda s, c: s["x"].astype(jnp.uint8) + c,
    "bool": lambda s, c: s["v"] > c,
    "complex64": lambda s, c: jax.lax.complex(s["x"], jnp.float32(c)),
    "number": lambda s, c: float(c),
    "numpy": lambda s, c: np.full((2,), c, np.int32),
    "small or large integer": lambda s, c: s["n"].astype(jnp.int8) if c % 2 else s["n"] + c,
    "short or long float": lambda s, c: s["v"].astype(jnp.bfloat16) if c % 2 else s["v"] + c,
    "PRNG key": lambda s, c: jax.random.wrap_key_data(
        jnp.stack([s["n"], jnp.int32(c)]).astype(jnp.uint32)
    ),
    "no elements": lambda s, c: s["v"][:0],
    "mapping": lambda s, c: {"w": s["v"] + c, "b": s["n"]},
    "tuple": lambda s, c: (s["x"], (s["n"] > c, s["v"].astype(jnp.bfloat16))),
    "nested": lambda s, c: {"layers": [{"w": s["v"]}, {"w": s["v"] + c}], "scale": (s["x"] + c,)},
}
CONSTANT = ("number", "numpy")
REAL = ("float32", "int32", "vector", "matrix", "mapping")
PREDICATES: dict[str, Callable[[State], Any]] = {
    "x > 7": lambda s: s["x"] > 7,
    "n % 2 == 0": lambda s: s["n"] % 2 == 0,
    "v[0] > x": lambda s: s["v"][0] > s["x"],
}
SHARED_PREDICATES: dict[str, Callable[[State, str], Any]] = {
    "psum(x) % 16 > 7": lambda s, axis: wrap(jax.lax.psum(s["x"], axis)) > 7,
    "pmax(n) % 2 == 0": lambda s, axis: jax.lax.pmax(s["n"], axis) % 2 == 0,
}
UPDATES: dict[str, Callable[[State], State]] = {
    "x = wrap(x + 3)": lambda s: {**s, "x": wrap(s["x"] + 3)},
    "x = wrap(2 * x + n)": lambda s: {**s, "x": wrap(2 * s["x"] + s["n"])},
    "x = wrap(21 - x)": lambda s: {**s, "x": wrap(21 - s["x"])},
    "x = wrap(v[0] + v[2])": lambda s: {**s, "x": wrap(s["v"][0] + s["v"][2])},
    "v = wrap(v + x)": lambda s: {**s, "v": wrap(s["v"] + s["x"])},
    "v = floor(v / 2)": lambda s: {**s, "v": jnp.floor(s["v"] * 0.5)},
    "n = (n + 3) % 8": lambda s: {**s, "n": (s["n"] + 3) & 7},
    "n = int(x) % 8": lambda s: {**s, "n": s["x"].astype(jnp.int32) & 7},
}


def _ring(axis: str) -> list[tuple[int, int]]:
    size = jax.lax.psum(1, axis)
    return [(index, (index + 1) % size) for index in range(size)]


COLLECTIVES: dict[str, Callable[[State, str], State]] = {
    "x = wrap(x + psum(x))": lambda s, axis: {**s, "x": wrap(s["x"] + jax.lax.psum(s["x"], axis))},
    "x = wrap(x + axis_index)": lambda s, axis: {**s, "x": wrap(s["x"] + jax.lax.axis_index(axis))},
    "v = ppermute(v)": lambda s, axis: {**s, "v": jax.lax.ppermute(s["v"], axis, _ring(axis))},
    "v = wrap(v + all_gather(x)[1])": lambda s, axis: {
        **s,
        "v": wrap(s["v"] + jax.lax.all_gather(s["x"], axis)[1]),
    },
}


@dataclass(frozen=True)
class Scope:
    """What a statement sees besides the state.

    `outside` is the state before the nearest loop, where a statement may take it. `axis` names the
    lanes or shards that are nearest, and `shards` the shards; `depth` is the number of all of them.
    """

    namespace: Namespace
    function: Callable[[State, str, str], State]
    quiet: Scope | None = None
    counters: tuple[Any, ...] = ()
    outside: State | None = None
    prefix: str = ""
    axis: str = ""
    shards: str = ""
    depth: int = 0

    def within(self, counter: Any, outside: State) -> Scope:
        return replace(self, counters=(*self.counters, counter), outside=outside)

    def named(self, prefix: str) -> Scope:
        return replace(self, prefix=self.prefix + prefix)

    def silent(self) -> Scope:
        """The same without logs."""
        quiet = self.quiet or self
        return replace(self, namespace=quiet.namespace, function=quiet.function)


class Statement:
    """One node of a program."""

    blocks: tuple[Block, ...] = ()

    def run(self, scope: Scope, state: State) -> State:
        raise NotImplementedError

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    @property
    def bound(self) -> int:
        return sum(block.bound for block in self.blocks)  # all of them run, for lanes


@dataclass(frozen=True)
class Block:
    """Statements in a row."""

    statements: tuple[Statement, ...]

    def run(self, scope: Scope, state: State) -> State:
        for statement in self.statements:
            state = statement.run(scope, state)
        return state

    def lines(self) -> Iterator[str]:
        for statement in self.statements or (Update("pass"),):
            yield from (f"    {line}" for line in statement.lines())

    def walk(self) -> Iterator[Statement]:
        for statement in self.statements:
            yield statement
            for block in statement.blocks:
                yield from block.walk()

    @property
    def bound(self) -> int:
        return sum(statement.bound for statement in self.statements)


@dataclass(frozen=True)
class Update(Statement):
    """A change of the state, by its own values or by those of other lanes or shards."""

    text: str

    def run(self, scope: Scope, state: State) -> State:
        if self.text in COLLECTIVES:
            return COLLECTIVES[self.text](state, scope.axis)
        return UPDATES[self.text](state)

    def lines(self) -> Iterator[str]:
        yield self.text


@dataclass(frozen=True)
class Log(Statement):
    """A `log` call: entries are (key, kind, constant), steps are (name, source).

    `every` is a number, or the steps that are due.
    """

    entries: tuple[tuple[str, str, int], ...]
    steps: tuple[tuple[str, str | float], ...] = ()
    every: int | tuple[int, ...] | None = None
    late: bool = False
    tags: tuple[str, ...] = ()
    explicit: bool = False

    def run(self, scope: Scope, state: State) -> State:
        def data() -> dict[str, Any]:
            values = {key: KINDS[kind](state, constant) for key, kind, constant in self.entries}
            return {key: value + zero if key in steady else value for key, value in values.items()}

        # In lanes a value has one shape at all sites of its key, so that all of them vary.
        zero = 0 * state["n"] if scope.axis else 0
        steady = {key for key, kind, _ in self.entries if scope.axis and kind in CONSTANT}
        counters = scope.counters or (state["n"],)
        sources: dict[Any, Any] = {
            "n": state["n"],
            "x": state["x"],
            "counter": counters[-1],
            "outer counter": counters[0],
        }
        steps = {name: sources.get(source, source) for name, source in self.steps}
        if scope.axis:
            steps = {k: s + (0 * state["x"] if k == "time" else zero) for k, s in steps.items()}
        options: dict[str, Any] = {"tags": self.tags} if self.tags else {}
        if self.every:
            number = isinstance(self.every, int)
            options["every"] = self.every if number else scope.namespace.on_steps(self.every)
        options |= {"prefix": scope.prefix} if scope.prefix else {}
        options |= {"explicit": True} if self.explicit else {}
        scope.namespace.log(data if self.late else data(), **options, **steps)
        return state

    def lines(self) -> Iterator[str]:
        data = ", ".join(f"{key!r}: {kind}({constant})" for key, kind, constant in self.entries)
        options = [f"every={self.every}"] * bool(self.every) + [f"tags={self.tags}"] * bool(
            self.tags
        )
        options += ["explicit=True"] * self.explicit
        options += [f"{name}={source}" for name, source in self.steps]
        yield f"log({', '.join(['lambda: ' * self.late + '{' + data + '}', *options])})"

    @property
    def bound(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class Scan(Statement):
    """A scan; over `xs` made from the state, or over nothing."""

    length: int
    reverse: bool
    unroll: int
    over: bool
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        def body(carry: tuple[Any, State], element: Any) -> tuple[tuple[Any, State], Any]:
            turn, state = carry
            counter, shift = element if self.over else (turn, 1.0)
            state = {**state, "x": wrap(state["x"] + shift)}
            state = self.blocks[0].run(scope.within(counter, outside), state)
            return (turn + 1, state), state["x"]

        outside = state
        elements = (jnp.arange(self.length), jnp.arange(float(self.length)) + state["x"])
        (_, state), ys = scope.namespace.scan(
            body,
            (jnp.int32(0), state),
            elements if self.over else None,
            length=self.length,
            reverse=self.reverse,
            unroll=self.unroll,
        )
        return {**state, "x": wrap(state["x"] + ys.sum())}

    def lines(self) -> Iterator[str]:
        options = ", reverse" * self.reverse + f", unroll={self.unroll}" * (self.unroll > 1)
        yield f"scan over {'xs' if self.over else 'nothing'}, length {self.length}{options}:"
        yield from self.blocks[0].lines()

    @property
    def bound(self) -> int:
        return self.length * self.blocks[0].bound


@dataclass(frozen=True)
class Fori(Statement):
    """A fori_loop whose bounds are static, or end at a number from the state."""

    lower: int
    trips: int
    traced: bool
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        def body(counter: Any, state: State) -> State:
            state = {**state, "x": wrap(state["x"] + counter)}
            return self.blocks[0].run(scope.within(counter, outside), state)

        outside = state
        trips = state["n"] % (self.trips + 1) if self.traced else self.trips
        return scope.namespace.fori_loop(self.lower, self.lower + trips, body, state)

    def lines(self) -> Iterator[str]:
        trips = f"n % {self.trips + 1}" if self.traced else f"{self.trips}"
        yield f"fori_loop from {self.lower} to {self.lower} + {trips}:"
        yield from self.blocks[0].lines()

    @property
    def bound(self) -> int:
        return self.trips * self.blocks[0].bound


@dataclass(frozen=True)
class While(Statement):
    """A while_loop; its second block holds the logs of the condition."""

    trips: int
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        def condition(carry: tuple[Any, State]) -> Any:
            counter, state = carry
            self.blocks[1].run(scope.within(counter, outside), state)
            return (counter < self.trips) & (state["x"] != 5)

        def body(carry: tuple[Any, State]) -> tuple[Any, State]:
            counter, state = carry
            state = {**state, "x": wrap(state["x"] + 1)}
            return counter + 1, self.blocks[0].run(scope.within(counter, outside), state)

        outside = state
        return scope.namespace.while_loop(condition, body, (jnp.int32(0), state))[1]

    def lines(self) -> Iterator[str]:
        yield f"while counter < {self.trips} and x != 5:"
        yield from self.blocks[0].lines()
        if self.blocks[1].statements:
            yield "and in its condition:"
            yield from self.blocks[1].lines()

    @property
    def bound(self) -> int:
        return self.trips * self.blocks[0].bound + (self.trips + 1) * self.blocks[1].bound


@dataclass(frozen=True)
class Cond(Statement):
    """A cond: the first block where the predicate holds, else the second."""

    predicate: str
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        yes, no = (_function(block, scope) for block in self.blocks)
        if self.predicate in SHARED_PREDICATES:
            predicate = SHARED_PREDICATES[self.predicate](state, scope.shards)
        else:
            predicate = PREDICATES[self.predicate](state)
        return scope.namespace.cond(predicate, yes, no, state)

    def lines(self) -> Iterator[str]:
        yield f"cond {self.predicate}:"
        yield from self.blocks[0].lines()
        yield "else:"
        yield from self.blocks[1].lines()


@dataclass(frozen=True)
class Switch(Statement):
    """A switch on `n - 1`, which is clamped into the branches there are."""

    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        branches = [_function(block, scope) for block in self.blocks]
        return scope.namespace.switch(state["n"] - 1, branches, state)

    def lines(self) -> Iterator[str]:
        for number, block in enumerate(self.blocks):
            yield f"switch n - 1, case {number}:"
            yield from block.lines()


@dataclass(frozen=True)
class Map(Statement):
    """A map over copies of the state with shifted `x`; the sum of the results becomes `x`."""

    length: int
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        def body(shift: Any) -> Any:
            shifted = {**state, "x": wrap(state["x"] + shift)}
            inside = scope.within(shift.astype(jnp.int32), state)
            return self.blocks[0].run(inside, shifted)["x"]

        return {**state, "x": wrap(scope.namespace.map(body, jnp.arange(float(self.length))).sum())}

    def lines(self) -> Iterator[str]:
        yield f"map over {self.length} shifts:"
        yield from self.blocks[0].lines()

    @property
    def bound(self) -> int:
        return self.length * self.blocks[0].bound


@dataclass(frozen=True)
class Invariant(Statement):
    """A block that does the same in every iteration: it is given the state before the loop."""

    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        if scope.outside is None:
            return self.blocks[0].run(scope, state)
        out = self.blocks[0].run(replace(scope, counters=(), outside=None), scope.outside)
        return {**state, "x": wrap(state["x"] + out["x"])}

    def lines(self) -> Iterator[str]:
        yield "on the state before the loop:"
        yield from self.blocks[0].lines()


@dataclass(frozen=True)
class Call(Statement):
    """A call of the program's one jitted function, which keeps its own block."""

    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        return scope.function(state, scope.prefix, scope.axis)

    def lines(self) -> Iterator[str]:
        yield "function()"


def _function(block: Block, scope: Scope) -> Callable[[State], State]:
    return lambda state: block.run(scope, state)


@dataclass(frozen=True, repr=False)
class Program:
    """A whole program: a function of a namespace and a state, as `oracle` takes it."""

    body: Block
    function: Block = Block(())

    def __call__(self, namespace: Namespace, state: State) -> State:
        scope = replace(self._scope(namespace), quiet=self._scope(Namespace(ignore)))
        return self.body.run(scope, state)

    def _scope(self, namespace: Namespace) -> Scope:
        def function(state: State, prefix: str, axis: str) -> State:
            return self.function.run(replace(scope.named(prefix), axis=axis), state)

        scope = Scope(namespace, namespace.jit(function, static_argnums=(1, 2)))
        return scope

    def __repr__(self) -> str:
        called = any(isinstance(statement, Call) for statement in self.body.walk())
        function = (
            ["", "def function(x, n, v):  # jitted", *self.function.lines()] if called else []
        )
        return "\n".join([*function, "", "def program(x, n, v):", *self.body.lines(), ""])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis prints a dataclass by its fields, unless it has this method."""
        printer.text(repr(self))

    @property
    def unbounded(self) -> bool:
        """Whether a loop in it has no static bound."""
        return any(
            isinstance(statement, While) or (isinstance(statement, Fori) and statement.traced)
            for statement in self.body.walk()
        )

    @property
    def ragged(self) -> bool:
        """Whether its number of records depends on data."""
        return self.unbounded or any(
            isinstance(statement, Cond | Switch)
            or (isinstance(statement, Log) and statement.every is not None)
            for statement in self.body.walk()
        )
