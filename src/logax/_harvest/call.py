"""Where compiled programs are kept: with the function they belong to, and no longer than it.

The store is keyed by identity and holds functions weakly; a bound method counts as its owner and
its function. What cannot be held weakly keeps its programs to itself.

Results as a compiled function can return them, and what they say to whoever called it.

How a harvested function is called: what is compiled and kept.

At the top level array and number leaves are traced and every other leaf is static; one compiled
program is kept for each structure, set of static leaves and set of options. It is kept weakly by
the user's function, so that a new `spool(f)` of the same `f` finds it and a dropped closure takes
it along. Where the function is itself a pytree (an equinox module), its leaves are treated as
arguments are.

Inside a trace only tracers are traced and everything else passes through untouched, and the program
is walked in place: whoever traces compiles.

Objects with reference semantics among the arguments are updated in place (see `references`).
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
from logax._harvest.arguments import Fixed, Named, in_modules, static_arguments, traced_by_default
from logax._harvest.program_cache import programs_of, weakly
from logax._harvest.tracing import About, Harvester, Ticket, run_harvest
from logax._support.messages import received


@jax.tree_util.register_pytree_node_class
class Partly:
    """A result of which some leaves are no arrays: those stand in its structure, as they are."""

    def __init__(self, arrays: list[Any], static: tuple[Any, ...]) -> None:
        self.arrays, self.static = arrays, static

    @staticmethod
    def of(result: Tree) -> Tree:
        """The result as a compiled function can return it."""
        leaves, structure = jax.tree.flatten(result)
        kept = {i: x for i, x in enumerate(leaves) if not isinstance(x, jax.Array)}
        if not kept:
            return result
        arrays = [x for i, x in enumerate(leaves) if i not in kept]
        return Partly(arrays, (structure, tuple((i, Fixed(x)) for i, x in kept.items())))

    def restored(self) -> Tree:
        """The result as it was."""
        structure, kept = self.static
        others = iter(self.arrays)
        fixed = {i: _own(x.value) for i, x in kept}
        every = (fixed[i] if i in fixed else next(others) for i in range(structure.num_leaves))
        return jax.tree.unflatten(structure, every)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        return self.arrays, self.static

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], arrays: Sequence[Any]) -> Partly:
        return cls(list(arrays), static)


def _own(leaf: Any) -> Any:
    """The leaf for one caller, who may write into it."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@jax.tree_util.register_pytree_node_class
class Unnumbered:
    """The result of a program that makes no use of the number of its call."""

    def __init__(self, result: Tree) -> None:
        self.result = result

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.result,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Tree]) -> Unnumbered:
        return cls(children[0])


class Harvested:
    """A function under a harvest.

    Two of the same function and options are equal, so that whoever caches by them (`jax.jit`)
    finds what it had.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        harvester: Harvester,
        options: Hashable,
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        name = harvester.name
        if not callable(fun):
            raise TypeError(
                f"`{name}` takes a function, and got {fun!r}. Write `{name}(f)(x)`, not "
                f"`{name}(f(x))`."
            )
        functools.update_wrapper(self, fun, updated=())
        self._static = static_arguments(fun, static_argnums, static_argnames)
        self._owner: tuple[Any, ...] = ()
        owner = getattr(fun, "__self__", None)
        if isinstance(fun, types.MethodType) and not jax.tree_util.all_leaves([owner]):
            # A method of a pytree: its arrays are arguments like any other, never constants.
            fun, self._owner = fun.__func__, (owner,)
        self._fun, self._harvester, self._options = fun, harvester, options
        self._ticket = ticket
        self._adapts = ticket is not None and harvester.adapts(options)
        self._key = (harvester, options, self._static)
        self._tree_fun = None if jax.tree_util.all_leaves([fun]) else fun
        self._programs = programs_of(fun, self._key, self._tree_fun is not None)
        self._by_number = not (self._static or self._owner or self._tree_fun is not None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _compat.outside_of_traces():
            return self._inside(self._given(args, kwargs))
        leaves: Sequence[Any]
        if self._by_number and not kwargs and _PLAIN_TYPES.issuperset(map(type, args)):
            leaves, signature = args, len(args)  # the quick way to what is found below
        else:
            leaves, signature = self._signature(self._given(args, kwargs))
        adapts = self._adapts and not any(map(_compat.on_several_devices, leaves))
        program = self._programs.get((signature, adapts))
        if program is None:
            program = self._program(self._given(args, kwargs), adapts)
            self._programs[signature, adapts] = program
        if program is _UPDATES_IN_PLACE:
            return self._updating(self._given(args, kwargs))
        ticket = self._ticket
        result = program.run(*leaves) if ticket is None else _numbered(program, ticket, leaves)
        return result.restored() if type(result) is Partly else result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Harvested) or self._key != other._key:
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

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        """All that is given to the function, itself included where it is a pytree."""
        return self._tree_fun, self._owner + args, kwargs

    def _signature(self, given: Tree) -> tuple[list[Any], Any]:
        """The leaves that are traced, and what else tells one program from another."""
        leaves, structure = jax.tree.flatten(given)
        kinds = _PLAIN_TYPES if "equinox" not in sys.modules else {_compat.ConcreteArray}
        if self._tree_fun is None and not self._static and kinds.issuperset(map(type, leaves)):
            return leaves, (structure, ())
        of_modules = in_modules(given)
        static = {
            i: x
            for i, x in enumerate(leaves)
            if not traced_by_default(x) or (of_modules[i] and isinstance(x, (int, float, complex)))
        }
        if self._static:
            marked = self._static.marked(given, len(self._owner))
            static.update((i, x) for i, x in enumerate(leaves) if marked[i])
        for x in static.values():
            if not isinstance(x, Hashable):
                raise TypeError(
                    f"`{self._harvester.name}` takes static arguments that can be hashed, since "
                    f"what is compiled is kept by them, and got {received(x)}. Close over it, or "
                    "give it a `__hash__`."
                )
        moving = [x for i, x in enumerate(leaves) if i not in static]
        return moving, (structure, tuple((i, Fixed(x)) for i, x in static.items()))

    def _inside(self, given: Tree) -> Any:
        """Harvest in place, in the midst of a trace."""
        if references.present(given):
            return self._updating(given)
        leaves, structure = jax.tree.flatten(given)
        moving = [i for i, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)]
        owner = None if self._ticket is None else self._ticket.owner
        about = About(self._harvester, self._options, self._ticket, owner=owner)
        return run_harvest(about, self._fun, leaves, structure, moving)

    def _program(self, given: Tree, adapts: bool) -> Any:
        """Return what runs for one structure and set of static leaves. It holds `fun` weakly."""
        if references.present(given):
            return _UPDATES_IN_PLACE
        _, (structure, static) = self._signature(given)
        fixed = {i: x.value for i, x in static}
        moving = [i for i in range(structure.num_leaves) if i not in fixed]
        harvester, options = self._harvester, self._options
        fun = weakly(self._fun) if self._tree_fun is None else lambda: None
        numbered = self._ticket is not None
        owned = self._ticket is not None and self._ticket.owner is not None

        def run(*dynamic: Array) -> Any:
            about = About(harvester, options)
            if numbered:
                about.number, dynamic = dynamic[0], dynamic[1:]
            if adapts:
                about.block_size, dynamic = dynamic[0], dynamic[1:]
            if owned:
                about.owner, dynamic = dynamic[0], dynamic[1:]
            every = {**fixed, **dict(zip(moving, dynamic, strict=True))}
            ordered = [every[i] for i in range(structure.num_leaves)]
            result = Partly.of(run_harvest(about, fun(), ordered, structure, moving))
            return Unnumbered(result) if "silent" in about.notes else result

        run.__name__ = run.__qualname__ = getattr(self._fun, "__name__", type(self._fun).__name__)
        donated = Named(*_compat.jit_arguments(self._fun).donated).marked(given, len(self._owner))
        given_up = [at + numbered + adapts + owned for at, i in enumerate(moving) if donated[i]]
        return _Program(jax.jit(run, donate_argnums=given_up), BlockSize() if adapts else None)

    def _updating(self, given: Tree) -> Any:
        """Call with objects that are updated in place."""
        return references.call(given, self._pure(), self._static.marked(given, len(self._owner)))

    def _pure(self) -> Callable[..., Any]:
        """The same harvest of the function made free of references."""
        if "pure" not in self._programs:
            self._programs["pure"] = references.functional(self._fun)
        pure = self._programs["pure"]
        return Harvested(pure, self._harvester, self._options, ticket=self._ticket)


class _Program(NamedTuple):
    """A compiled program; `block_size` is how many of its records leave together if that adapts."""

    run: Any
    block_size: BlockSize | None


def _numbered(program: _Program, ticket: Ticket, leaves: Sequence[Any]) -> Any:
    """Run a program that is told the number of the call."""
    ticket.check()
    block_size = program.block_size
    number = ticket.begin(block_size)
    numbers: list[Any] = [np.uint32(number)]
    if block_size is not None:
        numbers.append(np.int32(block_size.limited(worker.job_records)))
    if ticket.owner is not None:
        numbers.append(ticket.owner)
    try:
        result = program.run(*(_operand(each, leaves) for each in numbers), *leaves)
    except BaseException as error:
        ticket.abandon(number)
        if isinstance(error, jax.errors.JaxRuntimeError) and "KeyboardInterrupt" in str(error):
            # It came while the host took in a record, in the thread that runs the program.
            raise KeyboardInterrupt from error
        raise
    if type(result) is Unnumbered:
        ticket.forget(number)
        return result.result
    ticket.started(number, result)
    return result


def _operand(number: Any, leaves: Sequence[Any]) -> Any:
    """Return the number of a call or of a run as an operand of the program, next to its leaves.

    A NumPy number is cheapest, but JAX moves it to the device implicitly. Where a transfer guard
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
