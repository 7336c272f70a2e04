"""`run_loop`, a ready-made loop that is short enough to serve as a template, and `key_chain`."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._compat import Array
from logax._support.arrays import is_key_array
from logax._support.messages import describe_value
from logax._support.validation import validate_boolean, validate_minimum
from logax.loop._pytrees import copy_tree, start_host_transfer
from logax.loop.protocol import Logger, NullLogger, State, check_logger


def run_loop(
    step_fn: Callable[..., State],
    state: State,
    num_steps: int,
    *,
    key: jax.Array | None = None,
    logger: Logger[Any] = NullLogger(),  # noqa: B008 - it has no state
    warmup: int = 0,
    start_step: int = 0,
    until: Callable[[State], Any] | None = None,
) -> State:
    """Run `step_fn` repeatedly, and log the state after each step.

        state = run_loop(step, state, 1000, key=jax.random.key(0), logger=TqdmLogger(1000))

    The step is compiled with `jax.jit`, and its state is donated, so only one state exists at a
    time. The state that you pass stays valid: the loop copies it first. A state with leaves other
    than arrays and numbers, such as the functions of an equinox module, is passed to `step_fn` as
    it is, without compilation: give a step that compiles itself, such as
    `eqx.filter_jit(step, donate="all")`.

    Args:
      step_fn: Function of `(key, state)`, or of `(state)` without `key`, that returns the next
        state.
      state: Initial state, any pytree.
      num_steps: Number of steps of the whole run.
      key: PRNG key; step i gets `jax.random.fold_in(key, i)`.
      logger: Logger that gets the state after each step. Combine several with `CompositeLogger`.
      warmup: Number of steps before step 0, which are not logged and use other keys than the run. A
        resumed run (`start_step` above 0) skips them.
      start_step: Number of the first step, for a run that is resumed: the loop runs the steps from
        `start_step` up to `num_steps`, with the keys that they have in the whole run.
      until: Function of the state that ends the loop when it returns True. An array is read while
        the next step runs, so that the device does not idle: that step is still done and logged. A
        Python boolean ends the loop at once.

    Returns:
      The last state.

    Raises:
      TypeError: If `step_fn` does not take these arguments, or `logger` is not a logger for loops.
      ValueError: If a number of steps is negative, or `start_step` exceeds `num_steps`.
    """
    _validate_arguments(step_fn, state, key, logger, (num_steps, warmup, start_step))
    state, advance = copy_tree(state), _compile_step(step_fn, state, 0 if key is None else 1)

    for keys in _step_keys(key, range(0 if start_step else -operator.index(warmup), 0)):
        state = advance(*keys, state)
    ends = _StopCondition(until)
    with logger:
        for step, keys in enumerate(_step_keys(key, range(start_step, num_steps)), start_step):
            state = advance(*keys, state)
            logger.log(state, step)
            if ends.at(state):
                break
    return state


def key_chain(
    rng: jax.Array, shape: tuple[int, ...] = (), *, start: int = 0
) -> Iterator[jax.Array]:
    """Return an infinite iterator over one key per step: `jax.random.fold_in(rng, i)` for step i.

        for step, key in zip(range(num_steps), key_chain(rng)):
            state = advance(key, state)

    Keys are computed in batches, which is far cheaper than one at a time.

    Args:
      rng: One PRNG key.
      shape: Shape of the array of keys per step, if a step needs several: step i gets
        `jax.random.split(jax.random.fold_in(rng, i), shape)`.
      start: Number of the first step; for a run that is resumed, the number of its next step.

    Raises:
      ValueError: If `rng` is not one key, or `shape` is not a tuple of whole numbers.
    """
    _validate_key("key_chain", rng)
    if not isinstance(shape, tuple) or not all(map(_is_size, shape)):
        raise ValueError(
            "`key_chain` takes a tuple of whole numbers as `shape`, and got "
            f"{describe_value(shape)}. Write `shape=(8,)` for 8 keys at each step, and `start=` "
            "for the number of the first step."
        )
    return _chain(rng, shape, validate_minimum(0, "key_chain", "start", start))


def _chain(key: Array, shape: tuple[int, ...], start: int) -> Iterator[Array]:
    while True:
        yield from _fold_in_batch(key, np.uint32(start % 2**32), shape)
        start += KEYS_PER_BATCH


def _is_size(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) and bool(x >= 0)


KEYS_PER_BATCH = 32
ADVICE = "Write `.all()` or `.any()` after it."


@functools.partial(jax.jit, static_argnums=2)
def _fold_in_batch(key: Array, start: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    numbers = start + jnp.arange(KEYS_PER_BATCH, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    if shape:
        keys = jax.vmap(lambda own: jax.random.split(own, shape))(keys)
    return tuple(keys[i] for i in range(KEYS_PER_BATCH))


def _step_keys(key: Array | None, steps: range) -> Iterator[tuple[Array, ...]]:
    """Yield the arguments before the state, for each step: its key, if there is one."""
    if key is None:
        return (() for _ in steps)
    return ((each,) for each, _ in zip(_chain(key, (), steps.start), steps, strict=False))


def _compile_step(step_fn: Any, state: Any, position: int) -> Any:
    """Compile the step, with its state donated, if `jit` can take the state."""
    plain = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    if all(isinstance(leaf, plain) for leaf in jax.tree.leaves(state)):
        return jax.jit(step_fn, donate_argnums=position)
    return step_fn


def _validate_arguments(
    step_fn: Any, state: Any, key: Any, logger: Any, numbers: tuple[int, ...]
) -> None:
    """Raise an error with advice if the loop cannot run with these arguments."""
    check_logger("`run_loop`", logger)
    names = ("num_steps", "warmup", "start_step")
    for name, number in zip(names, numbers, strict=True):
        validate_minimum(0, "run_loop", name, number)
    num_steps, _, start_step = numbers
    if start_step > num_steps:
        raise ValueError(
            f"`run_loop` runs the steps from `start_step` up to `num_steps`, which is the number "
            f"of steps of the whole run, and got {start_step} and {num_steps}. For {num_steps} "
            f"more, write `num_steps={start_step + num_steps}`."
        )
    if key is not None:
        _validate_key("run_loop", key)
    if not callable(step_fn):
        raise TypeError(
            f"`run_loop` takes a function as `step_fn`, and got {describe_value(step_fn)}."
        )
    try:
        signature = inspect.signature(step_fn)
    except (TypeError, ValueError):  # some callables have no signature
        return
    try:
        signature.bind(*([] if key is None else [key]), state)
    except TypeError as error:
        form = "(state)` without a `key" if key is None else "(key, state)` with a `key"
        name = getattr(step_fn, "__name__", type(step_fn).__name__)
        raise TypeError(
            f"`run_loop` calls `step_fn{form}`, and got `{name}{signature}`: {error}."
        ) from error


def _validate_key(what: str, key: Any) -> None:
    typed = isinstance(key, jax.Array) and is_key_array(key)
    if np.ndim(key) != (0 if typed else 1):
        raise ValueError(
            f"`{what}` takes one PRNG key, and got {describe_value(key)}. Give it one, and split "
            "the key of each step inside the step."
        )


class _StopCondition:
    """Decides if `until` ends the loop; reads an array one step late, while the device works."""

    def __init__(self, until: Callable[[Any], Any] | None) -> None:
        self._until = until
        self._before: Any = False

    def at(self, state: Any) -> bool:
        if self._until is None:
            return False
        answer = validate_boolean("`until` of `run_loop`", self._until(state), ADVICE)
        ends = bool(self._before)
        if isinstance(answer, jax.Array):
            self._before = start_host_transfer(copy_tree(answer))  # it may be a part of the state
            return ends
        return ends or bool(answer)
