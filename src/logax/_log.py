"""`log`, its primitive, and the context that decides whether a call of `log` is bound.

Without a harvest `log` returns at once: it binds nothing, and the compiled program is the same as
without the call. A harvest (`spool`, `tap`, ...) traces the user's function with logs enabled. This
context is part of JAX's trace cache key, so a function that was jitted and called before exposes
its logs to a later harvest, and costs nothing again afterwards. All harvests share one constant as
the context; if it held their options, JAX would retrace and recompile for each combination. `live`
uses a second constant, under which a log leaves the program where it is called.

Under a harvest one call binds one `log_p`. Its operands are all leaves, then all steps, and a
`LogSpec` describes them. It has no results, and carries the effect of `jax.debug.callback`, so
differentiation, `checkpoint` and dead-code elimination keep it.

| transformation | effect on a log |
| --- | --- |
| `vmap` inside the harvest | each batched operand gets a leading lane axis |
| `jvp`, `grad` | logs the primal values |
| transposition | dropped with a warning: a tangent has no value there |
| lowering without a harvest | lowers to nothing |
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
from logax._compat import CALLBACK_EFFECTS, Array, Tree
from logax._log_spec import LogSpec, as_step_array, flatten_data
from logax._support.arrays import move_lanes_first
from logax._support.messages import caller_location, warn_user
from logax._support.validation import (
    validate_boolean,
    validate_names,
    validate_string,
    warn_of_misspelling,
)

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
    """Log values from inside a compiled program, or anywhere else.

    The caller of the function decides what happens to them. Without a harvest the call returns at
    once and leaves no trace in the compiled program. A harvest such as `logax.spool`, `logax.tap`
    or `logax.live` collects or streams the values.

    Args:
      data: Mapping from non-empty strings to pytrees of arrays, numbers or typed PRNG keys, or a
        function without arguments that returns one. The function is called only under a harvest;
        with `every`, the program evaluates it only at due steps.
      every: Log only if the step named `step` is due: a number n for steps 0, n, 2n, ..., or a
        schedule such as `logax.OnSteps([0, 10])`.
      tags: One or more names by which a harvest can select this log.
      explicit: If True, only harvests that select by name or tag include this log.
      prefix: Text that is prepended literally to every key.
      **steps: Named scalar counters, such as `step=i, episode=e`. A name one letter away from an
        option is also a step, with a warning.

    Raises:
      TypeError: A value is not an array, a key is not a non-empty string, or a step is not a
        scalar.
      ValueError: `every` is given without a step named `step`.

    Arguments are validated only under a harvest.

    Example:
      `logax.log({"loss": loss, "grad": grads}, step=i, every=100)`
    """
    if _binding.value is None:
        return
    site = caller_location()
    what = f"`log` at {site}"
    tags, prefix = validate_names("tags", tags, what) or (), validate_string("prefix", prefix, what)
    options = _LogOptions(tags, explicit, prefix, site)
    warn_of_misspelling(f"{what}, among its steps,", steps, LOG_OPTIONS)
    counters = {name: as_step_array(name, value, site) for name, value in steps.items()}
    if every is None:
        _bind(data, counters, options)
        return
    if "step" not in steps:
        raise ValueError(
            f"`log(..., every={every!r})` at {site} needs the step called `step`, and got "
            f"{_format_steps(steps)}. Write `log(..., every={every!r}, step=i)`."
        )
    schedule = _schedule.as_traceable_schedule(every, f"`every` of the `log` at {site}")
    step = steps["step"]
    # For example a variable of flax.
    if hasattr(type(step), "__jax_array__") and not isinstance(step, jax.Array):
        step = step.__jax_array__()
    if isinstance(step, jax.core.Tracer):
        due = _is_due(schedule, counters["step"], site)
        jax.lax.cond(due, lambda: _bind(data, counters, options, due), lambda: None)
        return
    with jax.ensure_compile_time_eval():
        due = bool(_is_due(schedule, np.asarray(step), site))
    if due:
        _bind(data, counters, options)


def _is_due(schedule: _schedule.Schedule, step: Any, site: str) -> Any:
    """Return whether the step is due, checking the answer of a user-defined schedule."""
    what = f"`should_log` of {schedule!r}, given to the `log` at {site},"
    return validate_boolean(what, schedule.should_log(step), "Compare, as in `step % 10 == 0`.")


@contextlib.contextmanager
def enable_logs(bound_logs: set[tuple[str, str]] | None = None) -> Iterator[None]:
    """Bind every `log` for a harvest, and add the key and site of each to the given set."""
    before = getattr(_trace_state, "bound_logs", None)
    _trace_state.bound_logs = bound_logs
    try:
        with _push_layer(_bind_for_harvest):
            yield
    finally:
        _trace_state.bound_logs = before


def disable_logs() -> contextlib.AbstractContextManager[None]:
    """Make every `log` do nothing, even under a harvest."""
    return _push_layer(None)


Bind = Callable[..., Any]


class _Bindings(threading.local):
    """Stack of layers that bind the logs of this thread; the last one is active.

    The context is computed from the stack rather than restored from a value saved on entry, so
    bindings may end in any order. A harvest removes its layer and all layers above it.
    """

    def __init__(self) -> None:
        self.layers: list[_Layer] = []

    def update(self) -> None:
        """Set the context that JAX's caches see to that of the last layer."""
        bind = self.layers[-1].bind if self.layers else None
        if bind is not _binding.value:
            # Entering sets the value. It is never exited, so no interrupt restores an old one.
            _binding(bind).__enter__()


@dataclasses.dataclass(eq=False)
class _Layer:
    """A function that binds logs (None drops them) and the open bindings that share it."""

    bind: Bind | None
    open_bindings: set[object] = dataclasses.field(default_factory=set)


@contextlib.contextmanager
def _push_layer(bind: Bind | None) -> Iterator[None]:
    layers = _bindings.layers
    layer = _Layer(bind)
    layers.append(layer)
    _bindings.update()
    try:
        yield
    finally:
        # Look up the index again: outer bindings may have ended since.
        del layers[layers.index(layer) :]
        _bindings.update()


def begin_binding(bind: Bind) -> Callable[[], None]:
    """Bind every `log` of this thread by `bind` until the returned function is called.

    Bindings may overlap in any order. Pass the same function each time, because it is part of JAX's
    cache key.

    Args:
      bind: Function of the operands, their `spec`, and `due`. `due` is None, or a boolean that is
        False for a log that must be ignored: `vmap` may run both branches of the `cond` around it.
    """
    layers = _bindings.layers
    if not layers or layers[-1].bind is not bind:
        layers.append(_Layer(bind))
    layer, token = layers[-1], object()
    layer.open_bindings.add(token)
    _bindings.update()

    def end() -> None:
        layer.open_bindings.discard(token)
        if not layer.open_bindings and layer in layers:
            layers.remove(layer)
        _bindings.update()

    return end


def are_logs_bound() -> bool:
    """Return whether a `log` called on this thread would be bound."""
    return _binding.value is not None


def is_inside_harvest() -> bool:
    """Return whether a harvest traces on this thread and sees the logs that are bound."""
    return _binding.value is _bind_for_harvest


def rebind_log(operands: Sequence[Array], spec: LogSpec, due: Array | None = None) -> None:
    """Bind a log that a harvest did not take, for the enclosing harvest or `live`."""
    _binding.value(*operands, spec=spec, due=due)


def _bind_for_harvest(*operands: Array, spec: LogSpec, due: Array | None) -> None:
    # A harvest needs no `due`: it rebuilds the `cond` around this equation.
    log_p.bind(*operands, spec=spec)


@dataclasses.dataclass(frozen=True)
class _LogOptions:
    tags: tuple[str, ...]
    explicit: bool
    prefix: str
    site: str


def _bind(
    data: Data, steps: dict[str, Array], options: _LogOptions, due: Array | None = None
) -> None:
    site = options.site
    entries, operands = flatten_data(data() if callable(data) else data, site, options.prefix)
    tags = tuple(sorted(set(options.tags)))
    spec = LogSpec(entries, tuple(steps), tags, options.explicit, site)
    bound_logs = getattr(_trace_state, "bound_logs", None)
    if bound_logs is not None and is_inside_harvest():
        bound_logs.update((entry.key, site) for entry in entries)
    _binding.value(*operands, *steps.values(), spec=spec, due=due)


def _format_steps(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _abstract(*_: Any, spec: LogSpec) -> tuple[list[Any], Any]:
    return [], EFFECTS


def _batch(args: Any, dims: Any, *, spec: LogSpec) -> tuple[list[Any], list[Any]]:
    return log_p.bind(*move_lanes_first(args, dims), spec=spec), []


def _jvp(primals: Any, tangents: Any, *, spec: LogSpec) -> tuple[list[Any], list[Any]]:
    return log_p.bind(*primals, spec=spec), []


def _transpose(cotangents: Any, *args: Any, spec: LogSpec) -> list[None]:
    bound_logs = getattr(_trace_state, "bound_logs", None)
    if bound_logs is not None:  # reported here, so the harvest must not report it as missing
        bound_logs.difference_update((entry.key, spec.site) for entry in spec.entries)
    warn_user(
        f"The `log` of {spec} logs a tangent. Reverse-mode differentiation never computes "
        "tangents, so it has no value there and is left out. Use `jax.jvp` to see it."
    )
    return [None] * len(args)


# Function that binds a `log`: None, that of a harvest, or that of `live`. It is part of the key of
# JAX's caches, so it must be one of a few constants.
_binding = jax.make_user_context(None)
_bindings = _Bindings()
_trace_state = threading.local()
EFFECTS = CALLBACK_EFFECTS  # differentiation, `checkpoint` and dead-code elimination keep them

log_p = jex.Primitive("logax_log")  # `log` is JAX's logarithm
log_p.multiple_results = True
log_p.def_effectful_abstract_eval(_abstract)
log_p.def_impl(lambda *_, spec: [])
batching.primitive_batchers[log_p] = _batch
ad.primitive_jvps[log_p] = _jvp
ad.primitive_transposes[log_p] = _transpose
mlir.register_lowering(log_p, lambda context, *args, spec: [])
