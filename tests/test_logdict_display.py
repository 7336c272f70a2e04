"""Printing a `logdict`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax import log, logdict, spool
from logax._logdict.logdict import missing_step


def test_keys_with_one_scalar_record_print_like_a_dictionary() -> None:
    assert repr(logdict({"x": jnp.ones(1)})) == "{'x': 1.0}"
    logs = logdict({"x": jnp.array([0.1]), "n": jnp.array([3]), "b": np.array([True])})
    assert repr(logs) == "{'x': 0.1, 'n': 3, 'b': True}"
    assert repr(logdict()) == "{}"


def test_other_keys_print_a_line_each_with_the_last_record_and_its_steps() -> None:
    step = jnp.arange(1000)
    logs = logdict(
        {"loss": jnp.linspace(1, 0.25, 1000), "x": jnp.ones(1), "i": step},
        steps={"step": {"loss": step}, "t": {"loss": step / 2}},
    )
    assert str(logs).splitlines() == [
        "loss: 1000 records of float32, last 0.25 at step=999, t=499.5",
        "x: 1.0",
        "i: 1000 records of int32, last 999",
    ]


def test_arrays_are_never_printed_whole() -> None:
    v = jnp.arange(6400.0).reshape(100, 64)
    logs = logdict({"v": v, "short": v[:, :3], "m": v.reshape(100, 8, 8), "one": v[:1]})
    assert str(logs).splitlines() == [
        "v: 100 records of float32[64], last [6336, 6337, 6338, ...]",
        "short: 100 records of float32[3], last [6336, 6337, 6338]",
        "m: 100 records of float32[8,8]",
        "one: [0, 1, 2, ...]",
    ]


def test_a_large_array_prints_the_same_as_a_small_one() -> None:
    logs = logdict({"v": jnp.ones((1000, 64)) * 2}, count={"v": jnp.int32(700)})
    assert str(logs) == "v: 700 records of float32[64], last [2, 2, 2, ...]"


def test_trees_print_the_types_of_their_leaves() -> None:
    x = jnp.zeros(3)
    assert str(logdict({"t": {"a": x, "b": (x, jnp.zeros((3, 2)))}})) == (
        "t: 3 records of {a: float32, b/0: float32, b/1: float32[2]}"
    )
    many = logdict({"t": {str(i): x for i in range(9)}})
    assert str(many) == "t: 3 records of {0: float32, 1: float32, 2: float32, 3: float32, 5 more}"
    assert str(logdict({"t": {"a": x, "b": None}})) == "t: 3 records of {a: float32}, last 0.0"
    assert str(logdict({"t": None}, count={"t": 2})) == "t: 2 records of {}"


def test_padding_does_not_show() -> None:
    x = jnp.array([1.0, 2.0, 77.0])
    steps = {"step": {"x": jnp.array([5, missing_step(jnp.int32), 7])}}

    def shown(count: int) -> str:
        return str(logdict({"x": x}, steps=steps, count={"x": jnp.int32(count)}))

    assert shown(0) == "x: no records of float32"
    assert shown(1) == "{'x': 1.0}"
    assert shown(2) == "x: 2 records of float32, last 2.0"
    assert shown(10) == "x: the last 3 of 10 records of float32, last 77.0 at step=7"


def test_lanes_are_counted() -> None:
    x = jnp.arange(18.0).reshape(6, 3)

    def shown(count: list[int] | None) -> str:
        counts = {} if count is None else {"x": jnp.array(count)}
        return str(logdict({"x": x}, count=counts, rank={"x": 0}))

    assert shown(None) == "x: 6 lanes of 3 records of float32, last [2, 5, 8, ...]"
    assert (
        shown([1, 2, 3, 3, 3, 3]) == "x: 6 lanes of 1 to 3 records of float32, last [0, 4, 8, ...]"
    )
    assert shown([0, 2, 3, 3, 3, 3]) == "x: 6 lanes of 0 to 3 records of float32"
    assert shown([9] * 6) == "x: 6 lanes of the last 3 of 9 records of float32, last [2, 5, 8, ...]"
    grid = logdict({"x": x.reshape(2, 3, 3)}, rank={"x": 0})
    assert str(grid) == "x: 2x3 lanes of 3 records of float32"


def test_inside_jit_shapes_are_shown() -> None:
    seen = []

    def show(logs: logdict) -> None:
        seen.append(str(logs))

    jax.jit(show)(logdict({"x": jnp.zeros((5, 2))}))
    jax.jit(show)(logdict({"x": jnp.zeros((5, 2))}, count={"x": jnp.int32(1)}))
    jax.vmap(show)(logdict({"x": jnp.zeros((3, 5, 2))}, rank={"x": 1}))
    assert seen == [
        "x: 5 records of float32[2]",
        "x: up to 5 records of float32[2]",
        "x: 5 records of float32[2]",
    ]
    shapes = jax.eval_shape(lambda: logdict({"x": jnp.zeros((5, 2))}))
    assert str(shapes) == "x: 5 records of float32[2]"


def test_what_a_map_made_of_it_prints_too() -> None:
    logs = logdict({"x": jnp.arange(3.0), "v": jnp.ones((3, 2))})
    assert str(jax.tree.map(lambda x: x[1], logs)) == "x: 1.0\nv: float32[2]"
    assert str(jax.tree.map(lambda x: "text", logs)) == "x: str\nv: str"


def test_deleted_arrays_show_their_shape() -> None:
    logs = logdict({"x": jnp.arange(3.0)})
    logs["x"].delete()
    assert str(logs) == "x: 3 records of float32"


def test_prng_keys_and_narrow_floats_print() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    assert str(logdict({"k": keys})) == "k: 3 records of key<fry>"
    low = logdict({"x": jnp.array([1.5, 2.5], jnp.bfloat16)})
    assert str(low) == "x: 2 records of bfloat16, last 2.5"


def test_only_the_first_keys_of_very_many_are_shown() -> None:
    lines = str(logdict({f"k{i}": jnp.zeros(1) for i in range(40)})).splitlines()
    assert len(lines) == 31
    assert lines[-1] == "... and 10 more keys"


def test_the_tangents_of_integers_print_as_what_they_are() -> None:
    def program(x: Any) -> Any:
        for i in range(2):
            log({"x": 3 * x, "n": i, "tree": {"m": i, "w": x}}, step=i)
        log({"flag": x > 0})
        return jax.lax.cond(x > 0, lambda: log({"maybe": x}), lambda: None)

    logs = spool(program)(1.0)[1]
    gradient = jax.grad(lambda logs: (logs["x"] * 2).sum(), allow_int=True)(logs)
    lines = str(gradient).splitlines()
    assert lines == [
        "x: 2 records of float32, last 2.0",
        "n: 2 records of float0",
        "tree: 2 records of {m: float0, w: float32}",
        "flag: 1 record of float0",
        "maybe: up to 1 records of float32",
    ]
    tangent = jax.jvp(spool(program), (1.0,), (1.0,))[1][1]
    assert str(tangent).splitlines() == ["x: 2 records of float32, last 0.0", *lines[1:]]
    one = jax.tree.map(lambda x: x[0], gradient.filter(["x", "n"]))
    assert str(one).splitlines() == ["x: 2.0", "n: float0"]
