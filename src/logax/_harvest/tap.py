"""`tap`: stream the logs of a function to a callback.

This module has the options of `tap`, the tickets of its calls and the run of its harvest, which is
in `streaming`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Tree
from logax._delivery.calls import (
    BlockSize,
    abandon_call,
    begin_call,
    begin_nested_call,
    forget_call,
    mark_started,
)
from logax._delivery.emit import current_shard, lane_marker, open_call, owner_operands
from logax._delivery.errors import delivery_errors
from logax._delivery.routes import CallbackRoute, Route, record
from logax._harvest.call import HarvestedFunction
from logax._harvest.harvest import Frame
from logax._harvest.selection import Names, Selection
from logax._harvest.streaming import CallContext, TapHarvest, TapOptions
from logax._harvest.tracing import Harvester, TracedFunction
from logax._harvest.walker import walk
from logax._support.messages import describe_value
from logax._support.validation import validate_choice, validate_positive


def tap(
    fun: Callable[..., Any],
    callback: Callable[[record], Any] | None = None,
    keys: Names = None,
    tags: Names = None,
    interval: int | None = None,
    prefix: str = "",
    *,
    exclude: Names = None,
    keep_logs: bool = False,
    buffer: int | None = None,
    lanes: str = "split",
    on_error: str = "raise",
    argnames: Names = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[..., Any]:
    """Stream the logs of `fun` to `callback` while the program runs.

    Return a function that returns the result of `fun`. The callback gets every record once, in the
    order of the program. It runs on a thread of its own, so it may be slow, call JAX or raise, and
    the program continues. `logax.flush()` waits until all records are delivered.

    Args:
      fun: Function of arrays, as for `spool`.
      callback: Function of one `record`. Default: `print`.
      keys: Keys of the logs to stream; glob patterns are allowed. Default: all logs that are not
        marked `explicit`.
      tags: Tags of the logs to stream; one of them is enough.
      interval: Stream records 0, k, 2k, ... of each key.
      prefix: Text to put in front of every key.
      exclude: Keys of logs to leave out; glob patterns are allowed.
      keep_logs: Whether to pass the streamed logs to an outer harvest too. The logs that are not
        streamed always go there.
      buffer: Number of records that the device collects and sends together. A larger buffer is
        cheaper; records arrive later. If so many records would take more than 4 MiB, fewer leave
        together. Default: as many as the program makes in about 20 ms, measured while it runs;
        inside `jit`, `vmap` and other transformations, and on several devices, each record leaves
        at once.
      lanes: Records under `vmap`. "split": one record per lane; "batch": one record for all lanes,
        with the lane axes in front of every value.
      on_error: Treatment of an exception in the callback. "raise": `flush` or a later call raises
        it; "warn": a warning, printed to standard error if warnings are errors.
      argnames: Alias of `keys`.
      static_argnums: Positions of arguments whose numbers are static, too.
      static_argnames: Names of such arguments.

    Returns:
      A function with the arguments and the result of `fun`.

    Raises:
      ValueError: An option is out of range.
      TypeError: `callback` is not callable.
      DeliveryError: In a call: the callback raised before.
    """
    if callback is not None and not callable(callback):
        advice = ""
        if hasattr(callback, "streamed_live"):
            advice = " For a logger, write `logger.tap(f, state)`, or `with logax.live(logger):`."
        raise TypeError(
            f"`tap` takes a callback that can be called with a record, and got "
            f"{describe_value(callback)}.{advice}"
        )
    validate_choice("tap", "lanes", lanes, ("split", "batch"))
    validate_choice("tap", "on_error", on_error, ("raise", "warn"))
    ticket = RouteTicket(CallbackRoute(print if callback is None else callback, lanes, on_error))
    selection = Selection.of(keys, tags, prefix, exclude, argnames)
    options = tap_options(selection, interval, keep_logs, buffer)
    return HarvestedFunction(fun, TAP_HARVESTER, options, static_argnums, static_argnames, ticket)


def tap_options(
    selection: Selection,
    interval: int | None,
    keep_logs: bool,
    buffer: int | None,
    owned: bool = False,
) -> TapOptions:
    """Validate the options of `tap`."""
    return TapOptions(
        selection,
        bool(keep_logs),
        validate_positive("tap", "interval", 1 if interval is None else interval),
        None if buffer is None else validate_positive("tap", "buffer", buffer),
        owned,
    )


@dataclasses.dataclass(frozen=True)
class RouteTicket:
    """The call ticket of a route: the host finds the route of a call by its number."""

    route: Route
    owner: Any = None

    def check(self) -> None:
        """Raise the errors of earlier deliveries."""
        delivery_errors.raise_pending(self.route)

    def begin(self, block_size: BlockSize | None) -> int:
        """Return the number of a new call; `block_size` is what the host adapts for its program."""
        return begin_call(self.route, block_size)

    def begin_inside(self) -> int:
        """Return the number of a new call inside a program that already runs."""
        return begin_nested_call(self.route)

    def mark_started(self, number: int, result: Tree) -> None:
        """Report that the program of a call runs and will return `result`."""
        mark_started(number, result)

    def mark_silent(self, number: int) -> None:
        """Report that a call sends no records."""
        forget_call(number)

    def abandon(self, number: int) -> None:
        """Report that the program of a call failed and sends no more records."""
        abandon_call(number)


def _run_tap(traced: TracedFunction, options: TapOptions) -> tuple[list[Array], None]:
    # On several devices, a loop whose length the host decides deadlocks JAX's collectives.
    adapts = traced.block_size is not None and not _compat.may_run_on_several_devices(traced.jaxpr)
    harvest = TapHarvest(options, traced.has_outer, adapts=adapts)
    census = harvest.plan(traced.jaxpr)
    harvest.seen.warn(options.selection, traced.bound_logs)
    frame = Frame(harvest, census, {}, emits=True)
    if not census:
        traced.notes.add("silent")
        return walk(frame, traced.jaxpr, traced.args), None
    owner = () if traced.owner is None else (traced.owner,)
    lanes = lane_marker([*traced.args, *owner, *_compat.jaxpr_and_consts(traced.jaxpr)[1]])
    call = open_call(lanes, traced.ticket.begin_inside) if traced.number is None else traced.number
    shard = current_shard()
    harvest.inside_shard_map = shard is not None
    shard = jnp.zeros((), jnp.int32) if shard is None else shard
    frame.call_context = CallContext(
        call, lanes, shard, owner_operands(*owner, lanes) if owner else ()
    )
    frame.states = _compat.replicate_like(harvest.start_states(traced.block_size), traced.args)
    results = walk(frame, traced.jaxpr, traced.args)
    harvest.end_call(frame)
    return results, None


TAP_HARVESTER = Harvester("tap", _run_tap, adapts=lambda options: options.buffer is None)
