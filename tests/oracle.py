"""The oracle: what a program must have logged, found without any code of the library.

A program is a function `program(namespace, *args)` that takes `log` and its control flow from the
namespace. With `against(program, logax.log)` it becomes an ordinary JAX function. The oracle runs
the same program in plain Python, under `jax.disable_jit()`, with a recorder in place of `log`:

- `oracle(program, *args)` gives `(out, recording)`. `recording.records` holds one `Record` for each
  key of each executed `log` call, in order of execution, with NumPy values (of typed PRNG keys
  their data). `recording.sites` holds shapes, dtypes and steps of every `log` call in the program,
  executed or not, found by tracing it: they say which dtype a key has when its sites differ, and
  which steps it knows.
- `recording.chosen(...)` and `recording.thinned(k)` give what a choosing or thinning harvest keeps.
- `assert_logs_match(logs, recording)` compares key by key and record by record: values bit for bit,
  dtypes, structures, steps, order and counts. `capacity=c` expects the last `c` records of a key.

A record that lacks a step which its key has elsewhere shows NaN there, or the least integer of the
step's dtype. A value that does not vary over the lanes of a `vmap` inside the program has no axis
for them; but JAX decides what varies, and may take more for varying than the recorder does. So a
harvest may show an axis that the recorder does not have, with one value all along it.

`recorder` says what runs in Python in place of JAX's own functions.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recorder import Listener, Log, Namespace, Record, Recorder, is_key

Program = Callable[..., Any]


def against(program: Program, log: Log) -> Callable[..., Any]:
    """The program as an ordinary JAX function that logs with `log`."""
    namespace = Namespace(log)

    def run(*args: Any) -> Any:
        return program(namespace, *args)

    return run


@dataclass(frozen=True)
class Recording:
    """What a program logged, and what it could have logged (the sites hold shapes for values)."""

    records: tuple[Record, ...]
    sites: tuple[Record, ...]

    def chosen(
        self, argnames: Sequence[str] = (), tags: Sequence[str] = (), *, rest: bool = False
    ) -> Recording:
        """What a harvest with these options takes, or with `rest` what it leaves."""

        def takes(record: Record) -> bool:
            named = any(fnmatchcase(record.key, name) for name in argnames) or bool(
                set(tags) & set(record.tags)
            )
            return named or not (argnames or tags or record.explicit)

        def keep(record: Record) -> bool:
            return takes(record) != rest

        return Recording(tuple(filter(keep, self.records)), tuple(filter(keep, self.sites)))

    def thinned(self, interval: int) -> Recording:
        """Records 0, `interval`, 2 * `interval`, ... of each key."""
        seen: dict[str, int] = {}
        kept = []
        for record in self.records:
            number = seen.get(record.key, 0)
            seen[record.key] = number + 1
            if number % interval == 0:
                kept.append(record)
        return replace(self, records=tuple(kept))

    def prefixed(self, prefix: str) -> Recording:
        """The same with this in front of every key."""
        records, sites = (
            tuple(replace(record, key=prefix + record.key) for record in those)
            for those in (self.records, self.sites)
        )
        return Recording(records, sites)

    def known(self) -> tuple[str, ...]:
        """All keys with a site, in order of first appearance."""
        return tuple(dict.fromkeys(site.key for site in self.sites))

    def of(self, key: str) -> tuple[Record, ...]:
        """The records of one key."""
        return tuple(record for record in self.records if record.key == key)


_REMEMBERED: dict[Any, tuple[Any, Recording]] = {}


def oracle(program: Program, *args: Any) -> tuple[Any, Recording]:
    """Run the program in Python and give its output and its recording.

    A function is run once for the same arguments, since many tests ask about the same ones.
    """
    if not inspect.isfunction(program):  # a random program, which comes once
        return _recorded(program, *args)
    asked = program, repr(args)
    if asked not in _REMEMBERED:
        _REMEMBERED[asked] = _recorded(program, *args)
    return _REMEMBERED[asked]


def _recorded(program: Program, *args: Any) -> tuple[Any, Recording]:
    recorder, sites = Recorder(), Listener()
    with jax.disable_jit():
        out = program(recorder, *args)
    jax.eval_shape(lambda *args: program(sites, *args), *args)
    return out, Recording(tuple(recorder.records), tuple(sites.records))


@dataclass(frozen=True)
class Column:
    """All that is expected of one key; `like` has the shape and dtype of each leaf of a record.

    Arrays have the records in front, then an axis for each of the axes around its `log` calls.
    """

    like: Any
    value: Any
    steps: dict[str, np.ndarray[Any, Any]]
    count: int
    sizes: tuple[int, ...]


def expected(recording: Recording, capacity: int | None = None) -> dict[str, Column]:
    """The recording by key: the last `capacity` records stacked, and the count of all of them."""
    columns = {}
    for key in recording.known():
        sites = [site for site in recording.sites if site.key == key]
        records = recording.of(key)
        kept = records if capacity is None else records[-capacity:]
        like = jax.tree.map(_joined, *(site.value for site in sites))
        sizes = sites[0].sizes
        steps = {}
        for name in dict.fromkeys(name for site in sites for name in site.steps):
            step = _joined(*(site.steps[name] for site in sites if name in site.steps))
            missing = np.asarray(_missing(step.dtype), step.dtype)
            given = [record.steps.get(name, missing) for record in kept]
            steps[name] = _stack(sizes, step, *given)
        value = jax.tree.map(partial(_stack, sizes), like, *(record.value for record in kept))
        columns[key] = Column(like, value, steps, len(records), sizes)
    return columns


def _missing(dtype: Any) -> float:
    return np.nan if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _joined(*leaves: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    dtypes = {leaf.dtype for leaf in leaves}
    dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)
    return jax.ShapeDtypeStruct(leaves[0].shape, dtype)


def _stack(
    sizes: tuple[int, ...], like: jax.ShapeDtypeStruct, *values: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    like = jax.eval_shape(jax.random.key_data, like) if is_key(like) else like
    least = (*[1] * len(sizes), *like.shape)
    shape = np.broadcast_shapes(least, *(value.shape for value in values))
    stack = np.zeros((len(values), *shape), like.dtype)
    for number, value in enumerate(values):
        stack[number] = value
    return stack


def assert_logs_match(logs: Any, recording: Recording, *, capacity: int | None = None) -> None:
    """Raise unless `logs` holds exactly these records; keys without any may be absent."""
    columns = expected(recording, capacity)
    surplus = set(logs) - set(columns)
    assert not surplus, f"keys that no `log` call of the program has: {surplus}"
    compact = logs.compact()
    for key, column in columns.items():
        if key not in logs:
            assert column.count == 0, f"{key!r} is missing, {column.count} records were expected"
            continue
        count = int(logs.count[key])
        assert count == column.count, (
            f"{key!r} counts {count} records, {column.count} were expected"
        )
        _assert_same(key, compact[key], column)
        for name, steps in column.steps.items():
            found = step_of(compact, name, key, steps)
            _assert_same_lanes(found, steps, column.sizes, f"step {name!r} of {key!r}")
        for name in compact.steps:
            unknown = key in compact.steps[name] and name not in column.steps
            assert not unknown, f"{key!r} has a step {name!r} that no `log` call gave it"


def step_of(logs: Any, name: str, key: str, like: Any) -> Any:
    """The steps of a key; as missing ones where no record has them."""
    if name in logs.steps and key in logs.steps[name]:
        return logs.steps[name][key]
    return np.full_like(like, _missing(like.dtype))


def _assert_same(key: str, value: Any, column: Column) -> None:
    found, right = (str(jax.tree.structure(tree)) for tree in (value, column.like))
    assert found == right, f"{key!r} has the structure {found}, not {right}"
    names = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(column.like)
    ]
    leaves = zip(names, *map(jax.tree.leaves, (value, column.value, column.like)), strict=True)
    for name, actual, wanted, like in leaves:
        assert actual.dtype == like.dtype, (
            f"{key + name!r} has dtype {actual.dtype}, not {like.dtype}"
        )
        _assert_same_lanes(host(actual), wanted, column.sizes, f"values of {key + name!r}")


def _assert_same_lanes(actual: Any, wanted: Any, sizes: tuple[int, ...], what: str) -> None:
    assert_same_bits(*with_all_lanes(actual, wanted, sizes, 1), what)


def with_all_lanes(
    actual: Any, wanted: Any, sizes: tuple[int, ...], leading: int
) -> tuple[Any, Any]:
    """Both arrays with all lanes, if the first has at least the axes that the second varies over.

    They are given back as they are if it has not, so that a comparison fails. The axes for lanes
    come after the `leading` ones; the second array has all of them, some of size 1.
    """
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    end = leading + len(sizes)
    own = wanted.shape[end:]
    shown = actual.ndim - leading - len(own)
    needed = {axis for axis in range(len(sizes)) if wanted.shape[leading + axis] > 1}
    for axes in itertools.combinations(range(len(sizes)), max(shown, 0)):
        shape = [sizes[axis] if axis in axes else 1 for axis in range(len(sizes))]
        full = (*wanted.shape[:leading], *sizes, *own)
        dense = (*wanted.shape[:leading], *(sizes[axis] for axis in axes), *own)
        if needed <= set(axes) and actual.shape == dense:
            spread = actual.reshape((*wanted.shape[:leading], *shape, *own))
            return np.broadcast_to(spread, full), np.broadcast_to(wanted, full)
    return actual, wanted


def assert_same_bits(actual: Any, wanted: Any, what: str = "value") -> None:
    """Raise unless both arrays have one dtype, one shape and the same bytes."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    found, right = (f"{x.dtype}{list(x.shape)} {x.tolist()}" for x in (actual, wanted))
    same = (actual.dtype, actual.shape, actual.tobytes()) == (
        wanted.dtype,
        wanted.shape,
        wanted.tobytes(),
    )
    assert same, f"{what}: found {found}, expected {right}"


def host(x: Any) -> np.ndarray[Any, Any]:
    """A NumPy array; of typed PRNG keys their data."""
    return np.asarray(jax.random.key_data(x) if is_key(x) else x)


def lane(logs: Any, index: int) -> Any:
    """One lane of the logs of a vmapped harvest."""
    return jax.tree.map(lambda x: x[index], logs)
