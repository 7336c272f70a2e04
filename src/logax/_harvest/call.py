"""Calls of a harvested function: arguments, compiled programs, results.

Outside of traces, array and number leaves are traced and every other leaf is static. One compiled
program is cached per structure, set of static leaves and set of options. The cache holds the user's
function weakly (see `program_cache`), so another `spool(f)` of the same `f` finds the program, and
a closure that is dropped takes it along. If the function itself is a pytree (an equinox module),
its leaves are treated as arguments.

Inside a trace only tracers are traced, everything else passes through unchanged, and the program is
walked in place: the outer trace compiles it.

Objects with reference semantics among the arguments are updated in place (see `nnx`).
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from logax import _compat
from logax._compat import Array, Tree
from logax._delivery.calls import BlockSize
from logax._delivery.worker import worker
from logax._harvest import nnx as references
from logax._harvest.program_cache import programs_of, weak_reference
from logax._harvest.static_arguments import (
    ArgumentSet,
    StaticValue,
    is_traced_by_default,
    module_mask,
    resolve_static_arguments,
)
from logax._harvest.tracing import CallTicket, HarvestCall, Harvester, run_harvest
from logax._support.messages import describe_value


@jax.tree_util.register_pytree_node_class
class MixedResult:
    """A result with leaves that are not arrays: these travel in the static part of the pytree."""

    def __init__(self, arrays: list[Any], static: tuple[Any, ...]) -> None:
        self.arrays, self.static = arrays, static

    @staticmethod
    def of(result: Tree) -> Tree:
        """Return the result as a compiled function can return it."""
        leaves, structure = jax.tree.flatten(result)
        static = {i: x for i, x in enumerate(leaves) if not isinstance(x, jax.Array)}
        if not static:
            return result
        arrays = [x for i, x in enumerate(leaves) if i not in static]
        values = tuple((i, StaticValue(x)) for i, x in static.items())
        return MixedResult(arrays, (structure, values))

    def restore(self) -> Tree:
        """Return the original result."""
        structure, static = self.static
        others = iter(self.arrays)
        fixed = {i: _copy_if_mutable(x.value) for i, x in static}
        every = (fixed[i] if i in fixed else next(others) for i in range(structure.num_leaves))
        return jax.tree.unflatten(structure, every)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        return self.arrays, self.static

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], arrays: Sequence[Any]) -> MixedResult:
        return cls(list(arrays), static)


def _copy_if_mutable(leaf: Any) -> Any:
    """Return a copy of a NumPy array, because the caller may write into it."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@jax.tree_util.register_pytree_node_class
class SilentResult:
    """The result of a program that sends no records and so does not use the number of its call."""

    def __init__(self, result: Tree) -> None:
        self.result = result

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.result,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Tree]) -> SilentResult:
        return cls(children[0])


class HarvestedFunction:
    """A function under a harvest.

    Two objects with the same function and options are equal, so a cache that is keyed by them
    (`jax.jit`) finds its entry.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        harvester: Harvester,
        options: Hashable,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
        ticket: CallTicket | None = None,
    ) -> None:
        name = harvester.name
        if not callable(fun):
            raise TypeError(
                f"`{name}` takes a function, and got {fun!r}. Write `{name}(f)(x)`, not "
                f"`{name}(f(x))`."
            )
        functools.update_wrapper(self, fun, updated=())
        self._static = resolve_static_arguments(fun, static_argnums, static_argnames)
        self._owner: tuple[Any, ...] = ()
        owner = getattr(fun, "__self__", None)
        if isinstance(fun, types.MethodType) and not jax.tree_util.all_leaves([owner]):
            # The method of a pytree: its arrays are arguments, never constants.
            fun, self._owner = fun.__func__, (owner,)
        self._fun, self._harvester, self._options = fun, harvester, options
        self._ticket = ticket
        self._adapts = ticket is not None and harvester.adapts(options)
        self._key = (harvester, options, self._static)
        self._tree_fun = None if jax.tree_util.all_leaves([fun]) else fun
        self._programs = programs_of(fun, self._key, self._tree_fun is not None)
        self._keyed_by_arity = not (self._static or self._owner or self._tree_fun is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _compat.is_outside_traces():
            return self._call_in_trace(self._inputs(args, kwargs))
        leaves: Sequence[Any]
        if self._keyed_by_arity and not kwargs and _PLAIN_TYPES.issuperset(map(type, args)):
            leaves, signature = args, len(args)  # a fast path for the common case
        else:
            leaves, signature = self._signature(self._inputs(args, kwargs))
        adapts = self._adapts and not any(map(_compat.is_on_several_devices, leaves))
        program = self._programs.get((signature, adapts))
        if program is None:
            program = self._compile(self._inputs(args, kwargs), adapts)
            self._programs[signature, adapts] = program
        if program is _UPDATES_IN_PLACE:
            return self._call_with_references(self._inputs(args, kwargs))
        ticket = self._ticket
        result = program.run(*leaves) if ticket is None else _run_numbered(program, ticket, leaves)
        return result.restore() if type(result) is MixedResult else result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HarvestedFunction) or self._key != other._key:
            return False
        one, two = self._fun, other._fun
        same_fun = one is two or (isinstance(one, types.MethodType) and one == two)
        same_owner = all(a is b for a, b in zip(self._owner, other._owner, strict=False))
        return same_fun and same_owner and self._ticket == other._ticket

    def __hash__(self) -> int:
        fun = self._fun
        return hash((id(getattr(fun, "__func__", fun)), self._key))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{self._harvester.name} of {self._fun!r}>"

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """Return all inputs of the function, including itself if it is a pytree."""
        return self._tree_fun, self._owner + args, kwargs

    def _signature(self, inputs: Tree) -> tuple[list[Any], Any]:
        """Return the leaves that are traced, and the key of the program that takes them."""
        leaves, structure = jax.tree.flatten(inputs)
        kinds = _PLAIN_TYPES if "equinox" not in sys.modules else {_compat.ConcreteArray}
        if self._tree_fun is None and not self._static and kinds.issuperset(map(type, leaves)):
            return leaves, (structure, ())
        of_modules = module_mask(inputs)
        static = {
            i: x
            for i, x in enumerate(leaves)
            if not is_traced_by_default(x)
            or (of_modules[i] and isinstance(x, (int, float, complex)))
        }
        if self._static:
            marked = self._static.mask(inputs, len(self._owner))
            static.update((i, x) for i, x in enumerate(leaves) if marked[i])
        for x in static.values():
            if not isinstance(x, Hashable):
                raise TypeError(
                    f"`{self._harvester.name}` takes static arguments that can be hashed, because "
                    f"they identify the compiled program, and got {describe_value(x)}. Close over "
                    "it, or give it a `__hash__`."
                )
        traced = [x for i, x in enumerate(leaves) if i not in static]
        return traced, (structure, tuple((i, StaticValue(x)) for i, x in static.items()))

    def _call_in_trace(self, inputs: Tree) -> Any:
        """Harvest in place, inside a trace."""
        if references.has_references(inputs):
            return self._call_with_references(inputs)
        leaves, structure = jax.tree.flatten(inputs)
        traced_at = [i for i, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)]
        owner = None if self._ticket is None else self._ticket.owner
        call = HarvestCall(self._harvester, self._options, self._ticket, owner=owner)
        return run_harvest(call, self._fun, leaves, structure, traced_at)

    def _compile(self, inputs: Tree, adapts: bool) -> Any:
        """Return the program for one structure and set of static leaves. It holds `fun` weakly."""
        if references.has_references(inputs):
            return _UPDATES_IN_PLACE
        _, (structure, static) = self._signature(inputs)
        fixed = {i: x.value for i, x in static}
        traced_at = [i for i in range(structure.num_leaves) if i not in fixed]
        harvester, options = self._harvester, self._options
        fun = weak_reference(self._fun) if self._tree_fun is None else lambda: None
        numbered = self._ticket is not None
        owned = self._ticket is not None and self._ticket.owner is not None

        def run(*dynamic: Array) -> Any:
            call = HarvestCall(harvester, options)
            if numbered:
                call.number, dynamic = dynamic[0], dynamic[1:]
            if adapts:
                call.block_size, dynamic = dynamic[0], dynamic[1:]
            if owned:
                call.owner, dynamic = dynamic[0], dynamic[1:]
            every = {**fixed, **dict(zip(traced_at, dynamic, strict=True))}
            ordered = [every[i] for i in range(structure.num_leaves)]
            result = MixedResult.of(run_harvest(call, fun(), ordered, structure, traced_at))
            return SilentResult(result) if "silent" in call.notes else result

        run.__name__ = run.__qualname__ = getattr(self._fun, "__name__", type(self._fun).__name__)
        arguments = ArgumentSet(*_compat.jit_arguments(self._fun).donated)
        donated = arguments.mask(inputs, len(self._owner))
        added = numbered + adapts + owned
        donated_at = [added + at for at, i in enumerate(traced_at) if donated[i]]
        return _Program(jax.jit(run, donate_argnums=donated_at), BlockSize() if adapts else None)

    def _call_with_references(self, inputs: Tree) -> Any:
        """Call with objects that are updated in place."""
        static = self._static.mask(inputs, len(self._owner))
        return references.call_and_update_objects(inputs, self._functional(), static)

    def _functional(self) -> Callable[..., Any]:
        """Return the same harvest of the function without reference semantics."""
        if "pure" not in self._programs:
            self._programs["pure"] = references.make_functional(self._fun)
        pure = self._programs["pure"]
        return HarvestedFunction(pure, self._harvester, self._options, ticket=self._ticket)


class _Program(NamedTuple):
    """A compiled program.

    Attributes:
      run: The compiled function.
      block_size: Number of records that leave together, if the host adapts it.
    """

    run: Any
    block_size: BlockSize | None


def _run_numbered(program: _Program, ticket: CallTicket, leaves: Sequence[Any]) -> Any:
    """Run a program that takes the number of its call."""
    ticket.check()
    block_size = program.block_size
    number = ticket.begin(block_size)
    numbers: list[Any] = [np.uint32(number)]
    if block_size is not None:
        numbers.append(np.int32(block_size.at_most(worker.job_records)))
    if ticket.owner is not None:
        numbers.append(ticket.owner)
    try:
        result = program.run(*(_operand(each, leaves) for each in numbers), *leaves)
    except BaseException as error:
        ticket.abandon(number)
        if isinstance(error, jax.errors.JaxRuntimeError) and "KeyboardInterrupt" in str(error):
            # The interrupt came while the thread of the program passed a record to the host.
            raise KeyboardInterrupt from error
        raise
    if type(result) is SilentResult:
        ticket.mark_silent(number)
        return result.result
    ticket.mark_started(number, result)
    return result


def _operand(number: Any, leaves: Sequence[Any]) -> Any:
    """Return the number of a call or of a run as an operand of the program, next to its leaves.

    A NumPy number is cheapest, but JAX moves it to the device implicitly. If a transfer guard
    forbids that, `device_put` puts it on the devices of the leaves.
    """
    if isinstance(number, jax.Array) or _compat.may_transfer_implicitly():
        return number
    arrays = (x for x in leaves if isinstance(x, jax.Array) and x.committed)
    place = next((x.sharding for x in arrays), None)
    if isinstance(place, jax.sharding.NamedSharding):
        place = jax.sharding.NamedSharding(place.mesh, jax.sharding.PartitionSpec())
    return jax.device_put(number, place)


_UPDATES_IN_PLACE = object()
_PLAIN_TYPES = {_compat.ConcreteArray, int, float, complex}
