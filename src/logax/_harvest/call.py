"""How a harvested function is called: what is compiled and kept.

At the top level array and number leaves are traced and every other leaf is static; one compiled
program is kept for each structure, set of static leaves and set of options. It is kept weakly by
the user's function, so that a new `spool(f)` of the same `f` finds it and a dropped closure takes
it along. Where the function is itself a pytree (an equinox module), its leaves are treated as
arguments are.

Inside a trace only tracers are traced and everything else passes through untouched, and the program
is walked in place: whoever traces compiles.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from logax import _compat
from logax._compat import Array, Jaxpr, Tree
from logax._harvest import references
from logax._harvest.arguments import Fixed, Named, in_modules, is_array, static_arguments
from logax._harvest.programs import programs_of, weakly
from logax._log import is_listening, listening, silence


@dataclasses.dataclass(frozen=True)
class Traced:
    """A user's function traced with its logs bound.

    Attributes:
      jaxpr: The program.
      args: Its arguments.
      listening: Whether there is a harvest outside that sees what this one leaves.
      ledger: The key and the site of every log that was bound while tracing.
      ticket: What gives calls their numbers, where they have any.
      number: The number of the call, where it is known before the program runs.
      owner: The number of who owns its records, if they have an owner.
      notes: What the harvest says of the program: "silent" if it makes no use of the number.
    """

    jaxpr: Jaxpr
    args: Sequence[Array]
    listening: bool
    ledger: frozenset[tuple[str, str]]
    ticket: Any = None
    number: Array | None = None
    owner: Array | None = None
    notes: set[str] = dataclasses.field(default_factory=set)


class Ticket(Protocol):
    """Numbers for calls whose records leave the program while it runs."""

    @property
    def owner(self) -> Array | None:
        """The number of who owns the records, an array or a tracer; None if nobody does."""

    def check(self) -> None:
        """Raise what went wrong in earlier calls."""

    def begin(self) -> int:
        """The number of a new call."""

    def begin_inside(self) -> int:
        """The number of a new call, while the program runs that it is part of."""

    def started(self, number: int, result: Tree) -> None:
        """The program of this call runs, and this will be its result."""

    def forget(self, number: int) -> None:
        """There will be no records of this call."""


class Harvester(NamedTuple):
    """What a harvest does with a traced function.

    Attributes:
      name: What the user calls it.
      run: Given the function and the options, returns the function's results, and the logs or None.
      bind_logs: Whether logs are bound while tracing.
    """

    name: str
    run: Callable[[Traced, Any], tuple[Sequence[Array], Any]]
    bind_logs: bool = True


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
        program = self._programs.get(signature)
        if program is None:
            program = self._program(self._given(args, kwargs))
            self._programs[signature] = program
        if program is _UPDATES_IN_PLACE:
            return self._updating(self._given(args, kwargs))
        ticket = self._ticket
        result = program(*leaves) if ticket is None else _numbered(program, ticket, leaves)
        return result.restored() if type(result) is _Partly else result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Harvested) or self._key != other._key:
            return False
        one, two = self._fun, other._fun
        same_owner = all(a is b for a, b in zip(self._owner, other._owner, strict=False))
        same_owner = same_owner and self._ticket == other._ticket
        return same_owner and (one is two or (isinstance(one, types.MethodType) and one == two))

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
            if not is_array(x) or (of_modules[i] and isinstance(x, (int, float, complex)))
        }
        if self._static:
            marked = self._static.marked(given, len(self._owner))
            static.update((i, x) for i, x in enumerate(leaves) if marked[i])
        for x in static.values():
            if not isinstance(x, Hashable):
                raise TypeError(
                    f"`{self._harvester.name}` takes static arguments that can be hashed, since "
                    f"what is compiled is kept by them, and got {x!r} of type "
                    f"`{type(x).__name__}`. Close over it, or give it a `__hash__`."
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
        about = _About(self._harvester, self._options, self._ticket, owner=owner)
        return _harvest(about, self._fun, leaves, structure, moving)

    def _program(self, given: Tree) -> Any:
        """What runs for one structure and set of static leaves. It holds the function weakly."""
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
            about = _About(harvester, options)
            if numbered:
                about.number, dynamic = dynamic[0], dynamic[1:]
            if owned:
                about.owner, dynamic = dynamic[0], dynamic[1:]
            every = {**fixed, **dict(zip(moving, dynamic, strict=True))}
            ordered = [every[i] for i in range(structure.num_leaves)]
            result = _Partly.of(_harvest(about, fun(), ordered, structure, moving))
            return _Silent(result) if "silent" in about.notes else result

        run.__name__ = run.__qualname__ = getattr(self._fun, "__name__", type(self._fun).__name__)
        donated = Named(*_compat.jit_arguments(self._fun).donated).marked(given, len(self._owner))
        given_up = [at + numbered + owned for at, i in enumerate(moving) if donated[i]]
        return jax.jit(run, donate_argnums=given_up)

    def _updating(self, given: Tree) -> Any:
        """Call with objects that are updated in place."""
        return references.call(given, self._pure(), self._static.marked(given, len(self._owner)))

    def _pure(self) -> Callable[..., Any]:
        """The same harvest of the function made free of references."""
        if "pure" not in self._programs:
            pure = references.functional(self._fun)
            self._programs["pure"] = pure
        pure = self._programs["pure"]
        return Harvested(pure, self._harvester, self._options, ticket=self._ticket)


def _numbered(program: Any, ticket: Ticket, leaves: Sequence[Any]) -> Any:
    """Run a program that is told the number of the call."""
    ticket.check()
    number = ticket.begin()
    try:
        owner = () if ticket.owner is None else (ticket.owner,)
        result = program(np.uint32(number), *owner, *leaves)
    except BaseException as error:
        ticket.forget(number)
        if isinstance(error, jax.errors.JaxRuntimeError) and "KeyboardInterrupt" in str(error):
            # It came while the host took in a record, in the thread that runs the program.
            raise KeyboardInterrupt from error
        raise
    if type(result) is _Silent:
        ticket.forget(number)
        return result.result
    ticket.started(number, result)
    return result


@dataclasses.dataclass
class _About:
    """What is harvested how: the harvest, its options, the numbers of the call and its owner."""

    harvester: Harvester
    options: Any
    ticket: Ticket | None = None
    number: Array | None = None
    owner: Array | None = None
    notes: set[str] = dataclasses.field(default_factory=set)


def _harvest(
    about: _About,
    fun: Any,
    leaves: Sequence[Any],
    structure: Any,
    moving: Sequence[int],
) -> Any:
    """Trace with the leaves at `moving` traced and all others as they are, and harvest."""
    returned: list[tuple[Any, list[Any], list[int]]] = []

    def traced(*dynamic: Array) -> list[Array]:
        every = list(leaves)
        for i, x in zip(moving, dynamic, strict=True):
            every[i] = x
        tree_fun, args, kwargs = jax.tree.unflatten(structure, every)
        out = (fun if tree_fun is None else tree_fun)(*args, **kwargs)
        results, tree = jax.tree.flatten(out)
        places = [i for i, x in enumerate(results) if isinstance(x, jax.core.Tracer)]
        # A tracer that is kept is a leak to JAX.
        returned.append((tree, [None if i in places else x for i, x in enumerate(results)], places))
        return [results[i] for i in places]

    harvester = about.harvester
    ledger: set[tuple[str, str]] = set()
    outer = is_listening()
    dynamic = [leaves[i] for i in moving]
    with listening(ledger) if harvester.bind_logs else silence():
        try:
            jaxpr, _ = _compat.trace(traced, *dynamic)
        except _NEEDS_A_NUMBER as error:
            error.add_note(
                f"`{harvester.name}` traces the numbers among the arguments. Name those that the "
                f"program is made by: `{harvester.name}(f, static_argnames=...)`."
            )
            raise
    given = (about.ticket, about.number, about.owner, about.notes)
    harvest = Traced(jaxpr, dynamic, outer, frozenset(ledger), *given)
    results, logs = harvester.run(harvest, about.options)
    tree, out, places = returned[-1]
    for place, x in zip(places, results, strict=True):
        out[place] = x
    rebuilt = jax.tree.unflatten(tree, out)
    return rebuilt if logs is None else (rebuilt, logs)


@jax.tree_util.register_pytree_node_class
class _Partly:
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
        return _Partly(arrays, (structure, tuple((i, Fixed(x)) for i, x in kept.items())))

    def restored(self) -> Tree:
        """The result as it was."""
        structure, kept = self.static
        others = iter(self.arrays)
        fixed = {i: x.value for i, x in kept}
        every = (fixed[i] if i in fixed else next(others) for i in range(structure.num_leaves))
        return jax.tree.unflatten(structure, every)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        return self.arrays, self.static

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], arrays: Sequence[Any]) -> _Partly:
        return cls(list(arrays), static)


@jax.tree_util.register_pytree_node_class
class _Silent:
    """The result of a program that makes no use of the number of its call."""

    def __init__(self, result: Tree) -> None:
        self.result = result

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.result,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Tree]) -> _Silent:
        return cls(children[0])


_NEEDS_A_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_UPDATES_IN_PLACE = object()
_PLAIN_TYPES = {_compat.ConcreteArray, int, float, complex}
