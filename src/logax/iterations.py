"""Iterative solvers that say how they get on: `log_iteration_async` and `log_convergence_async`.

Each call is two things.

A record: a `logax.log` with the tag "iteration", for whatever harvest is around, at every
iteration, whatever the verbosity. Without a harvest it is nothing.

    log_iteration_async     step=iteration   cost, gradient_norm, the fields
    log_convergence_async   step=iterations  iterations, final_cost, final_gradient_norm,
                                             time and code where they are given

A line: sent at INFO to the logger `logging.getLogger("logax.iterations")`, harvest or not, as far
as `verbose` lets it through. `logax.flush()` waits for all lines.

- Python and NumPy numbers outside of traces: the line is logged before the call returns; if others
  wait, after them.
- Device arrays outside of traces: the call does not wait for them. It copies them on the device,
  since they may be donated next, and the line is logged once they are computed.
- Inside a trace: the program sends what the line needs, and only if `verbose` asks for it. The
  level of the logger does not matter to the program.

Under `vmap` each lane has a line of its own that ends with ` | lane=3`; under nested ones with
` | lane=0,3`, outermost first.

Lines come from JAX's programs as they are: a part that runs twice, as in `checkpoint` under `grad`,
says its line twice; under `vmap`, JAX runs the body of a `while_loop` for finished lanes too, and
both branches of a `cond`. A traced `verbose` that is 0 there silences them.

A time that is not given is measured on the host, from the arrival of the first line of an iteration
since the last convergence, or since iterations began again. There is one such clock for each lane;
a convergence outside of `vmap` takes the earliest of them and stops all.
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

from logax._compat import Array, outside_of_traces
from logax._delivery.control import before_flush
from logax._delivery.errors import DeliveryError, troubles
from logax._delivery.packet import Parcel
from logax._delivery.routes import Route, record
from logax._delivery.unordered import deliver_soon, send
from logax._delivery.worker import Worker, worker
from logax._iteration_lines import Clock, Convergence, Iteration, Kind, Lane, Line, reasons_of
from logax._log import is_listening, log
from logax._log_spec import LogSpec, array_entry
from logax._support.arrays import copies_of
from logax._support.messages import caller, described, received
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
    """Say how far an iterative solver is, without waiting for the device.

    The line is `Optimization: iter=12 | cost=1.234560e-03 | ‖∇f‖=5.670000e-09 | message`.

    Args:
      iteration: Its number, an integer or a float.
      cost: The value that is minimised, a real scalar. None leaves it out of line and record.
      gradient_norm: The norm of its gradient, a real scalar. None leaves it out as well.
      message: The end of the line, if any. With `fields` it is a template for them,
        `"step={step:.3e}"`; without, it is taken literally, braces and all.
      verbose: 0 shows no line, 1 those of iterations 0, 10, 20, ..., 2 and more all of them. May be
        traced. The record is not affected.
      **fields: Numbers and arrays for the template, and for the record.

    Raises:
      TypeError: A value is not of the kind above.
      ValueError: `message` is no template for the fields. Nothing is checked at verbosity 0.
    """
    if fields:
        warn_of_misspelling("`log_iteration_async`, among its fields,", fields, _OPTIONS)
    iteration = _as_integer(iteration)
    own = _without_none({"cost": cost, "gradient_norm": gradient_norm})
    if is_listening():
        log({**own, **fields}, tags="iteration", step=iteration)
    if type(verbose) is not int or verbose != 0:
        message = "" if message is None else message
        made = _iteration if isinstance(message, str) else Iteration
        line = made(message, bool(fields))
        _say(line, {"verbose": _as_integer(verbose), "iteration": iteration, **own, **fields})


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
    """Say how an iterative solver ended, without waiting for the device.

    The line is `Convergence: reason=... | iterations=42 | final_cost=1.230000e-10 | time=2.456s |
    final_gradient_norm=5.670000e-09`.

    Args:
      reason: Why it ended; or several reasons, of which `code` chooses one.
      iterations: How many there were, an integer or a float.
      final_cost: The cost at the end, a real scalar. None leaves it out of line and record.
      time_sec: How long it took, in seconds; None to measure it on the host, since the first
        iteration that showed a line. If none did, the line has no time.
      final_gradient_norm: The norm of the gradient at the end, a real scalar, or None.
      verbose: 0 shows no line. May be traced. The record is not affected.
      code: The index of the reason, a whole number or a boolean, traced or not.

    Raises:
      TypeError: A value is not of the kind above.
      ValueError: `code` and `reason` do not fit together.
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
        _say(Convergence(reasons_of(reason, code)), {"verbose": _as_integer(verbose), **values})


def is_jax_array(x: Any) -> TypeGuard[jax.Array]:
    """Whether `x` is an array or a tracer of JAX; NumPy arrays and Python numbers are not."""
    return isinstance(x, jax.Array)


def _as_integer(x: Any) -> Any:
    """Convert a whole float of Python or NumPy to an int; return anything else unchanged."""
    if not isinstance(x, (float, np.ndarray, np.generic)) or np.shape(x) != ():
        return x
    is_float = jnp.issubdtype(np.asarray(x).dtype, jnp.floating)
    return int(x) if is_float and float(x).is_integer() else x


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in values.items() if x is not None}


def _say(line: Line, values: dict[str, Any]) -> None:
    traced = not outside_of_traces()
    if not (traced or _logger.isEnabledFor(logging.INFO)):
        return
    arrays, kinds = [], []
    for name, x in values.items():
        kind = _OF_PYTHON.get(type(x))
        if kind is None:
            if not isinstance(x, _ARRAYS):
                values[name] = x = _as_array(line, name, x)
            if isinstance(x, jax.Array):
                arrays.append(name)
                traced = traced or isinstance(x, _Tracer)
            kind = x.dtype, x.shape
        kinds.append(kind)
    size = _checked(line, tuple(values), tuple(kinds))
    if traced:
        _send(line, values)
    elif not any(name in arrays for name in line.decides) and not line.is_due(values):
        return
    elif arrays:
        _send_copies(line, values, arrays, size)
    else:
        _write_in_turn(line, values)


def _as_array(line: Line, name: str, x: Any) -> Array:
    if hasattr(type(x), "__jax_array__"):
        return x.__jax_array__()
    raise TypeError(
        f"`{line.function}` takes numbers and arrays, and got {received(x)} for "
        f"`{line.parameter(name)}`. A text belongs into the message."
    )


@functools.lru_cache(maxsize=1024)
def _checked(line: Line, names: tuple[str, ...], kinds: tuple[Kind, ...]) -> int:
    """How many bytes such values are, if they make a line."""
    line.check(dict(zip(names, kinds, strict=True)))
    return _SIZE + sum(math.prod(shape) * int(dtype.itemsize) for dtype, shape in kinds)


def _send(line: Line, values: Mapping[str, Any]) -> None:
    """From inside a program, if due."""
    due = line.is_due(values)
    gated = isinstance(due, jax.Array)
    if not (gated or due):
        return
    shown = {name: jnp.asarray(x) for name, x in values.items() if name != "verbose"}
    spec = LogSpec(tuple(map(array_entry, shown)), (), ("iteration",), False, caller())
    operands, take = list(shown.values()), _Arrival(line)
    if gated:
        # Under `vmap` the `cond` may run for lanes that are not due; the gate is for them.
        jax.lax.cond(due, lambda: send(spec, operands, take, due), lambda: None)
    else:
        send(spec, operands, take)


@dataclasses.dataclass(frozen=True)
class _Arrival:
    """Takes what the program sends for a line."""

    line: Line

    def __call__(self, parcel: Parcel) -> None:
        if not _logger.isEnabledFor(logging.INFO):
            return
        writer = _Writer(self.line, _now())
        deliver_soon(parcel, Route(writer, "split", "raise"))


@dataclasses.dataclass(frozen=True, repr=False)
class _Writer:
    """Writes what arrived; all of them are one culprit if the logger raises."""

    line: Line = dataclasses.field(compare=False)
    at: float = dataclasses.field(compare=False)

    def __call__(self, one: record) -> None:
        _write(self.line, one, one.lane, self.at)

    def __repr__(self) -> str:
        return f'logging.getLogger("{__name__}")'


def _write_in_turn(line: Line, values: Mapping[str, Any]) -> None:
    at = _now()
    if _fetcher.is_done() and worker.is_done():
        _write(line, values, (), at)
    else:
        _fetcher.put(_SIZE, _hand_on, line, values, at)


def _send_copies(line: Line, values: dict[str, Any], names: Sequence[str], size: int) -> None:
    """From the device, whenever it is there."""
    arrays = [values.pop(name) for name in names]
    for x in arrays:
        if not (x.is_ready() and x.platform() == "cpu" and x.is_fully_addressable):
            break
    else:  # taking them is no more than reading them
        _fetcher.put(size, _fetch, line, values, names, [np.array(x) for x in arrays], _now())
        return
    _fetcher.put(size, _fetch, line, values, names, copies_of(arrays))


def _fetch(
    line: Line,
    values: dict[str, Any],
    names: Sequence[str],
    copies: Sequence[Array],
    at: float | None = None,
) -> None:
    """Wait for numbers, unless they were there already at some time, and hand them on.

    The worker must not: what it waits for may be of a program that waits for the worker.
    """
    try:
        arrays = copies if at is not None else jax.device_get(copies)
    except BaseException as error:  # noqa: BLE001 - whatever the computation raises
        _failed("The values of a line could not be computed", error)
        return
    values.update(zip(names, arrays, strict=True))
    if line.is_due(values):
        _hand_on(line, values, _now() if at is None else at)


def _hand_on(line: Line, values: Mapping[str, Any], at: float) -> None:
    if worker.is_done():
        _write_safely(line, values, at)
    elif not worker.put(_SIZE, _write_safely, line, values, at):
        troubles.dropped(f"the lines of `{__name__}`", 1)


def _write_safely(line: Line, values: Mapping[str, Any], at: float) -> None:
    try:
        _write(line, values, (), at)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises
        _failed("A handler or filter raised", error)


def _write(line: Line, values: Mapping[str, Any], lane: Lane, at: float) -> None:
    """Log a line that arrived at this time."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    text = line.text(values, line.timed(_clock, lane, values, at))
    _logger.info(text + (f" | lane={','.join(map(str, lane))}" if lane else ""))


def _failed(what: str, error: BaseException) -> None:
    failure = DeliveryError(f"{what}, for `{__name__}`: {described(error)}")
    failure.__cause__ = error
    troubles.failed(__name__, failure)


def _await_fetches(deadline: float | None) -> bool:
    return _fetcher.is_current() or _fetcher.drain(deadline)  # a handler may flush


_OPTIONS = ("message", "verbose")
_Tracer = jax.core.Tracer
_ARRAYS = (jax.Array, np.ndarray, np.generic)
_OF_PYTHON = {kind: (np.asarray(kind()).dtype, ()) for kind in (bool, int, float, complex)}
_SIZE = 512  # bytes, about what a line holds
_iteration = functools.lru_cache(maxsize=1024)(Iteration)  # making one takes a while
_now = time.monotonic
_logger = logging.getLogger(__name__)
_clock = Clock()
_fetcher = Worker()
before_flush(_await_fetches)
