"""How often a harvested function is traced and compiled, and what is left when it is gone.

Traces are counted by the function itself, compilations by JAX's own events.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from logax._harvest import program_cache as programs

X = np.arange(3.0, dtype=np.float32)
COMPILED: list[str] = []


def note_compilation(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(note_compilation)


class Counted:
    """A function that counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0
        COMPILED.clear()

    def __call__(self, x: Any) -> Any:
        self.traces += 1
        logax.log({"x": x})
        return x + 1

    def method(self, x: Any) -> Any:
        return self(x)

    def counts(self) -> tuple[int, int]:
        """Traces and compilations since this object was made."""
        return self.traces, len(COMPILED)


def test_a_hundred_calls_compile_once() -> None:
    counted = Counted()
    harvested = logax.spool(counted)
    for number in range(100):
        out, logs = harvested(X + number)
        np.testing.assert_array_equal(out, X + number + 1)
        np.testing.assert_array_equal(logs["x"], [X + number])
    assert counted.counts() == (1, 1)


def test_a_hundred_fresh_spools_compile_once() -> None:
    counted = Counted()
    for number in range(100):
        np.testing.assert_array_equal(logax.spool(counted)(X + number)[0], X + number + 1)
    assert counted.counts() == (1, 1)


def test_a_hundred_fresh_spools_with_the_same_options_compile_once() -> None:
    counted = Counted()
    for _ in range(100):
        _, logs = logax.spool(counted, reduce={"*": "mean"}, keys=["x"], prefix="a/")(X)
        assert list(logs) == ["a/x"]
    assert counted.counts() == (1, 1)


def test_a_hundred_fresh_spools_of_a_bound_method_compile_once() -> None:
    counted = Counted()
    for _ in range(100):
        logax.spool(counted.method)(X)
    assert counted.counts() == (1, 1)


def test_a_jit_around_equal_spools_compiles_once() -> None:
    counted = Counted()
    harvests = [logax.spool(counted) for _ in range(20)]
    for harvested in harvests:
        jax.jit(harvested)(X)
    assert counted.counts() == (1, 1)


def test_other_options_shapes_or_static_values_compile_again_and_keep_what_was_there() -> None:
    counted = Counted()
    calls: list[Callable[[], Any]] = [
        lambda: logax.spool(counted)(X),
        lambda: logax.spool(counted, reduce="sum")(X),
        lambda: logax.spool(counted)(X[:2]),
        lambda: logax.spool(counted)(X.astype(np.int32)),
    ]
    for round_number in range(3):
        for number, call in enumerate(calls):
            call()
            assert counted.traces == (4 if round_number else number + 1)
    assert counted.counts() == (4, 4)


def test_joining_fifty_lengths_compiles_nothing() -> None:
    keys, step = jax.random.split(jax.random.key(0), 2), jnp.arange(2)
    logs = logax.logdict(
        {"x": jnp.array([1.0, 2.0]), "padded": {"b": jnp.zeros((2, 3), jnp.bfloat16)}, "key": keys},
        steps={"step": {"x": step, "padded": step}, "update": {"x": step}},
        count={"padded": jnp.int32(1)},
    )
    other = logax.logdict(logs.filter(["x", "key"]), steps={})
    COMPILED.clear()
    total = logs
    for number in range(50):
        total = total + (logs if number % 2 else other)
    assert total == logax.concat([logs, *[other, logs] * 25])
    assert COMPILED == []
    assert total["x"].tolist() == [1, 2] * 51
    assert total["padded"]["b"].shape == (26, 3)
    assert total["key"].shape == (102,)


def test_a_function_called_plainly_before_and_after_is_compiled_once_for_each_use() -> None:
    counted = Counted()
    jitted = jax.jit(counted)
    for _ in range(3):
        np.testing.assert_array_equal(jitted(X), X + 1)
        assert logax.spool(jitted)(X)[1]["x"].shape == (1, 3)
    assert counted.counts() == (2, 2)


@jax.tree_util.register_pytree_node_class
class Model:
    """A function that is a pytree, as an equinox module is."""

    traces = 0

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __call__(self, x: Any) -> Any:
        Model.traces += 1
        logax.log({"out": x * self.weight})
        return x * self.weight

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.weight,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Model:
        return cls(*children)


def test_four_models_of_one_structure_compile_once() -> None:
    COMPILED.clear()
    for weight in np.arange(4, dtype=np.float32):
        for function in (Model(weight), Model(weight).__call__):
            out, logs = logax.spool(function)(X)
            np.testing.assert_array_equal(out, X * weight)
            np.testing.assert_array_equal(logs["out"], [X * weight])
    # Once as a callable object, once as a method.
    assert (Model.traces, len(COMPILED)) == (2, 2)


def test_of_functions_that_are_pytrees_the_oldest_programs_make_room() -> None:
    of_trees = programs.programs_of(Model(1.0), "some options", is_tree=True)
    for number in range(300):
        of_trees[number] = str(number)
    assert of_trees == {number: str(number) for number in range(44, 300)}
    assert programs.programs_of(Model(2.0), "some options", is_tree=True) is of_trees
    programs._tree_programs.pop("some options")


def names_of_functions(fun: Callable[..., Any]) -> list[str]:
    text = jax.jit(fun).lower(X).as_text()
    return [re.sub(r"_\d+$", "", name) for name in re.findall(r"func\.func \w+ @(\w+)", text)]


@pytest.mark.parametrize(
    "options", [{}, {"capacity": 5}, {"reduce": "std"}, {"interval": 7}], ids=str
)
def test_a_jitted_helper_used_forty_times_is_lowered_once(options: dict[str, Any]) -> None:
    @jax.jit
    def helper(x: Any) -> Any:
        x = jnp.sin(x)
        logax.log({"sin": x})
        return 2 * x

    def forty(x: Any) -> Any:
        for _ in range(40):
            x = helper(x)
        return x

    assert names_of_functions(forty).count("helper") == 1
    # JAX itself drops what nobody reads from the last call, which may so become a second one.
    most = 2 if options else 1
    assert names_of_functions(logax.spool(forty, **options)).count("helper") <= most
    jaxpr = jax.make_jaxpr(logax.spool(forty, **options))(X)
    helpers = [e.params["jaxpr"] for e in jaxpr.eqns if e.params.get("name") == "helper"]
    assert (len(helpers), len(set(map(id, helpers)))) == (40, 1)


def test_a_helper_keeps_one_function_for_each_place_that_has_its_own() -> None:
    @jax.jit
    def helper(x: Any) -> Any:
        logax.log({"x": x})
        return x + 1

    def scanned_and_mapped(x: Any) -> Any:
        for _ in range(10):
            x = helper(x)
        x, _ = jax.lax.scan(lambda c, _: (helper(helper(c)), None), x, None, length=3)
        return jax.vmap(lambda y: helper(helper(y)))(x)

    plain = names_of_functions(scanned_and_mapped).count("helper")
    assert names_of_functions(logax.spool(scanned_and_mapped)).count("helper") == plain


def closure(weight: Any) -> Callable[[Any], Any]:
    def scaled(x: Any) -> Any:
        logax.log({"scaled": x * weight})
        return x * weight

    return scaled


def spooled_and_dropped(number: int, traced: int, compiled: int) -> list[weakref.ref[Any]]:
    """Spool many closures; call every `traced`-th without compiling, every `compiled`-th with."""
    references = []
    for i in range(number):
        weight = jnp.full(3, i, jnp.float32)
        function = closure(weight)
        harvested = logax.spool(function)
        if i % compiled == 0:
            np.testing.assert_array_equal(harvested(X)[1]["scaled"], [X * i])
        elif i % traced == 0:
            with jax.disable_jit():
                np.testing.assert_array_equal(harvested(X)[1]["scaled"], [X * i])
        references += [weakref.ref(function), weakref.ref(weight), weakref.ref(harvested)]
    return references


def living_objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize(
    ("number", "traced", "compiled"),
    [(2_000, 25, 400), pytest.param(10_000, 1, 20, marks=pytest.mark.slow)],
)
def test_thousands_of_closures_leave_nothing_behind(
    number: int, traced: int, compiled: int
) -> None:
    spooled_and_dropped(10, 1, 2)  # what is made once for all
    gc.collect()
    kept = set(programs._programs_by_owner)
    before = living_objects()
    references = spooled_and_dropped(number, traced, compiled)
    gc.collect()
    assert [r for r in references if r() is not None] == []
    assert set(programs._programs_by_owner) <= kept
    del references
    assert living_objects() - before < 100


def test_a_program_of_a_dropped_bound_method_goes_with_its_owner() -> None:
    class Owner:
        def __init__(self, weight: float) -> None:
            self.weight = weight

        def scaled(self, x: Any) -> Any:
            logax.log({"scaled": x * self.weight})
            return x

    gc.collect()
    kept = set(programs._programs_by_owner)
    owners = [Owner(weight) for weight in (1.0, 2.0)]
    for owner in owners:
        _, logs = logax.spool(owner.scaled)(X)
        np.testing.assert_array_equal(logs["scaled"], [X * owner.weight])
    references = [weakref.ref(owner) for owner in owners]
    del owner, owners
    gc.collect()
    assert [r() for r in references] == [None, None]
    assert set(programs._programs_by_owner) <= kept


def test_a_spool_keeps_its_function_alive() -> None:
    harvested = logax.spool(closure(2.0))
    gc.collect()
    np.testing.assert_array_equal(harvested(X)[1]["scaled"], [X * 2])


def test_partials_of_one_function_compile_for_their_own_values() -> None:
    def scaled(weight: float, x: Any) -> Any:
        logax.log({"scaled": x * weight})
        return x

    for weight in (1.0, 2.0):
        _, logs = logax.spool(functools.partial(scaled, weight))(X)
        np.testing.assert_array_equal(logs["scaled"], [X * weight])


@dataclasses.dataclass(frozen=True)
class Power(logax.Reducer):
    """A reducer that is equal to another one of the same value."""

    exponent: int

    def start(self, like: Any) -> Any:
        return jnp.zeros(like.shape, like.dtype)

    def step(self, state: Any, value: Any) -> Any:
        return state + value**self.exponent

    def finish(self, state: Any) -> Any:
        return state


def test_equal_reducers_compile_once_and_others_again() -> None:
    counted = Counted()
    for exponent in (2, 3, 2, 3):
        _, logs = logax.spool(counted, reduce=Power(exponent))(X)
        np.testing.assert_array_equal(logs["x"], [X**exponent])
    assert counted.counts() == (2, 2)
