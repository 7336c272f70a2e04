"""flax nnx objects as arguments: updated in place exactly as `nnx.jit` does it, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import logax
from slow_cases import slow_but

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
TRACES: list[str] = []


class Net(nnx.Module):
    """Parameters, running statistics and random streams: all of them change in a training step."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        TRACES.append("call")
        hidden = self.dropout(nnx.relu(self.norm(self.hidden(x))))
        logax.log({"active": (hidden > 0).mean()})
        return self.out(hidden)

    def forward(self, x: Any) -> Any:
        return self(x)


def made() -> tuple[Net, nnx.Optimizer[Net]]:
    net = Net(nnx.Rngs(0))
    return net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)


def step(net: Net, optimizer: nnx.Optimizer[Net], x: Any, y: Any) -> Any:
    loss, gradient = nnx.value_and_grad(lambda net: ((net(x) - y) ** 2).mean())(net)
    optimizer.update(net, gradient)
    logax.log({"loss": loss, "bias": gradient["out"]["bias"][...]})
    return loss


REFERENCE_STEP = nnx.jit(step)
REFERENCE_FORWARD = nnx.jit(Net.forward)


def arrays_of(*objects: Any) -> list[Any]:
    """All arrays of objects, PRNG keys as their numbers."""

    def numbers(x: Any) -> Any:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return [numbers(x) for x in jax.tree.leaves(nnx.state(objects))]


def assert_same_state(one: Any, two: Any) -> None:
    for a, b in zip(arrays_of(*one), arrays_of(*two), strict=True):
        np.testing.assert_array_equal(a, b)


def as_list(array: Any) -> Any:
    return np.asarray(array).tolist()


STEPS: dict[str, Callable[..., Any]] = {
    "spool(step)": logax.spool(step),
    "spool(nnx.jit(step))": logax.spool(nnx.jit(step)),
    "nnx.jit(spool(step))": nnx.jit(logax.spool(step)),
    "spool(step) by keyword": lambda net, optimizer, x, y: logax.spool(step)(
        net, y=y, optimizer=optimizer, x=x
    ),
}


@pytest.mark.parametrize("way", slow_but(["spool(step)"], STEPS))
def test_a_training_step_updates_all_that_nnx_jit_updates(way: str) -> None:
    ours, theirs = made(), made()
    untouched = arrays_of(*made())
    for _ in range(3):
        loss, logs = STEPS[way](*ours, X, Y)
        expected = REFERENCE_STEP(*theirs, X, Y)
        np.testing.assert_array_equal(loss, expected)
        np.testing.assert_array_equal(logs["loss"], [expected])
        assert set(logs) == {"active", "loss", "bias"}
    assert_same_state(ours, theirs)
    changed = [(a != b).any() for a, b in zip(arrays_of(*ours), untouched, strict=True)]
    assert sum(changed) > 10


def test_models_of_one_structure_compile_once() -> None:
    def apply(net: Net, x: Any) -> Any:
        return net(x).sum()

    TRACES.clear()
    for seed in range(4):
        net = Net(nnx.Rngs(seed))
        logax.spool(apply)(net, X)
        logax.spool(apply)(net, X)
    assert TRACES == ["call"]


@pytest.mark.parametrize(
    "call",
    [
        lambda net: logax.spool(net)(X),
        lambda net: logax.spool(net.forward)(X),
        lambda net: logax.spool(Net.forward)(net, X),
        lambda net: nnx.jit(logax.spool(Net.forward))(net, X),
    ],
    ids=["a model", "a method", "an unbound method", "nnx.jit(spool(...))"],
)
def test_what_a_model_changes_in_itself_is_kept(call: Callable[[Net], Any]) -> None:
    ours, theirs = made()[0], made()[0]
    out, logs = call(ours)
    expected = REFERENCE_FORWARD(theirs, X)
    np.testing.assert_array_equal(out, expected)
    assert logs["active"].shape == (1,)
    assert_same_state([ours], [theirs])


def add_to(variable: Any, x: Any) -> None:
    variable[...] = variable[...] + x
    logax.log({"value": variable[...]})


def test_variables_rngs_and_containers_of_objects_are_updated_too() -> None:
    variable = nnx.Param(jnp.ones(2))
    logax.spool(add_to)(variable, 2.0)
    assert as_list(variable[...]) == [3.0, 3.0]

    ours, theirs = nnx.Rngs(0), nnx.Rngs(0)
    _, logs = logax.spool(lambda rngs: logax.log({"key": rngs()}))(ours)
    assert logs["key"][0] == theirs()
    assert_same_state([ours], [theirs])

    def add_to_all(layers: dict[str, list[nnx.Linear]], x: Any) -> None:
        for layer in layers["layers"]:
            add_to(layer.bias, x)

    layers = {"layers": [nnx.Linear(1, 2, rngs=nnx.Rngs(i)) for i in range(2)]}
    _, logs = logax.spool(add_to_all)(layers, np.float32(1.5))
    assert [as_list(layer.bias[...]) for layer in layers["layers"]] == [[1.5, 1.5], [1.5, 1.5]]
    assert as_list(logs["value"]) == [[1.5, 1.5], [1.5, 1.5]]


def test_an_object_that_is_given_twice_is_one_object() -> None:
    def f(first: nnx.Linear, second: nnx.Linear) -> None:
        add_to(first.bias, 1.0)
        add_to(second.bias, 10.0)

    layer = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    _, logs = logax.spool(f)(layer, layer)
    assert as_list(logs["value"]) == [[1.0], [11.0]]
    assert as_list(layer.bias[...]) == [11.0]


def test_strings_functions_and_static_arguments_go_beside_objects() -> None:
    def f(net: Net, x: Any, name: str, function: Any, times: int) -> Any:
        for i in range(times):
            logax.log({name: function(x)}, step=i)
        return net.out.bias[...], name

    net = made()[0]
    for spooled in (logax.spool(f, static_argnames="times"), logax.spool(f, static_argnums=4)):
        (bias, name), logs = spooled(net, 2.0, "y", jnp.negative, 3)
        assert as_list(bias) == [0.0]
        assert name == "y"
        assert as_list(logs["y"]) == [-2.0, -2.0, -2.0]


def test_an_object_that_is_returned_is_the_caller_s_own() -> None:
    def f(net: Net, x: Any) -> Any:
        net.out.bias[...] = net.out.bias[...] + x
        return net, {"new": nnx.Linear(2, 2, rngs=nnx.Rngs(0))}

    net = made()[0]
    (same, others), _ = logax.spool(f)(net, 1.0)
    assert same is net
    assert as_list(net.out.bias[...]) == [1.0]
    expected = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(others["new"].kernel[...], expected.kernel[...])


def test_it_goes_with_the_options_of_spool() -> None:
    ours, theirs = made()[0], made()[0]

    def twice(net: Net, x: Any) -> None:
        logax.log({"x": net(x), "y": x})
        logax.log({"x": net(x)})

    _, logs = logax.spool(twice, keys="x", reduce="mean", prefix="net/")(ours, X)
    assert list(logs) == ["net/x"]
    expected = np.mean([REFERENCE_FORWARD(theirs, X) for _ in range(2)], axis=0)
    np.testing.assert_allclose(logs["net/x"], [expected], rtol=1e-4, atol=1e-5)


def test_it_goes_inside_jit_with_split_and_merge() -> None:
    definition, state = nnx.split(made()[0])

    @jax.jit
    def f(state: Any, x: Any) -> Any:
        net = nnx.merge(definition, state)
        out, logs = logax.spool(Net.forward)(net, x)
        return out, nnx.state(net), logs

    out, after, logs = f(state, X)
    theirs = made()[0]
    np.testing.assert_array_equal(out, REFERENCE_FORWARD(theirs, X))
    assert_same_state([nnx.merge(definition, after)], [theirs])
    assert logs["active"].shape == (1,)


@pytest.mark.slow
def test_logs_inside_nnx_scan_and_grad_are_collected() -> None:
    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def through(net: Net, x: Any) -> Net:
        net(x)
        logax.log({"sum": x.sum()})
        return net

    _, logs = logax.spool(lambda net: through(net, jnp.stack([X, 2 * X])) and None)(made()[0])
    np.testing.assert_allclose(logs["sum"], [X.sum(), 2 * X.sum()], rtol=1e-6)

    loss = lambda net, x: (net(x) ** 2).mean()  # noqa: E731
    gradient, logs = nnx.grad(logax.spool(loss), has_aux=True)(made()[0], X)
    expected = nnx.grad(loss)(made()[0], X)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert logs["active"].shape == (1,)


def new_variable(net: Net, x: Any) -> None:
    net.extra = nnx.Variable(jnp.ones(2))


def new_attribute(net: Net, x: Any) -> None:
    net.mode = "fast"


def gone(net: Net, x: Any) -> None:
    del net.dropout


def other_mode(net: Net, x: Any) -> None:
    net.eval()


@pytest.mark.parametrize("change", [new_variable, new_attribute, gone, other_mode])
@pytest.mark.parametrize("wrap", [logax.spool, lambda f: nnx.jit(logax.spool(f))])
def test_a_function_that_changes_the_structure_of_an_object_is_refused(
    change: Callable[..., Any], wrap: Callable[..., Any]
) -> None:
    net = made()[0]
    before = arrays_of(net)
    with pytest.raises(TypeError) as raised:
        wrap(change)(net, 1.0)
    message = str(raised.value)
    for part in (f"`{change.__name__}`", "changes the structure", "`logax.live`", "outside"):
        assert part in message
    assert not hasattr(net, "extra")
    for a, b in zip(arrays_of(net), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_held_by_the_function_can_be_read_but_not_changed() -> None:
    layer = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

    def read(x: Any) -> Any:
        logax.log({"out": layer(x).sum()})
        return layer(x)

    _, logs = logax.spool(read)(X)
    np.testing.assert_allclose(
        logs["out"], [nnx.jit(nnx.Linear.__call__)(layer, X).sum()], rtol=1e-5
    )
    with pytest.raises(Exception, match="different trace level"):
        logax.spool(lambda x: add_to(layer.bias, x))(1.0)
