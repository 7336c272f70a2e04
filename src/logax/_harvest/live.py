"""`live`: every log of whatever runs inside a block, with nothing wrapped.

Inside the block a `log` is no primitive for a harvest to find: it hands its record to the host
right there. All blocks that are open when a record arrives get it, as far as they choose it. So the
compiled programs are the same for all of them, and JAX keeps them beside those without logs.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from logax._compat import Array
from logax._delivery.control import flush
from logax._delivery.errors import DeliveryError
from logax._delivery.packet import Parcel, Site
from logax._delivery.routes import Batch, Route, Takes, record
from logax._delivery.unordered import deliver_soon, send
from logax._harvest.selection import Choice, Findings, Names
from logax._log import begin_block
from logax._log_spec import LogSpec
from logax._support.messages import add_note


class StreamedLive(Protocol):
    """What takes records for the length of a block, as loggers do."""

    def streamed_live(self) -> contextlib.AbstractContextManager[Takes]:
        """Where they go."""


class live:  # noqa: N801 - used like a function
    """Stream every log of what runs inside the block: `with logax.live(print): ...`.

    Works for functions that are jitted already, for the steps of flax nnx and equinox, and for
    drivers of libraries. Leaving the block waits for all records of programs that were started in
    it, unless an interrupt leaves it. The block belongs to the thread that opened it, which must
    close it. Blocks may overlap in any order, as those of asyncio tasks and generators do: each
    gets every record of the thread while it is open. JAX's programs run unchanged: a part that runs
    twice, as in `checkpoint` under `grad`, logs twice, and a `cond` whose predicate is batched
    shows both branches. Where that matters, or where records should wait in a buffer, wrap the
    function with `tap`.

    Args:
      *callbacks: Each gets one `record` at a time. Without any, records are printed. A logger of
        `logax.loggers` gets a run for the length of the block.
      argnames: Take only logs with these names; glob patterns are allowed.
      tags: Take only logs with one of these tags.

    Raises:
      TypeError: A callback cannot be called.
      DeliveryError: On leaving the block: a callback raised.
      RuntimeError: The block is left in another thread, which closes it but cannot make the
        programs of the first one free; or it is opened twice, or left without being open.
    """

    def __init__(
        self,
        *callbacks: Callable[[record], Any] | StreamedLive,
        argnames: Names = None,
        tags: Names = None,
    ) -> None:
        for callback in callbacks:
            if not (callable(callback) or hasattr(callback, "streamed_live")):
                raise TypeError(
                    f"`live` takes callbacks that can be called with a record, and got "
                    f"{callback!r}. Write `live(callback, argnames=...)`."
                )
        self._targets = callbacks or (print,)
        self._routes: list[Takes] = []
        self._choice = Choice.of(argnames, tags)
        self._found = Findings()
        self._unbind: Callable[[], None] | None = None
        self._thread = threading.current_thread()
        self._runs = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._unbind is not None:
            raise RuntimeError("This `live` is open already. Make another one.")
        with contextlib.ExitStack() as runs:
            self._routes = [
                Route(target, "split", "raise")
                if callable(target)
                else runs.enter_context(target.streamed_live())
                for target in self._targets
            ]
            self._runs = runs.pop_all()
        self._thread = threading.current_thread()
        try:
            with _lock:
                _open.append(self)
                _changed()
            self._unbind = begin_block(_bind)
        except BaseException as error:  # an interrupt
            self._close(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._unbind is None:
            raise RuntimeError("This `live` is not open. Write `with logax.live(...):`.")
        try:
            self._unbind()
            if error is None or isinstance(error, GeneratorExit):
                flush()
                self._found.warn_if_any(self._choice)
            elif not isinstance(error, (KeyboardInterrupt, SystemExit)):
                self._flush_after(error)
        finally:
            self._close(kind, error, traceback)
        self._check_thread()

    def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._unbind is not None:
            self._unbind()
            self._unbind = None
        with _lock:
            if self in _open:
                _open.remove(self)
                _changed()
        self._runs.__exit__(kind, error, traceback)

    def _check_thread(self) -> None:
        here = threading.current_thread()
        if here is not self._thread and self._thread.is_alive():
            raise RuntimeError(
                f"This `live` was opened in the thread {self._thread.name!r} and left in "
                f"{here.name!r}. It gets no more records, but programs of {self._thread.name!r} "
                "still send them until that thread opens another block. Leave a block in the "
                "thread that opened it."
            )

    def _flush_after(self, error: BaseException) -> None:
        """Deliver all, and leave it to the error that ended the block to be raised."""
        try:
            flush()
        except (DeliveryError, ExceptionGroup) as failure:
            add_note(error, f"Besides, `live` had trouble: {failure}")

    def deliver(self, batch: Batch) -> None:
        """Hand on what is chosen of some records, on the thread of the worker."""
        for site in batch.sites:
            self._found.add(site.spec)
        chosen = _chosen(batch, self._choice)
        if chosen is not None:
            for route in self._routes:
                route.deliver(chosen)


def _bind(*operands: Array, spec: LogSpec, due: Array | None) -> None:
    send(spec, operands, _take, due)


def _take(parcel: Parcel) -> None:
    if _open:
        deliver_soon(parcel, _open_blocks[0])


def _chosen(batch: Batch, choice: Choice) -> Batch | None:
    """Return the chosen part of some records, if there is any."""
    sites: list[Site] = []
    columns, over_lanes, numbers = [], [], []
    for site, arrays, over in zip(batch.sites, batch.columns, batch.over_lanes, strict=True):
        part, _ = choice.split(site.spec, range(len(arrays)))
        numbers.append(len(sites) if part.entries else -1)
        if part.entries:
            kept = part.flat()
            spec = part.as_spec()
            sites.append(site if spec == site.spec else _site(spec))
            columns.append([arrays[i] for i in kept])
            over_lanes.append([over[i] for i in kept])
    if not sites:
        return None
    order = batch.order.copy()
    order[:, 0] = np.array(numbers)[order[:, 0]]
    order = order[order[:, 0] >= 0]
    return batch._replace(sites=tuple(sites), columns=columns, over_lanes=over_lanes, order=order)


@functools.lru_cache(maxsize=1024)
def _site(spec: LogSpec) -> Site:
    """Return the site of a part of a `log` call; the same object for the same part."""
    return Site(spec)


class _OpenBlocks:
    """The blocks that are open at one moment: records that arrive then go to all of them."""

    def __init__(self, blocks: Sequence[live]) -> None:
        self._blocks = tuple(blocks)

    def deliver(self, batch: Batch) -> None:
        """Hand records to all of the blocks."""
        for block in self._blocks:
            block.deliver(batch)


def _changed() -> None:
    _open_blocks[0] = _OpenBlocks(_open)


_lock = threading.Lock()
_open: list[live] = []
_open_blocks = [_OpenBlocks(())]
