"""`spool`: run a function and return its logs as arrays.

A call traces the function with its logs bound, takes the census of the program, gives each key the
cheapest storage that can hold its records (see `stores`), and walks the program again, this time
returning the records. All of that happens while tracing.

`SEND_HARVESTER` is the harvest behind `logger.spool`. It collects the same records and sends them
to the host at the end of the program, so that no caller has to wait for them. If the function is
part of a larger program, the records leave that program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Equation, Tree, replicate_like
from logax._delivery.calls import receive_whole_call, send_records
from logax._delivery.emit import lane_marker
from logax._delivery.packet import Packet, site_operands
from logax._harvest.call import HarvestedFunction
from logax._harvest.census import Census, Tally, census_of_entries
from logax._harvest.harvest import Frame, Harvest
from logax._harvest.record_blocks import (
    Block,
    LogGroup,
    StackedRecords,
    compact_records,
    group_keys,
    stop_gradient,
    unflatten_value,
)
from logax._harvest.rules.shard_map import uneven_shards_error
from logax._harvest.selection import Names, SeenLogs, Selection, pass_to_outer
from logax._harvest.static_arguments import StaticValue
from logax._harvest.stores import Reduction, Ring, Store, finish_store, start_store
from logax._harvest.tracing import Harvester, TracedFunction
from logax._harvest.walker import walk
from logax._log_spec import LogSpec, flatten_value
from logax._logdict.logdict import logdict, matches
from logax._logdict.records import KeyRecords
from logax._reducers import RecordArrays, RecordReducer, as_reducer, is_arithmetic
from logax._support.arrays import record_ndim
from logax._support.validation import validate_names, validate_positive


def spool(
    fun: Callable[..., Any],
    keys: Names = None,
    tags: Names = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    *,
    exclude: Names = None,
    capacity: int | Mapping[str, int] | None = None,
    argnames: Names = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[..., tuple[Any, logdict]]:
    """Return a function that returns the result of `fun` and its logs: `out, logs = spool(f)(x)`.

    The logs are a `logdict`: the value of each key, with the records along the first axis.

    The returned function composes with every JAX transformation, inside and outside. Outside of any
    transformation it compiles once per signature, and another `spool(f)` of the same `f` reuses the
    compiled program.

    Args:
      fun: Function of arrays, jitted or not. Array and number leaves of its arguments are traced;
        every other leaf (a string, a function, a static field of a module) is static.
      keys: Keys of the logs to collect; glob patterns are allowed. Default: all logs that are not
        marked `explicit`.
      tags: Tags of the logs to collect; one of them is enough.
      keep_logs: Whether to pass the collected logs to an outer harvest too. The logs that are not
        collected always go there.
      interval: Keep records 0, k, 2k, ... of each key.
      reduce: Reduce the records of each key to one: "mean", "sum", "min", "max", "std", "first",
        "last", "count", a `Reducer`, or a mapping from keys (glob patterns) to these.
      prefix: Text to put in front of every key.
      exclude: Keys of logs to leave out; glob patterns are allowed.
      capacity: Number of records to keep, the last ones of each key: one number, or a mapping from
        keys (glob patterns) to numbers. A loop without a static bound needs `capacity` or `reduce`.
      argnames: Alias of `keys`.
      static_argnums: Positions of arguments whose numbers are static, too.
      static_argnames: Names of such arguments.

    Returns:
      A function with the arguments of `fun` that returns `(result, logs)`.

    Raises:
      ValueError: An option is out of range. In a call: a loop without a static bound logs a key
        that has neither `capacity` nor `reduce`.
      TypeError: In a call: the records of one key have incompatible structures, shapes or dtypes.
    """
    selection = Selection.of(keys, tags, prefix, exclude, argnames)
    options = spool_options(selection, keep_logs, interval, reduce, capacity)
    return HarvestedFunction(fun, _SPOOL_HARVESTER, options, static_argnums, static_argnames)


def spool_options(
    selection: Selection,
    keep_logs: bool,
    interval: int | None,
    reduce: Any,
    capacity: int | Mapping[str, int] | None,
) -> SpoolOptions:
    """Validate the options of `spool`."""
    return SpoolOptions(
        selection,
        bool(keep_logs),
        validate_positive("spool", "interval", 1 if interval is None else interval),
        _freeze_reduce(reduce),
        _freeze_capacity(capacity),
    )


@dataclasses.dataclass(frozen=True)
class SpoolOptions:
    """Options of a call of `spool`."""

    selection: Selection
    keep_logs: bool
    interval: int
    reduce: tuple[tuple[str, StaticValue], ...]
    capacity: tuple[tuple[str, int], ...]


def run_spool(traced: TracedFunction, options: SpoolOptions) -> tuple[list[Array], logdict]:
    """Run a traced program, and return its results and its logs."""
    results, records = collect_records(traced, options)
    return results, _to_logdict(records)


def collect_records(
    traced: TracedFunction, options: SpoolOptions
) -> tuple[list[Array], dict[str, KeyRecords]]:
    """Run a traced program, and return its results and the records of each key.

    The steps of a key are in the order of the `log` calls.
    """
    harvest = SpoolHarvest(options, traced.has_outer)
    census = harvest.census(traced.jaxpr)
    harvest.warn(traced)
    groups = harvest.plan_stores(census)
    tallies = {name: group.combined for name, group in groups.items()}
    states = {n: start_store(store, tallies[n].shards) for n, store in harvest.stores.items()}
    states = replicate_like(states, traced.args)
    frame = Frame(harvest, tallies, states)
    results = walk(frame, traced.jaxpr, traced.args)
    blocks = frame.collect_blocks()
    columns: dict[str, StackedRecords] = {}
    for name, group in groups.items():
        if name in harvest.stores:
            column = finish_store(harvest.stores[name], frame.states[name], group.combined.shards)
        else:
            column = compact_records(blocks[name].with_record_axis(), group.combined)
        columns |= group.split_by_key(column)
    return results, {key: _to_records(columns[key], tally) for key, tally in census.items()}


class SpoolHarvest(Harvest):
    """The harvest that collects the selected logs and passes the others to the outer harvest."""

    def __init__(self, options: SpoolOptions, has_outer: bool) -> None:
        super().__init__()
        self.options, self._has_outer = options, has_outer
        self._groups: dict[str, LogGroup] = {}
        self._group_of: dict[str, str] = {}
        self._seen = SeenLogs()

    def census_of_log(self, equation: Equation) -> Census:
        """Return the census of the selected part of the log."""
        spec = equation.params["spec"]
        chosen, _ = self.options.selection.split(spec, [atom.aval for atom in equation.invars])
        self._seen.add(spec)
        return census_of_entries(chosen.entries, chosen.spec, chosen.flat_operands())

    def plan_stores(self, census: Census) -> dict[str, LogGroup]:
        """Group the keys of the program, and give a store to each group that needs one."""
        storage = {key: _storage_kind(tally, self.options) for key, tally in census.items()}
        groups = group_keys(census, lambda tally: storage[tally.entry.key])
        for name, group in groups.items():
            store = _make_store(group.combined, storage[name], self.options.interval)
            if store is not None:
                self.stores[name] = store
            self._group_of.update(dict.fromkeys(group.tallies, name))
        self._groups = groups
        return groups

    def branch_states(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """Pass a store through a branch only if it is smaller than a block of the branch's records.

        JAX selects everything that passes through a batched `cond`. Any other store stays outside
        and appends the block that the `cond` returns.
        """

        def block_is_larger(tally: Tally, rows: int) -> bool:
            return tally.max_records is None or tally.max_records > rows or bool(tally.shards)

        states = frame.states_for(census)
        smaller = {
            k: s for k, s in states.items() if block_is_larger(census[k], self.stores[k].rows)
        }
        return smaller, False

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        """Collect the selected part of a log, and bind the rest for an outer harvest."""
        spec = equation.params["spec"]
        chosen, rest = self.options.selection.split(spec, args, frame.takes)
        steps = {n: stop_gradient(x) for n, x in zip(spec.steps, chosen.steps, strict=True)}
        operands = {e.key: own for e, own in zip(chosen.entries, chosen.operands, strict=True)}
        for name in dict.fromkeys(self._group_of[key] for key in operands):
            leaves = tuple(map(stop_gradient, self._groups[name].gather_leaves(operands)))
            valid = None if leaves else jnp.ones((), bool)
            frame.record(name, Block(leaves, steps, valid, is_single=True))
        if self._has_outer:
            pass_to_outer(frame.bind_for_outer, args, spec, rest, self.options.keep_logs)

    def warn(self, traced: TracedFunction) -> None:
        """Warn about names that match no log, and about logs that no harvest can see."""
        options = self.options
        self._seen.warn_about_names("reduce", [name for name, _ in options.reduce if name != "*"])
        self._seen.warn_about_names(
            "capacity", [name for name, _ in options.capacity if name != "*"]
        )
        self._seen.warn(options.selection, traced.bound_logs)


def _storage_kind(tally: Tally, options: SpoolOptions) -> tuple[Any, ...]:
    """Return the storage of a key: blocks, a ring with a number of rows, or a reducer."""
    key = tally.entry.key
    name = key.removeprefix(options.selection.prefix)
    how = _first_match(options.reduce, name)
    if how is not None:
        how = how.value
        _validate_shards(tally, as_reducer(how))
        if any(leaf.key_impl for leaf in tally.entry.leaves) and is_arithmetic(as_reducer(how)):
            raise TypeError(
                f"`reduce` by {how!r} cannot compute with the PRNG keys of `{key}`, logged at "
                f"{tally.sites[0]}. Reduce it by 'first', 'last' or 'count'."
            )
        # A user's reducer may mix the keys of a group, so each key gets its own.
        return ("reduce", StaticValue(how), None if isinstance(how, str) else key)
    capacity = _first_match(options.capacity, name)
    bound = None if tally.max_records is None else -(-tally.max_records // options.interval)
    if bound is None and capacity is None:
        raise ValueError(
            f"`{key}` is logged at {tally.sites[0]} in a loop whose number of iterations is not "
            "known before it runs (`while_loop`, or `fori_loop` with traced bounds), so the "
            "number of its records is unknown. Three ways out: keep the last n of them with "
            f"`spool(f, capacity=n)`; fold them with `spool(f, reduce=...)`; or stream them with "
            "`tap(f)`."
        )
    rows = min(n for n in (bound, capacity) if n is not None)
    return ("ring", rows) if tally.max_records is None or rows < tally.max_records else ("blocks",)


def _validate_shards(tally: Tally, reducer: RecordReducer) -> None:
    """Raise if shards, which reduce on their own, may keep different numbers of records."""
    if not tally.shards:
        return
    one = tally.without_shards()
    like = RecordArrays(unflatten_value(one, one.leaves), dict(one.steps))
    _, count = jax.eval_shape(lambda: reducer.finish(reducer.start(like)))
    if count is not None:
        raise uneven_shards_error(tally)


def _make_store(tally: Tally, kind: tuple[Any, ...], interval: int) -> Store | None:
    """Return the store of a group, or None if its records travel as blocks."""
    if kind[0] == "reduce":
        return Reduction(tally.without_shards(), as_reducer(kind[1].value), interval)
    if kind[0] == "ring":
        return Ring(tally.without_shards(), kind[1], interval)
    return None


def _to_records(column: StackedRecords, tally: Tally) -> KeyRecords:
    value = _wrap_prng_keys(column.value, tally)
    # JAX sorts the names of a dictionary when it flattens it.
    names = dict.fromkeys((*tally.steps, *column.steps))
    steps = {name: column.steps[name] for name in names if name in column.steps}
    return KeyRecords(value, steps, column.total, tally.sites, record_ndim(value, 0))


def _to_logdict(records: dict[str, KeyRecords]) -> logdict:
    steps: dict[str, dict[str, Array]] = {}
    for key, own in records.items():
        for name, step in own.steps.items():
            steps.setdefault(name, {})[key] = step
    return logdict(
        {key: own.value for key, own in records.items()},
        steps=steps,
        count={key: own.count for key, own in records.items() if own.count is not None},
        site={key: own.site for key, own in records.items()},
        rank={key: own.rank for key, own in records.items()},
    )


def _wrap_prng_keys(value: Tree, tally: Tally) -> Tree:
    """Restore the typed PRNG keys, which travel through the program as their bits."""
    impls = {leaf.position: leaf.key_impl for leaf in tally.entry.leaves if leaf.key_impl}
    if not impls:
        return value
    structure = tally.entry.structure
    leaves = structure.flatten_up_to(value)
    wrapped = [
        jax.random.wrap_key_data(x, impl=impls[i]) if i in impls and _is_key_data(x) else x
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, wrapped)


def _is_key_data(x: Any) -> bool:
    """Return whether `x` is the bits of keys, and not, for instance, their count."""
    return x is not None and x.dtype == jnp.uint32


def _first_match(options: Sequence[tuple[str, Any]], key: str) -> Any:
    return next((value for pattern, value in options if matches(key, [pattern])), None)


def _freeze_reduce(reduce: Any) -> tuple[tuple[str, StaticValue], ...]:
    if reduce is None:
        return ()
    each = reduce if isinstance(reduce, Mapping) else {"*": reduce}
    validate_names("reduce", each, "`spool`")
    for how in each.values():
        as_reducer(how)
    return tuple((key, StaticValue(how)) for key, how in each.items())


def _freeze_capacity(capacity: Any) -> tuple[tuple[str, int], ...]:
    if capacity is None:
        return ()
    each = capacity if isinstance(capacity, Mapping) else {"*": capacity}
    validate_names("capacity", each, "`spool`")
    return tuple(
        (key, validate_positive("spool", "capacity", number)) for key, number in each.items()
    )


_SPOOL_HARVESTER = Harvester("spool", run_spool)


def send_logs(
    logs: Mapping[str, KeyRecords],
    take: Callable[[Packet], None],
    owner: Array,
    number: Array | None = None,
    lanes: Array | None = None,
) -> None:
    """Send all records of some keys to the host. The record axis of each value is the first."""
    columns: dict[Any, dict[str, KeyRecords]] = {}
    for key, one in logs.items():
        columns.setdefault(one.shared_identity, {})[key] = one
    place = 0
    parts = []
    for group in columns.values():
        parts.append(_combine_group(group, place))
        place += next(iter(group.values())).length or 0
    zero = jnp.zeros((), jnp.int32)
    number = zero if number is None else number
    if place:
        send_records(parts, take, number, zero if lanes is None else lanes, owner)


def _combine_group(group: Mapping[str, KeyRecords], place: int) -> tuple[LogSpec, list[Array]]:
    """Combine keys whose records have the same steps into the records of one `log` call."""
    one = next(iter(group.values()))
    entries, arrays = [], []
    for key, column in group.items():
        entry, own = flatten_value(key, column.value, ", ".join(column.site))
        entries.append(entry)
        arrays += own
    length = one.length or 0
    spec = LogSpec(tuple(entries), tuple(one.steps), (), False, ", ".join(one.site))
    gate = None if one.count is None else jnp.minimum(one.count, length).astype(jnp.int32)
    order = jnp.arange(place, place + length, dtype=jnp.int32)
    steps = map(jnp.asarray, one.steps.values())
    return spec, site_operands([*arrays, *steps], order, gate)


def _run_and_send(traced: TracedFunction, options: SpoolOptions) -> tuple[Sequence[Array], None]:
    results, logs = collect_records(traced, options)
    owner = traced.owner
    if owner is None or not any(one.length for one in logs.values()):
        traced.notes.add("silent")
        return results, None
    lanes = lane_marker([*traced.args, owner, *_compat.jaxpr_and_consts(traced.jaxpr)[1]])
    if traced.number is None:
        send_logs(logs, traced.ticket.receive, owner, None, lanes)
    else:
        send_logs(logs, receive_whole_call, owner, traced.number, lanes)
    return results, None


SEND_HARVESTER = Harvester("spool", _run_and_send)
