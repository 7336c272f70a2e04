"""Census: the keys that a program logs, their counts, and the types of their records.

A `Tally` describes the records of one key before the program runs. Tallies of parts are combined as
the program combines the parts: in sequence (`census_of_sequence`), as branches
(`census_of_branches`), repeated (`times`), repeated without a bound (`unbounded`), or on every
shard (`over_shards`). If two sites log the same key with incompatible types, the error shows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Aval, varying_axes
from logax._log_spec import KeySpec, LogSpec

Census = dict[str, "Tally"]

MAX_SHORT_LOOP_RECORDS = 8  # records do not leave inside a shorter inner loop


@dataclasses.dataclass(frozen=True)
class Tally:
    """Description of the records of one key.

    Attributes:
      entry: Structure and leaves of the logged value.
      leaves: Shape and dtype of each leaf of one record.
      steps: Shape and dtype of each step, by name.
      sites: File and line of each `log` call.
      max_records: Maximum number of records; None if it is unbounded.
      is_exact: True if the number of records is always `max_records`.
      varying: Mesh axes over which values, or their presence, differ between shards.
      count_varying: The axes of `varying` over which the number of records differs.
      shards: Sizes of the shard axes in front of each value, one per `shard_map` around the log.
      logs: Every log that has the key.
      in_loop: True if a loop logs some of the records.
      has_long_loop: True if a loop logs more than `MAX_SHORT_LOOP_RECORDS` records.
    """

    entry: KeySpec
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    steps: dict[str, jax.ShapeDtypeStruct]
    sites: tuple[str, ...]
    max_records: int | None = 1
    is_exact: bool = True
    varying: frozenset[str] = frozenset()
    count_varying: frozenset[str] = frozenset()
    shards: tuple[int, ...] = ()
    logs: frozenset[LogSpec] = frozenset()
    in_loop: bool = False
    has_long_loop: bool = False

    def times(self, number: int) -> Tally:
        """Return the tally of `number` executions."""
        most = None if self.max_records is None else self.max_records * number
        has_long_loop = self.has_long_loop or most is None or most > MAX_SHORT_LOOP_RECORDS
        return dataclasses.replace(
            self, max_records=most, in_loop=True, has_long_loop=has_long_loop
        )

    def unbounded(self) -> Tally:
        """Return the tally of a loop with an unknown number of iterations."""
        return dataclasses.replace(
            self, max_records=None, is_exact=False, in_loop=True, has_long_loop=True
        )

    def conditional(self, varying: frozenset[str] = frozenset()) -> Tally:
        """Return the tally of a part that may not run."""
        return dataclasses.replace(
            self,
            is_exact=False,
            varying=self.varying | varying,
            count_varying=self.count_varying | varying,
        )

    def over_shards(self, axes: frozenset[str], number: int) -> Tally:
        """Return the tally of a part that every shard runs: values get a leading shard axis."""

        def add_axis(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((number, *like.shape), like.dtype)

        return dataclasses.replace(
            self,
            leaves=tuple(map(add_axis, self.leaves)),
            steps={name: add_axis(like) for name, like in self.steps.items()},
            varying=self.varying - axes,
            count_varying=self.count_varying - axes,
            shards=(number, *self.shards),
        )

    def per_shard(self) -> Tally:
        """Return the tally without its outermost shard axis, as on one shard."""

        def remove_axis(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(like.shape[1:], like.dtype)

        return dataclasses.replace(
            self,
            leaves=tuple(map(remove_axis, self.leaves)),
            steps={name: remove_axis(like) for name, like in self.steps.items()},
            shards=self.shards[1:],
        )

    def without_shards(self) -> Tally:
        """Return the tally without any shard axis."""
        return self.per_shard().without_shards() if self.shards else self


def census_of_entries(entries: Iterable[KeySpec], spec: LogSpec, avals: list[Aval]) -> Census:
    """Return the census of one `log`, given its selected entries and the operand types."""
    census: Census = {}
    at = 0
    steps = dict(zip(spec.steps, map(_type_of, avals[len(avals) - len(spec.steps) :]), strict=True))
    axes = frozenset().union(*map(varying_axes, avals)) if avals else frozenset()
    for entry in entries:
        for leaf, aval in zip(entry.leaves, avals[at:], strict=False):
            if aval.dtype.itemsize > 4 and aval.dtype != jax.dtypes.canonicalize_dtype(aval.dtype):
                raise TypeError(
                    f"`{leaf.name}`, logged at {spec.site}, is {aval.dtype.name}, and outside of "
                    "the log JAX keeps 32 bits. Set `jax_enable_x64` for the whole program."
                )
        leaves = tuple(map(_type_of, avals[at : at + len(entry.leaves)]))
        at += len(entry.leaves)
        tally = Tally(entry, leaves, steps, (spec.site,), varying=axes, logs=frozenset([spec]))
        census = census_of_sequence(census, {entry.key: tally})
    return census


def census_of_sequence(first: Census, second: Census) -> Census:
    """Return the census of two parts that run one after the other."""
    combined = dict(first)
    for key, tally in second.items():
        if key in first:
            one, two = _unify_tallies(first[key], tally)
            most = (
                None
                if one.max_records is None or two.max_records is None
                else one.max_records + two.max_records
            )
            tally = dataclasses.replace(
                one, max_records=most, is_exact=one.is_exact and two.is_exact
            )
        combined[key] = tally
    return combined


def census_of_branches(branches: list[Census], varying: frozenset[str]) -> Census:
    """Return the census of parts of which one runs; `varying` are the axes of the predicate."""
    combined: Census = {}
    for key in dict.fromkeys(key for branch in branches for key in branch):
        present = [branch[key] for branch in branches if key in branch]
        tally = present[0]
        for other in present[1:]:
            one, two = _unify_tallies(tally, other)
            most = (
                None
                if one.max_records is None or two.max_records is None
                else max(one.max_records, two.max_records)
            )
            same = one.is_exact and two.is_exact and one.max_records == two.max_records
            tally = dataclasses.replace(one, max_records=most, is_exact=same)
        everywhere = len(present) == len(branches)
        combined[key] = tally if everywhere and tally.is_exact else tally.conditional(varying)
    return combined


def have_same_records(one: Census, two: Census) -> bool:
    """Return whether two programs log the same: the same keys, at the same sites, as often."""
    if one.keys() != two.keys():
        return False

    def facts(tally: Tally) -> tuple[Any, ...]:
        likes = [(like.shape, like.dtype) for like in tally.leaves]
        return likes, sorted(tally.steps), sorted(tally.sites), tally.max_records, tally.is_exact

    return all(facts(one[key]) == facts(two[key]) for key in one)


def _type_of(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _unify_tallies(one: Tally, two: Tally) -> tuple[Tally, Tally]:
    """Return both tallies with common dtypes, steps and sites; raise if they are incompatible."""
    key, sites = one.entry.key, one.sites + tuple(s for s in two.sites if s not in one.sites)
    if one.entry.structure != two.entry.structure or one.entry.leaves != two.entry.leaves:
        raise TypeError(
            f"`{key}` is logged with different structures: {_structure_text(one)} at "
            f"{one.sites[0]} and {_structure_text(two)} at {two.sites[0]}. Log them under "
            "different keys."
        )
    if one.shards != two.shards:
        raise TypeError(
            f"`{key}` is logged inside a `shard_map` at {one.sites[0]} and outside of it at "
            f"{two.sites[0]}, or the other way round. Log them under different keys."
        )
    pairs = zip(one.entry.leaves, one.leaves, two.leaves, strict=True)
    leaves = tuple(_unify_types(f"`{leaf.name}`", a, b, one, two) for leaf, a, b in pairs)
    both = {**one.steps, **two.steps}
    steps = {name: both[name] for name in _merge_names(list(one.steps), list(two.steps))}
    for name in one.steps.keys() & two.steps.keys():
        steps[name] = _unify_types(
            f"the step `{name}` of {key}", one.steps[name], two.steps[name], one, two
        )

    def unify(tally: Tally) -> Tally:
        return dataclasses.replace(
            tally,
            leaves=leaves,
            steps=steps,
            sites=sites,
            varying=one.varying | two.varying,
            count_varying=one.count_varying | two.count_varying,
            logs=one.logs | two.logs,
            in_loop=one.in_loop or two.in_loop,
            has_long_loop=one.has_long_loop or two.has_long_loop,
        )

    return unify(one), unify(two)


def _merge_names(one: list[str], two: list[str]) -> list[str]:
    """Return the names of both lists, in an order that agrees with both if that is possible."""
    names = list(one)
    at = len(names)
    for name in reversed(two):
        if name in one:
            at = min(at, names.index(name))
        else:
            names.insert(at, name)
    return names


def _unify_types(
    name: str, one: jax.ShapeDtypeStruct, two: jax.ShapeDtypeStruct, first: Tally, second: Tally
) -> jax.ShapeDtypeStruct:
    where = f"{_type_text(one)} at {first.sites[0]} and {_type_text(two)} at {second.sites[0]}"
    if one.shape != two.shape:
        if first.sites[0] == second.sites[0]:
            advice = (
                "One `log` gave both, because a map inside of the harvest has batches of different "
                "sizes or its function is called with different shapes. Harvest inside of the map, "
                "as in `lax.map(spool(f), xs, batch_size=n)`; or log what always has one shape, "
                "such as a mean; or stream with `tap(f)`, which takes records of any shape."
            )
        else:
            advice = (
                "Log them under different keys, or give them one shape. Where a `vmap` inside of "
                "the harvest made them differ, harvest inside of it: `vmap(spool(f))`."
            )
        raise TypeError(f"{name} is logged with different shapes: {where}. {advice}")
    if one.dtype == two.dtype:
        return one
    try:
        dtype = jnp.promote_types(one.dtype, two.dtype)
    except ValueError:  # JAX promotes the narrowest floats and integers with no others
        dtype = None
    if dtype is None or not (_can_represent(dtype, one.dtype) and _can_represent(dtype, two.dtype)):
        raise TypeError(
            f"{name} is logged with dtypes that cannot be combined without loss: {where}. Convert "
            "one of them where it is logged."
        )
    return jax.ShapeDtypeStruct(one.shape, dtype)


def _can_represent(wide: Any, narrow: Any) -> bool:
    """Return whether `wide` holds every value of `narrow` exactly; booleans must stay booleans."""
    if wide == narrow:
        return True
    if narrow == np.bool_:
        return False
    if jnp.issubdtype(wide, jnp.complexfloating):
        wide = np.finfo(wide).dtype
        narrow = np.finfo(narrow).dtype if jnp.issubdtype(narrow, jnp.complexfloating) else narrow
    if jnp.issubdtype(wide, jnp.integer):
        outer, inner = jnp.iinfo(wide), jnp.iinfo(narrow)
        return bool(outer.min <= inner.min and inner.max <= outer.max)
    target = jnp.finfo(wide)
    if jnp.issubdtype(narrow, jnp.integer):
        return bool(jnp.iinfo(narrow).bits <= target.nmant + 1)
    source = jnp.finfo(narrow)
    return bool(
        source.nmant <= target.nmant
        and source.maxexp <= target.maxexp
        and source.minexp >= target.minexp
    )


def _type_text(like: jax.ShapeDtypeStruct) -> str:
    return f"{like.dtype.name}{list(like.shape)}"


def _structure_text(tally: Tally) -> str:
    """Return the structure as text: `*` for each leaf, `key` for each PRNG key."""
    entry = tally.entry
    kinds = ["key" if leaf.key_impl else "*" for leaf in entry.leaves]
    if entry.structure.num_leaves != len(kinds):
        return "`" + ",".join(leaf.name for leaf in entry.leaves) + "`"
    return "`" + repr(jax.tree.unflatten(entry.structure, kinds)).replace(" ", "") + "`"
