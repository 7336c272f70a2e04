"""The census: which keys a program logs, how often, and what their records look like.

A `Tally` is what is known of one key before the program runs. Tallies of parts are combined as the
program combines the parts: one after the other (`then`), many times (`times`), one of several
(`either`), nobody knows how often (`unbounded`), on every shard (`on_shards`). Sites that log the
same key must agree; where they do not, the error shows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Aval, varying_axes
from logax._log_spec import Entry, LogSpec

Census = dict[str, "Tally"]

MAX_SHORT_LOOP_RECORDS = 8  # a shorter loop in a loop is no place for records to leave


@dataclasses.dataclass(frozen=True)
class Tally:
    """What is known of the records of one key.

    Attributes:
      entry: Its structure and leaves.
      leaves: Shape and dtype of each leaf of one record.
      steps: Shape and dtype of each step, by name.
      sites: Where it is logged: file and line of each call.
      most: The greatest number of records, or None where nothing bounds it.
      exact: Whether there are always that many.
      varying: Mesh axes over which values, or whether they are logged, differ between shards.
      count_varying: Those of them over which whether they are logged differs.
      shards: Sizes of the shard axes in front of each value, one for each `shard_map` around it.
      in_loop: Whether some of them are logged in a loop.
      has_long_loop: Whether a loop logs more than `MAX_SHORT_LOOP_RECORDS` of them.
      logs: Every log that has the key.
    """

    entry: Entry
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    steps: dict[str, jax.ShapeDtypeStruct]
    sites: tuple[str, ...]
    most: int | None = 1
    exact: bool = True
    varying: frozenset[str] = frozenset()
    count_varying: frozenset[str] = frozenset()
    shards: tuple[int, ...] = ()
    logs: frozenset[LogSpec] = frozenset()
    in_loop: bool = False
    has_long_loop: bool = False

    def times(self, number: int) -> Tally:
        """The records of `number` executions."""
        most = None if self.most is None else self.most * number
        has_long_loop = self.has_long_loop or most is None or most > MAX_SHORT_LOOP_RECORDS
        return dataclasses.replace(self, most=most, in_loop=True, has_long_loop=has_long_loop)

    def unbounded(self) -> Tally:
        """The records of a loop that runs nobody knows how often."""
        return dataclasses.replace(self, most=None, exact=False, in_loop=True, has_long_loop=True)

    def maybe(self, varying: frozenset[str] = frozenset()) -> Tally:
        """The records of something that may not run."""
        return dataclasses.replace(
            self,
            exact=False,
            varying=self.varying | varying,
            count_varying=self.count_varying | varying,
        )

    def on_shards(self, axes: frozenset[str], number: int) -> Tally:
        """The records of a program that every shard runs: a shard axis in front of each value."""

        def widened(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((number, *like.shape), like.dtype)

        return dataclasses.replace(
            self,
            leaves=tuple(map(widened, self.leaves)),
            steps={name: widened(like) for name, like in self.steps.items()},
            varying=self.varying - axes,
            count_varying=self.count_varying - axes,
            shards=(number, *self.shards),
        )

    def on_one_shard(self) -> Tally:
        """What `on_shards` was made of, as far as shapes go."""

        def narrowed(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(like.shape[1:], like.dtype)

        return dataclasses.replace(
            self,
            leaves=tuple(map(narrowed, self.leaves)),
            steps={name: narrowed(like) for name, like in self.steps.items()},
            shards=self.shards[1:],
        )

    def on_no_shards(self) -> Tally:
        """What any number of `on_shards` was made of, as far as shapes go."""
        return self.on_one_shard().on_no_shards() if self.shards else self


def of_log(entries: Iterable[Entry], spec: LogSpec, avals: list[Aval]) -> Census:
    """The census of one `log`, given its chosen entries and the types of their operands."""
    census: Census = {}
    at = 0
    steps = dict(zip(spec.steps, map(_like, avals[len(avals) - len(spec.steps) :]), strict=True))
    axes = frozenset().union(*map(varying_axes, avals)) if avals else frozenset()
    for entry in entries:
        for leaf, aval in zip(entry.leaves, avals[at:], strict=False):
            if aval.dtype.itemsize > 4 and aval.dtype != jax.dtypes.canonicalize_dtype(aval.dtype):
                raise TypeError(
                    f"`{leaf.name}`, logged at {spec.site}, is {aval.dtype.name}, and outside of "
                    "the log JAX keeps 32 bits. Set `jax_enable_x64` for the whole program."
                )
        leaves = tuple(map(_like, avals[at : at + len(entry.leaves)]))
        at += len(entry.leaves)
        tally = Tally(entry, leaves, steps, (spec.site,), varying=axes, logs=frozenset([spec]))
        census = then(census, {entry.key: tally})
    return census


def then(first: Census, second: Census) -> Census:
    """The census of two parts that run one after the other."""
    joined = dict(first)
    for key, tally in second.items():
        if key in first:
            one, two = _agreed(first[key], tally)
            most = None if one.most is None or two.most is None else one.most + two.most
            tally = dataclasses.replace(one, most=most, exact=one.exact and two.exact)
        joined[key] = tally
    return joined


def either(branches: list[Census], varying: frozenset[str]) -> Census:
    """The census of several parts of which one runs; `varying` is that of the choice."""
    joined: Census = {}
    for key in dict.fromkeys(key for branch in branches for key in branch):
        present = [branch[key] for branch in branches if key in branch]
        tally = present[0]
        for other in present[1:]:
            one, two = _agreed(tally, other)
            most = None if one.most is None or two.most is None else max(one.most, two.most)
            same = one.exact and two.exact and one.most == two.most
            tally = dataclasses.replace(one, most=most, exact=same)
        everywhere = len(present) == len(branches)
        joined[key] = tally if everywhere and tally.exact else tally.maybe(varying)
    return joined


def same_records(one: Census, two: Census) -> bool:
    """Whether two programs log the same: the same keys, at the same sites, as often."""
    if one.keys() != two.keys():
        return False

    def facts(tally: Tally) -> tuple[Any, ...]:
        likes = [(like.shape, like.dtype) for like in tally.leaves]
        return likes, sorted(tally.steps), sorted(tally.sites), tally.most, tally.exact

    return all(facts(one[key]) == facts(two[key]) for key in one)


def _like(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _agreed(one: Tally, two: Tally) -> tuple[Tally, Tally]:
    """Both tallies with the structure, dtypes, steps and sites that hold for both."""
    key, sites = one.entry.key, one.sites + tuple(s for s in two.sites if s not in one.sites)
    if one.entry.structure != two.entry.structure or one.entry.leaves != two.entry.leaves:
        raise TypeError(
            f"`{key}` is logged with different structures: {_structure(one)} at {one.sites[0]} and "
            f"{_structure(two)} at {two.sites[0]}. Log them under different keys."
        )
    if one.shards != two.shards:
        raise TypeError(
            f"`{key}` is logged inside a `shard_map` at {one.sites[0]} and outside of it at "
            f"{two.sites[0]}, or the other way round. Log them under different keys."
        )
    pairs = zip(one.entry.leaves, one.leaves, two.leaves, strict=True)
    leaves = tuple(_joined(f"`{leaf.name}`", a, b, one, two) for leaf, a, b in pairs)
    both = {**one.steps, **two.steps}
    steps = {name: both[name] for name in _in_order(list(one.steps), list(two.steps))}
    for name in one.steps.keys() & two.steps.keys():
        steps[name] = _joined(
            f"the step `{name}` of {key}", one.steps[name], two.steps[name], one, two
        )

    def agreed(tally: Tally) -> Tally:
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

    return agreed(one), agreed(two)


def _in_order(one: list[str], two: list[str]) -> list[str]:
    """The names of both, each in its own order where the two orders do not contradict."""
    names = list(one)
    at = len(names)
    for name in reversed(two):
        if name in one:
            at = min(at, names.index(name))
        else:
            names.insert(at, name)
    return names


def _joined(
    name: str, one: jax.ShapeDtypeStruct, two: jax.ShapeDtypeStruct, first: Tally, second: Tally
) -> jax.ShapeDtypeStruct:
    where = f"{_text(one)} at {first.sites[0]} and {_text(two)} at {second.sites[0]}"
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
    except ValueError:  # JAX joins the narrowest floats and integers with no others
        dtype = None
    if dtype is None or not (_holds(dtype, one.dtype) and _holds(dtype, two.dtype)):
        raise TypeError(
            f"{name} is logged with dtypes that cannot be joined without loss: {where}. Convert "
            "one of them where it is logged."
        )
    return jax.ShapeDtypeStruct(one.shape, dtype)


def _holds(wide: Any, narrow: Any) -> bool:
    """Whether every value of `narrow` has its exact like in `wide`, and a boolean stays one."""
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


def _text(like: jax.ShapeDtypeStruct) -> str:
    return f"{like.dtype.name}{list(like.shape)}"


def _structure(tally: Tally) -> str:
    """The structure in one word: its leaves in their places, PRNG keys as such."""
    entry = tally.entry
    kinds = ["key" if leaf.key_impl else "*" for leaf in entry.leaves]
    if entry.structure.num_leaves != len(kinds):
        return "`" + ",".join(leaf.name for leaf in entry.leaves) + "`"
    return "`" + repr(jax.tree.unflatten(entry.structure, kinds)).replace(" ", "") + "`"
