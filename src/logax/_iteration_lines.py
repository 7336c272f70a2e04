"""Validate and format the lines of `logax.iterations`, and measure the time of a solver.

A `SolverLine` is a line without its numbers, and a parameter of compiled programs: equal lines must
compare equal, so that JAX finds the compiled program again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np

ValueType: TypeAlias = tuple[Any, tuple[int, ...]]  # the dtype and shape of a value
Lane: TypeAlias = tuple[int, ...]


class SolverClock:
    """Start time of the solver of each lane."""

    def __init__(self) -> None:
        self._started: dict[Lane, tuple[float, float]] = {}

    def start(self, lane: Lane, iteration: float, at: float) -> None:
        """Start the clock, if it is not running or the iteration numbers start over."""
        if lane not in self._started or iteration <= self._started[lane][0]:
            self._started[lane] = iteration, at

    def stop(self, lane: Lane, at: float) -> float | None:
        """Stop the clock, and return its time, or None. Without a lane: all, from the earliest."""
        if lane:
            _, started = self._started.pop(lane, (0, None))
        else:
            started = min((at for _, at in list(self._started.values())), default=None)
            self._started.clear()
        return None if started is None else at - started


@dataclasses.dataclass(frozen=True)
class SolverLine:
    """A line without its numbers.

    Attributes:
      function: Public name of the function that logs it.
      decides: Names of the values that `is_due` depends on.
    """

    function: ClassVar[str]
    decides: ClassVar[tuple[str, ...]]

    def parameter(self, name: str) -> str:
        """Return the public parameter for a value."""
        return name

    def is_due(self, values: Mapping[str, Any]) -> Any:
        """Return True if the verbosity shows the line; inside a program, a traced boolean."""
        raise NotImplementedError

    def check(self, kinds: dict[str, ValueType]) -> None:
        """Raise an error with advice unless values of these types and shapes make a line."""
        raise NotImplementedError

    def text(self, values: Mapping[str, Any], time: float | None) -> str:
        """Format the line with its numbers and the measured time."""
        raise NotImplementedError

    def update_clock(
        self, clock: SolverClock, lane: Lane, values: Mapping[str, Any], at: float
    ) -> float | None:
        """Start or stop the clock, and return the measured time if the line shows it."""
        raise NotImplementedError

    def check_real(self, name: str, kind: ValueType) -> None:
        """Raise unless the value is a real scalar."""
        dtype, shape = kind
        real = any(jnp.issubdtype(dtype, each) for each in (jnp.floating, jnp.integer, jnp.bool_))
        if shape != () or not real:
            raise TypeError(
                f"`{self.function}` takes a real number as `{name}`, and got {dtype}{list(shape)}. "
                "Reduce it to a scalar, for instance by `jnp.mean` or `jnp.linalg.norm`."
            )

    def check_count(self, name: str, kind: ValueType) -> None:
        """Raise unless the value is a number of iterations, which may be a float."""
        if not jnp.issubdtype(kind[0], jnp.floating) or kind[1] != ():
            self.check_whole(name, kind, or_boolean=False)

    def check_whole(self, name: str, kind: ValueType, *, or_boolean: bool = True) -> None:
        """Raise unless the value is a whole number."""
        dtype, shape = kind
        whole = jnp.issubdtype(dtype, jnp.integer) or (or_boolean and dtype == np.bool_)
        if shape != () or not whole:
            raise TypeError(
                f"`{self.function}` takes a whole number as `{name}`, and got {dtype}"
                f"{list(shape)}. Write `int(...)`, or `.astype(int)` of an array."
            )


@dataclasses.dataclass(frozen=True)
class IterationLine(SolverLine):
    """Line of `log_iteration_async`."""

    function = "log_iteration_async"
    decides = ("verbose", "iteration")
    message: str
    is_template: bool

    def is_due(self, values: Mapping[str, Any]) -> Any:
        verbose, iteration = values["verbose"], values["iteration"]
        if isinstance(verbose, int):
            return verbose >= 2 or (verbose == 1 and _is_multiple_of_ten(iteration))
        return (verbose >= 2) | ((verbose == 1) & _is_multiple_of_ten(iteration))

    def __post_init__(self) -> None:
        if not isinstance(self.message, str):
            raise TypeError(
                f"`{self.function}` takes a string as `message`, and got {self.message!r}."
            )

    def check(self, kinds: dict[str, ValueType]) -> None:
        self.check_count("iteration", kinds.pop("iteration"))
        for name in ("cost", "gradient_norm"):
            if name in kinds:
                self.check_real(name, kinds.pop(name))
        self.check_whole("verbose", kinds.pop("verbose"))
        for name, (dtype, shape) in kinds.items():
            if not jnp.issubdtype(dtype, jnp.number) and dtype != np.bool_:
                raise TypeError(
                    f"`{self.function}` takes numbers and arrays of them as fields, and got "
                    f"{dtype}{list(shape)} for `{name}`."
                )
        if self.is_template:
            zeros = {name: np.zeros(shape, dtype)[()] for name, (dtype, shape) in kinds.items()}
            self._fill_template(zeros)

    def _fill_template(self, fields: Mapping[str, Any]) -> str:
        try:
            return self.message.format(
                **{name: _to_template_value(x) for name, x in fields.items()}
            )
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            named = ", ".join(f"`{name}`" for name in fields)
            raise ValueError(
                f"The message {self.message!r} of `log_iteration_async` is a template for the "
                f"fields {named}, and cannot be filled with them: {type(error).__name__}: {error}. "
                'Write "{name:.3e}" with `name=value`, and braces that stay as "{{" and "}}".'
            ) from error

    def text(self, values: Mapping[str, Any], time: float | None) -> str:
        fields = {name: x for name, x in values.items() if name not in _ITERATION_FIELDS}
        message = self._fill_template(fields) if self.is_template else self.message
        parts = [
            f"Optimization: iter={_format_count(values['iteration'])}",
            *_format_numbers(values, {"cost": "cost", "gradient_norm": "‖∇f‖"}),
            *([message] if message else []),
        ]
        return " | ".join(parts)

    def update_clock(
        self, clock: SolverClock, lane: Lane, values: Mapping[str, Any], at: float
    ) -> None:
        clock.start(lane, float(values["iteration"]), at)


_ITERATION_FIELDS = ("iteration", "cost", "gradient_norm", "verbose")


@dataclasses.dataclass(frozen=True)
class ConvergenceLine(SolverLine):
    """Line of `log_convergence_async`."""

    function = "log_convergence_async"
    decides = ("verbose",)
    reasons: tuple[str, ...]

    def parameter(self, name: str) -> str:
        return "time_sec" if name == "time" else name

    def is_due(self, values: Mapping[str, Any]) -> Any:
        return values["verbose"] >= 1

    def check(self, kinds: dict[str, ValueType]) -> None:
        for name, kind in kinds.items():
            if name == "iterations":
                self.check_count(name, kind)
            elif name in {"verbose", "code"}:
                self.check_whole(name, kind)
            else:
                self.check_real(self.parameter(name), kind)

    def text(self, values: Mapping[str, Any], time: float | None) -> str:
        took = float(values["time"]) if "time" in values else time
        parts = [
            f"Convergence: reason={self._reason(int(values.get('code', 0)))}",
            f"iterations={_format_count(values['iterations'])}",
            *_format_numbers(values, {"final_cost": "final_cost"}),
            *([] if took is None else [f"time={took:.3f}s"]),
            *_format_numbers(values, {"final_gradient_norm": "final_gradient_norm"}),
        ]
        return " | ".join(parts)

    def _reason(self, code: int) -> str:
        return self.reasons[code] if 0 <= code < len(self.reasons) else f"unknown code {code}"

    def update_clock(
        self, clock: SolverClock, lane: Lane, values: Mapping[str, Any], at: float
    ) -> float | None:
        return clock.stop(lane, at)


def validate_reasons(reason: str | Sequence[str], code: Any) -> tuple[str, ...]:
    """Return all reasons as a tuple; raise if `code` does not fit them."""
    alone = isinstance(reason, str)
    texts: Any = (reason,) if alone else reason
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise TypeError(
            f"`log_convergence_async` takes a string or several as `reason`, and got {reason!r}."
        )
    if alone != (code is None) or not texts:
        raise ValueError(
            f"`log_convergence_async` takes one `reason`, or several of which `code` chooses one, "
            f"and got the reason {reason!r} with the code {code!r}. Write "
            '`reason=("out of iterations", "converged"), code=converged`.'
        )
    if isinstance(code, (int, np.integer)) and not 0 <= code < len(texts):
        raise ValueError(
            f"`log_convergence_async` got the code {code!r} for {len(texts)} reasons: {reason!r}."
        )
    return tuple(texts)


def _is_multiple_of_ten(iteration: Any) -> Any:
    if isinstance(iteration, (np.ndarray, np.generic)):
        iteration = float(iteration)  # NumPy would warn about the remainder of infinity
    return iteration % 10 == 0


def _format_count(x: Any) -> str:
    """Format a number of iterations."""
    number = float(x)
    return str(int(x)) if number.is_integer() else f"{number:g}"


def _format_numbers(values: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    """Format the values that are given; `names` maps each to its label in the line."""
    return [f"{shown}={float(values[name]):.6e}" for name, shown in names.items() if name in values]


def _to_template_value(x: Any) -> Any:
    """Convert a scalar to a type that prints briefly and supports Python's number formats."""
    if not isinstance(x, (np.generic, np.ndarray)) or x.shape != ():
        return x
    scalar = np.asarray(x)[()]
    return scalar if isinstance(scalar, np.inexact) else scalar.item()
