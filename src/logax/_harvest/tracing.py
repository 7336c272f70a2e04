"""How a function is traced for a harvest, and what the harvest is given.

The function is traced with some of its leaves traced and all others as they are, its logs bound.
What comes out is a `Traced`: the program, with all that a harvest may need of the call. The harvest
runs it, and its results are put back where they stood in what the function returned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from logax import _compat
from logax._compat import Array, Jaxpr, Tree
from logax._delivery.calls import BlockSize
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
      block_size: Number of records that leave the program together at first, where the host adapts
        it while the program runs.
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
    block_size: Array | None = None


class Ticket(Protocol):
    """Numbers for calls whose records leave the program while it runs."""

    @property
    def owner(self) -> Array | None:
        """The number of who owns the records, an array or a tracer; None if nobody does."""

    def check(self) -> None:
        """Raise what went wrong in earlier calls."""

    def begin(self, block_size: BlockSize | None) -> int:
        """Return the number of a new call of a program, given what the host adapts for it."""

    def begin_inside(self) -> int:
        """The number of a new call, while the program runs that it is part of."""

    def started(self, number: int, result: Tree) -> None:
        """The program of this call runs, and this will be its result."""

    def forget(self, number: int) -> None:
        """There will be no records of this call."""

    def abandon(self, number: int) -> None:
        """The program of this call failed: there will be no more records of it."""


class Harvester(NamedTuple):
    """What a harvest does with a traced function.

    Attributes:
      name: What the user calls it.
      run: Given the traced function and the options, returns its results, and the logs or None.
      bind_logs: Whether logs are bound while tracing.
      adapts: Given the options, whether the host adapts the number of records that leave together.
    """

    name: str
    run: Callable[[Traced, Any], tuple[Sequence[Array], Any]]
    bind_logs: bool = True
    adapts: Callable[[Any], bool] = lambda options: False


@dataclasses.dataclass
class About:
    """What is harvested how: the harvest, its options, the numbers of the call and its owner."""

    harvester: Harvester
    options: Any
    ticket: Ticket | None = None
    number: Array | None = None
    owner: Array | None = None
    notes: set[str] = dataclasses.field(default_factory=set)
    block_size: Array | None = None


def run_harvest(
    about: About,
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
    given = (about.ticket, about.number, about.owner, about.notes, about.block_size)
    harvest = Traced(jaxpr, dynamic, outer, frozenset(ledger), *given)
    results, logs = harvester.run(harvest, about.options)
    tree, out, places = returned[-1]
    for place, x in zip(places, results, strict=True):
        out[place] = x
    rebuilt = jax.tree.unflatten(tree, out)
    return rebuilt if logs is None else (rebuilt, logs)


_NEEDS_A_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
