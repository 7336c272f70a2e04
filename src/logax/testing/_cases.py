"""Programs that test every logger, with the records that each must leave.

Each function runs a program with the logger, and returns the expected records, computed in plain
Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._harvest.live import live
from logax._harvest.spool import spool
from logax.testing import _programs as programs
from logax.testing._checks import Case, Seen

_SEED = 0


def _growth_records(x: float) -> list[tuple[int, float]]:
    return [(0, x * 2), (1, x * 4), (2, x * 8)]


def _one_run(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one", config={"rate": 0.5, "layers": [1, 2]}) as state:
        logger.tap(programs.growth, state)(1.0)
    return {
        "one": Seen({"loss": _growth_records(1.0)}, "finished", {"rate": 0.5, "layers": [1, 2]})
    }


def _one_run_spooled(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.spool(programs.growth, state)(1.0)
    return {"one": Seen({"loss": _growth_records(1.0)})}


def _seeds(number: int, way: str, **options: Any) -> Callable[[Any], dict[str, Seen]]:
    def program(logger: Any) -> dict[str, Seen]:
        def train(key: Any, x: Any) -> Any:
            state = logger.init(key, name="seed", config={"x": x})
            return getattr(logger, way)(programs.growth, state, **options)(x)

        keys = jax.random.split(jax.random.key(_SEED), number)
        jax.jit(jax.vmap(train))(keys, jnp.arange(number, dtype=jnp.float32))
        return {
            f"seed-{i}": Seen({"loss": _growth_records(float(i))}, None, {"x": float(i)})
            for i in range(number)
        }

    return program


def _several_steps(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.tap(programs.episodes, state, buffer=3)(0.0)
    steps = [(10 * i, i // 2) for i in range(4)]
    columns = {"a": [(step, i) for i, (step, _) in enumerate(steps)]}
    return {"one": Seen(columns | {"episode": [(step, episode) for step, episode in steps]})}


def _another_step(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        for update in (5, 6, 9):
            logger.log(state, {"a": update / 2}, update=update)
    return {"one": Seen({"a": [(u, u / 2) for u in (5, 6, 9)]})}


def _no_step(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        for x in (0.0, 10.0):
            logger.tap(programs.log_twice, state)(x)
    return {"one": Seen({"a": [(0, 0.0), (1, 1.0), (2, 10.0), (3, 11.0)]})}


def _pytrees(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.log(state, {"net": {"w": [1.0, 2.0], "b": jnp.float32(3)}}, step=0)
    columns = {"net/w/0": [(0, 1.0)], "net/w/1": [(0, 2.0)], "net/b": [(0, 3.0)]}
    return {"one": Seen(columns)}


def _vectors(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.tap(programs.arrays, state)(jnp.arange(4.0))
    v = np.arange(4.0)
    return {"one": Seen({"v": [(1, v)], "m": [(1, v.reshape(2, 2))]})}


def _lane_lengths(logger: Any) -> dict[str, Seen]:
    def train(key: Any, n: Any) -> Any:
        return logger.tap(programs.count_to, logger.init(key, name="seed"), buffer=2)(n)

    numbers = [3, 0, 5, 1]
    jax.vmap(train)(jax.random.split(jax.random.key(_SEED), 4), jnp.array(numbers))
    columns = [{"i": [(i, 10 * i) for i in range(n)]} if n else {} for n in numbers]
    return {f"seed-{i}": Seen(own) for i, own in enumerate(columns)}


def _lane_lengths_in_turns(logger: Any) -> dict[str, Seen]:
    def train(key: Any, n: Any) -> Any:
        return logger.tap(programs.halves_to, logger.init(key, name="seed"), buffer=8)(n)

    numbers = [3, 1]
    jax.vmap(train)(jax.random.split(jax.random.key(_SEED), 2), jnp.array(numbers))
    return {
        f"seed-{i}": Seen({"x": [(step, step / 2) for step in range(2 * n)]})
        for i, n in enumerate(numbers)
    }


def _branches(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.tap(programs.even_and_odd, state, buffer=4)()
    columns = {
        "even": [(0, 0), (2, 2)],
        "odd": [(1, 1), (3, 3)],
        "both": [(0, 0), (1, 1), (2, -2), (3, 3)],
    }
    return {"one": Seen(columns)}


def _late_keys(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.log(state, {"a": 1.0}, step=0)
        logger.log(state, {"a": 2.0, "b": 3.0}, step=1)
        logger.log(state, {"c": 4.0}, step=1)
    return {"one": Seen({"a": [(0, 1.0), (1, 2.0)], "b": [(1, 3.0)], "c": [(1, 4.0)]})}


def _not_finite(logger: Any) -> dict[str, Seen]:
    values = [np.nan, np.inf, -np.inf, 0.0]
    with logger.run(name="one") as state:
        for step, value in enumerate(values):
            logger.log(state, {"x": jnp.float32(value)}, step=step)
    return {"one": Seen({"x": list(enumerate(values))})}


def _kinds(logger: Any) -> dict[str, Seen]:
    given = {"whole": jnp.int32(-3), "truth": jnp.bool_(True), "small": jnp.bfloat16(1.5)}
    with logger.run(name="one") as state:
        logger.log(state, given, step=2)
    return {"one": Seen({"whole": [(2, -3)], "truth": [(2, 1)], "small": [(2, 1.5)]})}


def _keys(*keys: str) -> Callable[[Any], dict[str, Seen]]:
    def program(logger: Any) -> dict[str, Seen]:
        with logger.run(name="one") as state:
            for step in range(2):
                logger.log(state, {key: float(i + step) for i, key in enumerate(keys)}, step=step)
        columns = {k: [(0, float(i)), (1, i + 1.0)] for i, k in enumerate(keys)}
        return {"one": Seen(columns)}

    return program


def _nothing(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.tap(lambda x: x, state)(1.0)
    return {"one": Seen({}, "finished")}


def _many_calls(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        for start in range(3):
            logger.tap(programs.log_count_from, state, buffer=2)(start * 4)
    return {"one": Seen({"i": [(i, i) for i in range(12)]})}


def _inner_loop(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.tap(programs.loop_in_a_loop, state, buffer=5)()
    columns = {
        "inner": [(i * 3 + j, j) for i in range(2) for j in range(3)],
        "outer": [(2, 0), (5, 1)],
    }
    return {"one": Seen(columns)}


def _a_logdict(logger: Any) -> dict[str, Seen]:
    _, logs = spool(programs.growth)(1.0)
    with logger.run(name="one") as state:
        logger.log(state, logs)
    return {"one": Seen({"loss": _growth_records(1.0)})}


def _a_live_block(logger: Any) -> dict[str, Seen]:
    step = jax.jit(programs.growth)
    with logger.run(name="one") as state, logger.live(state):
        step(1.0)
        step(2.0)
    return {"one": Seen({"loss": [*_growth_records(1.0), *_growth_records(2.0)]})}


def _a_logger_in_live(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.log(state, {"x": 1.0}, step=0)
    with live(_NamedRunLogger(logger, "two")):
        jax.jit(programs.growth)(1.0)
    return {"one": Seen({"x": [(0, 1.0)]}), "two": Seen({"loss": _growth_records(1.0)})}


class _NamedRunLogger:
    """Logger for `live` whose run has a given name."""

    def __init__(self, logger: Any, name: str) -> None:
        self._logger, self._name = logger, name

    def streamed_live(self) -> Any:
        return self._logger.streamed_live(name=self._name)


def _a_python_loop(logger: Any) -> dict[str, Seen]:
    loop = logger.loop(lambda x: {"x": x}, 2, name="loop")
    with loop:
        for step in range(5):
            loop.log(jnp.float32(step), step)
    return {"loop": Seen({"x": [(0, 0.0), (2, 2.0), (4, 4.0)]}, "finished")}


def _a_crash(logger: Any) -> dict[str, Seen]:
    try:
        with logger.run(name="one") as state:
            logger.log(state, {"x": 1.0}, step=0)
            raise KeyError("the user's own")
    except KeyError:
        pass
    with logger.run(name="two") as state:
        logger.log(state, {"x": 2.0}, step=0)
    return {
        "one": Seen({"x": [(0, 1.0)]}, "crashed"),
        "two": Seen({"x": [(0, 2.0)]}, "finished"),
    }


def _side_by_side(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as one, logger.run(name="two") as two:
        for step in range(3):
            logger.log(one, {"x": step}, step=step)
            logger.log(two, {"x": -step}, step=step)
    return {
        "one": Seen({"x": [(i, i) for i in range(3)]}),
        "two": Seen({"x": [(i, -i) for i in range(3)]}),
    }


def _selection(logger: Any) -> dict[str, Seen]:
    with logger.run(name="one") as state:
        logger.tap(programs.log_with_tags, state, "b", prefix="p/")(1.0)
        logger.spool(programs.log_with_tags, state, tags="rare")(2.0)
    return {"one": Seen({"p/b": [(0, 2.0)], "c": [(1, 2.0)]})}


_HOSTILE = (
    "../x", "/etc/x", "a//b", "/", ".", "..", "a b", "'; DROP TABLE runs; --", "%s %d", "{x}",
    "CON", "a,b", 'say "x"', "a\nb", "\t", "=1+1", "*", "run", "lane", "x_step",
)  # fmt: skip

# Programs that test a logger: streamed and collected runs, one to 256 seeds, named steps, pytrees,
# branches, nested loops, values that are not finite, keys of all kinds, and crashes.
CASES: tuple[Case, ...] = (
    Case("one run, streamed", _one_run),
    Case("one run, collected", _one_run_spooled),
    Case("one seed", _seeds(1, "tap")),
    Case("8 seeds, streamed", _seeds(8, "tap")),
    Case("8 seeds, streamed in a buffer", _seeds(8, "tap", buffer=2)),
    Case("8 seeds, collected", _seeds(8, "spool")),
    Case("256 seeds", _seeds(256, "tap", buffer=3)),
    Case("several steps", _several_steps),
    Case("a step of another name", _another_step),
    Case("no step", _no_step),
    Case("pytrees", _pytrees),
    Case("vectors", _vectors),
    Case("lanes of different lengths", _lane_lengths),
    Case("lanes of different lengths, in turns", _lane_lengths_in_turns),
    Case("branches", _branches),
    Case("late keys", _late_keys),
    Case("not finite", _not_finite),
    Case("kinds of numbers", _kinds),
    Case("unicode keys", _keys("Verlust/größe", "损失", "🙂", "e\u0301", "\u202eabc")),
    Case("hostile keys", _keys(*_HOSTILE)),
    Case("a key of a megabyte", _keys("k" * 2**20)),
    Case("no records", _nothing),
    Case("many calls", _many_calls),
    Case("nested loops", _inner_loop),
    Case("a logdict", _a_logdict),
    Case("a live block", _a_live_block),
    Case("a logger in live", _a_logger_in_live),
    Case("a Python loop", _a_python_loop),
    Case("a crash", _a_crash),
    Case("runs side by side", _side_by_side),
    Case("chosen logs", _selection),
)
