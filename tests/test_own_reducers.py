"""User-defined reducers: the accepted forms, and the errors for wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax

XS = np.array([2.0, 3.0, 4.0], np.float32)


def series(xs: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        logax.log({"x": x, "tree": {"a": 2 * x}}, step=i)
        return i + 1, None

    return lax.scan(body, 0, xs)[0]


def as_list(array: Any) -> Any:
    return np.asarray(array).tolist()


class Product(logax.Reducer):
    """The example of the documentation."""

    def start(self, like: Any) -> Any:
        return jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), like)

    def step(self, state: Any, value: Any) -> Any:
        return jax.tree.map(jnp.multiply, state, value)

    def merge(self, first: Any, second: Any) -> Any:
        return jax.tree.map(jnp.multiply, first, second)

    def finish(self, state: Any) -> Any:
        return state


class Duck:
    """A reducer that is not a subclass: the four methods suffice."""

    start, step, merge, finish = Product.start, Product.step, Product.merge, Product.finish  # type: ignore[assignment]


class Numbers(logax.Reducer):
    """A reducer whose first state is a tuple of Python numbers: count and sum of squares."""

    def start(self, like: Any) -> Any:
        return 0, 0.0

    def step(self, state: Any, value: Any) -> Any:
        return state[0] + 1, state[1] + sum(jnp.sum(x**2) for x in jax.tree.leaves(value))

    def merge(self, first: Any, second: Any) -> Any:
        return first[0] + second[0], first[1] + second[1]

    def finish(self, state: Any) -> Any:
        return {"rms": jnp.sqrt(state[1] / state[0]), "count": state[0]}


class Ends(logax.RecordReducer):
    """Keep the first and the last record, with their steps."""

    rows = 2

    def start(self, like: logax.RecordArrays) -> Any:
        zeros = jax.tree.map(lambda x: jnp.zeros((2, *x.shape), x.dtype), like)
        return zeros, jnp.zeros((), jnp.int32)

    def step(self, state: Any, record: logax.RecordArrays) -> Any:
        kept, count = state
        at = jnp.minimum(count, 1)
        return jax.tree.map(lambda k, x: k.at[at].set(x), kept, record), count + 1

    def merge(self, first: Any, second: Any) -> Any:
        raise NotImplementedError

    def finish(self, state: Any) -> Any:
        return state[0], jnp.minimum(state[1], 2)


@pytest.mark.parametrize("reducer", [Product(), Duck()])
def test_a_reducer_is_any_object_with_the_four_methods(reducer: Any) -> None:
    _, logs = logax.spool(series, reduce=reducer)(XS)
    assert as_list(logs["x"]) == [24.0]
    assert as_list(logs["tree"]["a"]) == [192.0]
    assert as_list(logs.steps["step"]["x"]) == [2]
    assert logax.spool(series)(XS)[1].reduce(reducer) == logs


def test_it_goes_with_lanes_loops_conditions_and_names() -> None:
    def f(n: Any) -> Any:
        def body(i: Any) -> Any:
            lax.cond(i % 2 == 1, lambda: logax.log({"odd": i}, step=i), lambda: None)
            logax.log({"all": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 1)

    spooled = logax.spool(f, reduce={"odd": Product(), "all": "sum"})
    logs = spooled(6)[1]
    assert (as_list(logs["odd"]), as_list(logs["all"])) == ([15], [15])
    _, logs = jax.vmap(spooled)(jnp.array([6, 1, 8]))
    assert as_list(logs["odd"][::2]) == [[15], [105]]
    assert as_list(logs.count["odd"]) == [1, 0, 1]
    assert as_list(logs.steps["step"]["odd"][::2]) == [[5], [7]]


def test_its_state_may_start_with_python_numbers_and_its_result_be_another_pytree() -> None:
    _, logs = logax.spool(series, keys="x", reduce=Numbers())(XS)
    np.testing.assert_allclose(logs["x"]["rms"], [np.sqrt((XS**2).mean())], rtol=1e-6)
    assert as_list(logs["x"]["count"]) == [3]


@pytest.mark.parametrize(("xs", "kept", "steps"), [(XS, [2.0, 4.0], [0, 2]), (XS[:1], [2.0], [0])])
def test_a_record_reducer_keeps_several_records_with_their_steps(
    xs: Any, kept: list[float], steps: list[int]
) -> None:
    logs = logax.spool(series, keys="x", reduce=Ends())(xs)[1].compact()
    assert as_list(logs["x"]) == kept
    assert as_list(logs.steps["step"]["x"]) == steps


class Histogram(logax.Reducer):
    """A reducer whose `step` closes over an array."""

    edges = np.array([0.0, 2.0, 4.0, 8.0], np.float32)

    def start(self, like: Any) -> Any:
        return jnp.zeros(len(self.edges) + 1, jnp.int32)

    def step(self, state: Any, value: Any) -> Any:
        return state.at[jnp.searchsorted(self.edges, value, side="right")].add(1)

    def merge(self, first: Any, second: Any) -> Any:
        return first + second

    def finish(self, state: Any) -> Any:
        return state


@pytest.mark.parametrize("place", ["cond", "checkpoint", "while_loop"])
def test_its_step_may_hold_arrays(place: str) -> None:
    def log_three(x: Any) -> Any:
        return lax.scan(lambda x, _: (logax.log({"x": x}) or x + 1, None), x, None, length=3)[0]

    if place == "cond":
        function: Any = lambda x: lax.cond(x > 0, log_three, lambda x: x, x)  # noqa: E731
    elif place == "checkpoint":
        function = jax.checkpoint(log_three)  # type: ignore[attr-defined]
    else:
        function = lambda x: lax.while_loop(lambda x: x < 4.0, log_three, x)  # noqa: E731
    out, logs = logax.spool(function, reduce=Histogram())(1.5)
    assert out == 4.5
    assert as_list(logs["x"]) == [[0, 1, 2, 0, 0]]  # 1.5; 2.5 and 3.5


def test_equal_reducers_compile_once() -> None:
    @dataclasses.dataclass(frozen=True)
    class Scaled(Product):
        factor: float

        def finish(self, state: Any) -> Any:
            return jax.tree.map(lambda x: x * self.factor, state)

    traces = []

    def f(x: Any) -> None:
        traces.append(1)
        logax.log({"x": x})

    for factor in (2.0, 2.0, 3.0, 2.0):
        assert as_list(logax.spool(f, reduce=Scaled(factor))(5.0)[1]["x"]) == [5.0 * factor]
    assert len(traces) == 2


def test_a_reducer_that_cannot_be_hashed_is_told_from_others_by_identity() -> None:
    @dataclasses.dataclass
    class Scaled(Product):
        factor: float

        def finish(self, state: Any) -> Any:
            return jax.tree.map(lambda x: x * self.factor, state)

    for factor in (2.0, 3.0):
        assert as_list(logax.spool(series, reduce=Scaled(factor))(XS)[1]["x"]) == [24.0 * factor]
        reduce = {"x": Scaled(factor), "*": "sum"}
        assert as_list(logax.spool(series, reduce=reduce)(XS)[1]["x"]) == [24.0 * factor]
        whole = logax.spool(series)(XS)[1]
        assert as_list(whole.reduce(Scaled(factor))["x"]) == [24.0 * factor]


def test_a_module_of_arrays_is_reduced_like_any_pytree() -> None:
    class Gradient(eqx.Module):
        weight: Any
        name: str = eqx.field(static=True)

    def f(x: Any) -> None:
        for i in range(3):
            logax.log({"gradient": Gradient(x * i, "layer")}, step=i)

    for how, expected in (("sum", 3 * XS), (Product(), 0 * XS), ("last", 2 * XS)):
        _, logs = logax.spool(f, reduce=how)(XS)
        assert isinstance(logs["gradient"], Gradient)
        np.testing.assert_array_equal(logs["gradient"].weight, [expected])


# Wrong ones.


class Widens(Product):
    def start(self, like: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.int32), like)


class Grows(Product):
    def step(self, state: Any, value: Any) -> Any:
        return jax.tree.map(lambda s: jnp.stack([s, s]), state)


class Renames(Product):
    def step(self, state: Any, value: Any) -> Any:
        return {"state": state}


class Starts(Product):
    def start(self, like: Any) -> Any:
        return "nothing"


class HasNoStep(logax.Reducer):
    def start(self, like: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


class HalfADuck:
    def start(self, like: Any) -> Any:
        return like

    def step(self, state: Any, value: Any) -> Any:
        return state


WRONG: dict[str, tuple[type[Exception], Callable[[], Any], list[str]]] = {
    "another dtype": (TypeError, Widens, ["Widens", "step`", "int32[]", "float32[]"]),
    "another shape": (TypeError, Grows, ["Grows", "step`", "float32[]", "float32[2]"]),
    "another structure": (TypeError, Renames, ["Renames", "step`", "'state'"]),
    "no array": (TypeError, Starts, ["Starts", "start`", "'nothing'"]),
    "no method": (NotImplementedError, HasNoStep, ["`HasNoStep` lacks the method `step`"]),
    "half a duck": (ValueError, HalfADuck, ["`reduce` takes", "HalfADuck", "`merge`, `finish`"]),
    "a class": (ValueError, lambda: Product, ["`reduce` takes", "Product", "`Product("]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_reducer_is_named_with_what_it_did(case: str) -> None:
    error, make, parts = WRONG[case]
    with pytest.raises(error) as raised:
        logax.spool(series, keys="x", reduce=make())(XS)
    message = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    missing = [part for part in parts if part not in message]
    assert not missing, message
    assert "ReducerAdapter" not in message


@pytest.mark.parametrize(
    "case", ["another dtype", "another shape", "another structure", "no method"]
)
def test_a_wrong_reducer_is_named_with_the_key_and_the_place_of_the_log(case: str) -> None:
    error, make, _ = WRONG[case]
    with pytest.raises(error) as raised:
        logax.spool(series, keys="x", reduce=make())(XS)
    message = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "`x`" in message
    assert f"{__file__}:{series.__code__.co_firstlineno + 2}" in message
