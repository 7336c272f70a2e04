"""`spool`: run a function and get its logs back as arrays.

The function is traced with the logs bound, the census says what they amount to, each key gets the
cheapest place that can hold its records (see `storage`), and the walker runs the program again with
the records coming out. All of that happens while tracing: what is compiled is what one would have
written by hand.

Functions whose logs are collected as `spool` does, and leave the program together at its end.

So they are there as soon as the program is, without anybody waiting for it, and where the function
is part of a larger program they leave that program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from logax import _compat
from logax._compat import Array, Equation, Tree, laid_with
from logax._delivery.emit import lanes_of
from logax._delivery.packet import Parcel, Rows
from logax._delivery.unordered import receive_whole, send_rows
from logax._harvest import census as counting
from logax._harvest.arguments import Fixed
from logax._harvest.blocks import Column, Group, Single, compacted, cut_off, grouped, value_of
from logax._harvest.call import Harvested
from logax._harvest.census import Census, Tally
from logax._harvest.harvest import Frame, Harvest
from logax._harvest.rules.shard_map import not_on_shards
from logax._harvest.selection import Choice, Findings, Names, leave
from logax._harvest.stores import Reduction, Ring, Store, finished, started
from logax._harvest.tracing import Harvester, Traced
from logax._harvest.walker import walk
from logax._log_spec import LogSpec, entry_of
from logax._logdict.logdict import logdict, matches
from logax._logdict.records import Records
from logax._reducers import Record, RecordReducer, as_reducer, is_arithmetic
from logax._support.arrays import record_rank
from logax._support.validation import as_names, at_least_one


def spool(
    fun: Callable[..., Any],
    argnames: Names = None,
    tags: Names = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    *,
    capacity: int | Mapping[str, int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[..., tuple[Any, logdict]]:
    """A function that returns what `fun` returns, and its logs: `out, logs = spool(f)(x)`.

    It composes with every transformation of JAX, inside and outside. Called outside of any, it
    compiles once for each signature, and a new `spool(f)` of the same `f` compiles nothing anew.

    Args:
      fun: Any function of arrays, jitted or not. Array and number leaves of its arguments are
        traced, every other leaf (a string, a function, a module's static field) is static.
      argnames: Take only logs with these names; glob patterns are allowed.
      tags: Take only logs with one of these tags.
      keep_logs: Leave the logs that are taken to an outer harvest as well. Logs that are not
        taken always are.
      interval: Keep records 0, k, 2k, ... of each key.
      reduce: Keep one record of each key: "mean", "sum", "min", "max", "std", "first", "last",
        "count", a `Reducer`, or a mapping from keys (glob patterns) to these.
      prefix: Put literally in front of every key.
      capacity: Keep the last so many records of each key; a number, or one for each key (glob
        patterns). A loop without a static bound needs it, or `reduce`.
      static_argnums: Positions of arguments whose numbers are static too.
      static_argnames: Names of such arguments.

    Raises:
      ValueError: An option is out of its range; or, when called, a loop without a static bound
        logs a key that has no `capacity`.
      TypeError: When called: records of one key do not fit together.
    """
    options = spool_options(argnames, tags, keep_logs, interval, reduce, prefix, capacity)
    return Harvested(fun, _HARVESTER, options, static_argnums, static_argnames)


def spool_options(
    argnames: Names,
    tags: Names,
    keep_logs: bool,
    interval: int | None,
    reduce: Any,
    prefix: str,
    capacity: int | Mapping[str, int] | None,
) -> Options:
    """The options of `spool`, checked."""
    return Options(
        Choice.of(argnames, tags, prefix),
        bool(keep_logs),
        at_least_one("spool", "interval", 1 if interval is None else interval),
        _frozen_reduce(reduce),
        _frozen_capacity(capacity),
    )


@dataclasses.dataclass(frozen=True)
class Options:
    """What a call of `spool` asks for."""

    choice: Choice
    keep_logs: bool
    interval: int
    reduce: tuple[tuple[str, Fixed], ...]
    capacity: tuple[tuple[str, int], ...]


def spooled(traced: Traced, options: Options) -> tuple[list[Array], logdict]:
    """The results of a program, and its logs."""
    results, records = collected(traced, options)
    return results, _logdict(records)


def collected(traced: Traced, options: Options) -> tuple[list[Array], dict[str, Records]]:
    """The results of a program, and by key its records, their steps in the order of the calls."""
    harvest = Spool(options, traced.listening)
    census = harvest.census(traced.jaxpr)
    harvest.warn(traced)
    groups = harvest.plan(census)
    tallies = {name: group.whole for name, group in groups.items()}
    states = {n: started(store, tallies[n].shards) for n, store in harvest.stores.items()}
    states = laid_with(states, traced.args)
    frame = Frame(harvest, tallies, states)
    results = walk(frame, traced.jaxpr, traced.args)
    blocks = frame.collected()
    columns: dict[str, Column] = {}
    for name, group in groups.items():
        if name in harvest.stores:
            column = finished(harvest.stores[name], frame.states[name], group.whole.shards)
        else:
            column = compacted(blocks[name].block(), group.whole)
        columns |= group.columns(column)
    return results, {key: _records(columns[key], tally) for key, tally in census.items()}


class Spool(Harvest):
    """The harvest that collects the chosen logs and leaves the others to the one outside."""

    def __init__(self, options: Options, outer: bool) -> None:
        super().__init__()
        self.options, self._outer = options, outer
        self._groups: dict[str, Group] = {}
        self._group_of: dict[str, str] = {}
        self._found = Findings()

    def census_of_log(self, equation: Equation) -> Census:
        """The chosen part of the log."""
        spec = equation.params["spec"]
        chosen, _ = self.options.choice.split(spec, [atom.aval for atom in equation.invars])
        self._found.add(spec)
        return counting.of_log(chosen.entries, chosen.spec, chosen.flat())

    def plan(self, census: Census) -> dict[str, Group]:
        """The groups of the program; each gets the cheapest place that can hold its records."""
        places = {key: _place(tally, self.options) for key, tally in census.items()}
        groups = grouped(census, lambda tally: places[tally.entry.key])
        for name, group in groups.items():
            store = _store(group.whole, places[name], self.options.interval)
            if store is not None:
                self.stores[name] = store
            self._group_of.update(dict.fromkeys(group.tallies, name))
        self._groups = groups
        return groups

    def through_branches(self, frame: Frame, census: Census) -> tuple[dict[str, Tree], bool]:
        """A store only where it is smaller than the room for the records would be.

        Any other is left outside and takes in what comes out, since JAX selects everything that
        passes a batched `cond`.
        """

        def is_larger(tally: Tally, rows: int) -> bool:
            return tally.most is None or tally.most > rows or bool(tally.shards)

        states = frame.threaded(census)
        larger = {k: s for k, s in states.items() if is_larger(census[k], self.stores[k].rows)}
        return larger, False

    def on_log(self, equation: Equation, args: Sequence[Array], frame: Frame) -> None:
        """Collect the chosen part; bind the rest, or all of it, for an outer harvest."""
        spec = equation.params["spec"]
        chosen, rest = self.options.choice.split(spec, args, frame.takes)
        steps = {n: cut_off(x) for n, x in zip(spec.steps, chosen.steps, strict=True)}
        operands = {e.key: own for e, own in zip(chosen.entries, chosen.operands, strict=True)}
        for name in dict.fromkeys(self._group_of[key] for key in operands):
            leaves = tuple(map(cut_off, self._groups[name].gathered(operands)))
            frame.record(name, Single(leaves, steps, None if leaves else jnp.ones((), bool)))
        if self._outer:
            leave(frame.leave, args, spec, rest, self.options.keep_logs)

    def warn(self, traced: Traced) -> None:
        """Say which names match nothing, and which logs are where no harvest can see them."""
        options = self.options
        self._found.warn_of_names("reduce", [name for name, _ in options.reduce if name != "*"])
        self._found.warn_of_names("capacity", [name for name, _ in options.capacity if name != "*"])
        self._found.warn(options.choice, traced.ledger)


def _place(tally: Tally, options: Options) -> tuple[Any, ...]:
    """Where the records of a key wait: with blocks, in a ring of so many rows, or in a reducer."""
    key = tally.entry.key
    name = key.removeprefix(options.choice.prefix)
    how = _first_match(options.reduce, name)
    if how is not None:
        how = how.value
        _check_shards(tally, as_reducer(how))
        if any(leaf.key_impl for leaf in tally.entry.leaves) and is_arithmetic(as_reducer(how)):
            raise TypeError(
                f"`reduce` by {how!r} cannot compute with the PRNG keys of `{key}`, logged at "
                f"{tally.sites[0]}. Reduce it by 'first', 'last' or 'count'."
            )
        # Only the built-in reducers are known to treat each key of a group by itself.
        return ("reduce", Fixed(how), None if isinstance(how, str) else key)
    capacity = _first_match(options.capacity, name)
    most = None if tally.most is None else -(-tally.most // options.interval)
    if most is None and capacity is None:
        raise ValueError(
            f"`{key}` is logged at {tally.sites[0]} in a loop whose number of iterations is not "
            "known before it runs (`while_loop`, or `fori_loop` with traced bounds), so its "
            "records have no fixed number. Three ways out: keep the last n of them with "
            f"`spool(f, capacity=n)`; fold them with `spool(f, reduce=...)`; or stream them with "
            "`tap(f)`."
        )
    rows = min(n for n in (most, capacity) if n is not None)
    return ("ring", rows) if tally.most is None or rows < tally.most else ("blocks",)


def _check_shards(tally: Tally, reducer: RecordReducer) -> None:
    """Each shard folds for itself; how many records it keeps must be the same for all."""
    if not tally.shards:
        return
    one = tally.on_no_shards()
    like = Record(value_of(one, one.leaves), dict(one.steps))
    _, count = jax.eval_shape(lambda: reducer.finish(reducer.start(like)))
    if count is not None:
        raise not_on_shards(tally)


def _store(tally: Tally, place: tuple[Any, ...], interval: int) -> Store | None:
    """The store of a group, or None where its records travel as blocks."""
    if place[0] == "reduce":
        return Reduction(tally.on_no_shards(), as_reducer(place[1].value), interval)
    if place[0] == "ring":
        return Ring(tally.on_no_shards(), place[1], interval)
    return None


def _records(column: Column, tally: Tally) -> Records:
    value = _with_keys(column.value, tally)
    # JAX sorts the names of a dictionary wherever it is taken apart.
    names = dict.fromkeys((*tally.steps, *column.steps))
    steps = {name: column.steps[name] for name in names if name in column.steps}
    return Records(value, steps, column.total, tally.sites, record_rank(value, 0))


def _logdict(records: dict[str, Records]) -> logdict:
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


def _with_keys(value: Tree, tally: Tally) -> Tree:
    """The value with its typed PRNG keys, which travelled as their bits."""
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
    """Whether these are the bits of keys, and not, say, their number."""
    return x is not None and x.dtype == jnp.uint32


def _first_match(options: Sequence[tuple[str, Any]], key: str) -> Any:
    return next((value for pattern, value in options if matches(key, [pattern])), None)


def _frozen_reduce(reduce: Any) -> tuple[tuple[str, Fixed], ...]:
    if reduce is None:
        return ()
    each = reduce if isinstance(reduce, Mapping) else {"*": reduce}
    as_names("reduce", each, "`spool`")
    for how in each.values():
        as_reducer(how)
    return tuple((key, Fixed(how)) for key, how in each.items())


def _frozen_capacity(capacity: Any) -> tuple[tuple[str, int], ...]:
    if capacity is None:
        return ()
    each = capacity if isinstance(capacity, Mapping) else {"*": capacity}
    as_names("capacity", each, "`spool`")
    return tuple((key, at_least_one("spool", "capacity", number)) for key, number in each.items())


_HARVESTER = Harvester("spool", spooled)


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
