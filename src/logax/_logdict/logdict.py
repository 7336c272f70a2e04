"""`logdict`: many records, by column.

A `logdict` is a `dict` from keys to pytrees of arrays. In each array one axis, the record axis,
counts records in order of execution. It is axis 0, until `vmap` of a function that returns a
logdict puts its lanes before it; then all methods follow, since a logdict knows the rank of one
record. Beside the values it holds

- `steps`: by step name and then by key, the step of each record. A record that lacks a step which
  its key has elsewhere holds what `missing_step` says; printing and exports leave it blank.
- `count`: by key, how many records there were. Where the number depends on data the columns have a
  fixed length, and the first `min(count, length)` rows are real. Where a ring kept only the last
  records, all rows are real and the count says how many there have been.
- `site`: by key, the file and line of the calls that log it.

A logdict is also a pytree, so that compiled functions return it, `jax.tree.map` maps it and
`jax.device_get` fetches it. Its leaves are those of the values, then the step columns, then the
counts that do not follow from shapes. A step column or count that several keys share, as the keys
of one `log` call share their steps, is one leaf, and stays shared. The order of keys is part of the
structure, the sites are not.

`compact`, `first_nonfinite`, `to_pandas`, `to_xarray` and `==` need to see numbers; all the rest
works inside `jit` too. Printing shows shapes where there are no numbers to see.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax

from logax._compat import Array, Tree
from logax._logdict import display, export
from logax._logdict.join import MisfitError, check_fit, joined
from logax._logdict.records import Records, Share
from logax._logdict.reduce import check_reducer, reduced
from logax._logdict.table import Layout, Table, put_together, taken_apart
from logax._logdict.validate import records_of, step_columns
from logax._logdict.views import (
    Method,
    NonFinite,
    PerKey,
    Slicer,
    first_nonfinite,
    listed,
    stepdict,
)
from logax._support.arrays import called_alike, leaf_name, missing_step
from logax._support.messages import add_note, received
from logax._support.validation import as_names, as_text

__all__ = ["concat", "leaf_name", "logdict", "matches", "missing_step", "stepdict"]


class logdict(Table):
    """Many records, by column: a `dict` and a pytree. The module's page says what it holds.

    Args:
      data: A mapping from keys to pytrees of arrays, each with a record axis. Of another logdict
        the steps, counts, sites and ranks come along where they are not given.
      steps: By step name, the step of each record: an array for all keys, or a mapping from keys to
        arrays, which need not have all keys.
      count: By key, how many records there were, for those of which not all rows are real.
      site: By key, strings such as "train.py:12".
      rank: By key, the rank of one record of its first leaf; only where lanes come before the
        record axis, which is axis 0 otherwise.

    Raises:
      TypeError: a value is no pytree of arrays, or `steps` is no mapping.
      ValueError: arrays of one key do not agree about lanes and records.
    """

    __slots__ = ()

    def __init__(
        self,
        data: Mapping[str, Tree] | Iterable[tuple[str, Tree]] = (),
        /,
        *,
        steps: Mapping[str, Mapping[str, Array] | Array] | None = None,
        count: Mapping[str, Array] | None = None,
        site: Mapping[str, tuple[str, ...]] | None = None,
        rank: Mapping[str, int] | None = None,
    ) -> None:
        if isinstance(data, logdict):
            steps = data.steps if steps is None else steps
            count = data._counts() if count is None else count
            site = data._layout.site if site is None else site
            rank = data._layout.rank if rank is None else rank
        values = dict(data)
        columns = step_columns(steps, values)
        given = (*columns.values(), count or {}, site or {}, rank or {})
        unknown = {key for mapping in given for key in mapping} - values.keys()
        if unknown:
            raise ValueError(
                f"`logdict` got steps, counts, sites or ranks of {listed(unknown)}, and has "
                f"{listed(values)}."
            )
        records = {}
        for key, value in values.items():
            records[key] = records_of(
                key,
                value,
                steps={name: each[key] for name, each in columns.items() if key in each},
                count=(count or {}).get(key),
                site=(site or {}).get(key),
                rank=(rank or {}).get(key),
            )
        self._adopt(records, columns)

    # What it holds.

    @property
    def steps(self) -> stepdict:
        """By step name and then by key, the step of each record: `logs.steps["update"]["loss"]`."""
        return stepdict({name: self._step(name) for name in self._layout.steps})

    def _step(self, name: str) -> stepdict:
        return stepdict({key: self._side[at] for key, at in self._layout.steps[name].items()})

    def __getattr__(self, name: str) -> stepdict:
        if name in ("_layout", "_side"):
            raise AttributeError(name)
        if name in self._layout.steps:
            return self._step(name)
        raise AttributeError(
            f"A `logdict` has no attribute {name!r}, and no step of that name; its steps are "
            f"{listed(self._layout.steps)}."
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._layout.steps]

    @property
    def count(self) -> PerKey:
        """By key, how many records there were: an integer, or one for each lane."""
        return PerKey(self, "count", lambda key: self._of(key).counted())

    @property
    def site(self) -> PerKey:
        """By key, the file and line of each call that logs it."""
        return PerKey(self, "site", lambda key: self._layout.site[key])

    @property
    def last(self) -> PerKey:
        """By key, the last real record, without the record axis.

        A lane that has no record gives NaN, and for integers what stands for no step. `IndexError`
        where it can be seen that there is no record at all.
        """

        def last(key: str) -> Tree:
            try:
                return self._of(key).last()
            except IndexError as error:
                raise IndexError(f"`logs.last[{key!r}]`: {error}") from None

        return PerKey(self, "last", last)

    @property
    def slice(self) -> Slicer:
        """Some records of every key: `logs.slice[10:20]`, `logs.slice[-5:]`, `logs.slice[::10]`.

        Indices count the real rows of a key, and of each lane.
        """
        return Slicer(self)

    def leaves(self) -> dict[str, Array]:
        """Every array by its flat name: the key, or key/path/to/leaf."""
        leaves: dict[str, Array] = {}
        for key, value in self.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                name = leaf_name(key, path)
                if name in leaves:
                    raise called_alike(name)
                leaves[name] = leaf
        return leaves

    # New logdicts from old.

    def __add__(self, later: logdict) -> logdict:
        """Join the records of each key, these first. A key that only one has stays as it is.

        To join many logdicts, collect them in a list for `logax.concat`.

        Raises:
          ValueError: the records of a key do not fit together.
        """
        if not isinstance(later, logdict):
            return NotImplemented
        return _joined([self, later], "`logdict + logdict`", lambda *_: "")

    def __radd__(self, start: int) -> logdict:
        """Return a copy for `0 + logs`, with which `sum` begins."""
        return self.copy() if isinstance(start, int) and start == 0 else NotImplemented

    def __or__(self, other: Mapping[str, Tree]) -> logdict:  # type: ignore[override]
        """The keys of both; of a key in both, everything is that of the right one."""
        if not isinstance(other, Mapping):
            return NotImplemented
        logs = self.copy()
        logs.update(other)
        return logs

    def __ror__(self, other: Mapping[str, Tree]) -> logdict:  # type: ignore[override]
        return logdict(other) | self if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> logdict:  # type: ignore[override,misc]
        self.update(other)
        return self

    def reduce(self, how: Any = "mean") -> logdict:
        """Many records to one, over the record axis, never over the elements of a record.

        Args:
          how: "mean", "sum", "min", "max", "std", "first", "last" or "count", a reducer, a function
            from an array, records along axis 0, to one record, which is applied to each leaf, or a
            mapping from keys or glob patterns to these, of which the first that matches counts;
            keys that none matches are left as they are.

        Returns:
          A logdict with the record that is left, its steps those of the last one that went in (of
          the first for "first"). A key without records still has none.
        """
        hows = how if isinstance(how, Mapping) else {"*": how}
        as_names("how", hows, "`logs.reduce`")
        unknown = [name for name in hows if not any(matches(key, [name]) for key in self)]
        if unknown and isinstance(how, Mapping):
            raise ValueError(f"`logs.reduce` got {listed(unknown)}, and there is {listed(self)}.")
        for each in hows.values():
            check_reducer(each)
        share: Share = {}
        records = self._records()
        for key, column in records.items():
            pattern = next((name for name in hows if matches(key, [name])), None)
            if pattern is None:
                continue
            try:
                records[key] = reduced(column, hows[pattern], share)
            except Exception as error:
                add_note(error, f"This was in `logs.reduce`, for the key {key!r}.")
                raise
        return self._like(records)

    def filter(self, argnames: str | Iterable[str] | Callable[[str, Tree], Any]) -> logdict:
        """Keep keys and leaves that match a name or pattern, or keys that a predicate chooses.

        Args:
          argnames: Names or glob patterns, or a function of a key and its value. A pattern that
            matches a key takes all of it; one that matches the name of a leaf, such as
            `grad/*/weight`, takes that leaf, and leaves that are not taken become None. The
            function returns whether the key stays, with all of its value.
        """
        records = self._records()
        if callable(argnames):
            chosen = {key: x for key, x in records.items() if argnames(key, x.value)}
            return self._like(chosen)
        patterns = as_names("argnames", argnames, "`logs.filter`") or ()
        kept = {}
        for key, column in records.items():
            if not matches(key, patterns):
                column = column.only(key, lambda name: matches(name, patterns))
                if not jax.tree.leaves(column.value):
                    continue
            kept[key] = column
        return self._like(kept)

    def prefix(self, prefix: str) -> logdict:
        """The same with `prefix` before every key, as it is: `logs.prefix("train/")`."""
        prefix = as_text("prefix", prefix, "`logs.prefix`")
        return self._like({prefix + key: column for key, column in self._records().items()})

    def compact(self) -> logdict:
        """Without padding. Waits for the counts, and cannot be used inside a compiled function.

        Where lanes have different numbers of records the longest one says how many rows stay, and
        the counts stay with them.
        """
        share: Share = {}
        self._require("logs.compact()", Records.counts_shown)
        return self._like({key: x.compacted(share) for key, x in self._records().items()})

    # Out of JAX.

    def first_nonfinite(self) -> NonFinite | None:
        """The first record that holds a NaN or an infinity, or None. Waits for the values.

        Of several it is the one with the least step: that called `step`, else the first that all
        of them have; without one in common, the least index among the records of its key.
        """
        self._require("logs.first_nonfinite()")
        return first_nonfinite(self._records())

    def to_pandas(self, key: str | None = None) -> Any:
        """A `pandas.DataFrame` with one row for each record and lane, of one key or of all.

        Columns: the lanes (`lane`, or `lane_0`, `lane_1`, ...), `record`, the steps, then the
        leaves by name. Where a record is no scalar the cells hold NumPy arrays. A lane, record or
        step column with the name of a leaf gets an underscore.

        Keys with the same steps, and keys without steps, stand side by side, record by record.
        Other keys share a row only where all their steps are equal; what a key does not have there
        is missing. Then rows are sorted by lane and steps, and there is no `record`, since it
        differs between keys.

        Raises:
          ImportError: pandas is not installed.
        """
        self._require("logs.to_pandas()")
        keys = self.keys() if key is None else [key]
        return export.to_pandas({key: self._of(key) for key in keys})

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` with a variable for each leaf, over lanes, `record` and its own axes.

        Steps are coordinates. Padding of short lanes and missing steps are NaN, which makes floats
        of integers. Where keys differ in their steps or in how many records they have, each group
        of keys that agree has a record axis and steps of its own, called after its first key:
        `record_loss`, `step_loss`.

        Raises:
          ImportError: xarray is not installed.
        """
        self._require("logs.to_xarray()")
        return export.to_xarray(self._records())

    def __repr__(self) -> str:
        return display.text(self._records())


def concat(logdicts: Iterable[logdict]) -> logdict:
    """Join many logdicts in order, as `a + b + c` does, in time linear in their records.

    Outside of compiled functions this waits for the arrays, joins them on the host without
    compiling, and puts the result where the first of them was: on its device, with its sharding. Of
    NumPy arrays it makes NumPy arrays. Inside compiled functions it is a part of the program.

    Args:
      logdicts: An iterable of logdicts. They may differ in their keys and steps: a key that only
        one has stays as it is, and a step that some lack is missing there. Without any, the result
        is an empty logdict.

    Raises:
      TypeError: one of them is not a logdict.
      ValueError: the records of a key do not fit together.
    """
    if isinstance(logdicts, Mapping) or not isinstance(logdicts, Iterable):
        raise TypeError(
            f"`concat` takes a list of logdicts, and got {received(logdicts)}. Write "
            "`concat([first, second])`."
        )
    parts = list(logdicts)
    for number, part in enumerate(parts):
        if not isinstance(part, logdict):
            raise TypeError(
                f"`concat` takes a list of logdicts, and got {received(part)} at index {number}. "
                "Write `logdict(data)` around a dictionary of arrays with a record axis."
            )
    return _joined(parts, "`concat`", lambda one, two: f" of logdicts {one} and {two}")


def _joined(parts: list[logdict], what: str, which: Callable[[int, int], str]) -> logdict:
    """Join logdicts key by key. `which` describes two of them, by number, for errors."""
    found: dict[str, dict[int, Records]] = {}
    for number, part in enumerate(parts):
        for key, column in part._records().items():
            found.setdefault(key, {})[number] = column
    share: Share = {}
    records = {}
    for key, columns in found.items():
        try:
            check_fit(columns)
        except MisfitError as error:
            place = which(*error.parts)
            raise ValueError(f"{what} cannot join {key!r}{place}: {error}") from error
        column, *others = columns.values()
        records[key] = joined([column, *others], share) if others else column
    names = (name for part in parts for name in part._layout.steps)
    return logdict()._like(records, dict.fromkeys(names))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a key or the name of a leaf is one of these names or matches one of these globs."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _flatten_with_keys(logs: logdict) -> tuple[list[tuple[Any, Any]], Layout]:
    arrays, layout = taken_apart(logs)
    return list(zip(layout.paths, arrays, strict=True)), layout


def _flatten_steps(steps: stepdict) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    return [(jax.tree_util.DictKey(name), x) for name, x in steps.items()], tuple(steps)


def _unflatten_steps(names: tuple[str, ...], children: Any) -> stepdict:
    return stepdict(zip(names, children, strict=True))


for _name, _function in {**vars(dict), **vars(Table), **vars(logdict)}.items():
    if not _name.startswith("_") and isinstance(
        _function, (types.FunctionType, types.MethodDescriptorType)
    ):
        setattr(logdict, _name, Method(_function, _name))

jax.tree_util.register_pytree_with_keys(
    logdict, _flatten_with_keys, functools.partial(put_together, logdict), taken_apart
)
jax.tree_util.register_pytree_with_keys(stepdict, _flatten_steps, _unflatten_steps)
