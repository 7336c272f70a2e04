"""Invariants that stop a run as soon as they are broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Tree
from logax._schedule import Schedule
from logax._support.messages import as_sentence, received
from logax._support.validation import one_boolean
from logax.loop._base import EnteredLogger, checked_view
from logax.loop._states import copied, fetched, in_order, refuse_tracers


class InvariantViolation(RuntimeError):  # noqa: N818 - it says what happened
    """What `CheckLogger` stops a run with.

    Attributes:
      step: The step after which the invariant did not hold.
      view: What the check looked at then, as NumPy arrays: its view of the state, or all of it.
    """

    def __init__(self, message: str, step: int, view: Tree) -> None:
        super().__init__(message)
        self.step, self.view = step, view

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.step, self.view)


class CheckLogger(EnteredLogger):
    """Stops the run with an `InvariantViolation` where something does not hold.

    On the steps that are due, and only there, it waits for the device.

    Args:
      predicate: Called with the state; True, or an array that is, if all is well.
        `nan_check(view)` is one that is ready to use.
      schedule: When: a schedule, or a number n for every n-th step.
      message: What does not hold.
      view: What of the state the error should carry; by default all of it.
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
                f"`CheckLogger` takes a function of the state that says whether all is well, and "
                f"got {received(predicate)}.{hint}"
            )
        if message is not None and not isinstance(message, str):
            raise TypeError(
                f"`CheckLogger` takes a `message` to show, and got {received(message)}."
            )
        super().__init__(schedule)
        self._predicate, self._message = predicate, message
        if view is not None:
            view = checked_view("CheckLogger", view)
        self._view = view or getattr(predicate, "view", None) or (lambda state: state)

    def _take(self, state: Any, step: int) -> None:
        refuse_tracers(jax.tree.leaves(state))
        advice = "Write `.all()` after it, or `bool(...)` around it."
        what = f"The predicate `{self._name}` of `CheckLogger`"
        if not one_boolean(what, self._predicate(state), advice):
            said = self._said(state)
            raise InvariantViolation(
                f"Step {step}: {said}", step, fetched(copied(self._view(state)))
            )

    @property
    def _name(self) -> str:
        return getattr(self._predicate, "__name__", type(self._predicate).__name__)

    def _said(self, state: Any) -> str:
        explain = getattr(self._predicate, "explain", None)
        found = [] if explain is None else [explain(state)]
        message = [] if self._message is None else [as_sentence(self._message)]
        return " ".join(message + found) or f"`{self._name}` does not hold."


class nan_check:  # noqa: N801 - used like a function
    """A predicate for `CheckLogger`: no NaN in what the view gives.

        CheckLogger(nan_check(lambda state: state.positions), EveryNStep(100))

    The error names the arrays with a NaN in them. What is no floating-point or complex number is
    not looked at.

    Args:
      view: What to look at; by default the whole state.
      infinite: Whether infinities are as bad.
    """

    def __init__(
        self, view: Callable[[Any], Tree] | None = None, *, infinite: bool = False
    ) -> None:
        self.view = None if view is None else checked_view("nan_check", view)
        self.infinite = infinite

    def __call__(self, state: Tree) -> Any:
        """Whether all is well, as an array on the device."""
        seen = jax.tree.leaves(state if self.view is None else self.view(state))
        leaves = [x for x in seen if _is_inexact(x)]
        arrays = [x for x in leaves if isinstance(x, jax.Array)]
        others = [x for x in leaves if not isinstance(x, jax.Array)]
        if not all(np.all(_is_well(np, x, self.infinite)) for x in others):
            return False
        try:
            return _all_well(arrays, self.infinite)
        except ValueError:  # they are on different devices
            return all(_all_well([x], self.infinite) for x in arrays)

    def explain(self, state: Tree) -> str:
        """Which arrays have how many of them."""
        bad = []
        for name, leaf in in_order(state if self.view is None else self.view(state)):
            if _is_inexact(leaf):
                number = int(np.sum(~_is_well(np, np.asarray(leaf), self.infinite)))
                place = f"`{name}`" if name else "the value"
                bad += [f"{number} of {np.size(leaf)} in {place}"] if number else []
        what = "NaNs or infinities" if self.infinite else "NaNs"
        return f"There are {what}: {', '.join(bad)}."


def _is_inexact(leaf: Any) -> bool:
    if isinstance(leaf, (float, complex)):
        return True
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _is_well(numpy: Any, x: Any, infinite: bool) -> Any:
    return numpy.isfinite(x) if infinite else ~numpy.isnan(x)


def _each_well(leaves: list[Any], infinite: bool) -> Any:
    checks = [_is_well(jnp, x, infinite).all() for x in leaves]
    return jnp.stack(checks).all() if checks else jnp.array(True)


_all_well = jax.jit(_each_well, static_argnums=1)
