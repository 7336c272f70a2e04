"""`log`, the one primitive, and the context that says whether anybody listens.

With no harvest active, `log` returns at once: nothing is bound, and the program is that of the same
function without the call. A harvest (`spool`, ...) traces the user's function with the context on.
The context is part of JAX's own trace cache key, so a function that was jitted and called before
shows its logs to a later harvest, and is free again afterwards. It holds one constant, never the
harvest's options, since every distinct value would make JAX trace and compile anew.

Under a harvest one call binds one `log_p`: all leaves, then all steps, are its operands, and a
`LogSpec` says what they are. It returns nothing, and carries the effect of `jax.debug.callback` so
that differentiation, checkpointing and dead-code elimination keep it.

| under | a log |
| --- | --- |
| `vmap` inside the harvest | gains the lane axis in front of each operand that varies with it |
| `jvp`, `grad` | is of the primal values |
| transposition, if it was of a tangent | has no value: it is left out, and said |
| compilation, if no harvest saw it | is nothing |
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax import _schedule
from logax._checks import as_names, as_text
from logax._compat import Array, Tree
from logax._errors import caller, received, warn_user
from logax._logdict import leaf_name
from logax._show import shown

Data = Mapping[str, Tree] | Callable[[], Mapping[str, Tree]]


def log(
    data: Data,
    /,
    *,
    every: int | _schedule.Schedule | None = None,
    tags: str | tuple[str, ...] = (),
    explicit: bool = False,
    prefix: str = "",
    **steps: Any,
) -> None:
    """Say something from inside a program, wherever it runs.

    What becomes of it is decided where the function is called: nothing, for free, or whatever a
    harvest such as `logax.spool` does with it.

    Args:
      data: A mapping from non-empty strings to pytrees of arrays, numbers or typed PRNG keys, or a
        function without arguments that returns one. The function is called only when something
        harvests, and with `every` it runs inside the program only when due.
      every: Log only when the step called `step` is due: a number n (every n-th step, starting
        with 0), or a schedule.
      tags: One or more words by which a harvest can choose this log.
      explicit: Appear only in a harvest that chooses by name or tag.
      prefix: Put literally in front of every key.
      **steps: Named counters, each a scalar: `step=i, episode=e`.

    Raises:
      TypeError: A value is no array, a key no non-empty string, a step no scalar.
      ValueError: `every` without a step called `step`.

    Nothing is checked when nothing harvests: then the call costs a fraction of a microsecond while
    tracing and nothing in the compiled program.
    """
    if _binding.value is None:
        return
    site = caller()
    options = _Options(as_names("tags", tags) or (), explicit, as_text("prefix", prefix), site)
    counters = {name: step_of(name, value, site) for name, value in steps.items()}
    if every is None:
        _bind(data, counters, options)
        return
    if "step" not in steps:
        raise ValueError(
            f"`log(..., every={every!r})` at {site} goes by the step called `step`, and got "
            f"{_listed(steps)}. Write `log(..., every={every!r}, step=i)`."
        )
    schedule = _schedule.for_programs(every, f"`every` of the `log` at {site}")
    if isinstance(steps["step"], jax.core.Tracer):
        due = _one_answer(schedule, counters["step"], site)
        jax.lax.cond(due, lambda: _bind(data, counters, options), lambda: None)
        return
    with jax.ensure_compile_time_eval():
        due = bool(_one_answer(schedule, np.asarray(steps["step"]), site))
    if due:
        _bind(data, counters, options)


def _one_answer(schedule: _schedule.Schedule, step: Any, site: str) -> Any:
    """Whether the step is due; the schedule may be the user's."""
    due = schedule.should_log(step)
    if np.shape(due) != ():
        raise TypeError(
            f"`should_log` of {schedule!r}, given to the `log` at {site}, must answer with one "
            f"boolean, and answered with shape {np.shape(due)}."
        )
    return due


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a value: its name (`grad/layers/0/weight`), place and kind."""

    name: str
    position: int
    key_impl: str | None = None


@dataclasses.dataclass(frozen=True)
class Entry:
    """One key of a log: its structure and those of its leaves that are logged."""

    key: str
    structure: Any
    leaves: tuple[Leaf, ...]

    def value(self, leaves: Sequence[Any]) -> Tree:
        """The logged pytree with these leaves; those that are not logged are None."""
        filled: list[Any] = [None] * self.structure.num_leaves
        for leaf, x in zip(self.leaves, leaves, strict=True):
            filled[leaf.position] = x
        return jax.tree.unflatten(self.structure, filled)


@dataclasses.dataclass(frozen=True)
class LogSpec:
    """What the operands of one `log_p` mean: the leaves of each entry in turn, then the steps."""

    entries: tuple[Entry, ...]
    steps: tuple[str, ...]
    tags: tuple[str, ...]
    explicit: bool
    site: str

    def __str__(self) -> str:
        return f"{', '.join(entry.key for entry in self.entries)} at {self.site}"


@contextlib.contextmanager
def listening(ledger: set[tuple[str, str]] | None = None) -> Iterator[None]:
    """Trace with every `log` bound; `ledger` takes the key and the site of each one."""
    before = getattr(_ledgers, "current", None)
    _ledgers.current = ledger
    try:
        with _binding(_bind_for_harvest):
            yield
    finally:
        _ledgers.current = before


def silence() -> contextlib.AbstractContextManager[None]:
    """Trace with every `log` doing nothing."""
    return _binding(None)  # type: ignore[no-any-return]


def bound_by(bind: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Trace with every `log` bound by this function, which must be the same each time."""
    return _binding(bind)  # type: ignore[no-any-return]


def is_listening() -> bool:
    """Whether a `log` called here would be bound."""
    return _binding.value is not None


def is_harvested() -> bool:
    """Whether a harvest is around: it sees what is bound here."""
    return _binding.value is _bind_for_harvest


def bind_again(operands: Sequence[Array], spec: LogSpec) -> None:
    """Bind what one harvest leaves, for whatever is around it."""
    _binding.value(*operands, spec=spec)


def _bind_for_harvest(*operands: Array, spec: LogSpec) -> None:
    log_p.bind(*operands, spec=spec)


@dataclasses.dataclass(frozen=True)
class _Options:
    tags: tuple[str, ...]
    explicit: bool
    prefix: str
    site: str


def _bind(data: Data, steps: dict[str, Array], options: _Options) -> None:
    site = options.site
    entries, operands = entries_of(data() if callable(data) else data, site, options.prefix)
    tags = tuple(sorted(set(options.tags)))
    spec = LogSpec(entries, tuple(steps), tags, options.explicit, site)
    ledger = getattr(_ledgers, "current", None)
    if ledger is not None:
        ledger.update((entry.key, site) for entry in entries)
    _binding.value(*operands, *steps.values(), spec=spec)


def entries_of(
    data: Any, site: str, prefix: str = "", on_host: bool = False
) -> tuple[tuple[Entry, ...], list[Array]]:
    """What is logged, and all its arrays; those that are not JAX's stay on the host if they may."""
    if not isinstance(data, Mapping):
        raise TypeError(
            f"`log` at {site} takes a mapping from names to values, or a function that returns "
            f'one, and got {received(data)}. Write `log({{"name": value}})`.'
        )
    operands: list[Array] = []
    entries = []
    for key, value in data.items():
        if not isinstance(key, str) or not key:
            raise TypeError(
                f"`log` at {site} takes keys that are non-empty strings, and got {key!r}. "
                f'Write `log({{"name": value}})`.'
            )
        entry, arrays = entry_of(prefix + key, value, site, on_host)
        entries.append(entry)
        operands += arrays
    return tuple(entries), operands


def entry_of(key: str, value: Tree, site: str, on_host: bool = False) -> tuple[Entry, list[Array]]:
    """What is logged under one key, and its arrays."""
    try:
        value = jax.tree.map(shown, value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`log` at {site} cannot show `{key}`: {error}") from error
    paths, structure = jax.tree_util.tree_flatten_with_path(value)
    leaves = []
    arrays = []
    for position, (path, leaf) in enumerate(paths):
        name = leaf_name(key, path)
        as_array = _host_array if on_host else _array
        array = as_array(leaf, f"`log` at {site}", f"for `{name}`")
        impl = None
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            impl = str(jax.random.key_impl(array))
            array = jax.random.key_data(array)
        leaves.append(Leaf(name, position, impl))
        arrays.append(array)
    return Entry(key, structure, tuple(leaves)), arrays


def step_of(name: str, value: Any, site: str, on_host: bool = False) -> Array:
    """A step as an array, or an error that names it."""
    what = f"`log` at {site}"
    if value is None or isinstance(value, str):
        raise TypeError(
            f"{what} takes steps that are scalar numbers, and got {received(value)} for the step "
            f"`{name}`. Words by which to choose a log are its `tags`."
        )
    as_array = _host_array if on_host else _array
    array = as_array(value, what, f"for the step `{name}`")
    real = jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)
    if array.shape != () or not real:
        raise TypeError(
            f"{what} takes steps that are scalar numbers, and got {array.dtype.name}"
            f"{list(array.shape)} for the step `{name}`. Log arrays as values: "
            f'`log({{"{name}": ...}})`.'
        )
    return array


def _array(leaf: Any, what: str, where: str) -> Array:
    """The leaf as an array that JAX can carry, or an error that names it."""
    if isinstance(leaf, jax.Array):
        return leaf
    numeric = isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray))
    if numeric or hasattr(leaf, "__jax_array__"):
        try:
            with np.errstate(over="ignore"):  # checked below
                array = jnp.asarray(leaf)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{what} got {received(leaf)} {where}: {error}") from error
        if isinstance(leaf, (np.generic, np.ndarray)) and array.dtype != leaf.dtype:
            _check_fits(np.asarray(leaf), array.dtype, what, where)
        return array
    raise TypeError(
        f"{what} takes arrays, numbers and PRNG keys, or pytrees of them, and got "
        f"{received(leaf)} {where}. Turn it into a number, or leave it out; of an equinox module "
        "log `eqx.filter(module, eqx.is_array)`."
    )


def _host_array(leaf: Any, what: str, where: str) -> Any:
    """The same for what stays on the host, where nothing need be rounded."""
    if isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray)):
        array = np.array(leaf)
        if array.dtype.kind in "biufc" or jnp.issubdtype(array.dtype, np.number):
            return array
    return _array(leaf, what, where)


def _check_fits(given: Any, dtype: Any, what: str, where: str) -> None:
    """JAX keeps 32 bits unless told otherwise: rounding is its way, but no number may change."""
    with np.errstate(over="ignore"):
        kept = given.astype(dtype)
    rounded = jnp.issubdtype(dtype, jnp.inexact)
    if not np.array_equal(
        np.isfinite(kept) if rounded else kept, np.isfinite(given) if rounded else given
    ):
        raise TypeError(
            f"{what} got {given.dtype.name} numbers {where} that {dtype.name} cannot hold. "
            "Scale them, or set `jax_enable_x64`."
        )


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _abstract(*_: Any, spec: LogSpec) -> tuple[list[Any], Any]:
    return [], EFFECTS


def _batch(args: Any, dims: Any, *, spec: LogSpec) -> tuple[list[Any], list[Any]]:
    lanes_first = [
        x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)
    ]
    return log_p.bind(*lanes_first, spec=spec), []


def _jvp(primals: Any, tangents: Any, *, spec: LogSpec) -> tuple[list[Any], list[Any]]:
    return log_p.bind(*primals, spec=spec), []


def _transpose(cotangents: Any, *args: Any, spec: LogSpec) -> list[None]:
    ledger = getattr(_ledgers, "current", None)
    if ledger is not None:  # said here, so it need not be missed
        ledger.difference_update((entry.key, spec.site) for entry in spec.entries)
    warn_user(
        f"The `log` of {spec} is of a tangent. Reverse-mode differentiation never computes "
        "tangents, so it has no value there and is left out. Use `jax.jvp` to see it."
    )
    return [None] * len(args)


# What a `log` is bound by: nothing, a harvest, or whatever streams with nothing wrapped. It is part
# of the key of JAX's caches, so it must be one of a few constants.
_binding = jax.make_user_context(None)
_ledgers = threading.local()
EFFECTS = jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects

log_p = jex.Primitive("logax_log")  # `log` is JAX's logarithm
log_p.multiple_results = True
log_p.def_effectful_abstract_eval(_abstract)
log_p.def_impl(lambda *_, spec: [])
batching.primitive_batchers[log_p] = _batch
ad.primitive_jvps[log_p] = _jvp
ad.primitive_transposes[log_p] = _transpose
mlir.register_lowering(log_p, lambda context, *args, spec: [])
