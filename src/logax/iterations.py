"""Log the iterations of a solver: `log_iteration_async` and `log_convergence_async`.

Each call makes a record and a line.

The record is a `logax.log` with the tag "iteration", at every call and with any verbosity. Without
a harvest it does nothing.

    log_iteration_async     step=iteration   cost, gradient_norm, the fields
    log_convergence_async   step=iterations  iterations, final_cost, final_gradient_norm,
                                             and time and code if given

The line goes to `logging.getLogger("logax.iterations")` at level INFO, with or without a harvest,
if `verbose` allows it. `logax.flush()` waits for all lines.

- Python and NumPy numbers outside of traces: the line is logged before the call returns, unless
  earlier lines are still waiting; then after them.
- Device arrays outside of traces: the call does not wait for them. It copies them on the device,
  since they may be donated next, and the line is logged when they are computed.
- Inside a trace: the program sends the values of the line, if `verbose` allows it. The level of the
  logger does not change the program.

Under `vmap` each lane logs a separate line that ends with ` | lane=3`; under nested `vmap`s with
` | lane=0,3`, outermost first.

Lines follow the execution of JAX's programs: code that runs twice, as in `checkpoint` under `grad`,
logs its line twice. Under `vmap`, JAX runs the body of a `while_loop` for finished lanes too, and
both branches of a `cond`; a traced `verbose` of 0 silences these.

A time that is not given is measured on the host, from the first line of an iteration since the last
convergence, or since the iteration numbers started over. Each lane has a clock; a convergence
outside of `vmap` uses the earliest start and stops all clocks.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array, is_outside_traces
from logax._delivery.calls import queue_packet, send_record
from logax._delivery.control import register_flush_hook
from logax._delivery.errors import DeliveryError, delivery_errors
from logax._delivery.packet import Packet
from logax._delivery.routes import CallbackRoute, record
from logax._delivery.worker import Worker, worker
from logax._iteration_lines import (
    ConvergenceLine,
    IterationLine,
    Lane,
    SolverClock,
    SolverLine,
    ValueType,
    validate_reasons,
)
from logax._log import are_logs_bound, log
from logax._log_spec import LogSpec, single_array_spec
from logax._support.arrays import copy_arrays
from logax._support.messages import caller_location, describe_error, describe_value
from logax._support.validation import warn_of_misspelling

__all__ = ["is_jax_array", "log_convergence_async", "log_iteration_async"]


def log_iteration_async(
    iteration: Any,
    cost: Any,
    gradient_norm: Any,
    message: str | None = "",
    verbose: Any = 0,
    **fields: Any,
) -> None:
    """Log one iteration of a solver, without waiting for the device.

    It works inside and outside of compiled functions, and under `vmap`. The values become a record
    with the tag "iteration" for the harvest around the call, and a line of the standard `logging`,
    from the logger "logax.iterations" at level INFO:

        Optimization: iter=12 | cost=1.234560e-03 | ‖∇f‖=5.670000e-09 | message

    `logax.flush()` waits for all lines.

    Args:
      iteration: Number of the iteration, an integer or a float.
      cost: Value that is minimised, a real scalar. None leaves it out of the line and the record.
      gradient_norm: Norm of its gradient, a real scalar, or None.
      message: End of the line. With `fields` it is a template for them, such as
        `"step={step:.3e}"`; without fields it is literal text, including braces.
      verbose: 0 for no line, 1 for a line at iterations 0, 10, 20, ..., 2 or more for a line at
        every iteration. May be traced. It does not affect the record.
      **fields: Numbers and arrays for the template and the record.

    Raises:
      TypeError: If a value is not of the type above. Not checked with a `verbose` of 0.
      ValueError: If `message` is not a template for the fields. Not checked with a `verbose` of 0.
    """
    if fields:
        warn_of_misspelling("`log_iteration_async`, among its fields,", fields, _OPTIONS)
    iteration = _as_integer(iteration)
    own = _without_none({"cost": cost, "gradient_norm": gradient_norm})
    if are_logs_bound():
        log({**own, **fields}, tags="iteration", step=iteration)
    if type(verbose) is not int or verbose != 0:
        message = "" if message is None else message
        make_line = _cached_iteration_line if isinstance(message, str) else IterationLine
        line = make_line(message, bool(fields))
        _emit(line, {"verbose": _as_integer(verbose), "iteration": iteration, **own, **fields})


def log_convergence_async(
    reason: str | Sequence[str],
    iterations: Any,
    final_cost: Any,
    time_sec: Any,
    final_gradient_norm: Any,
    verbose: Any = 1,
    *,
    code: Any = None,
) -> None:
    """Log the end of an iterative solver, without waiting for the device.

    It works inside and outside of compiled functions, and under `vmap`. The values become a record
    with the tag "iteration" for the harvest around the call, and a line of the standard `logging`,
    from the logger "logax.iterations" at level INFO:

        Convergence: reason=... | iterations=42 | final_cost=1.230000e-10 | time=2.456s |
        final_gradient_norm=5.670000e-09

    `logax.flush()` waits for all lines.

    Args:
      reason: Reason for the end; or a sequence of reasons, of which `code` selects one.
      iterations: Number of iterations, an integer or a float.
      final_cost: Cost at the end, a real scalar. None leaves it out of the line and the record.
      time_sec: Duration in seconds; None to measure it on the host, from the first iteration that
        had a line. If none had one, the line has no time.
      final_gradient_norm: Norm of the gradient at the end, a real scalar, or None.
      verbose: 0 for no line. May be traced. It does not affect the record.
      code: Index of the reason, a whole number or a boolean; may be traced.

    Raises:
      TypeError: If a value is not of the type above.
      ValueError: If `code` does not fit `reason`.
    """
    iterations = _as_integer(iterations)
    values = _without_none(
        {
            "iterations": iterations,
            "final_cost": final_cost,
            "final_gradient_norm": final_gradient_norm,
            "time": time_sec,
            "code": code,
        }
    )
    log(values, tags="iteration", step=iterations)
    if type(verbose) is not int or verbose != 0:
        _emit(
            ConvergenceLine(validate_reasons(reason, code)),
            {"verbose": _as_integer(verbose), **values},
        )


def is_jax_array(x: Any) -> TypeGuard[jax.Array]:
    """Return True if `x` is a JAX array or tracer, and False for NumPy arrays and numbers."""
    return isinstance(x, jax.Array)


def _as_integer(x: Any) -> Any:
    """Convert a whole float of Python or NumPy to an int; return anything else unchanged."""
    if not isinstance(x, (float, np.ndarray, np.generic)) or np.shape(x) != ():
        return x
    is_float = jnp.issubdtype(np.asarray(x).dtype, jnp.floating)
    return int(x) if is_float and float(x).is_integer() else x


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in values.items() if x is not None}


def _emit(line: SolverLine, values: dict[str, Any]) -> None:
    """Validate the values, and log the line now, later, or from inside the program."""
    traced = not is_outside_traces()
    if not (traced or _logger.isEnabledFor(logging.INFO)):
        return
    arrays, kinds = [], []
    for name, x in values.items():
        kind = _PYTHON_TYPES.get(type(x))
        if kind is None:
            if not isinstance(x, _ARRAYS):
                values[name] = x = _as_array(line, name, x)
            if isinstance(x, jax.Array):
                arrays.append(name)
                traced = traced or isinstance(x, _Tracer)
            kind = x.dtype, x.shape
        kinds.append(kind)
    size = _validate_and_measure(line, tuple(values), tuple(kinds))
    if traced:
        _send_from_program(line, values)
    elif not any(name in arrays for name in line.decides) and not line.is_due(values):
        return
    elif arrays:
        _send_copies(line, values, arrays, size)
    else:
        _write_in_order(line, values)


def _as_array(line: SolverLine, name: str, x: Any) -> Array:
    if hasattr(type(x), "__jax_array__"):
        return x.__jax_array__()
    raise TypeError(
        f"`{line.function}` takes numbers and arrays, and got {describe_value(x)} for "
        f"`{line.parameter(name)}`. Put text into the message."
    )


@functools.lru_cache(maxsize=1024)
def _validate_and_measure(
    line: SolverLine, names: tuple[str, ...], kinds: tuple[ValueType, ...]
) -> int:
    """Return the size of these values in bytes; raise if they do not make a line."""
    line.check(dict(zip(names, kinds, strict=True)))
    return _LINE_BYTES + sum(math.prod(shape) * int(dtype.itemsize) for dtype, shape in kinds)


def _send_from_program(line: SolverLine, values: Mapping[str, Any]) -> None:
    """Send the values from inside a program, if the line is due."""
    due = line.is_due(values)
    gated = isinstance(due, jax.Array)
    if not (gated or due):
        return
    shown = {name: jnp.asarray(x) for name, x in values.items() if name != "verbose"}
    spec = LogSpec(
        tuple(map(single_array_spec, shown)), (), ("iteration",), False, caller_location()
    )
    operands, take = list(shown.values()), _LineReceiver(line)
    if gated:
        # Under `vmap` the `cond` may run for lanes that are not due; the gate drops those.
        jax.lax.cond(due, lambda: send_record(spec, operands, take, due), lambda: None)
    else:
        send_record(spec, operands, take)


@dataclasses.dataclass(frozen=True)
class _LineReceiver:
    """Receives the values that a program sends for a line."""

    line: SolverLine

    def __call__(self, packet: Packet) -> None:
        if not _logger.isEnabledFor(logging.INFO):
            return
        writer = _LineWriter(self.line, _now())
        queue_packet(packet, CallbackRoute(writer, "split", "raise"))


@dataclasses.dataclass(frozen=True, repr=False)
class _LineWriter:
    """Writes a line that arrived. All compare equal, so that their errors are reported as one."""

    line: SolverLine = dataclasses.field(compare=False)
    at: float = dataclasses.field(compare=False)

    def __call__(self, one: record) -> None:
        _write(self.line, one, one.lane, self.at)

    def __repr__(self) -> str:
        return f'logging.getLogger("{__name__}")'


def _write_in_order(line: SolverLine, values: Mapping[str, Any]) -> None:
    at = _now()
    if _fetcher.is_done() and worker.is_done():
        _write(line, values, (), at)
    else:
        _fetcher.put(_LINE_BYTES, _enqueue_write, line, values, at)


def _send_copies(line: SolverLine, values: dict[str, Any], names: Sequence[str], size: int) -> None:
    """Enqueue a line with device arrays, without waiting for them."""
    arrays = [values.pop(name) for name in names]
    for x in arrays:
        if not (x.is_ready() and x.platform() == "cpu" and x.is_fully_addressable):
            break
    else:  # reading them now is as cheap as a copy
        _fetcher.put(size, _fetch, line, values, names, [np.array(x) for x in arrays], _now())
        return
    _fetcher.put(size, _fetch, line, values, names, copy_arrays(arrays))


def _fetch(
    line: SolverLine,
    values: dict[str, Any],
    names: Sequence[str],
    copies: Sequence[Array],
    at: float | None = None,
) -> None:
    """Wait for the arrays, and enqueue the line. With `at`, they are on the host since that time.

    The delivery worker must not wait for them: the program that computes them may wait for it.
    """
    try:
        arrays = copies if at is not None else jax.device_get(copies)
    except BaseException as error:  # noqa: BLE001 - the computation may raise anything
        _report_failure("The values of a line could not be computed", error)
        return
    values.update(zip(names, arrays, strict=True))
    if line.is_due(values):
        _enqueue_write(line, values, _now() if at is None else at)


def _enqueue_write(line: SolverLine, values: Mapping[str, Any], at: float) -> None:
    if worker.is_done():
        _write_safely(line, values, at)
    elif not worker.put(_LINE_BYTES, _write_safely, line, values, at):
        delivery_errors.count_dropped(f"the lines of `{__name__}`", 1)


def _write_safely(line: SolverLine, values: Mapping[str, Any], at: float) -> None:
    try:
        _write(line, values, (), at)
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything
        _report_failure("A handler or filter raised", error)


def _write(line: SolverLine, values: Mapping[str, Any], lane: Lane, at: float) -> None:
    """Log a line that arrived at time `at`."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    text = line.text(values, line.update_clock(_clock, lane, values, at))
    _logger.info(text + (f" | lane={','.join(map(str, lane))}" if lane else ""))


def _report_failure(what: str, error: BaseException) -> None:
    failure = DeliveryError(f"{what}, for `{__name__}`: {describe_error(error)}")
    failure.__cause__ = error
    delivery_errors.add(__name__, failure)


def _await_fetches(deadline: float | None) -> bool:
    return _fetcher.is_current() or _fetcher.drain(deadline)  # a handler may flush


_OPTIONS = ("message", "verbose")
_Tracer = jax.core.Tracer
_ARRAYS = (jax.Array, np.ndarray, np.generic)
_PYTHON_TYPES = {kind: (np.asarray(kind()).dtype, ()) for kind in (bool, int, float, complex)}
_LINE_BYTES = 512  # approximate memory of a waiting line
_cached_iteration_line = functools.lru_cache(maxsize=1024)(IterationLine)
_now = time.monotonic
_logger = logging.getLogger(__name__)
_clock = SolverClock()
_fetcher = Worker()
register_flush_hook(_await_fetches)
