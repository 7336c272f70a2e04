"""Log values without a harvest: the values of one record (`Logger.log`), or a whole logdict."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, ConcreteArray
from logax._delivery.calls import send_record
from logax._delivery.errors import DeliveryError, delivery_errors
from logax._delivery.packet import OBJECT_OVERHEAD_BYTES, RecordOwner, Site, make_packet
from logax._delivery.worker import attempt, worker
from logax._harvest.spool import send_logs
from logax._log_spec import LogSpec, as_step_array, flatten_data, single_array_spec
from logax._logdict.logdict import logdict
from logax._support.arrays import is_key_array
from logax._support.messages import describe_error
from logax.loggers._core.inbox import Inbox
from logax.loggers._core.run_routes import LogdictRoute
from logax.loop._pytrees import copy_tree, is_ready, start_host_transfer


def log_values(
    inbox: Inbox, number: Array, data: Any, prefix: str, steps: dict[str, Any], site: str
) -> None:
    """Write one record to a run, without waiting for values that a program still computes."""
    if _are_plain(data, steps) and not isinstance(number, jax.core.Tracer):
        arrays = [*map(_as_array, data.values()), *map(_as_array, steps.values())]
        types = tuple((x.shape, x.dtype) for x in arrays)
        if _OBJECT_SCALAR not in types:
            keys = tuple(prefix + key for key in data) if prefix else tuple(data)
            _put(inbox, _site(keys, tuple(steps), site, types), arrays, number)
            return
    given = [*jax.tree.leaves(dict(data) if isinstance(data, Mapping) else data), number]
    inside = any(isinstance(x, jax.core.Tracer) for x in [*given, *steps.values()])
    entries, arrays = flatten_data(data, site, prefix, on_host=not inside)
    counters = [as_step_array(name, x, site, on_host=not inside) for name, x in steps.items()]
    spec = LogSpec(entries, tuple(steps), (), False, site)
    if inside:
        send_record(spec, [*arrays, *counters], inbox.receive, owner=jnp.asarray(number))
        return
    _put(inbox, Site(spec), [*arrays, *counters], number)


def _are_plain(data: Any, steps: Mapping[str, Any]) -> bool:
    """Return whether all values are numbers and arrays by name, as in most records."""
    return (
        type(data) is dict
        and all(type(key) is str and key for key in data)
        and all(map(_is_plain, data.values()))
        and _INTEGER_TYPES.issuperset(map(type, steps.values()))
    )


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in _NUMBER_TYPES or (kind is ConcreteArray and not is_key_array(value))


def _as_array(value: Any) -> Any:
    return value if type(value) is ConcreteArray else np.asarray(value)


def _put(inbox: Inbox, site: Site, arrays: Sequence[Any], number: Any) -> None:
    if any(type(x) is not np.ndarray and isinstance(x, jax.Array) for x in arrays):
        arrays = start_host_transfer(copy_tree(arrays))
    size = OBJECT_OVERHEAD_BYTES + sum(x.nbytes for x in arrays)
    kind = (id(inbox), id(site), id(number))
    # 0 records: values that are still computed have not left their program, and are not delayed.
    if not worker.add(size, _deliver_all, (inbox, site, number, arrays), 0, kind):
        delivery_errors.count_dropped(site.describe(), 1)


def _deliver_all(records: deque[tuple[Inbox, Site, Any, Sequence[Any]]]) -> None:
    """Deliver records on the worker thread: wait for the first one, and add all that are ready.

    A record whose program has failed is reported separately.
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
    return all(type(x) is np.ndarray or is_ready(x) for x in record)


def _fetch(inbox: Inbox, site: Site, record: Sequence[Any], rows: list[list[Any]]) -> None:
    try:
        rows.append([np.asarray(x) for x in record])
    except Exception as error:  # noqa: BLE001 - raised by the next call
        failure = DeliveryError(f"{site.describe()} could not be computed: {describe_error(error)}")
        failure.__cause__ = error
        delivery_errors.add(inbox, failure)


def _deliver(inbox: Inbox, site: Site, number: Any, rows: Sequence[Sequence[Any]]) -> None:
    columns = [np.array(values) for values in zip(*rows, strict=True)]
    inbox.deliver(make_packet(site, columns, len(rows)), RecordOwner(np.asarray(number)))


_NUMBER_TYPES = {bool, int, float, np.float64, np.float32, np.int64, np.int32, np.bool_}
_INTEGER_TYPES = {int, np.int64, np.int32}
_OBJECT_SCALAR = ((), np.dtype(object))  # NumPy's type of an integer that is too large


def log_columns(inbox: Inbox, name: str, number: Array, logs: logdict) -> None:
    """Write all records of a logdict to a run. Leading lane axes become lanes of the run."""
    axes = {records.axis for records in logs._records().values() if records.length is not None}
    if len(axes) > 1:
        raise ValueError(
            f"`{name}.log` got a `logdict` whose keys differ in their lanes. Log them apart: "
            "`logger.log(state, logs.filter(...))`."
        )
    if axes and axes.pop():
        jax.vmap(lambda own: log_columns(inbox, name, number, own))(logs)
    else:
        send_logs(logs._records(), LogdictRoute(inbox).receive, jnp.asarray(number))


@functools.lru_cache(maxsize=1024)
def _site(keys: tuple[str, ...], steps: tuple[str, ...], site: str, types: Any) -> Site:
    """Return the site of such a record, cached: records of one site object can be joined."""
    return Site(LogSpec(tuple(map(single_array_spec, keys)), steps, (), False, site))
