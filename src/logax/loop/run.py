"""A loop that is ready to use, and short enough to be read as the recipe for your own."""

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
from logax._support.messages import received
from logax._support.validation import at_least, one_boolean
from logax.loop._states import copied, on_their_way
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
    """Run a step again and again, and report each one to a logger.

        state = run_loop(step, state, 1000, key=jax.random.key(0), logger=TqdmLogger(1000))

    The step is compiled, and the state is donated to it, so that there is never more than one. The
    state that you give stays yours: it is copied first. (A state that holds something else than
    arrays and numbers, such as the functions in an equinox module, is passed on as it is, and the
    step compiles itself: `eqx.filter_jit(step, donate="all")`.)

    Args:
      step_fn: Takes `(key, state)`, or `(state)` if there is no key, and returns the next state.
      state: Any pytree.
      num_steps: How many steps the whole run has.
      key: Of which each step gets its own: step i gets `jax.random.fold_in(key, i)`.
      logger: Told of the state after each step; several together are a `CompositeLogger`.
      warmup: How many steps to do before step 0, without the logger. They have keys apart. A run
        that is resumed has them behind it, and does not do them again.
      start_step: The number of the first step, for a run that is resumed: it does the steps from
        there up to `num_steps`, with the keys that they would have had.
      until: Ends the loop when it is true of a state. An array is read while the next step is under
        way, so that the device need not wait: that one step is still done, and logged. A Python
        boolean ends the loop at once.

    Returns:
      The last state.
    """
    _check(step_fn, state, key, logger, (num_steps, warmup, start_step))
    state, advance = copied(state), _compiled(step_fn, state, 0 if key is None else 1)

    for keys in _arguments(key, range(0 if start_step else -operator.index(warmup), 0)):
        state = advance(*keys, state)
    ends = _End(until)
    with logger:
        for step, keys in enumerate(_arguments(key, range(start_step, num_steps)), start_step):
            state = advance(*keys, state)
            logger.log(state, step)
            if ends.at(state):
                break
    return state


def key_chain(
    rng: jax.Array, shape: tuple[int, ...] = (), *, start: int = 0
) -> Iterator[jax.Array]:
    """Return an endless iterator of keys: `jax.random.fold_in(rng, i)` for each step i.

    They are computed many at a time, which costs far less than one at a time.

    Args:
      rng: One PRNG key.
      shape: Where a step needs several keys, the shape of the array of them: the key of each step
        is split, `jax.random.split(jax.random.fold_in(rng, i), shape)`.
      start: Number of the first step; that of the next one for a run that is resumed.
    """
    _check_key("key_chain", rng)
    if not isinstance(shape, tuple) or not all(map(_is_size, shape)):
        raise ValueError(
            "`key_chain` takes a tuple of whole numbers as `shape`, and got "
            f"{received(shape)}. Write `shape=(8,)` for 8 keys at each step, and `start=` for the "
            "number of the first step."
        )
    return _chain(rng, shape, at_least(0, "key_chain", "start", start))


def _chain(key: Array, shape: tuple[int, ...], start: int) -> Iterator[Array]:
    while True:
        yield from _folded(key, np.uint32(start % 2**32), shape)
        start += KEYS_AT_ONCE


def _is_size(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool) and bool(x >= 0)


KEYS_AT_ONCE = 32
ADVICE = "Write `.all()` or `.any()` after it."


@functools.partial(jax.jit, static_argnums=2)
def _folded(key: Array, start: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    numbers = start + jnp.arange(KEYS_AT_ONCE, dtype=jnp.uint32)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    if shape:
        keys = jax.vmap(lambda own: jax.random.split(own, shape))(keys)
    return tuple(keys[i] for i in range(KEYS_AT_ONCE))


def _arguments(key: Array | None, steps: range) -> Iterator[tuple[Array, ...]]:
    """What each of these steps gets before the state."""
    if key is None:
        return (() for _ in steps)
    return ((each,) for each, _ in zip(_chain(key, (), steps.start), steps, strict=False))


def _compiled(step_fn: Any, state: Any, position: int) -> Any:
    """The step, with its state donated; as it is where that cannot be compiled as a whole."""
    plain = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    if all(isinstance(leaf, plain) for leaf in jax.tree.leaves(state)):
        return jax.jit(step_fn, donate_argnums=position)
    return step_fn


def _check(step_fn: Any, state: Any, key: Any, logger: Any, numbers: tuple[int, ...]) -> None:
    """Raise an error that teaches where the loop could not run."""
    check_logger("`run_loop`", logger)
    names = ("num_steps", "warmup", "start_step")
    for name, number in zip(names, numbers, strict=True):
        at_least(0, "run_loop", name, number)
    num_steps, _, start_step = numbers
    if start_step > num_steps:
        raise ValueError(
            f"`run_loop` does the steps from `start_step` up to `num_steps`, which is the number "
            f"of steps of the whole run, and got {start_step} and {num_steps}. For {num_steps} "
            f"more, write `num_steps={start_step + num_steps}`."
        )
    if key is not None:
        _check_key("run_loop", key)
    if not callable(step_fn):
        raise TypeError(f"`run_loop` takes a function as `step_fn`, and got {received(step_fn)}.")
    try:
        signature = inspect.signature(step_fn)
    except (TypeError, ValueError):  # some callables do not tell
        return
    try:
        signature.bind(*([] if key is None else [key]), state)
    except TypeError as error:
        form = "(state)` without a `key" if key is None else "(key, state)` with a `key"
        name = getattr(step_fn, "__name__", type(step_fn).__name__)
        raise TypeError(
            f"`run_loop` calls `step_fn{form}`, and got `{name}{signature}`: {error}."
        ) from error


def _check_key(what: str, key: Any) -> None:
    typed = isinstance(key, jax.Array) and is_key_array(key)
    if np.ndim(key) != (0 if typed else 1):
        raise ValueError(
            f"`{what}` takes one PRNG key, and got {received(key)}. Give it one, and split the key "
            "of each step inside the step."
        )


class _End:
    """Whether to end the loop, by what `until` said of the step before."""

    def __init__(self, until: Callable[[Any], Any] | None) -> None:
        self._until = until
        self._before: Any = False

    def at(self, state: Any) -> bool:
        if self._until is None:
            return False
        answer = one_boolean("`until` of `run_loop`", self._until(state), ADVICE)
        ends = bool(self._before)
        if isinstance(answer, jax.Array):
            self._before = on_their_way(copied(answer))  # it may be a part of the state
            return ends
        return ends or bool(answer)
