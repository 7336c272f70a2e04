"""Values that are logged without a harvest: those of one record, and whole logdicts."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._columns.rows import is_key_array
from logax._compat import Array, ConcreteArray
from logax._delivery.direct import send
from logax._delivery.packets import OBJECTS, Owner, Packet, Rows, Site, Stream
from logax._delivery.routes import Batch
from logax._delivery.together import put_together
from logax._delivery.troubles import DeliveryError, troubles
from logax._delivery.worker import attempt, worker
from logax._entries import LogSpec, array_entry, entries_of, step_of
from logax._errors import described
from logax._harvest.sending import send_logs
from logax._logdict import logdict
from logax.loggers._shell.inbox import Inbox
from logax.loop._copies import copied, is_there, on_their_way


def log_values(
    inbox: Inbox, number: Array, data: Any, prefix: str, steps: dict[str, Any], site: str
) -> None:
    """Write one record to a run, without waiting for what is still being computed."""
    if _are_plain(data, steps) and not isinstance(number, jax.core.Tracer):
        arrays = [*map(_as_array, data.values()), *map(_as_array, steps.values())]
        types = tuple((x.shape, x.dtype) for x in arrays)
        if _NO_NUMBER not in types:
            keys = tuple(prefix + key for key in data) if prefix else tuple(data)
            _put(inbox, _packet(keys, tuple(steps), site, types), arrays, number)
            return
    given = [*jax.tree.leaves(dict(data) if isinstance(data, Mapping) else data), number]
    inside = any(isinstance(x, jax.core.Tracer) for x in [*given, *steps.values()])
    entries, arrays = entries_of(data, site, prefix, on_host=not inside)
    counters = [step_of(name, x, site, on_host=not inside) for name, x in steps.items()]
    spec = LogSpec(entries, tuple(steps), (), False, site)
    if inside:
        send(spec, [*arrays, *counters], inbox.take, owner=jnp.asarray(number))
        return
    _put(inbox, _packet_of(spec), [*arrays, *counters], number)


def _are_plain(data: Any, steps: Mapping[str, Any]) -> bool:
    """Whether these are numbers and arrays under plain names: most records are, by far."""
    return (
        type(data) is dict
        and all(type(key) is str and key for key in data)
        and all(map(_is_plain, data.values()))
        and _WHOLE.issuperset(map(type, steps.values()))
    )


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in _NUMBERS or (kind is ConcreteArray and not is_key_array(value))


def _as_array(value: Any) -> Any:
    return value if type(value) is ConcreteArray else np.asarray(value)


@functools.lru_cache(maxsize=1024)
def _packet(keys: tuple[str, ...], steps: tuple[str, ...], site: str, types: Any) -> Packet:
    """What such a record is; the same object for the same types, so that records join quickly."""
    return _packet_of(LogSpec(tuple(map(array_entry, keys)), steps, (), False, site))


def _packet_of(spec: LogSpec) -> Packet:
    return Packet((Site(spec),), (False,), 0, (Stream(),), last=False, owned=True)


def _put(inbox: Inbox, packet: Packet, arrays: Sequence[Any], number: Any) -> None:
    if any(type(x) is not np.ndarray and isinstance(x, jax.Array) for x in arrays):
        arrays = on_their_way(copied(arrays))
    size = OBJECTS + sum(x.nbytes for x in arrays)
    kind = (id(inbox), id(packet), id(number))
    deliver = functools.partial(_deliver_all, inbox, packet, number)
    if not put_together(worker, size, kind, deliver, arrays):
        troubles.dropped(packet.sites[0].named(), 1)


def _deliver_all(inbox: Inbox, packet: Packet, number: Any, records: deque[Sequence[Any]]) -> None:
    """Take in records on the thread of delivery, which may wait for values: at once all there are.

    One that cannot be had, since its program has failed, is told of by itself.
    """
    while records:
        rows: list[list[Any]] = []
        worker.wait_until(lambda: _is_there(records[0]))
        _fetch(inbox, packet, records.popleft(), rows)
        while records and _is_there(records[0]):
            _fetch(inbox, packet, records.popleft(), rows)
        if rows:
            attempt(_deliver, inbox, packet, number, rows)


def _is_there(record: Sequence[Any]) -> bool:
    return all(type(x) is np.ndarray or is_there(x) for x in record)


def _fetch(inbox: Inbox, packet: Packet, record: Sequence[Any], rows: list[list[Any]]) -> None:
    try:
        rows.append([np.asarray(x) for x in record])
    except Exception as error:  # noqa: BLE001 - told by the next call
        named = packet.sites[0].named()
        failure = DeliveryError(f"{named} could not be computed: {described(error)}")
        failure.__cause__ = error
        troubles.failed(inbox, failure)


def _deliver(inbox: Inbox, packet: Packet, number: Any, rows: Sequence[Sequence[Any]]) -> None:
    columns = [np.array(values) for values in zip(*rows, strict=True)]
    places = np.arange(len(rows), dtype=np.int32)
    narrow = [(False,) * len(columns)]
    order = [(0, i, -1) for i in range(len(rows))]
    own = Rows(columns, places, None)
    inbox.deliver(Batch(packet, (), None, [own], narrow, order, Owner(np.asarray(number))))


_NUMBERS = {bool, int, float, np.float64, np.float32, np.int64, np.int32, np.bool_}
_WHOLE = {int, np.int64, np.int32}
_NO_NUMBER = ((), np.dtype(object))  # what NumPy makes of an integer that none of its types holds


def log_columns(inbox: Inbox, name: str, number: Array, logs: logdict) -> None:
    """Write all records of a logdict to a run; lanes in front of its records are the run's."""
    axes = {records.axis for records in logs._records().values() if records.length is not None}
    if len(axes) > 1:
        raise ValueError(
            f"`{name}.log` got a `logdict` whose keys differ in their lanes. Log them apart: "
            "`logger.log(state, logs.filter(...))`."
        )
    if axes and axes.pop():
        jax.vmap(lambda own: log_columns(inbox, name, number, own))(logs)
    else:
        send_logs(logs._records(), inbox.take_logdict, jnp.asarray(number))
