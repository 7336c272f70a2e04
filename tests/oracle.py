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
step's dtype.

Two functions of JAX do not run in Python under `jax.disable_jit()`, and the oracle stands in for
them: a scan of length 0 is refused, and `jax.checkpoint` always traces.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Log = Callable[..., None]
Program = Callable[..., Any]


class Namespace:
    """`log` and the control flow of JAX, as a program sees them."""

    scan: Any = staticmethod(jax.lax.scan)
    fori_loop: Any = staticmethod(jax.lax.fori_loop)
    while_loop: Any = staticmethod(jax.lax.while_loop)
    cond: Any = staticmethod(jax.lax.cond)
    switch: Any = staticmethod(jax.lax.switch)
    map: Any = staticmethod(jax.lax.map)
    jit: Any = staticmethod(jax.jit)
    checkpoint: Any = staticmethod(jax.checkpoint)
    custom_jvp: Any = staticmethod(jax.custom_jvp)
    custom_vjp: Any = staticmethod(jax.custom_vjp)

    def __init__(self, log: Log) -> None:
        self.log = log


def ignore(*args: Any, **options: Any) -> None:
    """A `log` that does nothing."""


def against(program: Program, log: Log) -> Callable[..., Any]:
    """The program as an ordinary JAX function that logs with `log`."""
    namespace = Namespace(log)

    def run(*args: Any) -> Any:
        return program(namespace, *args)

    return run


@dataclass(frozen=True)
class Record:
    """One key of one executed `log` call."""

    key: str
    value: Any
    steps: dict[str, Any]
    tags: tuple[str, ...] = ()
    explicit: bool = False


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

    def known(self) -> tuple[str, ...]:
        """All keys with a site, in order of first appearance."""
        return tuple(dict.fromkeys(site.key for site in self.sites))

    def of(self, key: str) -> tuple[Record, ...]:
        """The records of one key."""
        return tuple(record for record in self.records if record.key == key)


class _Recorder(Namespace):
    """The namespace of the oracle: its `log` appends to a list."""

    def __init__(self) -> None:
        super().__init__(self._record)
        self.records: list[Record] = []
        self._paused = False

    def _record(
        self,
        data: Any,
        /,
        *,
        every: int | None = None,
        tags: Sequence[str] = (),
        explicit: bool = False,
        **steps: Any,
    ) -> None:
        if self._paused or (every is not None and int(steps["step"]) % every):
            return
        steps = {name: _host(step) for name, step in steps.items()}
        for key, value in (data() if callable(data) else data).items():
            self.records.append(
                Record(key, jax.tree.map(_host, value), steps, tuple(tags), explicit)
            )

    def scan(
        self, body: Any, carry: Any, xs: Any = None, length: int | None = None, **options: Any
    ) -> Any:
        if length is None:
            length = len(jax.tree.leaves(xs)[0])
        if length:
            return jax.lax.scan(body, carry, xs, length, **options)
        element = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
        paused, self._paused = self._paused, True
        with jax.disable_jit(False):
            _, ys = jax.eval_shape(body, carry, element)
        self._paused = paused
        return carry, jax.tree.map(lambda y: jnp.zeros((0, *y.shape), y.dtype), ys)

    def map(self, function: Any, xs: Any) -> Any:
        return self.scan(lambda _, x: (None, function(x)), None, xs)[1]

    def checkpoint(self, function: Any) -> Any:
        return function


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
    recorder = _Recorder()
    with jax.disable_jit():
        out = program(recorder, *args)
    return out, Recording(tuple(recorder.records), _sites(program, *args))


def _sites(program: Program, *args: Any) -> tuple[Record, ...]:
    sites: list[Record] = []

    def log(
        data: Any, /, *, every: Any = None, tags: Any = (), explicit: bool = False, **steps: Any
    ) -> None:
        shapes = {name: _shape(step) for name, step in steps.items()}
        for key, value in (data() if callable(data) else data).items():
            sites.append(Record(key, jax.tree.map(_shape, value), shapes, tuple(tags), explicit))

    jax.eval_shape(against(program, log), *args)
    return tuple(sites)


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    x = jnp.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _host(x: Any) -> np.ndarray[Any, Any]:
    x = jnp.asarray(x)
    return np.asarray(jax.random.key_data(x) if _is_key(x) else x)


@dataclass(frozen=True)
class Column:
    """All that is expected of one key; `like` has the shape and dtype of each leaf of a record."""

    like: Any
    value: Any
    steps: dict[str, np.ndarray[Any, Any]]
    count: int


def expected(recording: Recording, capacity: int | None = None) -> dict[str, Column]:
    """The recording by key: the last `capacity` records stacked, and the count of all of them."""
    columns = {}
    for key in recording.known():
        sites = [site for site in recording.sites if site.key == key]
        records = recording.of(key)
        kept = records if capacity is None else records[-capacity:]
        like = jax.tree.map(_joined, *(site.value for site in sites))
        steps = {}
        for name in dict.fromkeys(name for site in sites for name in site.steps):
            dtype = _joined(*(site.steps[name] for site in sites if name in site.steps)).dtype
            missing = _missing(dtype)
            steps[name] = np.asarray([record.steps.get(name, missing) for record in kept], dtype)
        value = jax.tree.map(_stack, like, *(record.value for record in kept))
        columns[key] = Column(like, value, steps, len(records))
    return columns


def _missing(dtype: Any) -> float:
    return np.nan if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _joined(*leaves: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    dtypes = {leaf.dtype for leaf in leaves}
    dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)
    return jax.ShapeDtypeStruct(leaves[0].shape, dtype)


def _stack(like: jax.ShapeDtypeStruct, *values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    like = jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
    stack = np.zeros((len(values), *like.shape), like.dtype)
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
            if name in compact.steps and key in compact.steps[name]:
                found = compact.steps[name][key]
            else:  # right where no record has it
                found = np.full_like(steps, _missing(steps.dtype))
            assert_same_bits(found, steps, f"step {name!r} of {key!r}")
        for name in compact.steps:
            unknown = key in compact.steps[name] and name not in column.steps
            assert not unknown, f"{key!r} has a step {name!r} that no `log` call gave it"


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
        assert_same_bits(_host(actual), wanted, f"values of {key + name!r}")


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


def lane(logs: Any, index: int) -> Any:
    """One lane of the logs of a vmapped harvest."""
    return jax.tree.map(lambda x: x[index], logs)
