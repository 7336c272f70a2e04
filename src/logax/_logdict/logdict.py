"""`logdict`, a dictionary of arrays with many records, and `concat`.

The docstring of `logdict` documents its contents. It is a pytree: its leaves are those of the
values, then the step columns, then the counts that do not follow from shapes. A step column or
count that several keys share, as the keys of one `log` call do, is one leaf and stays shared. The
order of keys is part of the structure; the sites are not.
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
from logax._logdict.join import IncompatibleRecordsError, join_records, validate_compatible
from logax._logdict.records import ColumnCache, KeyRecords
from logax._logdict.reduce import check_reducer, reduce_key
from logax._logdict.table import LogdictLayout, RecordTable, flatten_logdict, unflatten_logdict
from logax._logdict.validate import make_records, normalize_steps
from logax._logdict.views import (
    Method,
    NonFinite,
    PerKey,
    Slicer,
    first_nonfinite,
    format_names,
    stepdict,
)
from logax._support.arrays import duplicate_name_error, leaf_name, missing_step
from logax._support.messages import add_note, describe_value
from logax._support.validation import validate_names, validate_string

__all__ = ["concat", "leaf_name", "logdict", "matches", "missing_step", "stepdict"]


class logdict(RecordTable):
    """A dictionary from keys to pytrees of arrays, each with an axis that counts records.

    `logax.spool` returns one; `logax.concat`, `+` and `|` combine several. In each array the record
    axis is axis 0, in order of execution. `vmap` of a function that returns a logdict puts lane
    axes before it; all methods account for them, because a logdict knows the rank of one record.

    Besides the values a logdict holds:

    - `steps`: The step of each record, by step name and key. A record without a step that other
      records of its key have holds a placeholder, NaN for floats, which printing and exports leave
      blank.
    - `count`: The number of records, by key. If that number depends on data, the arrays have a
      fixed length, the first `count` rows are real, and the rest is padding. If `count` exceeds the
      length, only the last records were kept, and all rows are real.
    - `site`: The file and line of the calls that logged it, by key.

    A logdict is a pytree: compiled functions return it, `jax.tree.map` maps it, and
    `jax.device_get` fetches it. `compact`, `first_nonfinite`, `to_pandas`, `to_xarray` and `==`
    need concrete arrays; everything else works inside `jit` too.

    Args:
      data: Mapping from keys to pytrees of arrays with a record axis. Another logdict contributes
        its steps, counts, sites and ranks unless they are given.
      steps: Mapping from step names to the step of each record: an array for all keys, or a mapping
        from some of the keys to arrays.
      count: Number of records by key, for keys with padding or dropped records.
      site: Sites by key, such as `"train.py:12"`.
      rank: Rank of one record of the first leaf by key. Needed only if lanes come before the record
        axis, which is axis 0 otherwise.

    Raises:
      TypeError: A value is not a pytree of arrays, or `steps` is not a mapping.
      ValueError: The arrays of a key differ in their lanes or their number of records.

    Example:
      `logdict({"loss": losses}, steps={"step": jnp.arange(len(losses))})`
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
        columns = normalize_steps(steps, values)
        given = (*columns.values(), count or {}, site or {}, rank or {})
        unknown = {key for mapping in given for key in mapping} - values.keys()
        if unknown:
            raise ValueError(
                f"`logdict` got steps, counts, sites or ranks of {format_names(unknown)}, and has "
                f"{format_names(values)}."
            )
        records = {}
        for key, value in values.items():
            records[key] = make_records(
                key,
                value,
                steps={name: each[key] for name, each in columns.items() if key in each},
                count=(count or {}).get(key),
                site=(site or {}).get(key),
                rank=(rank or {}).get(key),
            )
        self._set_records(records, columns)

    # Contents.

    @property
    def steps(self) -> stepdict:
        """Step of each record, by step name and key: `logs.steps["update"]["loss"]`."""
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
            f"{format_names(self._layout.steps)}."
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._layout.steps]

    @property
    def count(self) -> PerKey:
        """Number of records that were logged, by key: an integer, or one for each lane."""
        return PerKey(self, "count", lambda key: self._key_records(key).total_count())

    @property
    def site(self) -> PerKey:
        """File and line of each call that logged it, by key."""
        return PerKey(self, "site", lambda key: self._layout.site[key])

    @property
    def last(self) -> PerKey:
        """Last real record, by key, without the record axis: `logs.last["loss"]`.

        A lane without records holds NaN, or the placeholder of a missing step for integers. Raises
        an `IndexError` if the count is concrete and there is no record.
        """

        def last(key: str) -> Tree:
            try:
                return self._key_records(key).last()
            except IndexError as error:
                raise IndexError(f"`logs.last[{key!r}]`: {error}") from None

        return PerKey(self, "last", last)

    @property
    def slice(self) -> Slicer:
        """Slice the records of every key: `logs.slice[10:20]`, `logs.slice[-5:]`.

        Indices count the real rows of each key and lane. `logs.slice[::10]` keeps every tenth one.
        """
        return Slicer(self)

    def leaves(self) -> dict[str, Array]:
        """Return every array by its flat name: the key, or `key/path/to/leaf`."""
        leaves: dict[str, Array] = {}
        for key, value in self.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                name = leaf_name(key, path)
                if name in leaves:
                    raise duplicate_name_error(name)
                leaves[name] = leaf
        return leaves

    # New logdicts.

    def __add__(self, later: logdict) -> logdict:
        """Append the records of `later`, key by key. A key that only one has is kept unchanged.

        To join many logdicts, pass a list to `logax.concat`, which takes linear time.

        Raises:
          ValueError: The records of a key differ in their structure, lanes, shape or dtype.
        """
        if not isinstance(later, logdict):
            return NotImplemented
        return _join_logdicts([self, later], "`logdict + logdict`", lambda *_: "")

    def __radd__(self, start: int) -> logdict:
        """Return a copy for `0 + logs`, so that `sum(list_of_logdicts)` works."""
        return self.copy() if isinstance(start, int) and start == 0 else NotImplemented

    def __or__(self, other: Mapping[str, Tree]) -> logdict:  # type: ignore[override]
        """Merge the keys of both. The right operand replaces a key entirely, steps included."""
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
        """Reduce the records of each key to one, over the record axis only.

        Args:
          how: One of
            - "mean", "sum", "min", "max", "std", "first", "last" or "count";
            - a `Reducer` or `RecordReducer`;
            - a function that maps an array with records along axis 0 to one record, applied to each
              leaf;
            - a mapping from keys or glob patterns to these. The first matching pattern applies, and
              keys without a match are kept unchanged.

        Returns:
          A logdict with the reduced records. Their steps are those of the last record (of the first
          one for "first"). A key without records still has none.

        Raises:
          ValueError: `how` is none of these, or a pattern matches no key.
          TypeError: The values cannot be reduced this way.
        """
        hows = how if isinstance(how, Mapping) else {"*": how}
        validate_names("how", hows, "`logs.reduce`")
        unknown = [name for name in hows if not any(matches(key, [name]) for key in self)]
        if unknown and isinstance(how, Mapping):
            raise ValueError(
                f"`logs.reduce` got {format_names(unknown)}, and there is {format_names(self)}."
            )
        for each in hows.values():
            check_reducer(each)
        cache: ColumnCache = {}
        records = self._records()
        for key, column in records.items():
            pattern = next((name for name in hows if matches(key, [name])), None)
            if pattern is None:
                continue
            try:
                records[key] = reduce_key(column, hows[pattern], cache)
            except Exception as error:
                add_note(error, f"This was in `logs.reduce`, for the key {key!r}.")
                raise
        return self._with_records(records)

    def filter(self, keys: str | Iterable[str] | Callable[[str, Tree], Any]) -> logdict:
        """Keep the keys and leaves that match names or patterns, or keys that a predicate accepts.

        Args:
          keys: Names or glob patterns, or a function of a key and its value. A pattern that
            matches a key keeps its whole value. A pattern that matches the name of a leaf, such as
            `grad/*/weight`, keeps that leaf; the other leaves of the key become None. A function
            returns whether to keep the key.
        """
        records = self._records()
        if callable(keys):
            chosen = {key: x for key, x in records.items() if keys(key, x.value)}
            return self._with_records(chosen)
        patterns = validate_names("keys", keys, "`logs.filter`") or ()
        kept = {}
        for key, column in records.items():
            if not matches(key, patterns):
                column = column.select_leaves(key, lambda name: matches(name, patterns))
                if not jax.tree.leaves(column.value):
                    continue
            kept[key] = column
        return self._with_records(kept)

    def prefix(self, prefix: str) -> logdict:
        """Prepend `prefix` literally to every key: `logs.prefix("train/")`."""
        prefix = validate_string("prefix", prefix, "`logs.prefix`")
        return self._with_records({prefix + key: column for key, column in self._records().items()})

    def compact(self) -> logdict:
        """Remove padding. Waits for the counts; not available inside compiled functions.

        If lanes differ in their number of records, the arrays keep the length of the longest lane,
        and the counts are kept too.
        """
        cache: ColumnCache = {}
        self._require_concrete("logs.compact()", KeyRecords.has_concrete_count)
        return self._with_records({key: x.compact(cache) for key, x in self._records().items()})

    # Inspection and export on the host.

    def first_nonfinite(self) -> NonFinite | None:
        """Return the first record that holds a NaN or an infinity, or None. Waits for the values.

        Among several keys the smallest step decides: `step` if all of them have it, else the first
        step that all have. Without a common step, the smallest record index decides.

        Returns:
          A `NonFinite` with `key`, `record`, `steps`, `site`, `lane` and `leaf`, or None.
        """
        self._require_concrete("logs.first_nonfinite()")
        return first_nonfinite(self._records())

    def to_pandas(self, key: str | None = None) -> Any:
        """Return a `pandas.DataFrame` with one row per record and lane, of one key or of all.

        Columns are the lanes (`lane`, or `lane_0`, `lane_1`, ...), `record`, the steps, then the
        leaves by name. Cells hold NumPy arrays if a record is not a scalar. A lane, record or step
        column with the name of a leaf gets a trailing underscore.

        Keys with the same steps, and keys without steps, are aligned record by record. Other keys
        share a row only if all their steps are equal, and have missing values elsewhere; the rows
        are then sorted by lane and steps, without a `record` column, which would differ between
        keys.

        Args:
          key: The only key to export; all keys if None.

        Raises:
          ImportError: pandas is not installed.
        """
        self._require_concrete("logs.to_pandas()")
        keys = self.keys() if key is None else [key]
        return export.to_pandas({key: self._key_records(key) for key in keys})

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` with a variable per leaf, over lanes, `record` and leaf axes.

        Steps are coordinates. Padding of short lanes and missing steps are NaN, which turns
        integers into floats. If keys differ in their steps or number of records, each group of keys
        that agree has a separate record axis and separate steps, named after its first key:
        `record_loss`, `step_loss`.

        Raises:
          ImportError: xarray is not installed.
        """
        self._require_concrete("logs.to_xarray()")
        return export.to_xarray(self._records())

    def __repr__(self) -> str:
        return display.format_logdict(self._records())


def concat(logdicts: Iterable[logdict]) -> logdict:
    """Join many logdicts in order, as `a + b + c` does, in time linear in their records.

    Outside compiled functions `concat` waits for the arrays, joins them on the host without
    compiling, and puts the result on the device and with the sharding of the first array. NumPy
    arrays stay NumPy arrays. Inside compiled functions it becomes part of the program.

    Args:
      logdicts: Iterable of logdicts. They may differ in their keys and steps: a key that only one
        has is kept unchanged, and a step that some lack is missing there. An empty iterable gives
        an empty logdict.

    Returns:
      One logdict with all records.

    Raises:
      TypeError: An element is not a logdict.
      ValueError: The records of a key differ in their structure, lanes, shape or dtype.
    """
    if isinstance(logdicts, Mapping) or not isinstance(logdicts, Iterable):
        raise TypeError(
            f"`concat` takes a list of logdicts, and got {describe_value(logdicts)}. Write "
            "`concat([first, second])`."
        )
    parts = list(logdicts)
    for number, part in enumerate(parts):
        if not isinstance(part, logdict):
            raise TypeError(
                f"`concat` takes a list of logdicts, and got {describe_value(part)} at index "
                f"{number}. Write `logdict(data)` around a dictionary of arrays with a record axis."
            )
    return _join_logdicts(parts, "`concat`", lambda one, two: f" of logdicts {one} and {two}")


def _join_logdicts(parts: list[logdict], what: str, which: Callable[[int, int], str]) -> logdict:
    """Join logdicts key by key. `which` describes two of them, by number, in errors."""
    found: dict[str, dict[int, KeyRecords]] = {}
    for number, part in enumerate(parts):
        for key, column in part._records().items():
            found.setdefault(key, {})[number] = column
    cache: ColumnCache = {}
    records = {}
    for key, columns in found.items():
        try:
            validate_compatible(columns)
        except IncompatibleRecordsError as error:
            place = which(*error.parts)
            raise ValueError(f"{what} cannot join {key!r}{place}: {error}") from error
        column, *others = columns.values()
        records[key] = join_records([column, *others], cache) if others else column
    names = (name for part in parts for name in part._layout.steps)
    return logdict()._with_records(records, dict.fromkeys(names))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a key or leaf name equals one of these names or matches one of these globs."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _flatten_with_keys(logs: logdict) -> tuple[list[tuple[Any, Any]], LogdictLayout]:
    arrays, layout = flatten_logdict(logs)
    return list(zip(layout.paths, arrays, strict=True)), layout


def _flatten_steps(steps: stepdict) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    return [(jax.tree_util.DictKey(name), x) for name, x in steps.items()], tuple(steps)


def _unflatten_steps(names: tuple[str, ...], children: Any) -> stepdict:
    return stepdict(zip(names, children, strict=True))


# A step may have the name of any public method; see `views.py`.
for _name, _function in {**vars(dict), **vars(RecordTable), **vars(logdict)}.items():
    if not _name.startswith("_") and isinstance(
        _function, (types.FunctionType, types.MethodDescriptorType)
    ):
        setattr(logdict, _name, Method(_function, _name))

jax.tree_util.register_pytree_with_keys(
    logdict, _flatten_with_keys, functools.partial(unflatten_logdict, logdict), flatten_logdict
)
jax.tree_util.register_pytree_with_keys(stepdict, _flatten_steps, _unflatten_steps)
