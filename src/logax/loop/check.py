"""Invariants that stop a run as soon as they are broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._columns.rows import leaf_name
from logax._compat import Tree
from logax._errors import received
from logax._schedule import Schedule
from logax.loop._copies import copied, fetched
from logax.loop._entered import EnteredLogger


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
        if not callable(predicate):
            raise TypeError(
                f"`CheckLogger` takes a function of the state that says whether all is well, and "
                f"got {received(predicate)}."
            )
        super().__init__(schedule)
        self._predicate, self._message = predicate, message
        self._view = view or getattr(predicate, "view", None) or (lambda state: state)

    def _take(self, state: Any, step: int) -> None:
        answer = self._predicate(state)
        if np.shape(answer) != ():
            raise TypeError(
                f"The predicate of `CheckLogger` must answer with one boolean, and answered with "
                f"shape {np.shape(answer)}. Write `.all()` after it."
            )
        if not answer:
            seen = fetched(copied(self._view(state)))
            raise InvariantViolation(f"Step {step}: {self._said(seen)}", step, seen)

    def _said(self, seen: Tree) -> str:
        explain = getattr(self._predicate, "explain", None)
        found = explain(seen) if explain is not None else None
        name = getattr(self._predicate, "__name__", type(self._predicate).__name__)
        message = self._message or found or f"`{name}` does not hold."
        return f"{message} {found}" if self._message and found else message


class nan_check:  # noqa: N801 - used like a function
    """A predicate for `CheckLogger`: no NaN in what the view gives.

        CheckLogger(nan_check(lambda state: state.positions), EveryNStep(100))

    The error names the arrays with a NaN in them. Numbers that are no floating-point numbers, and
    whatever is no array, are not looked at.

    Args:
      view: What to look at; by default the whole state.
      infinite: Whether infinities are as bad.
    """

    def __init__(
        self, view: Callable[[Any], Tree] | None = None, *, infinite: bool = False
    ) -> None:
        self.view, self.infinite = view, infinite

    def __call__(self, state: Tree) -> Any:
        """Whether all is well, as an array on the device."""
        leaves = jax.tree.leaves(state if self.view is None else self.view(state))
        return _all_well([x for x in leaves if _is_inexact(x)], self.infinite)

    def explain(self, seen: Tree) -> str:
        """Which arrays have how many of them."""
        bad = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(seen):
            if _is_inexact(leaf):
                number = int(np.sum(~np.asarray(_is_well(leaf, self.infinite))))
                name = leaf_name("", path)[1:] or "the value"
                bad += [f"{number} of {np.size(leaf)} in `{name}`"] if number else []
        what = "NaNs or infinities" if self.infinite else "NaNs"
        return f"There are {what}: {', '.join(bad)}."


def _is_inexact(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _is_well(x: Any, infinite: bool) -> Any:
    return jnp.isfinite(x) if infinite else ~jnp.isnan(x)


def _each_well(leaves: list[Any], infinite: bool) -> Any:
    checks = [_is_well(x, infinite).all() for x in leaves]
    return jnp.stack(checks).all() if checks else True


_all_well = jax.jit(_each_well, static_argnums=1)
