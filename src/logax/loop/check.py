"""Check invariants of the state, and stop the loop where one does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._schedule import Schedule
from logax._support.messages import describe_value, format_sentence
from logax._support.validation import validate_boolean
from logax.loop._pytrees import copy_tree, fetch_tree, leaves_with_names, refuse_tracers
from logax.loop.protocol import ScheduledLogger, validate_view


class InvariantViolation(RuntimeError):  # noqa: N818 - the name kUPS uses
    """Raised by `CheckLogger` when its predicate does not hold.

    Attributes:
      step: Number of the step after which the predicate did not hold.
      view: The view of the state after that step, or the whole state, as NumPy arrays.
    """

    def __init__(self, message: str, step: int, view: Tree) -> None:
        super().__init__(message)
        self.step, self.view = step, view

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.step, self.view)


class CheckLogger(ScheduledLogger):
    """Raise an `InvariantViolation` in the loop when a predicate of the state does not hold.

        with CheckLogger(lambda state: state.energy < 1e6, EveryNStep(100)) as logger:
            ...

    It waits for the device on the steps that are due, and on no others.

    Args:
      predicate: Function of the state that returns one boolean, as a Python value or an array: True
        if the state is valid. `nan_check()` returns such a function.
      schedule: Steps to check: a schedule, or a number n for every n-th step.
      message: First sentence of the error; by default it names the predicate.
      view: Function that selects the part of the state that the error carries; by default the view
        of `nan_check`, or the whole state.

    Raises:
      TypeError: If `predicate` is not a function, or does not return one boolean.
    """

    def __init__(
        self,
        predicate: Callable[[Any], Any],
        schedule: int | Schedule,
        message: str | None = None,
        *,
        view: Callable[[Any], Tree] | None = None,
    ) -> None:
        if not callable(predicate) or predicate is nan_check:
            hint = " Write `nan_check()`." if predicate is nan_check else ""
            raise TypeError(
                "`CheckLogger` takes a function of the state that returns True if the state is "
                f"valid, and got {describe_value(predicate)}.{hint}"
            )
        if message is not None and not isinstance(message, str):
            raise TypeError(
                f"`CheckLogger` takes a `message` to show, and got {describe_value(message)}."
            )
        super().__init__(schedule)
        self._predicate, self._message = predicate, message
        if view is not None:
            view = validate_view("CheckLogger", view)
        self._view = view or getattr(predicate, "view", None) or (lambda state: state)

    def _take(self, state: Any, step: int) -> None:
        refuse_tracers(jax.tree.leaves(state))
        advice = "Write `.all()` after it, or `bool(...)` around it."
        what = f"The predicate `{self._name}` of `CheckLogger`"
        if not validate_boolean(what, self._predicate(state), advice):
            text = self._explain(state)
            raise InvariantViolation(
                f"Step {step}: {text}", step, fetch_tree(copy_tree(self._view(state)))
            )

    @property
    def _name(self) -> str:
        return getattr(self._predicate, "__name__", type(self._predicate).__name__)

    def _explain(self, state: Any) -> str:
        explain = getattr(self._predicate, "explain", None)
        found = [] if explain is None else [explain(state)]
        message = [] if self._message is None else [format_sentence(self._message)]
        return " ".join(message + found) or f"`{self._name}` does not hold."


class nan_check:  # noqa: N801 - used like a function
    """Return a predicate for `CheckLogger` that is True if the view of a state has no NaN.

        CheckLogger(nan_check(lambda state: state.positions), EveryNStep(100))

    The error counts the NaNs of each array, by name. Leaves other than floating-point and complex
    numbers are ignored.

    Args:
      view: Function that selects the part of the state to check; by default the whole state.
      infinite: If True, infinities count as NaNs.
    """

    def __init__(
        self, view: Callable[[Any], Tree] | None = None, *, infinite: bool = False
    ) -> None:
        self.view = None if view is None else validate_view("nan_check", view)
        self.infinite = infinite

    def __call__(self, state: Tree) -> Any:
        """Return a boolean, on the device if the state is: True if there is no NaN."""
        seen = jax.tree.leaves(state if self.view is None else self.view(state))
        leaves = [x for x in seen if _is_inexact(x)]
        arrays = [x for x in leaves if isinstance(x, jax.Array)]
        others = [x for x in leaves if not isinstance(x, jax.Array)]
        if not all(np.all(_is_valid(np, x, self.infinite)) for x in others):
            return False
        try:
            return _jit_all_valid(arrays, self.infinite)
        except ValueError:  # they are on different devices
            return all(_jit_all_valid([x], self.infinite) for x in arrays)

    def explain(self, state: Tree) -> str:
        """Return a sentence that counts the NaNs of each array."""
        bad = []
        for name, leaf in leaves_with_names(state if self.view is None else self.view(state)):
            if _is_inexact(leaf):
                number = int(np.sum(~_is_valid(np, np.asarray(leaf), self.infinite)))
                place = f"`{name}`" if name else "the value"
                bad += [f"{number} of {np.size(leaf)} in {place}"] if number else []
        what = "NaNs or infinities" if self.infinite else "NaNs"
        return f"There are {what}: {', '.join(bad)}."


def _is_inexact(leaf: Any) -> bool:
    if isinstance(leaf, (float, complex)):
        return True
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _is_valid(numpy: Any, x: Any, infinite: bool) -> Any:
    return numpy.isfinite(x) if infinite else ~numpy.isnan(x)


def _all_valid(leaves: list[Any], infinite: bool) -> Any:
    checks = [_is_valid(jnp, x, infinite).all() for x in leaves]
    return jnp.stack(checks).all() if checks else jnp.array(True)


_jit_all_valid = jax.jit(_all_valid, static_argnums=1)
