"""What a program runs against: JAX itself, or a recorder in plain Python.

A program takes `log`, its control flow and its transformations from a `Namespace`. The base class
has those of JAX and of the library; `Recorder` has the same names for a run under
`jax.disable_jit()`, where `log` appends to a list. Each pair below is one meaning written twice.

| name | for JAX | for the recorder |
| --- | --- | --- |
| `lanes` | `jax.vmap` | `jax.vmap`, whose tracers are opened to see the values of all lanes |
| `shards` | `jax.shard_map` over the first devices | lanes, which a record always has |
| `cond`, `while_loop`, ... | `jax.lax` | Python's; JAX's batched form where a predicate varies |
| `checkpoint` | `jax.checkpoint` | the function: it computes twice, and logs once |
| `nolog`, `taken` | `logax.nolog`; an inner `spool` of some keys | what they take is dropped |

Inside `lanes` or `shards` a recorded array has an axis in front for each of them, outermost first,
and of size 1 where the value does not vary over it. A harvest around a `vmap` sees the program that
JAX makes for the whole batch. There a predicate that varies makes all branches run for all lanes,
the first one first, and a loop runs on in all lanes until none needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import logax

Log = Callable[..., None]
CAPACITY = 400  # more than any program logs


class Namespace:
    """`log`, the control flow and the transformations, as a program sees them."""

    scan: Any = staticmethod(jax.lax.scan)
    fori_loop: Any = staticmethod(jax.lax.fori_loop)
    while_loop: Any = staticmethod(jax.lax.while_loop)
    cond: Any = staticmethod(jax.lax.cond)
    switch: Any = staticmethod(jax.lax.switch)
    map: Any = staticmethod(jax.lax.map)
    jit: Any = staticmethod(jax.jit)
    checkpoint: Any = staticmethod(jax.checkpoint)
    custom_jvp: Any = staticmethod(jax.custom_jvp)
    custom_vjp: Any = staticmethod(jax.custom_vjp)
    nolog: Any = staticmethod(logax.nolog)
    on_steps: Any = staticmethod(logax.OnSteps)

    def __init__(self, log: Log) -> None:
        self.log = log

    def taken(self, function: Any, argnames: str) -> Any:
        """The function under a harvest that takes these keys, for nobody."""
        if self.log is ignore:  # there is nothing to take
            return function
        harvested = logax.spool(function, keys=argnames, capacity=CAPACITY)
        return lambda *args: harvested(*args)[0]

    def lanes(self, function: Any, size: int, name: str, in_axes: Any, out_axes: Any) -> Any:
        """The function of one lane, for all of them."""
        return jax.vmap(function, (in_axes,), out_axes, axis_name=name, axis_size=size)

    def shards(self, function: Any, size: int, name: str) -> Any:
        """The function of one shard, for all of them; arrays have the shards in front."""
        mesh, spec = Mesh(np.array(jax.devices()[:size]), (name,)), PartitionSpec(name)

        def shard(block: Any) -> Any:
            out = function(jax.tree.map(lambda x: x[0], block))
            return jax.tree.map(lambda x: x[None], out)

        return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec)


def ignore(*args: Any, **options: Any) -> None:
    """A `log` that does nothing."""


@dataclass(frozen=True)
class Axis:
    """Lanes or shards around a `log` call; of shards each record has all."""

    name: str
    size: int
    shards: bool = False


@dataclass(frozen=True)
class Record:
    """One key of one executed `log` call, or of one that could be executed."""

    key: str
    value: Any
    steps: dict[str, Any]
    tags: tuple[str, ...] = ()
    explicit: bool = False
    axes: tuple[Axis, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many lanes there are of each axis."""
        return tuple(axis.size for axis in self.axes)


class Listener(Namespace):
    """A namespace whose `log` appends to `records`, with the axes around it and what is taken."""

    def __init__(self) -> None:
        super().__init__(self._heard)
        self.records: list[Record] = []
        self._axes: list[Axis] = []
        self._taken: list[str] = []

    def _heard(
        self,
        data: Any,
        /,
        *,
        every: Any = None,
        tags: Sequence[str] = (),
        explicit: bool = False,
        prefix: str = "",
        **steps: Any,
    ) -> None:
        if "*" in self._taken or (every is not None and not self._due(every, steps["step"])):
            return
        steps = {name: self._kept(step) for name, step in steps.items()}
        for name, value in (data() if callable(data) else data).items():
            key = prefix + name
            if not any(fnmatchcase(key, pattern) for pattern in self._taken):
                kept = jax.tree.map(self._kept, value)
                self.records.append(
                    Record(key, kept, steps, tuple(tags), explicit, tuple(self._axes))
                )

    def _due(self, every: Any, step: Any) -> bool:
        return True

    def _kept(self, x: Any) -> Any:
        """What is kept of a value: its shape and dtype."""
        x = jnp.asarray(x)
        return jax.ShapeDtypeStruct(x.shape, x.dtype)

    def taken(self, function: Any, argnames: str) -> Any:
        return self._during(function, self._taken, argnames)

    def nolog(self, function: Any) -> Any:
        return self._during(function, self._taken, "*")

    def lanes(self, function: Any, size: int, name: str, in_axes: Any, out_axes: Any) -> Any:
        inside = self._during(function, self._axes, Axis(name, size))
        return super().lanes(inside, size, name, in_axes, out_axes)

    def shards(self, function: Any, size: int, name: str) -> Any:
        return super().shards(
            self._during(function, self._axes, Axis(name, size, shards=True)), size, name
        )

    @contextlib.contextmanager
    def _with(self, stack: list[Any], item: Any) -> Iterator[None]:
        stack.append(item)
        try:
            yield
        finally:
            stack.pop()

    def _during(self, function: Any, stack: list[Any], item: Any) -> Any:
        """The function with the item on the stack while it is called."""

        def inside(*args: Any) -> Any:
            with self._with(stack, item):
                return function(*args)

        return inside


class Recorder(Listener):
    """The namespace of the oracle, for a run in Python."""

    def _due(self, every: Any, step: Any) -> bool:
        if varies(step):  # a branch for all lanes
            return True
        number = int(opened(step)[0])
        return number in every if isinstance(every, frozenset) else number % every == 0

    def on_steps(self, steps: Sequence[int]) -> frozenset[int]:
        return frozenset(steps)

    def _kept(self, x: Any) -> Any:
        """The values of all lanes, with an axis for each of the axes around."""
        x = jnp.asarray(x)
        array, varying = opened(jax.random.key_data(x) if is_key(x) else x)
        own = array.shape[len(varying) :]
        shape = [axis.size if axis.name in varying else 1 for axis in self._axes]
        whole = [axis.size if axis.shards or axis.name in varying else 1 for axis in self._axes]
        return np.broadcast_to(np.asarray(array).reshape((*shape, *own)), (*whole, *own))

    def scan(
        self, body: Any, carry: Any, xs: Any = None, length: int | None = None, **options: Any
    ) -> Any:
        if length is None:
            length = len(jax.tree.leaves(xs)[0])
        if length:
            return jax.lax.scan(body, carry, xs, length, **options)
        element = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), xs)
        with self._with(self._taken, "*"):
            _, ys = body(carry, element)  # for their shapes
        return carry, jax.tree.map(lambda y: jnp.zeros((0, *y.shape), y.dtype), ys)

    def map(self, function: Any, xs: Any) -> Any:
        return self.scan(lambda _, x: (None, function(x)), None, xs)[1]

    def fori_loop(self, lower: Any, upper: Any, body: Any, state: Any) -> Any:
        if not varies(upper):
            return jax.lax.fori_loop(lower, upper, body, state)
        return self.while_loop(
            lambda carry: carry[0] < upper,
            lambda carry: (carry[0] + 1, body(*carry)),
            (jnp.int32(lower), state),
        )[1]

    def while_loop(self, condition: Any, body: Any, carry: Any) -> Any:
        going = condition(carry)
        if varies(going):
            carry = _select(going, carry, carry)
        while opened(going)[0].any():
            new = body(carry)
            carry = _select(going, new, carry) if varies(going) else new
            going = condition(carry)
        return carry

    def cond(self, predicate: Any, yes: Any, no: Any, *operands: Any) -> Any:
        if not varies(predicate):
            return (yes if opened(predicate)[0] else no)(*operands)
        unlike = no(*operands)
        return _select(predicate, yes(*operands), unlike)

    def switch(self, index: Any, branches: Sequence[Any], *operands: Any) -> Any:
        index = jnp.clip(index, 0, len(branches) - 1)
        if not varies(index):
            return branches[int(opened(index)[0])](*operands)
        outs = [branch(*operands) for branch in branches]
        out = outs[0]
        for number in range(1, len(outs)):
            out = _select(index == number, outs[number], out)
        return out

    def checkpoint(self, function: Any) -> Any:
        return function

    def shards(self, function: Any, size: int, name: str) -> Any:
        inside = self._during(function, self._axes, Axis(name, size, shards=True))
        return jax.vmap(inside, axis_name=name)


def _select(predicate: Any, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(predicate, x, y), yes, no)


def opened(x: Any) -> tuple[Any, list[str]]:
    """The array inside JAX's tracers, and the names of the axes over which it varies.

    These are axes of the array, in front, outermost first. Of a value that is being differentiated
    it is the value.
    """
    if hasattr(x, "primal"):
        return opened(x.primal)
    if hasattr(x, "pval"):
        return opened(x.pval.get_known())
    if not hasattr(x, "batch_dim"):
        if hasattr(x, "dtype") and not hasattr(x, "shape"):  # a number that JAX keeps as one
            x = np.asarray(x, x.dtype)
        return x, []
    if x.batch_dim is None:
        return opened(x.val)
    array, outer = opened(jnp.moveaxis(x.val, x.batch_dim, 0))
    return array, [*outer, x._trace.axis_data.name]


def varies(x: Any) -> bool:
    """Whether it has different values in different lanes."""
    return bool(opened(x)[1])


def is_key(leaf: Any) -> bool:
    """Whether it is of typed PRNG keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))
