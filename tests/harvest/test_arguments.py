"""What can be given to a spooled function, what it may return, and what may be spooled at all."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import logax
from logax._harvest.static_arguments import StaticValue

X = np.arange(1.0, 4.0, dtype=np.float32)


def column(logs: logax.logdict, key: str) -> list[Any]:
    values: list[Any] = np.asarray(logs[key]).tolist()
    return values


# Functions with arguments that must be static.


def test_what_is_fixed_is_equal_to_its_like_alone() -> None:
    assert StaticValue("a") == StaticValue("a")
    assert StaticValue("a") != StaticValue("b")
    assert StaticValue("a") != "a"


class Unsigned:
    """A function of which Python cannot tell the arguments."""

    __signature__ = "none"

    def __call__(self, x: Any, times: int) -> Any:
        return doubled(x, times)


def test_what_is_static_need_not_be_found_in_a_signature() -> None:
    by_number = logax.spool(Unsigned(), static_argnums=1)
    by_name = logax.spool(Unsigned(), static_argnames="times")
    assert column(by_number(1.0, 2)[1], "x") == [2.0, 4.0]
    assert column(by_name(1.0, times=2)[1], "x") == [2.0, 4.0]


def doubled(x: Any, times: int, name: str = "x") -> Any:
    """Doubles `times` times, logging each under `name`."""
    for i in range(times):
        x = x * 2
        logax.log({name: x}, step=i)
    return x


def assert_doubled_three_times(result: tuple[Any, logax.logdict], name: str = "x") -> None:
    out, logs = result
    assert out == 8.0
    assert list(logs) == [name]
    assert column(logs, name) == [2.0, 4.0, 8.0]
    assert np.asarray(logs.steps["step"][name]).tolist() == [0, 1, 2]


STATIC: dict[str, Callable[[], Any]] = {
    "jit(spool(f)) by name": lambda: jax.jit(
        logax.spool(doubled), static_argnames=("times", "name")
    )(1.0, times=3, name="y"),
    "jit(spool(f)) by name, given by position": lambda: jax.jit(
        logax.spool(doubled), static_argnames=("times", "name")
    )(1.0, 3, "y"),
    "jit(spool(f)) by number": lambda: jax.jit(logax.spool(doubled), static_argnums=(1, 2))(
        1.0, 3, "y"
    ),
    "spool(jit(f)) by name": lambda: logax.spool(
        jax.jit(doubled, static_argnames=("times", "name"))
    )(1.0, times=3, name="y"),
    "spool(jit(f)) by name, given by position": lambda: logax.spool(
        jax.jit(doubled, static_argnames=("times", "name"))
    )(1.0, 3, "y"),
    "spool(jit(f)) by number": lambda: logax.spool(jax.jit(doubled, static_argnums=(1, 2)))(
        1.0, 3, "y"
    ),
    "jit(spool(jit(f)))": lambda: jax.jit(
        logax.spool(jax.jit(doubled, static_argnums=(1, 2))), static_argnums=(1, 2)
    )(1.0, 3, "y"),
    "spool by name": lambda: logax.spool(doubled, static_argnames="times")(1.0, times=3, name="y"),
    "spool by name, given by position": lambda: logax.spool(doubled, static_argnames=["times"])(
        1.0, 3, "y"
    ),
    "spool by number": lambda: logax.spool(doubled, static_argnums=1)(1.0, 3, "y"),
    "spool by number, given by name": lambda: logax.spool(doubled, static_argnums=(1,))(
        1.0, times=3, name="y"
    ),
    "spool by a number from the end": lambda: logax.spool(doubled, static_argnums=-2)(1.0, 3, "y"),
    "spool of a partial": lambda: logax.spool(functools.partial(doubled, times=3, name="y"))(1.0),
    "spool of a partial of a jitted function": lambda: logax.spool(
        functools.partial(jax.jit(doubled, static_argnums=(1, 2)), times=3, name="y")
    )(1.0),
    "spool by name of a partial": lambda: logax.spool(
        functools.partial(doubled, 1.0), static_argnames="times"
    )(times=3, name="y"),
}


@pytest.mark.parametrize("way", STATIC)
def test_arguments_can_be_static(way: str) -> None:
    assert_doubled_three_times(STATIC[way](), "y")


def test_static_arguments_take_part_in_what_is_compiled() -> None:
    spooled = logax.spool(doubled, static_argnames="times")
    assert column(spooled(1.0, 1)[1], "x") == [2.0]
    assert column(spooled(1.0, 3)[1], "x") == [2.0, 4.0, 8.0]
    assert column(spooled(3.0, 1)[1], "x") == [6.0]


def test_strings_and_functions_are_static_and_numbers_are_traced() -> None:
    traces = []

    def f(name: str, function: Callable[[Any], Any], x: Any) -> Any:
        traces.append(name)
        logax.log({name: function(x)})
        return x

    spooled = logax.spool(f)
    assert column(spooled("a", jnp.negative, 2.0)[1], "a") == [-2.0]
    assert column(spooled("a", jnp.negative, 3.0)[1], "a") == [-3.0]
    assert column(spooled("b", jnp.square, 3.0)[1], "b") == [9.0]
    assert traces == ["a", "b"]


@pytest.mark.parametrize("dtype", [jnp.int32, np.dtype("int32"), "int32"])
def test_dtypes_and_none_are_static(dtype: Any) -> None:
    def f(x: Any, dtype: Any, nothing: None) -> Any:
        assert nothing is None
        logax.log({"x": x.astype(dtype)})
        return x

    _, logs = logax.spool(f)(X, dtype, None)
    assert logs["x"].dtype == jnp.int32
    assert column(logs, "x") == [[1, 2, 3]]


def test_a_static_argument_that_cannot_be_hashed_is_refused() -> None:
    def f(x: Any, names: set[str]) -> None:
        logax.log(dict.fromkeys(sorted(names), x))

    with pytest.raises(TypeError, match=r"`spool` .*can be hashed.*{'a'} of type `set`"):
        logax.spool(f)(1.0, {"a"})
    assert list(logax.spool(f)(1.0, frozenset({"a"}))[1]) == ["a"]


def test_keyword_arguments_pytrees_and_prng_keys_are_arguments_as_ever() -> None:
    def f(tree: Any, *, scale: Any, key: Any) -> Any:
        logax.log({"sum": tree["a"] * scale + tree["b"][0], "key": key})
        return jax.random.normal(key)

    key = jax.random.key(3)
    out, logs = logax.spool(f)({"a": 2.0, "b": (X,)}, scale=np.int32(10), key=key)
    assert out == jax.random.normal(key)
    assert column(logs, "sum") == [[21.0, 22.0, 23.0]]
    assert logs["key"][0] == key


@pytest.mark.parametrize(
    "options", [{"static_argnames": "time"}, {"static_argnames": ["times", "time"]}]
)
def test_a_static_argument_of_an_unknown_name_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"`static_argnames` names \['time'\].*`doubled`.*'times'"):
        logax.spool(doubled, **options)


def test_a_static_argument_beyond_the_last_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`static_argnums` has \[7\].*`doubled`.*'times'"):
        logax.spool(doubled, static_argnums=(1, 7))


@pytest.mark.parametrize("name", ["spool", "nolog"])
def test_what_cannot_be_called_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"`{name}` takes a function, and got 3.0. Write `{name}"):
        getattr(logax, name)(3.0)


# Methods, partials and callable objects.


class Scale:
    """A plain object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.method(x)

    def method(self, x: Any) -> Any:
        logax.log({"scaled": x * self.factor})
        return x * self.factor

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def jitted(self, x: Any, times: int = 1) -> Any:
        return self.method(x * times)

    @logax.spool
    def spooled(self, x: Any) -> Any:
        return self.method(x)

    @functools.partial(logax.spool, reduce="sum", prefix="all/")
    def reduced(self, x: Any) -> Any:
        return self.method(x)

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return cls(3.0).method(x)

    @staticmethod
    def static(x: Any) -> Any:
        return Scale(3.0).method(x)


CALLABLES: dict[str, Callable[[], Any]] = {
    "callable object": lambda: Scale(3.0),
    "method": lambda: Scale(3.0).method,
    "jitted method": lambda: Scale(3.0).jitted,
    "class method": lambda: Scale(3.0).of_class,
    "static method": lambda: Scale(3.0).static,
    "partial of a method": lambda: functools.partial(Scale.method, Scale(3.0)),
    "tree_util.Partial": lambda: jax.tree_util.Partial(
        lambda factor, x: Scale(factor).method(x), jnp.float32(3.0)
    ),
    "equinox.Partial": lambda: eqx.Partial(lambda factor, x: Scale(factor).method(x), 3.0),
    "lambda": lambda: lambda x: Scale(3.0).method(x),
}


@pytest.mark.parametrize("kind", CALLABLES)
@pytest.mark.parametrize("outer", ["", "jit", "vmap"])
def test_anything_that_can_be_called_can_be_spooled(kind: str, outer: str) -> None:
    spooled = logax.spool(CALLABLES[kind]())
    transformed = getattr(jax, outer)(spooled) if outer else spooled
    out, logs = transformed(X)
    np.testing.assert_array_equal(out, 3 * X)
    np.testing.assert_array_equal(logs["scaled"].reshape(X.shape), 3 * X)


def test_the_static_arguments_of_a_jitted_method_stay_static() -> None:
    assert column(logax.spool(Scale(3.0).jitted)(1.0, 2)[1], "scaled") == [6.0]
    assert column(logax.spool(Scale.jitted)(Scale(5.0), 1.0, times=2)[1], "scaled") == [10.0]


def test_methods_of_two_objects_are_two_functions() -> None:
    first, second = Scale(3.0), Scale(5.0)
    assert column(logax.spool(first.method)(1.0)[1], "scaled") == [3.0]
    assert column(logax.spool(second.method)(1.0)[1], "scaled") == [5.0]
    assert column(jax.jit(logax.spool(first.method))(1.0)[1], "scaled") == [3.0]
    assert column(jax.jit(logax.spool(second.method))(1.0)[1], "scaled") == [5.0]


def test_functions_bound_to_one_object_are_told_apart_when_the_first_is_gone() -> None:
    owner = Scale(0.0)

    def bound(factor: float) -> Any:
        return types.MethodType(lambda self, x: x * factor, owner)

    assert [float(logax.spool(bound(k))(1.0)[0]) for k in (2.0, 3.0, 4.0)] == [2.0, 3.0, 4.0]


def test_spool_decorates_methods() -> None:
    assert column(Scale(3.0).spooled(2.0)[1], "scaled") == [6.0]
    assert column(Scale(5.0).spooled(2.0)[1], "scaled") == [10.0]
    assert column(Scale(5.0).reduced(2.0)[1], "all/scaled") == [10.0]


@pytest.mark.parametrize("function", [jnp.sin, jnp.add, jax.nn.relu, jax.lax.add, sum])
def test_functions_without_logs_give_an_empty_logdict(function: Callable[..., Any]) -> None:
    arguments = {jnp.sin: (X,), jax.nn.relu: (X,), sum: ([X, X],)}.get(function, (X, X))
    out, logs = logax.spool(function)(*arguments)
    np.testing.assert_array_equal(out, jax.jit(function)(*arguments))
    assert logs == logax.logdict()


def test_a_spooled_function_has_the_name_and_the_text_of_the_function() -> None:
    spooled = logax.spool(doubled)
    assert (spooled.__name__, spooled.__doc__) == ("doubled", doubled.__doc__)
    assert repr(spooled).startswith("<spool of <function doubled")


# What a function returns.


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["", "jit"])
def test_results_may_hold_none_and_numbers(transform: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        logax.log({"x": x})
        return {"none": None, "int": 1, "float": 2.5, "bool": True, "array": np.ones(2), "x": x}

    out, logs = transform(logax.spool(f))(3.0)
    assert out.pop("array").tolist() == [1.0, 1.0]
    assert out == {"none": None, "int": 1, "float": 2.5, "bool": True, "x": 3.0}
    assert column(logs, "x") == [3.0]


def test_results_may_hold_strings_and_functions() -> None:
    def f(x: Any) -> Any:
        logax.log({"x": x})
        return "text", jnp.sin, x * 2

    for _ in range(2):
        assert logax.spool(f)(3.0)[0] == ("text", jnp.sin, 6.0)
    inside = jax.jit(lambda x: logax.spool(f)(x)[0][2])
    assert inside(3.0) == 6.0


def test_an_array_of_numpy_in_a_result_is_the_callers_own() -> None:
    def f(x: Any) -> Any:
        return x, np.zeros(2)

    spooled = logax.spool(f)
    spooled(1.0)[0][1][:] = 7.0
    assert spooled(1.0)[0][1].tolist() == [0.0, 0.0]


def test_a_function_without_arguments_or_results_can_be_spooled() -> None:
    out, logs = logax.spool(lambda: logax.log({"x": 1.0}))()
    assert out is None
    assert column(logs, "x") == [1.0]


class Factor:
    """A function that Python cannot hold weakly."""

    __slots__ = ("by",)

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        logax.log({"x": x * self.by})
        return x

    def method(self, x: Any) -> Any:
        return self(x)


def test_objects_that_cannot_be_held_weakly_are_functions_like_any_other() -> None:
    for by in (2.0, 3.0):
        factor, records = Factor(by), list[Any]()
        for fun in (factor, factor.method):
            assert column(logax.spool(fun)(5.0)[1], "x") == [5 * by]
            logax.tap(fun, records.append)(5.0)
        logax.flush()
        assert [float(record["x"]) for record in records] == [5 * by] * 2
