"""`live`: stream every log of the programs that run inside a `with` block.

Inside the block, `log` does not bind a primitive for a harvest: it sends its record to the host
directly. Every block that is open when a record arrives gets it, if it selects it. So the compiled
programs are the same for all blocks, and JAX caches them beside the programs without logs.
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
from logax._delivery.calls import queue_packet, send_record
from logax._delivery.control import flush
from logax._delivery.errors import DeliveryError
from logax._delivery.packet import Packet, Site, select_sites
from logax._delivery.routes import CallbackRoute, Route, record
from logax._harvest.selection import Names, SeenLogs, Selection
from logax._log import begin_binding
from logax._log_spec import LogSpec
from logax._support.messages import add_note


class RecordTarget(Protocol):
    """A target of `live` that takes records for the length of a block, as loggers do."""

    def streamed_live(self) -> contextlib.AbstractContextManager[Route]:
        """Return a context manager that opens the route of the records."""


class live:  # noqa: N801 - used like a function
    """Stream every log of the programs that run inside the block: `with logax.live(print): ...`.

    It needs no wrapped function: it works for functions that are jitted already, for train steps of
    flax nnx and equinox, and for the drivers of libraries. The end of the block waits for all
    records of programs that were started in it, unless an interrupt ends the block.

    The block belongs to the thread that opens it, which must also close it. Blocks may overlap in
    any order, as they do in asyncio tasks and generators: each gets every record of the thread
    while it is open.

    JAX runs its programs unchanged. So a part that runs twice, as in `checkpoint` under `grad`,
    logs twice, and a `cond` with a batched predicate logs both branches. If that matters, or if
    records should be buffered on the device, wrap the function with `tap` instead.

    Args:
      *callbacks: Functions of one `record`, or loggers of `logax.loggers`, which open a run for the
        length of the block. Default: `print`.
      keys: Keys of the logs to stream; glob patterns are allowed. Default: all logs that are not
        marked `explicit`.
      tags: Tags of the logs to stream; one of them is enough.
      exclude: Keys of logs to leave out; glob patterns are allowed.
      argnames: Alias of `keys`.

    Raises:
      TypeError: A callback is not callable.
      DeliveryError: At the end of the block: a callback raised.
      RuntimeError: Another thread closes the block, after which programs of the first thread still
        send records; or the block is opened twice, or closed without being open.
    """

    def __init__(
        self,
        *callbacks: Callable[[record], Any] | RecordTarget,
        keys: Names = None,
        tags: Names = None,
        exclude: Names = None,
        argnames: Names = None,
    ) -> None:
        for callback in callbacks:
            if not (callable(callback) or hasattr(callback, "streamed_live")):
                raise TypeError(
                    f"`live` takes callbacks that can be called with a record, and got "
                    f"{callback!r}. Write `live(callback, keys=...)`."
                )
        self._targets = callbacks or (print,)
        self._routes: list[Route] = []
        self._selection = Selection.of(keys, tags, "", exclude, argnames)
        self._seen = SeenLogs()
        self._unbind: Callable[[], None] | None = None
        self._thread = threading.current_thread()
        self._runs = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._unbind is not None:
            raise RuntimeError("This `live` is open already. Create another one.")
        with contextlib.ExitStack() as runs:
            self._routes = [
                CallbackRoute(target, "split", "raise")
                if callable(target)
                else runs.enter_context(target.streamed_live())
                for target in self._targets
            ]
            self._runs = runs.pop_all()
        self._thread = threading.current_thread()
        try:
            with _lock:
                _open.append(self)
                _update_open_blocks()
            self._unbind = begin_binding(_bind)
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
                self._seen.warn_if_any(self._selection)
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
                _update_open_blocks()
        self._runs.__exit__(kind, error, traceback)

    def _check_thread(self) -> None:
        here = threading.current_thread()
        if here is not self._thread and self._thread.is_alive():
            raise RuntimeError(
                f"This `live` was opened in the thread {self._thread.name!r} and closed in "
                f"{here.name!r}. It gets no more records, but programs of {self._thread.name!r} "
                "still send them until that thread opens another block. Close a block in the "
                "thread that opened it."
            )

    def _flush_after(self, error: BaseException) -> None:
        """Deliver all records; a failure becomes a note of the error that ended the block."""
        try:
            flush()
        except (DeliveryError, ExceptionGroup) as failure:
            add_note(error, f"`live` also failed to deliver records: {failure}")

    def deliver(self, batch: Packet) -> None:
        """Pass the selected part of a packet on; runs on the worker thread."""
        for site in batch.schema.sites:
            self._seen.add(site.spec)
        chosen = _select_part(batch, self._selection)
        if chosen is not None:
            for route in self._routes:
                route.deliver(chosen)


def _bind(*operands: Array, spec: LogSpec, due: Array | None) -> None:
    send_record(spec, operands, _take, due)


def _take(packet: Packet) -> None:
    if _open:
        queue_packet(packet, _open_blocks[0])


def _select_part(packet: Packet, selection: Selection) -> Packet | None:
    """Return the selected part of a packet, or None if it is empty."""
    parts: list[tuple[Packet, int, Site, Sequence[int]]] = []
    numbers = []
    for number, site in enumerate(packet.schema.sites):
        chosen, _ = selection.split(site.spec, range(site.num_arrays))
        numbers.append(len(parts) if chosen.entries else -1)
        if chosen.entries:
            spec = chosen.to_spec()
            own = site if spec == site.spec else _site_of(spec)
            parts.append((packet, number, own, chosen.flat_operands()))
    if not parts:
        return None
    index = packet.record_index.copy()
    index[:, 0] = np.array(numbers)[index[:, 0]]
    return select_sites(parts, index[index[:, 0] >= 0])


@functools.lru_cache(maxsize=1024)
def _site_of(spec: LogSpec) -> Site:
    """Return the site of a part of a `log` call; the same object for the same part."""
    return Site(spec)


class _OpenBlocks:
    """The blocks that are open at one moment: records that arrive then go to all of them."""

    def __init__(self, blocks: Sequence[live]) -> None:
        self._blocks = tuple(blocks)

    def deliver(self, packet: Packet) -> None:
        """Pass a packet to every block."""
        for block in self._blocks:
            block.deliver(packet)


def _update_open_blocks() -> None:
    _open_blocks[0] = _OpenBlocks(_open)


_lock = threading.Lock()
_open: list[live] = []
_open_blocks = [_OpenBlocks(())]
