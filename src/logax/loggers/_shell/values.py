"""Values that are logged without a harvest: those of one record, and whole logdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._delivery.direct import send
from logax._delivery.packets import Owner, Packet, Rows, Site, Stream
from logax._delivery.routes import Batch
from logax._delivery.worker import worker
from logax._harvest.sending import send_logs
from logax._log import LogSpec, entries_of, step_of
from logax._logdict import logdict
from logax.loggers._shell.inbox import Inbox
from logax.loop._copies import copied, on_their_way


def log_values(inbox: Inbox, number: Array, data: Any, steps: dict[str, Any], site: str) -> None:
    """Write one record to a run, without waiting for what is still being computed."""
    given = [*jax.tree.leaves(dict(data) if isinstance(data, Mapping) else data), number]
    inside = any(isinstance(x, jax.core.Tracer) for x in [*given, *steps.values()])
    entries, arrays = entries_of(data, site, on_host=not inside)
    counters = [step_of(name, x, site, on_host=not inside) for name, x in steps.items()]
    spec = LogSpec(entries, tuple(steps), (), False, site)
    if inside:
        send(spec, [*arrays, *counters], inbox.take, owner=jnp.asarray(number))
        return
    kept = on_their_way(copied([*arrays, *counters]))
    worker.put(sum(x.nbytes for x in kept), _deliver, inbox, spec, kept, number)


def _deliver(inbox: Inbox, spec: LogSpec, arrays: Sequence[Any], number: Any) -> None:
    """Take in a record on the thread of delivery, which may wait for its values."""
    rows = Rows([np.asarray(x)[None] for x in arrays], np.zeros(1, np.int32), None)
    packet = Packet((Site(spec),), (False,), 0, (Stream(),), last=False, owned=True)
    narrow = [(False,) * len(arrays)]
    owner = Owner(np.asarray(number))
    inbox.deliver(Batch(packet, (), None, [rows], narrow, [(0, 0, -1)], owner))


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
        send_logs(logs, inbox.take, jnp.asarray(number))
