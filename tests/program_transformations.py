"""The statements of random programs that run a block under a transformation of JAX.

`Wrapped` changes nothing of what a block computes or logs, or takes its logs away; `Lanes` and
`Shards` run it for several states; `Derivative` differentiates it. `programs` has all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from programs import Block, Log, Scope, State, Statement, wrap

WRAPPINGS: dict[str, Callable[[Scope, Any], Any]] = {
    "jit": lambda scope, function: scope.namespace.jit(function),
    "jit, donating": lambda scope, function: scope.namespace.jit(function, donate_argnums=0),
    "checkpoint": lambda scope, function: scope.namespace.checkpoint(function),
    "nolog": lambda scope, function: scope.namespace.nolog(function),
    "harvest of *loss": lambda scope, function: scope.namespace.taken(function, "*loss"),
}


@dataclass(frozen=True)
class Wrapped(Statement):
    """A block under one of the `WRAPPINGS`."""

    transformation: str
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        def function(state: State) -> State:
            return self.blocks[0].run(scope, state)

        return WRAPPINGS[self.transformation](scope, function)(state)

    def lines(self) -> Iterator[str]:
        yield f"{self.transformation}:"
        yield from self.blocks[0].lines()


@dataclass(frozen=True)
class Custom(Statement):
    """A block with a derivative rule, `custom_jvp` or `custom_vjp`.

    The rule runs the function again, or with `quiet` the same without logs, and doubles the
    derivative by `x`. With `rule` it logs too: what it is given, and in a backward rule what the
    forward rule was given, beside the derivative.
    """

    transformation: str
    quiet: bool
    rule: Log | None
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        function = getattr(scope.namespace, self.transformation)(self._of(scope))

        def again(state: State, counters: Any) -> State:
            return (self._of(scope.silent()) if self.quiet else function)(state, counters)

        def logged(prefix: str, state: State, counters: Any) -> None:
            if self.rule:
                self.rule.run(replace(scope.named(prefix), counters=counters), state)

        def jvp(primals: Any, tangents: Any) -> Any:
            out = again(*primals)
            logged("rule/", *primals)
            return out, _doubled(tangents[0])

        def forward(state: State, counters: Any) -> Any:
            out = again(state, counters)
            logged("forward/", state, counters)
            return out, (state, counters)

        def backward(given: Any, derivative: State) -> Any:
            logged("backward/", *given)
            if self.rule:  # what does not vary over lanes would be of another shape
                slope = derivative["x"] + 0 * given[0]["x"]
                scope.namespace.log({"slope": slope}, prefix=scope.prefix + "backward/")
            return _doubled(derivative), None

        if self.transformation == "custom_jvp":
            function.defjvp(jvp)
        else:
            function.defvjp(forward, backward)
        return function(state, scope.counters)

    def _of(self, scope: Scope) -> Callable[[State, Any], State]:
        """The function; it is given all that it uses, since a rule must not close over tracers."""
        scope = replace(scope, outside=None)
        return lambda state, counters: self.blocks[0].run(replace(scope, counters=counters), state)

    def lines(self) -> Iterator[str]:
        yield f"{self.transformation}{', its rule without logs of the function' * self.quiet}:"
        yield from self.blocks[0].lines()
        if self.rule:
            yield "and in its rule:"
            yield from Block((self.rule,)).lines()

    @property
    def bound(self) -> int:
        return self.blocks[0].bound + (2 * self.rule.bound + 1 if self.rule else 0)


def _doubled(derivative: State) -> State:
    return {**derivative, "x": 2 * derivative["x"]}


@dataclass(frozen=True)
class Lanes(Statement):
    """A vmapped block: each lane begins from another state, and their sum goes on.

    Lanes are along the axes `before` and `after` of `v`.
    """

    size: int
    before: int
    after: int
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        name = f"lanes{scope.depth}"
        inside = replace(
            scope.named(f"{self.size} lanes/"), outside=None, axis=name, depth=scope.depth + 1
        )
        function = scope.namespace.lanes(
            lambda state: self.blocks[0].run(inside, state),
            self.size,
            name,
            {"x": 0, "n": 0, "v": self.before},
            {"x": 0, "n": 0, "v": self.after},
        )
        states = _several(state, self.size)
        out = function({**states, "v": jnp.moveaxis(states["v"], 0, self.before)})
        return _together({**out, "v": jnp.moveaxis(out["v"], self.after, 0)})

    def lines(self) -> Iterator[str]:
        yield f"vmap of {self.size} lanes, from axis {self.before} to {self.after} of v:"
        yield from self.blocks[0].lines()


@dataclass(frozen=True)
class Shards(Statement):
    """A block under `shard_map`: each shard begins from another state, and their sum goes on."""

    size: int
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        inside = replace(
            scope.named(f"{self.size} shards/"),
            outside=None,
            axis="shards",
            shards="shards",
            depth=scope.depth + 1,
        )
        function = scope.namespace.shards(
            lambda state: self.blocks[0].run(inside, state), self.size, "shards"
        )
        return _together(function(_several(state, self.size)))

    def lines(self) -> Iterator[str]:
        yield f"shard_map over {self.size} devices:"
        yield from self.blocks[0].lines()


def _several(state: State, size: int) -> State:
    """So many states, along the first axis of each array."""
    shift = jnp.arange(float(size))
    return {
        "x": wrap(state["x"] + shift),
        "n": (state["n"] + jnp.arange(size)) & 7,
        "v": wrap(state["v"] + shift[:, None]),
    }


def _together(states: State) -> State:
    return {
        "x": wrap(states["x"].sum(0)),
        "n": states["n"].sum(0) & 7,
        "v": wrap(states["v"].sum(0)),
    }


@dataclass(frozen=True)
class Derivative(Statement):
    """A block and its derivative by `x` and `v`, which is added to both."""

    way: str
    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        def function(real: State) -> State:
            return self.blocks[0].run(scope, state | real)

        real = {"x": state["x"], "v": state["v"]}
        if self.way == "grad of checkpoint":
            function = scope.namespace.checkpoint(function)
        out, slope = DERIVATIVES[self.way](function, real)
        return {
            "x": wrap(out["x"] + slope["x"]),
            "n": out["n"],
            "v": wrap(out["v"] + slope["v"]),
        }

    def lines(self) -> Iterator[str]:
        yield f"{self.way}:"
        yield from self.blocks[0].lines()


@dataclass(frozen=True)
class Constant(Statement):
    """A block that is not differentiated: it is given constants, and its results are added."""

    blocks: tuple[Block, ...]

    def run(self, scope: Scope, state: State) -> State:
        scope = replace(scope, outside=None)
        out = jax.lax.stop_gradient(self.blocks[0].run(scope, jax.lax.stop_gradient(state)))
        return {**state, "x": wrap(state["x"] + out["x"]), "n": out["n"]}

    def lines(self) -> Iterator[str]:
        yield "without gradient:"
        yield from self.blocks[0].lines()


def _scalar(function: Any) -> Any:
    def scalar(real: State) -> Any:
        out = function(real)
        return out["x"] + out["v"].sum(), out

    return scalar


def _grad(function: Any, real: State) -> Any:
    slope, out = jax.grad(_scalar(function), has_aux=True)(real)
    return out, slope


def _value_and_grad(function: Any, real: State) -> Any:
    (_, out), slope = jax.value_and_grad(_scalar(function), has_aux=True)(real)
    return out, slope


def _vjp(function: Any, real: State) -> Any:
    value, pulled_back, out = jax.vjp(_scalar(function), real, has_aux=True)
    return out, pulled_back(jnp.ones_like(value))[0]


def _jacrev(function: Any, real: State) -> Any:
    slope, out = jax.jacrev(_scalar(function), has_aux=True)(real)
    return out, slope


def _jvp(function: Any, real: State) -> Any:
    return jax.jvp(function, (real,), (jax.tree.map(jnp.ones_like, real),))


def _linearize(function: Any, real: State) -> Any:
    out, linear = jax.linearize(function, real)
    return out, linear(jax.tree.map(jnp.ones_like, real))


DERIVATIVES: dict[str, Callable[[Any, State], tuple[State, State]]] = {
    "grad": _grad,
    "value_and_grad": _value_and_grad,
    "grad of checkpoint": _grad,
    "vjp": _vjp,
    "jacrev": _jacrev,
    "linearize": _linearize,
    "jvp": _jvp,
}
