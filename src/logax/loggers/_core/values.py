"""Records out of a logdict, each with the steps that it was logged with.

A column of a logdict has all steps that its key has anywhere; a record that lacks one holds what
`missing_step` gives. Here such a record becomes one of a site that has no such step, as it is where
the same program streams its records. What destinations still meet is a step that a user has
streamed as NaN, which is no place on an x-axis either: those that show one must know of it.

Values that are logged without a harvest: those of one record, and whole logdicts.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, ConcreteArray
from logax._delivery.errors import DeliveryError, troubles
from logax._delivery.packet import OBJECTS, Owner, Site
from logax._delivery.routes import Batch
from logax._delivery.unordered import send
from logax._delivery.worker import attempt, worker
from logax._harvest.spool import send_logs
from logax._log_spec import LogSpec, array_entry, entries_of, step_of
from logax._logdict.logdict import logdict
from logax._support.arrays import is_key_array
from logax._support.messages import described
from logax.loggers._core.inbox import Inbox
from logax.loggers._core.routes import LogdictRoute
from logax.loop._states import copied, is_there, on_their_way


def log_values(
    inbox: Inbox, number: Array, data: Any, prefix: str, steps: dict[str, Any], site: str
) -> None:
    """Write one record to a run, without waiting for what is still being computed."""
    if _are_plain(data, steps) and not isinstance(number, jax.core.Tracer):
        arrays = [*map(_as_array, data.values()), *map(_as_array, steps.values())]
        types = tuple((x.shape, x.dtype) for x in arrays)
        if _NO_NUMBER not in types:
            keys = tuple(prefix + key for key in data) if prefix else tuple(data)
            _put(inbox, _site(keys, tuple(steps), site, types), arrays, number)
            return
    given = [*jax.tree.leaves(dict(data) if isinstance(data, Mapping) else data), number]
    inside = any(isinstance(x, jax.core.Tracer) for x in [*given, *steps.values()])
    entries, arrays = entries_of(data, site, prefix, on_host=not inside)
    counters = [step_of(name, x, site, on_host=not inside) for name, x in steps.items()]
    spec = LogSpec(entries, tuple(steps), (), False, site)
    if inside:
        send(spec, [*arrays, *counters], inbox.take, owner=jnp.asarray(number))
        return
    _put(inbox, Site(spec), [*arrays, *counters], number)


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


def _put(inbox: Inbox, site: Site, arrays: Sequence[Any], number: Any) -> None:
    if any(type(x) is not np.ndarray and isinstance(x, jax.Array) for x in arrays):
        arrays = on_their_way(copied(arrays))
    size = OBJECTS + sum(x.nbytes for x in arrays)
    kind = (id(inbox), id(site), id(number))
    # What is still being computed has not left its program: it has no place in the bound in time.
    if not worker.add(size, _deliver_all, (inbox, site, number, arrays), 0, kind):
        troubles.dropped(site.named(), 1)


def _deliver_all(records: deque[tuple[Inbox, Site, Any, Sequence[Any]]]) -> None:
    """Take in records on the thread of delivery, which may wait for values: at once all there are.

    One that cannot be had, since its program has failed, is told of by itself.
    """
    while records:
        rows: list[list[Any]] = []
        inbox, site, number, values = records[0]
        with worker.awaiting_device():
            worker.wait_until(lambda values=values: _is_there(values))  # type: ignore[misc]
            records.popleft()
            _fetch(inbox, site, values, rows)
        while records and _is_there(records[0][3]):
            _fetch(inbox, site, records.popleft()[3], rows)
        if rows:
            attempt(_deliver, inbox, site, number, rows)


def _is_there(record: Sequence[Any]) -> bool:
    return all(type(x) is np.ndarray or is_there(x) for x in record)


def _fetch(inbox: Inbox, site: Site, record: Sequence[Any], rows: list[list[Any]]) -> None:
    try:
        rows.append([np.asarray(x) for x in record])
    except Exception as error:  # noqa: BLE001 - told by the next call
        failure = DeliveryError(f"{site.named()} could not be computed: {described(error)}")
        failure.__cause__ = error
        troubles.failed(inbox, failure)


def _deliver(inbox: Inbox, site: Site, number: Any, rows: Sequence[Sequence[Any]]) -> None:
    columns = [np.array(values) for values in zip(*rows, strict=True)]
    narrow = [(False,) * len(columns)]
    order = np.zeros((len(rows), 3), np.int64)
    order[:, 1], order[:, 2] = np.arange(len(rows)), -1
    inbox.deliver(Batch((site,), (), None, [columns], narrow, order, Owner(np.asarray(number))))


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
        send_logs(logs._records(), LogdictRoute(inbox).take, jnp.asarray(number))


@functools.lru_cache(maxsize=1024)
def _site(keys: tuple[str, ...], steps: tuple[str, ...], site: str, types: Any) -> Site:
    """Return what such a record is; the same object for the same types, so that records join."""
    return Site(LogSpec(tuple(map(array_entry, keys)), steps, (), False, site))
