"""Steps of spooled records: each has those that it was logged with, as a streamed one has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from logax._delivery.record_batch import RecordBatch
from logax.loggers import MultiLogger
from logax.loggers.sink import Sink
from logax.testing import MemoryLogger
from slow_cases import slow

INPUTS = jnp.array([1.0, -2.0, 3.0])


def taking_turns(x: Any) -> Any:
    """One key at several sites, whose steps differ in name, number and dtype."""

    def body(x: Any, i: Any) -> tuple[Any, None]:
        logax.log({"a": x}, epoch=i, step=2 * i)
        logax.log({"a": -x}, step=2 * i + 1)
        logax.log({"b": x, "c": 3 * x}, step=i)
        return x + 1, None

    x, _ = jax.lax.scan(body, x, jnp.arange(3))
    logax.log({"a": 100 * x}, share=0.5)
    logax.log({"a": 1000 * x})
    return x


def choosing(x: Any) -> Any:
    """Lanes log the same key at different sites, one of them more often."""

    def body(x: Any, i: Any) -> tuple[Any, None]:
        def below(x: Any) -> Any:
            logax.log({"a": x, "tree": {"w": x * jnp.ones(2)}}, epoch=i)
            return x + 2

        def above(x: Any) -> Any:
            logax.log({"a": x, "tree": {"w": x * jnp.ones(2)}}, step=i)
            logax.log({"a": 10 * x})
            return x - 1

        return jax.lax.cond(x < 0, below, above, x), None

    return jax.lax.scan(body, x, jnp.arange(4))[0]


def deciding(x: Any, has_step: Any) -> None:
    """One key, with a step or without one."""
    jax.lax.cond(has_step, lambda: logax.log({"v": x}, step=1), lambda: logax.log({"v": x}))


def test_records_without_a_step_come_in_any_shapes() -> None:
    logger = MemoryLogger()
    with logger.run() as state:
        for number in (3, 4, 3):
            logger.spool(deciding, state)(jnp.full(number, number), False)
    (run,) = logger.runs
    found = [(record.steps, record.values["v"].tolist()) for record in run.records]
    assert found == [({}, [3] * 3), ({}, [4] * 4), ({}, [3] * 3)]


def agreeing(x: Any) -> Any:
    """All records have all steps of their key."""
    for i in range(2):
        logax.log({"a": x + i}, step=i)
    return x


def disordered(x: Any) -> Any:
    """Steps whose names are in the order of no alphabet, nor in the same order for all keys."""

    def body(x: Any, i: Any) -> tuple[Any, None]:
        logax.log({"a": x}, update=i)
        logax.log({"a": -x}, epoch=0, update=i)
        logax.log({"a": 2 * x}, update=i, batch=x)
        logax.log({"b": x}, update=i, epoch=0)
        return x + 1, None

    return jax.lax.scan(body, x, jnp.arange(2))[0]


PROGRAMS = pytest.mark.parametrize("program", [taking_turns, disordered, *slow(choosing, agreeing)])
Told = tuple[Any, list[tuple[str, Any, str]]]


def told(records: Iterable[Any]) -> dict[str, list[Told]]:
    """By key each value, with the name, number and dtype of each of its steps in order."""
    found: dict[str, list[Told]] = {}
    for record in records:
        steps = [(name, np.asarray(x).item(), x.dtype.name) for name, x in record.steps.items()]
        for key, value in record.values.items():
            plain = jax.tree.map(lambda x: np.asarray(x).tolist(), value)
            found.setdefault(key, []).append((plain, steps))
    return found


def logged(logger: MemoryLogger, program: Callable[..., Any], state: Any, way: str) -> Any:
    return getattr(logger, way)(program, state, **({"buffer": 8} if way == "tap" else {}))


def of_one(program: Callable[..., Any], way: str) -> dict[str, list[Told]]:
    logger = MemoryLogger()
    with logger.run() as state:
        logged(logger, program, state, way)(2.0)
    return told(logger.runs[0].records)


def of_seeds(program: Callable[..., Any], way: str) -> list[dict[str, list[Told]]]:
    logger = MemoryLogger()

    def seed(key: Any, x: Any) -> Any:
        return logged(logger, program, logger.init(key), way)(x)

    jax.jit(jax.vmap(seed))(jax.random.split(jax.random.key(0), len(INPUTS)), INPUTS)
    logax.flush()
    return [told(run.records) for run in logger.runs]


def of_lanes(program: Callable[..., Any], way: str) -> list[dict[str, list[Told]]]:
    logger = MemoryLogger()
    with logger.run() as state:
        jax.jit(jax.vmap(logged(logger, program, state, way)))(INPUTS)
    records = logger.runs[0].records
    lanes = [(i,) for i in range(len(INPUTS))]
    return [told(r for r in records if r.stream.lane == lane) for lane in lanes]


@PROGRAMS
def test_a_spooled_run_is_as_if_it_were_streamed(program: Callable[..., Any]) -> None:
    assert of_one(program, "spool") == of_one(program, "tap")


@PROGRAMS
def test_the_spooled_runs_of_seeds_are_as_if_they_were_streamed(
    program: Callable[..., Any],
) -> None:
    assert of_seeds(program, "spool") == of_seeds(program, "tap")


@PROGRAMS
def test_the_spooled_lanes_of_a_run_are_as_if_they_were_streamed(
    program: Callable[..., Any],
) -> None:
    assert of_lanes(program, "spool") == of_lanes(program, "tap")


def test_lanes_that_lack_different_steps_at_first_have_their_own() -> None:
    def settling(x: Any) -> None:
        for i in range(2):
            jax.lax.cond(
                (x > 0) & (i == 0),
                lambda i=i: logax.log({"v": x + i}, step=i),
                lambda i=i: logax.log({"v": x + i}),
            )

    first = [("step", 0, "int32")]
    assert of_lanes(settling, "spool") == [
        {"v": [(1.0, first), (2.0, [])]},
        {"v": [(-2.0, []), (-1.0, [])]},
        {"v": [(3.0, first), (4.0, [])]},
    ]


def test_a_spooled_record_has_the_steps_of_its_own_call() -> None:
    found = of_one(taking_turns, "spool")
    assert found["a"][:2] == [
        (2.0, [("epoch", 0, "int32"), ("step", 0, "int32")]),
        (-2.0, [("step", 1, "int32")]),
    ]
    assert found["a"][-2:] == [(500.0, [("share", 0.5, "float32")]), (5000.0, [])]
    assert found["b"] == [(x, [("step", i, "int32")]) for i, x in enumerate((2.0, 3.0, 4.0))]


def test_steps_stand_in_the_order_in_which_they_were_given() -> None:
    found = of_one(disordered, "spool")
    names = [[name for name, _, _ in steps] for _, steps in found["a"] + found["b"]]
    assert (
        names
        == [["update"], ["epoch", "update"], ["update", "batch"]] * 2 + [["update", "epoch"]] * 2
    )
    assert list(logax.spool(disordered)(2.0)[1].steps) == ["epoch", "update", "batch"]


def test_the_records_of_a_logdict_have_the_steps_of_their_calls() -> None:
    logger = MemoryLogger()
    with logger.run() as state:
        logger.log(state, logax.spool(choosing)(2.0)[1])
    with logger.run() as state:
        logger.log(state, jax.jit(jax.vmap(logax.spool(choosing)))(INPUTS)[1])
    one, lanes = (run.records for run in logger.runs)
    assert told(one) == of_one(choosing, "tap")
    own = [told(r for r in lanes if r.stream.lane == (i,)) for i in range(len(INPUTS))]
    assert own == of_lanes(choosing, "tap")


def test_a_callback_gets_spooled_records_with_their_own_steps() -> None:
    got: list[Any] = []
    logger = MultiLogger(lambda record: got.append((float(record["a"]), dict(record.steps))))
    with logger.run() as state:
        logger.spool(taking_turns, state, keys="a")(2.0)
    assert got[0] == (2.0, {"epoch": 0, "step": 0})
    assert got[1] == (-2.0, {"step": 1})
    assert got[-1] == (5000.0, {})


def test_the_last_of_reduced_records_has_its_own_steps() -> None:
    logger = MemoryLogger()
    with logger.run() as state:
        logger.spool(choosing, state, keys="tree", reduce="last")(-2.0)
    assert told(logger.runs[0].records) == {"tree": [({"w": [1.0, 1.0]}, [("step", 3, "int32")])]}


class Sizes(Sink):
    """Keeps how many streams and records each batch of `a` has."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def write(self, batch: RecordBatch) -> None:
        if "a" in batch.values:
            self.sizes.append(batch.order.shape)


def test_lanes_whose_steps_are_the_same_stay_side_by_side() -> None:
    sink = Sizes()
    logger = logax.loggers.Logger(sink)
    with logger.run() as state:
        jax.jit(jax.vmap(logger.spool(choosing, state)))(jnp.arange(-50.0, 50.0))
    # Of each record at most one batch for each of the three sites, and not one for each lane.
    assert sum(streams * records for streams, records in sink.sizes) == 100 * 4 + records_above()
    assert len(sink.sizes) <= 3 * 8


def records_above() -> int:
    """How many records of the second site in `choosing` there are, of all those lanes."""
    count = 0
    for x in range(-50, 50):
        for _ in range(4):
            count, x = (count, x + 2) if x < 0 else (count + 1, x - 1)
    return count
