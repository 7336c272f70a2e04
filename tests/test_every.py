"""`log(..., every=)`: only due values are computed, and logged with their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import logax
from slow_cases import slow_but

RUNS: list[float] = []


@pytest.fixture(autouse=True)
def _count_anew() -> Iterator[None]:
    RUNS.clear()
    yield
    jax.effects_barrier()


def heavy(x: Any) -> Any:
    """Return twice the argument; the host counts the calls."""
    jax.debug.callback(lambda value: RUNS.append(float(value)), x)
    return x * 2


def runs() -> int:
    jax.effects_barrier()
    return len(RUNS)


def loop(x: Any, every: Any = 100, length: int = 1000, start: Any = 0) -> Any:
    """Log an expensive value in a scan, only at due steps."""

    def body(carry: Any, i: Any) -> Any:
        logax.log(lambda: {"heavy": heavy(carry + i)}, every=every, step=i + start)
        return carry, None

    return lax.scan(body, x, jnp.arange(length))[0]


def as_list(array: Any) -> Any:
    return np.asarray(array).tolist()


def assert_ten_records(logs: logax.logdict, x: float) -> None:
    logs = logs.compact()
    steps = np.arange(0, 1000, 100)
    np.testing.assert_array_equal(logs.steps["step"]["heavy"], steps)
    np.testing.assert_array_equal(logs["heavy"], 2 * (x + steps))


def test_a_function_that_is_due_every_100_steps_runs_ten_times_in_1000() -> None:
    out, logs = logax.spool(loop)(1.0)
    assert out == 1.0
    assert_ten_records(logs, 1.0)
    assert int(logs.count["heavy"]) == 10
    assert runs() == 10


def test_without_a_harvest_it_does_not_run_at_all() -> None:
    assert jax.jit(loop)(1.0) == loop(1.0) == 1.0
    assert runs() == 0
    text = jax.jit(loop).lower(1.0).as_text()
    assert "callback" not in text


WAYS: dict[str, Callable[..., Any]] = {
    "jit(spool(f))": lambda **options: jax.jit(logax.spool(loop, **options)),
    "spool(jit(f))": lambda **options: logax.spool(jax.jit(loop), **options),
    "grad(spool(f))": lambda **options: jax.grad(logax.spool(loop, **options), has_aux=True),
    "spool(grad(f))": lambda **options: logax.spool(jax.grad(loop), **options),
}


@pytest.mark.parametrize("way", slow_but(["spool(grad(f))"], WAYS))
def test_it_runs_as_often_under_transformations(way: str) -> None:
    out, logs = WAYS[way]()(1.0)
    assert out == 1.0
    assert_ten_records(logs, 1.0)
    assert runs() == 10


def test_under_vmap_it_runs_ten_times_for_each_lane() -> None:
    xs = jnp.arange(3.0)
    _, logs = jax.jit(jax.vmap(logax.spool(loop)))(xs)
    assert runs() == 30
    assert as_list(logs.count["heavy"]) == [10, 10, 10]
    for lane in range(3):
        assert_ten_records(jax.tree.map(lambda x, lane=lane: x[lane], logs), float(xs[lane]))
    logs = logax.spool(jax.vmap(loop))(xs)[1].compact()
    assert runs() == 60
    steps = np.arange(0, 1000, 100)
    np.testing.assert_array_equal(logs.steps["step"]["heavy"], steps)
    np.testing.assert_array_equal(logs["heavy"], 2 * (xs + steps[:, None]))


def test_lanes_are_due_by_their_own_steps() -> None:
    starts = jnp.array([0, 1, 4])
    run = lambda start: loop(1.0, every=5, length=10, start=start)  # noqa: E731
    logs = jax.jit(jax.vmap(logax.spool(run)))(starts)[1]
    assert as_list(logs.count["heavy"]) == [2, 2, 2]
    logs = logs.compact()
    assert as_list(logs.steps["step"]["heavy"]) == [[0, 5], [5, 10], [5, 10]]
    assert as_list(logs["heavy"]) == [[2.0, 12.0], [10.0, 20.0], [4.0, 14.0]]
    uneven = jax.jit(jax.vmap(logax.spool(lambda start: loop(1.0, 5, 7, start))))(starts)[1]
    assert as_list(uneven.count["heavy"]) == [2, 1, 2]


@pytest.mark.parametrize(
    ("options", "heavy_values", "steps"),
    [
        ({"reduce": "sum"}, [2 * sum(range(1, 1000, 100))], [900]),
        ({"reduce": "first"}, [2.0], [0]),
        ({"capacity": 3}, [1402.0, 1602.0, 1802.0], [700, 800, 900]),
        ({"interval": 4}, [2.0, 802.0, 1602.0], [0, 400, 800]),
    ],
)
def test_it_goes_with_reduce_capacity_and_interval(
    options: dict[str, Any], heavy_values: list[float], steps: list[int]
) -> None:
    logs = logax.spool(loop, **options)(1.0)[1].compact()
    assert as_list(logs["heavy"]) == heavy_values
    assert as_list(logs.steps["step"]["heavy"]) == steps
    assert runs() == 10


def test_it_goes_with_a_loop_without_static_bound() -> None:
    def f(n: Any) -> Any:
        def body(i: Any) -> Any:
            logax.log(lambda: {"heavy": heavy(i)}, every=4, step=i)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    logs = logax.spool(f, capacity=8)(11)[1].compact()
    assert as_list(logs["heavy"]) == [0, 8, 16]
    assert runs() == 3


# Schedules.


class Odd:
    """A user's schedule."""

    def should_log(self, step: Any) -> Any:
        return step % 2 == 1


SCHEDULES: dict[str, tuple[Any, list[int]]] = {
    "a number": (4, [0, 4, 8]),
    "a NumPy number": (np.int64(4), [0, 4, 8]),
    "every step": (1, list(range(10))),
    "a number beyond the end": (100, [0]),
    "a number beyond all steps": (2**40, [0]),
    "Once": (logax.Once(), [0]),
    "EveryNStep": (logax.EveryNStep(3), [0, 3, 6, 9]),
    "OnSteps": (logax.OnSteps([7, 2, 2, 100]), [2, 7]),
    "OnSteps of a range": (logax.OnSteps(range(1, 10, 4)), [1, 5, 9]),
    "OnSteps of nothing": (logax.OnSteps([]), []),
    "the user's": (Odd(), [1, 3, 5, 7, 9]),
}


def log_by_every_schedule(i: Any) -> None:
    for name, (every, _) in SCHEDULES.items():
        logax.log(lambda name=name: {name: heavy(i * 1.0)}, every=every, step=i)


def test_schedules_say_which_steps_are_due() -> None:
    def f() -> None:
        lax.scan(lambda c, i: (c, log_by_every_schedule(i)), 0, jnp.arange(10))

    logs = logax.spool(f)()[1].compact()
    assert list(logs) == list(SCHEDULES)
    for name, (_, due) in SCHEDULES.items():
        assert as_list(logs.steps["step"][name]) == due
        assert as_list(logs[name]) == [2.0 * step for step in due]
    assert runs() == sum(len(due) for _, due in SCHEDULES.values())


@pytest.mark.parametrize("kind", [int, np.int32])
def test_steps_that_are_known_while_tracing_make_no_branches(kind: Any) -> None:
    def unrolled() -> None:
        for i in range(10):
            log_by_every_schedule(kind(i))

    _, logs = logax.spool(unrolled)()
    for name, (_, due) in SCHEDULES.items():
        if not due:
            assert name not in logs
            continue
        assert as_list(logs[name]) == [2.0 * step for step in due]
        assert as_list(logs.steps["step"][name]) == due
        assert int(logs.count[name]) == len(due)
    assert runs() == sum(len(due) for _, due in SCHEDULES.values())
    assert " cond" not in str(jax.make_jaxpr(logax.spool(unrolled))())


@pytest.mark.parametrize(
    ("steps", "every", "due"),
    [
        (jnp.arange(5, dtype=jnp.uint8), 2, [0, 2, 4]),
        (jnp.arange(5, dtype=jnp.uint8), 300, [0]),
        (jnp.arange(5, dtype=jnp.uint8), logax.OnSteps([2, 300]), [2]),
        (jnp.arange(5), logax.Between(2**40, None) | logax.OnSteps([3]), [3]),
        (jnp.arange(-4, 5), 4, [-4, 0, 4]),
        (jnp.arange(0, 3, 0.5), 1, [0.0, 1.0, 2.0]),
    ],
)
def test_steps_may_be_of_any_real_dtype(steps: Any, every: Any, due: list[float]) -> None:
    def f(steps: Any) -> Any:
        return lax.scan(lambda c, t: (c, logax.log({"x": t}, every=every, step=t)), 0, steps)[0]

    logs = logax.spool(f)(steps)[1].compact()
    assert as_list(logs["x"]) == due
    assert logs["x"].dtype == logs.steps["step"]["x"].dtype == steps.dtype


def test_all_keys_and_all_steps_of_a_log_are_due_together() -> None:
    def f() -> None:
        def body(carry: Any, i: Any) -> Any:
            logax.log({"a": i, "b": {"c": 10 * i}}, every=2, step=i, episode=i // 2)
            logax.log({"a": -i}, step=i)
            return carry, None

        lax.scan(body, 0, jnp.arange(4))

    logs = logax.spool(f)()[1].compact()
    assert as_list(logs["a"]) == [0, 0, -1, 2, -2, -3]
    assert as_list(logs.steps["step"]["a"]) == [0, 0, 1, 2, 2, 3]
    assert as_list(logs["b"]["c"]) == [0, 20]
    assert as_list(logs.episode["b"]) == [0, 1]


def test_schedules_are_compared_by_what_they_say() -> None:
    assert logax.OnSteps([3, 1, 1]) == logax.OnSteps((1, 3))
    assert logax.EveryNStep(2) == logax.EveryNStep(2) != logax.EveryNStep(3)
    assert len({logax.Once(), logax.Once(), logax.OnSteps([1]), logax.OnSteps([1])}) == 2
    assert isinstance(Odd(), logax.Schedule)


def test_a_step_may_be_a_variable_of_flax() -> None:
    @nnx.jit
    def train(count: nnx.Variable[Any]) -> None:
        logax.log({"x": count[...] * 10}, step=count, every=2)
        count[...] += 1

    count, got = nnx.Variable(jnp.int32(0)), []  # type: tuple[nnx.Variable[Any], list[Any]]
    with logax.live(got.append):
        for _ in range(4):
            train(count)
    assert [(int(one["x"]), int(one.step)) for one in got] == [(0, 0), (20, 2)]
