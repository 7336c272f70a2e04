"""What is demanded of `spool`, as functions of a program and of states to start it from.

Each check compares with the oracle. Where it takes several states they are the lanes of a vmapped
harvest, and a single one is not vmapped. `test_oracle` runs them on fixed programs, and
`on_random_programs` on drawn ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings

import logax
from oracle import (
    Column,
    Program,
    Recording,
    against,
    assert_logs_match,
    assert_same_bits,
    expected,
    lane,
    oracle,
    step_of,
    with_all_lanes,
)
from program_strategies import MOST_RECORDS
from programs import State

REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda values: values.mean(0),
    "sum": lambda values: values.sum(0),
    "min": lambda values: values.min(0),
    "max": lambda values: values.max(0),
    "std": lambda values: values.std(0),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


@contextlib.contextmanager
def compiled_quickly() -> Iterator[None]:
    """Without most of the compiler's optimizations, for programs that take longer to compile.

    All arithmetic of random programs is exact, so no value depends on them.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def on_random_programs(fast: int, slow: int, **strategies: Any) -> Callable[[Any], Any]:
    """Run a check on `fast` draws, and in the slow suite on `slow` others.

    Each test has at most `PER_TEST` draws, so that tests can run in parallel. Hypothesis does not
    shrink a failing program, which would take hundreds of compilations.
    """
    portions = [(examples, False) for examples in _portions(fast)]
    portions += [(examples, True) for examples in _portions(slow)]
    cases = [
        pytest.param(examples, part, marks=[pytest.mark.slow] * is_slow, id=f"{part}-{examples}")
        for part, (examples, is_slow) in enumerate(portions)
    ]

    def decorate(check: Callable[..., Any]) -> Any:
        @pytest.mark.parametrize(("examples", "part"), cases)
        def test(examples: int, part: int) -> None:
            options = settings(max_examples=examples, phases=[Phase.generate])
            with compiled_quickly():
                options(seed(part)(given(**strategies)(check)))()

        test.__name__ = check.__name__
        return test

    return decorate


PER_TEST = 12


def _portions(number: int) -> list[int]:
    parts = -(-number // PER_TEST)
    return [number // parts + (part < number % parts) for part in range(parts)]


def capacity_of(program: Program) -> int | None:
    """A capacity that keeps everything, for the programs that need one."""
    return MOST_RECORDS if getattr(program, "unbounded", True) else None


def assert_same_trees(actual: Any, wanted: Any) -> None:
    jax.tree.map(assert_same_bits, actual, wanted)


def assert_not_padded(logs: Any) -> None:
    for key in logs:
        lengths = {len(leaf) for leaf in jax.tree.leaves(logs[key])}
        assert lengths == {int(logs.count[key])}, f"{key!r} is padded, and its count is fixed"


def stacked(lanes: Sequence[State]) -> State:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *lanes)


def check_plain(program: Program, *states: State) -> None:
    """Without a harvest the program gives the output of the oracle, bit for bit."""
    plain = jax.jit(against(program, logax.log))
    for state in states:
        assert_same_trees(plain(state), oracle(program, state)[0])


def check_records(program: Program, *states: State) -> None:
    """`spool` gives the output and the records of the oracle, bit for bit."""
    harvested = logax.spool(against(program, logax.log), capacity=capacity_of(program))
    for state in states:
        wanted, recording = oracle(program, state)
        out, logs = harvested(state)
        assert_same_trees(out, wanted)
        assert_logs_match(logs, recording.chosen())
        if not getattr(program, "ragged", True):
            assert_not_padded(logs)


def check_lanes(program: Program, lanes: Sequence[State]) -> None:
    """`vmap(spool(f))` gives each lane its own output and records."""
    function = against(program, logax.log)
    harvested = logax.spool(function, capacity=capacity_of(program))
    out, logs = jax.jit(jax.vmap(harvested))(stacked(lanes))
    for index, state in enumerate(lanes):
        wanted, recording = oracle(program, state)
        assert_same_trees(lane(out, index), wanted)
        assert_logs_match(lane(logs, index), recording.chosen())


def check_jitted(program: Program, state: State) -> None:
    """`jit(spool(f))` and `spool(jit(f))` are `spool(f)`."""
    function, capacity = against(program, logax.log), capacity_of(program)
    wanted, recording = oracle(program, state)
    for harvested in (
        jax.jit(logax.spool(function, capacity=capacity)),
        logax.spool(jax.jit(function), capacity=capacity),
    ):
        out, logs = harvested(state)
        assert_same_trees(out, wanted)
        assert_logs_match(logs, recording.chosen())


def check_kept(
    program: Program, lanes: Sequence[State], interval: int = 1, capacity: int | None = None
) -> None:
    """`interval` keeps records 0, k, 2k, ... of each key, and of those `capacity` the last ones."""
    kept = capacity or capacity_of(program)
    harvested = logax.spool(against(program, logax.log), interval=interval, capacity=kept)
    for recording, logs in _each(program, harvested, lanes):
        assert_logs_match(logs, recording.thinned(interval), capacity=kept)


def check_reduction(program: Program, lanes: Sequence[State], how: str, interval: int = 1) -> None:
    """`reduce` gives what NumPy makes of the records, with the steps of the last or first one."""
    harvested = logax.spool(against(program, logax.log), reduce=how, interval=interval)
    for recording, logs in _each(program, harvested, lanes):
        for key, column in expected(recording.thinned(interval)).items():
            count = int(logs.count[key]) if key in logs else 0
            wanted = min(column.count, 1)
            assert count == wanted, f"{key!r} counts {count} reduced records, not {wanted}"
            if not count:
                continue
            compact = logs.compact()
            _assert_reduced(how, compact[key], column)
            end = slice(0, 1) if how == "first" else slice(-1, None)
            for name, steps in column.steps.items():
                found = step_of(compact, name, key, steps[end])
                pair = with_all_lanes(found, steps[end], column.sizes, 1)
                assert_same_bits(*pair, f"step {name!r} of {key!r}")


def _assert_reduced(how: str, value: Any, column: Column) -> None:
    for reduced, leaf in zip(jax.tree.leaves(value), jax.tree.leaves(column.value), strict=True):
        if how == "count":
            assert set(np.asarray(reduced).ravel().tolist()) == {column.count}
        elif how in ("mean", "std"):
            exact = REDUCTIONS[how](leaf.astype(np.float64))[None]
            found, wanted = with_all_lanes(reduced, exact, column.sizes, 1)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        else:
            exact = REDUCTIONS[how](leaf)[None].astype(leaf.dtype)
            assert_same_bits(*with_all_lanes(reduced, exact, column.sizes, 1), how)


def check_gradient(program: Program, state: State) -> None:
    """Differentiating through `spool` gives the plain gradient, bit for bit, and all records."""
    function = against(program, logax.log)
    harvested = logax.spool(function)

    def spooled(real: State) -> Any:
        out, logs = harvested(state | real)
        return scalar_of(out), logs

    plain = jax.grad(lambda real: scalar_of(function(state | real)))
    gradient, logs = jax.jit(jax.grad(spooled, has_aux=True))(real_part(state))
    assert_same_trees(gradient, jax.jit(plain)(real_part(state)))
    assert_logs_match(logs, oracle(program, state)[1].chosen())


def real_part(state: State) -> State:
    return {"x": state["x"], "v": state["v"]}


def scalar_of(state: State) -> Any:
    return state["x"] + state["v"].sum()


def on_device(state: State) -> State:
    """A copy that may be donated."""
    return jax.tree.map(jnp.array, state)


def check_donated(program: Program, state: State) -> None:
    """A donated argument, outside of the harvest or inside, changes no result and no record."""
    function, capacity = against(program, logax.log), capacity_of(program)
    wanted, recording = oracle(program, state)
    for harvested in (
        jax.jit(logax.spool(function, capacity=capacity), donate_argnums=0),
        logax.spool(jax.jit(function, donate_argnums=0), capacity=capacity),
    ):
        out, logs = harvested(on_device(state))
        assert_same_trees(out, wanted)
        assert_logs_match(logs, recording.chosen())


def check_nesting(
    program: Program, state: State, keep_logs: bool, pick: int, prefix: str = ""
) -> None:
    """An inner harvest takes what it names; the outer sees the rest, or with `keep_logs` all.

    A prefix is in front of the keys of the harvest that has it.
    """
    wanted, recording = oracle(program, state)
    key = recording.known()[pick % len(recording.known())]
    function, capacity = against(program, logax.log), capacity_of(program)
    options: dict[str, Any] = {"capacity": capacity, "prefix": prefix}
    inner = logax.spool(function, keys=key, keep_logs=keep_logs, **options)
    (out, inside), outside = logax.spool(inner, **options)(state)
    assert_same_trees(out, wanted)
    assert_logs_match(inside, recording.chosen([key]).prefixed(prefix))
    seen = recording if keep_logs else recording.chosen([key], rest=True)
    assert_logs_match(outside, seen.chosen().prefixed(prefix))


def check_tags(program: Program, state: State, tag: str) -> None:
    """`tags` chooses the records that carry one of them, explicit ones too."""
    _, recording = oracle(program, state)
    chosen = recording.chosen(tags=[tag])
    if chosen.sites:
        _, logs = logax.spool(against(program, logax.log), tags=tag, capacity=capacity_of(program))(
            state
        )
        assert_logs_match(logs, chosen)


def _each(
    program: Program, harvested: Any, lanes: Sequence[State]
) -> Iterator[tuple[Recording, Any]]:
    """The recording and the logs of each lane."""
    if len(lanes) > 1:
        _, logs = jax.jit(jax.vmap(harvested))(stacked(lanes))
    else:
        _, logs = harvested(lanes[0])
    for index, state in enumerate(lanes):
        yield oracle(program, state)[1].chosen(), lane(logs, index) if len(lanes) > 1 else logs
