"""The gates of other tests: what is behind them is pending whatever came before."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from gates import pending


def check_pending() -> None:
    gate = threading.Event()
    x = pending(gate)
    y = jax.jit(lambda x: x + 1)(x)
    assert not x.is_ready()
    assert not y.is_ready()
    gate.set()
    assert (x.shape, x.dtype, x.devices()) == ((), jnp.float32, {jax.devices()[0]})
    assert (float(x), float(y)) == (8.0, 9.0)


def test_a_computation_is_pending_until_its_gate_is_opened() -> None:
    check_pending()


def test_it_is_pending_also_on_a_thread_where_a_callback_has_raised() -> None:
    def fail(x: Any) -> Any:
        raise ZeroDivisionError

    broken = jax.jit(lambda x: jax.pure_callback(fail, x, x))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        broken(jnp.float32(1)).block_until_ready()
    check_pending()


def test_what_fails_behind_a_gate_is_told_to_whoever_uses_it_and_not_to_this_thread() -> None:
    def fail(x: Any) -> Any:
        raise ZeroDivisionError

    gate = threading.Event()
    x = pending(gate, fail)
    assert not x.is_ready()
    gate.set()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        x.block_until_ready()
    jax.effects_barrier()
