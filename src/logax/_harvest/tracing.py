"""Trace a function for a harvest, and run the harvest.

The function is traced with some of its leaves as tracers and its logs bound. The result is a
`TracedFunction`: the program and everything that a harvest needs of the call. The harvest runs it,
and its results replace the tracers in the value that the function returned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from logax import _compat
from logax._compat import Array, Jaxpr, Tree
from logax._delivery.calls import BlockSize
from logax._log import are_logs_bound, disable_logs, enable_logs


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """A user's function, traced with its logs bound.

    Attributes:
      jaxpr: The program.
      args: Arguments of the program.
      has_outer: True if an outer harvest sees the logs that this one passes on.
      bound_logs: Key and site of every log that was bound while tracing.
      ticket: Source of call numbers, if calls have numbers.
      number: Number of the call, if it is known before the program runs.
      block_size: Number of records that leave the program together at first, if the host adapts it
        while the program runs.
      owner: Number of the owner of the records, if they have one.
      notes: Remarks of the harvest on the program: "silent" if it sends no records.
    """

    jaxpr: Jaxpr
    args: Sequence[Array]
    has_outer: bool
    bound_logs: frozenset[tuple[str, str]]
    ticket: Any = None
    number: Array | None = None
    owner: Array | None = None
    notes: set[str] = dataclasses.field(default_factory=set)
    block_size: Array | None = None


class CallTicket(Protocol):
    """Source of numbers for calls whose records leave the program while it runs."""

    @property
    def owner(self) -> Array | None:
        """Number of the owner of the records, an array or a tracer; None if they have no owner."""

    def check(self) -> None:
        """Raise the errors of earlier calls."""

    def begin(self, block_size: BlockSize | None) -> int:
        """Return the number of a new call; `block_size` is what the host adapts for its program."""

    def begin_inside(self) -> int:
        """Return the number of a new call inside a program that already runs."""

    def mark_started(self, number: int, result: Tree) -> None:
        """Report that the program of a call runs and will return `result`."""

    def mark_silent(self, number: int) -> None:
        """Report that a call sends no records."""

    def abandon(self, number: int) -> None:
        """Report that the program of a call failed and sends no more records."""


class Harvester(NamedTuple):
    """The treatment of a traced function by one kind of harvest.

    Attributes:
      name: Name of the public function.
      run: Function of the traced function and the options that returns the results, and the logs or
        None.
      bind_logs: Whether to bind logs while tracing.
      adapts: Function of the options: whether the host adapts the number of records that leave
        together.
    """

    name: str
    run: Callable[[TracedFunction, Any], tuple[Sequence[Array], Any]]
    bind_logs: bool = True
    adapts: Callable[[Any], bool] = lambda options: False


@dataclasses.dataclass
class HarvestCall:
    """One call of a harvest: the harvester, its options, and the numbers that the call gets."""

    harvester: Harvester
    options: Any
    ticket: CallTicket | None = None
    number: Array | None = None
    owner: Array | None = None
    notes: set[str] = dataclasses.field(default_factory=set)
    block_size: Array | None = None


def run_harvest(
    call: HarvestCall,
    fun: Any,
    leaves: Sequence[Any],
    structure: Any,
    traced_at: Sequence[int],
) -> Any:
    """Trace `fun` with the leaves at `traced_at` as tracers, and harvest it."""
    returned: list[tuple[Any, list[Any], list[int]]] = []

    def run(*dynamic: Array) -> list[Array]:
        inputs = list(leaves)
        for i, x in zip(traced_at, dynamic, strict=True):
            inputs[i] = x
        tree_fun, args, kwargs = jax.tree.unflatten(structure, inputs)
        out = (fun if tree_fun is None else tree_fun)(*args, **kwargs)
        results, tree = jax.tree.flatten(out)
        places = [i for i, x in enumerate(results) if isinstance(x, jax.core.Tracer)]
        # JAX reports a tracer that outlives its trace as a leak.
        returned.append((tree, [None if i in places else x for i, x in enumerate(results)], places))
        return [results[i] for i in places]

    harvester = call.harvester
    bound_logs: set[tuple[str, str]] = set()
    outer = are_logs_bound()
    dynamic = [leaves[i] for i in traced_at]
    with enable_logs(bound_logs) if harvester.bind_logs else disable_logs():
        try:
            jaxpr, _ = _compat.trace_to_jaxpr(run, *dynamic)
        except _CONCRETIZATION_ERRORS as error:
            error.add_note(
                f"`{harvester.name}` traces the numbers among the arguments. Name those that "
                f"must be static: `{harvester.name}(f, static_argnames=...)`."
            )
            raise
    numbers = (call.ticket, call.number, call.owner, call.notes, call.block_size)
    traced = TracedFunction(jaxpr, dynamic, outer, frozenset(bound_logs), *numbers)
    results, logs = harvester.run(traced, call.options)
    tree, out, places = returned[-1]
    for place, x in zip(places, results, strict=True):
        out[place] = x
    rebuilt = jax.tree.unflatten(tree, out)
    return rebuilt if logs is None else (rebuilt, logs)


_CONCRETIZATION_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
