"""`log`, the one primitive, and the context that says whether anybody listens.

With no harvest active, `log` returns at once: nothing is bound, and the program is that of the same
function without the call. A harvest (`spool`, ...) traces the user's function with the context on.
The context is part of JAX's own trace cache key, so a function that was jitted and called before
shows its logs to a later harvest, and is free again afterwards. It holds one constant for all
harvests, never their options, since every distinct value would make JAX trace and compile anew.
`live` has another one: under it a log leaves the program right where it is called.

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
import numpy as np
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from logax import _schedule
from logax._compat import Array, Tree
from logax._log_spec import LogSpec, entries_of, step_of
from logax._support.arrays import lanes_first
from logax._support.messages import caller, warn_user
from logax._support.validation import as_names, as_text, one_boolean, warn_of_misspelling

LOG_OPTIONS = ("every", "tags", "explicit", "prefix")
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
      **steps: Named counters, each a scalar: `step=i, episode=e`. A name one letter away from an
        option is a step too, with a warning.

    Raises:
      TypeError: A value is no array, a key no non-empty string, a step no scalar.
      ValueError: `every` without a step called `step`.

    Nothing is checked when nothing harvests: then the call returns at once, and nothing of it is in
    the compiled program.
    """
    if _binding.value is None:
        return
    site = caller()
    what = f"`log` at {site}"
    tags, prefix = as_names("tags", tags, what) or (), as_text("prefix", prefix, what)
    options = _Options(tags, explicit, prefix, site)
    warn_of_misspelling(f"{what}, among its steps,", steps, LOG_OPTIONS)
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
    step = steps["step"]
    if hasattr(type(step), "__jax_array__") and not isinstance(
        step, jax.Array
    ):  # a variable of flax's
        step = step.__jax_array__()
    if isinstance(step, jax.core.Tracer):
        due = _one_answer(schedule, counters["step"], site)
        jax.lax.cond(due, lambda: _bind(data, counters, options, due), lambda: None)
        return
    with jax.ensure_compile_time_eval():
        due = bool(_one_answer(schedule, np.asarray(step), site))
    if due:
        _bind(data, counters, options)


def _one_answer(schedule: _schedule.Schedule, step: Any, site: str) -> Any:
    """Whether the step is due; the schedule may be the user's."""
    what = f"`should_log` of {schedule!r}, given to the `log` at {site},"
    return one_boolean(what, schedule.should_log(step), "Compare, as in `step % 10 == 0`.")


@contextlib.contextmanager
def listening(ledger: set[tuple[str, str]] | None = None) -> Iterator[None]:
    """Trace with every `log` bound; `ledger` takes the key and the site of each one."""
    before = getattr(_ledgers, "current", None)
    _ledgers.current = ledger
    try:
        with _bound_by(_bind_for_harvest):
            yield
    finally:
        _ledgers.current = before


def silence() -> contextlib.AbstractContextManager[None]:
    """Trace with every `log` doing nothing."""
    return _bound_by(None)


Bind = Callable[..., Any]


class _Bindings(threading.local):
    """The layers that bind the logs of this thread; the last one counts.

    The context is computed from the layers and not restored from a value saved on entry, so blocks
    may end in any order. A harvest removes its own layer and all that began inside of it.
    """

    def __init__(self) -> None:
        self.layers: list[_Layer] = []

    def update(self) -> None:
        """Set the context that JAX's caches see to the last layer."""
        bind = self.layers[-1].bind if self.layers else None
        if bind is not _binding.value:
            # Entering sets it. Nothing is restored later, so an interrupt leaves nothing half done.
            _binding(bind).__enter__()


@dataclasses.dataclass(eq=False)
class _Layer:
    bind: Bind | None
    blocks: set[object] = dataclasses.field(default_factory=set)


@contextlib.contextmanager
def _bound_by(bind: Bind | None) -> Iterator[None]:
    layers = _bindings.layers
    layer = _Layer(bind)
    layers.append(layer)
    _bindings.update()
    try:
        yield
    finally:
        del layers[layers.index(layer) :]  # blocks around it may have ended, and moved it
        _bindings.update()


def begin_block(bind: Bind) -> Callable[[], None]:
    """Bind every `log` of this thread by `bind`, until the returned function is called.

    Blocks may overlap in any order. `bind` must be the same function each time. It gets the
    operands, their `spec`, and `due`: None, or whether the log counts, for a log inside a `cond` of
    which `vmap` may run both branches.
    """
    layers = _bindings.layers
    if not layers or layers[-1].bind is not bind:
        layers.append(_Layer(bind))
    layer, block = layers[-1], object()
    layer.blocks.add(block)
    _bindings.update()

    def end() -> None:
        layer.blocks.discard(block)
        if not layer.blocks and layer in layers:
            layers.remove(layer)
        _bindings.update()

    return end


def is_listening() -> bool:
    """Whether a `log` called here would be bound."""
    return _binding.value is not None


def is_harvested() -> bool:
    """Whether a harvest is around: it sees what is bound here."""
    return _binding.value is _bind_for_harvest


def bind_again(operands: Sequence[Array], spec: LogSpec, due: Array | None = None) -> None:
    """Bind what one harvest leaves, for whatever is around it."""
    _binding.value(*operands, spec=spec, due=due)


def _bind_for_harvest(*operands: Array, spec: LogSpec, due: Array | None) -> None:
    # A harvest finds by itself what is due: it rebuilds the `cond` in which this is bound.
    log_p.bind(*operands, spec=spec)


@dataclasses.dataclass(frozen=True)
class _Options:
    tags: tuple[str, ...]
    explicit: bool
    prefix: str
    site: str


def _bind(data: Data, steps: dict[str, Array], options: _Options, due: Array | None = None) -> None:
    site = options.site
    entries, operands = entries_of(data() if callable(data) else data, site, options.prefix)
    tags = tuple(sorted(set(options.tags)))
    spec = LogSpec(entries, tuple(steps), tags, options.explicit, site)
    ledger = getattr(_ledgers, "current", None)
    if ledger is not None and is_harvested():
        ledger.update((entry.key, site) for entry in entries)
    _binding.value(*operands, *steps.values(), spec=spec, due=due)


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _abstract(*_: Any, spec: LogSpec) -> tuple[list[Any], Any]:
    return [], EFFECTS


def _batch(args: Any, dims: Any, *, spec: LogSpec) -> tuple[list[Any], list[Any]]:
    return log_p.bind(*lanes_first(args, dims), spec=spec), []


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
_bindings = _Bindings()
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
