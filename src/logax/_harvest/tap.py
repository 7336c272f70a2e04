"""`tap`: its options, the numbers of its calls, and the run of its harvest (see `streaming`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Tree
from logax._delivery.calls import BlockSize, abandon, begin, begin_inside, forget, started
from logax._delivery.emit import lanes_of, opened, owned, shard_here
from logax._delivery.errors import troubles
from logax._delivery.routes import Route, Takes, record
from logax._harvest.call import Harvested
from logax._harvest.harvest import Frame
from logax._harvest.selection import Choice, Names
from logax._harvest.streaming import Given, Options, Tap
from logax._harvest.tracing import Harvester, Traced
from logax._harvest.walker import walk
from logax._support.messages import received
from logax._support.validation import at_least_one, one_of


def tap(
    fun: Callable[..., Any],
    callback: Callable[[record], Any] | None = None,
    argnames: Names = None,
    tags: Names = None,
    interval: int | None = None,
    prefix: str = "",
    *,
    keep_logs: bool = False,
    buffer: int | None = None,
    lanes: str = "split",
    on_error: str = "raise",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[..., Any]:
    """A function that returns what `fun` returns, while its logs go to `callback` as it runs.

    Every record comes once, in the order of the program. The callback runs on a thread of its own:
    it may take its time, call JAX, and fail, and the program goes on. `logax.flush()` waits for all
    of them.

    Args:
      fun: Any function of arrays, as `spool` takes them.
      callback: Gets one `record` at a time. Without one, records are printed.
      argnames: Take only logs with these names; glob patterns are allowed.
      tags: Take only logs with one of these tags.
      interval: Take records 0, k, 2k, ... of each key.
      prefix: Put literally in front of every key.
      keep_logs: Leave the logs that are taken to an outer harvest as well. Logs that are not
        taken always are.
      buffer: Number of records that wait on the device and leave together. More are cheaper, and
        later. Fewer wait where each is so large that they would be more than 4 MiB. By default, as
        many wait as the program makes in about 20 ms, as measured while it runs; inside `jit`,
        `vmap` and other transformations, and on several devices, each record leaves by itself.
      lanes: Under `vmap`, "split": a record for each lane; or "batch": one for all lanes, with
        these in front of every value.
      on_error: What the callback raises comes out of `flush` or of a later call; with "warn" it
        is a warning instead, printed to standard error where warnings are errors.
      static_argnums: Positions of arguments whose numbers are static too.
      static_argnames: Names of such arguments.

    Raises:
      ValueError: An option is out of its range.
      TypeError: `callback` cannot be called.
      DeliveryError: When called: the callback raised before.
    """
    if callback is not None and not callable(callback):
        advice = ""
        if hasattr(callback, "streamed_live"):
            advice = " Of a logger write `logger.tap(f, state)`, or `with logax.live(logger):`."
        raise TypeError(
            f"`tap` takes a callback that can be called with a record, and got "
            f"{received(callback)}.{advice}"
        )
    one_of("tap", "lanes", lanes, ("split", "batch"))
    one_of("tap", "on_error", on_error, ("raise", "warn"))
    ticket = Ticket(Route(print if callback is None else callback, lanes, on_error))
    options = tap_options(argnames, tags, interval, prefix, keep_logs, buffer)
    return Harvested(fun, STREAMING, options, static_argnums, static_argnames, ticket)


def tap_options(
    argnames: Names,
    tags: Names,
    interval: int | None,
    prefix: str,
    keep_logs: bool,
    buffer: int | None,
    owned: bool = False,
) -> Options:
    """The options of `tap`, checked."""
    return Options(
        Choice.of(argnames, tags, prefix),
        bool(keep_logs),
        at_least_one("tap", "interval", 1 if interval is None else interval),
        None if buffer is None else at_least_one("tap", "buffer", buffer),
        owned,
    )


@dataclasses.dataclass(frozen=True)
class Ticket:
    """Numbers for calls, by which the host knows where their records go."""

    route: Takes
    owner: Any = None

    def check(self) -> None:
        """Raise what went wrong before."""
        troubles.tell(self.route)

    def begin(self, block_size: BlockSize | None) -> int:
        """Return the number of a new call of a program, given what the host adapts for it."""
        return begin(self.route, block_size)

    def begin_inside(self) -> int:
        """The number of a new call, while the program runs that it is part of."""
        return begin_inside(self.route)

    def started(self, number: int, result: Tree) -> None:
        """The program of this call runs, and this will be its result."""
        started(number, result)

    def forget(self, number: int) -> None:
        """There will be no records of this call."""
        forget(number)

    def abandon(self, number: int) -> None:
        """The program of this call failed: there will be no more records of it."""
        abandon(number)


def _tapped(traced: Traced, options: Options) -> tuple[list[Array], None]:
    # On several devices a loop whose length the host decides makes JAX's collectives wait for ever.
    adapts = traced.block_size is not None and not _compat.may_run_on_several_devices(traced.jaxpr)
    harvest = Tap(options, traced.listening, adapts=adapts)
    census = harvest.planned(traced.jaxpr)
    harvest.found.warn(options.choice, traced.ledger)
    frame = Frame(harvest, census, {}, emits=True)
    if not census:
        traced.notes.add("silent")
        return walk(frame, traced.jaxpr, traced.args), None
    owner = () if traced.owner is None else (traced.owner,)
    lanes = lanes_of([*traced.args, *owner, *_compat.parts(traced.jaxpr)[1]])
    call = opened(lanes, traced.ticket.begin_inside) if traced.number is None else traced.number
    shard = shard_here()
    harvest.on_one_shard = shard is not None
    shard = jnp.zeros((), jnp.int32) if shard is None else shard
    frame.given = Given(call, lanes, shard, owned(*owner, lanes) if owner else ())
    frame.states = _compat.laid_with(harvest.started(traced.block_size), traced.args)
    results = walk(frame, traced.jaxpr, traced.args)
    harvest.end(frame)
    return results, None


STREAMING = Harvester("tap", _tapped, adapts=lambda options: options.buffer is None)
