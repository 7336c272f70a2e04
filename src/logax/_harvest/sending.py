"""Functions whose logs are collected as `spool` does, and leave the program together at its end.

So they are there as soon as the program is, without anybody waiting for it, and where the function
is part of a larger program they leave that program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from logax import _compat
from logax._columns.records import Records
from logax._compat import Array
from logax._delivery.direct import receive_whole, send_rows
from logax._delivery.emit import lanes_of
from logax._delivery.packets import Parcel, Rows
from logax._entries import LogSpec, entry_of
from logax._harvest.spool import Options, collected
from logax._harvest.tracing import Harvester, Traced


def send_logs(
    logs: Mapping[str, Records],
    take: Callable[[Parcel], None],
    owner: Array,
    number: Array | None = None,
    lanes: Array | None = None,
) -> None:
    """Have all records of some keys, whose record axis is the first, leave the program."""
    columns: dict[Any, dict[str, Records]] = {}
    for key, one in logs.items():
        columns.setdefault(one.common, {})[key] = one
    place = 0
    parts = []
    for group in columns.values():
        spec, rows = _part(group, place)
        parts.append((spec, rows))
        place += len(rows.order)
    zero = jnp.zeros((), jnp.int32)
    number = zero if number is None else number
    if any(len(rows.order) for _, rows in parts):
        send_rows(parts, take, number, zero if lanes is None else lanes, owner)


def _part(group: Mapping[str, Records], place: int) -> tuple[LogSpec, Rows]:
    """Keys whose records have the same steps, as the records of one `log` call."""
    one = next(iter(group.values()))
    entries, arrays = [], []
    for key, column in group.items():
        entry, own = entry_of(key, column.value, ", ".join(column.site))
        entries.append(entry)
        arrays += own
    length = one.length or 0
    spec = LogSpec(tuple(entries), tuple(one.steps), (), False, ", ".join(one.site))
    gate = None if one.count is None else jnp.minimum(one.count, length).astype(jnp.int32)
    order = jnp.arange(place, place + length, dtype=jnp.int32)
    return spec, Rows([*arrays, *map(jnp.asarray, one.steps.values())], order, gate)


def _sent(traced: Traced, options: Options) -> tuple[Sequence[Array], None]:
    results, logs = collected(traced, options)
    owner = traced.owner
    if owner is None or not any(one.length for one in logs.values()):
        traced.notes.add("silent")
        return results, None
    lanes = lanes_of([*traced.args, owner, *_compat.parts(traced.jaxpr)[1]])
    if traced.number is None:
        send_logs(logs, traced.ticket.take, owner, None, lanes)
    else:
        send_logs(logs, receive_whole, owner, traced.number, lanes)
    return results, None


SENDING = Harvester("spool", _sent)
