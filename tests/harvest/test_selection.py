"""Which logs a harvest takes, under which names, and what it leaves to the one around it."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax

X = np.arange(1.0, 4.0, dtype=np.float32)


def program(x: Any) -> Any:
    logax.log({"loss": x.sum(), "loss/aux": x[0]}, tags="train")
    logax.log({"grad": {"weight": x * 2, "layers": [x, x + 1]}}, tags=("train", "heavy"))
    logax.log({"debug": x[1]}, explicit=True)
    logax.log({"verbose": x[2]}, explicit=True, tags="heavy")
    logax.log({"plain": x})
    return x + 1


def keys(**options: Any) -> list[str]:
    out, logs = logax.spool(program, **options)(X)
    np.testing.assert_array_equal(out, X + 1)
    return list(logs)


def test_without_a_choice_all_but_explicit_logs_are_taken() -> None:
    assert keys() == ["loss", "loss/aux", "grad", "plain"]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("loss", ["loss"]),
        ("loss*", ["loss", "loss/aux"]),
        (["plain", "loss"], ["loss", "plain"]),
        ("*", ["loss", "loss/aux", "grad", "debug", "verbose", "plain"]),
        ("debug", ["debug"]),
        (["[dv]*"], ["debug", "verbose"]),
        ("grad", ["grad"]),
        (("p????",), ["plain"]),
    ],
)
def test_keys_choose_by_name_and_glob_explicit_logs_too(names: Any, wanted: Any) -> None:
    assert keys(keys=names) == wanted
    assert keys(argnames=names) == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"exclude": "loss"}, ["loss/aux", "grad", "plain"]),
        ({"exclude": ["loss*", "plain"]}, ["grad"]),
        ({"exclude": "l*", "keys": ["*s", "loss/aux", "plain"]}, ["plain"]),
        ({"exclude": "grad", "tags": "heavy"}, ["verbose"]),
        ({"exclude": "*", "keys": "*"}, []),
    ],
)
def test_exclude_leaves_out_what_was_chosen_otherwise(
    options: dict[str, Any], wanted: list[str]
) -> None:
    assert keys(**options) == wanted


def test_exclude_leaves_out_leaves_of_a_pytree_by_their_path() -> None:
    _, logs = logax.spool(program, keys="grad", exclude="grad/layers/*")(X)
    assert jax.tree.map(jnp.shape, logs["grad"]) == {"weight": (1, 3), "layers": [None, None]}


def test_excluded_logs_go_to_the_harvest_outside() -> None:
    inner = logax.spool(program, exclude="loss*")
    (_, inside), outside = logax.spool(inner)(X)
    assert list(inside) == ["grad", "plain"]
    assert list(outside) == ["loss", "loss/aux"]


def test_every_harvest_takes_keys_and_exclude() -> None:
    seen: list[str] = []
    logax.tap(program, seen.extend, keys="*", exclude=["g*", "v*"])(X)
    logax.flush()
    assert seen == ["loss", "loss/aux", "debug", "plain"]
    seen.clear()
    with logax.live(seen.extend, exclude=["loss", "grad"]):
        program(jnp.asarray(X))
    assert seen == ["loss/aux", "plain"]


def test_a_name_in_exclude_that_matches_nothing_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="`exclude` has 'los', which matches no log"):
        assert keys(exclude="los") == ["loss", "loss/aux", "grad", "plain"]


def test_keys_and_its_alias_together_are_an_error() -> None:
    message = (
        "`argnames` is another name of `keys`, and both were given: 'a' and 'b'. Write `keys`."
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        logax.spool(program, keys="a", argnames="b")


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("train", ["loss", "loss/aux", "grad"]),
        ("heavy", ["grad", "verbose"]),
        (["train", "heavy"], ["loss", "loss/aux", "grad", "verbose"]),
    ],
)
def test_tags_choose_logs_that_have_one_of_them(tags: Any, wanted: Any) -> None:
    assert keys(tags=tags) == wanted


def test_names_and_tags_together_must_both_fit() -> None:
    assert keys(keys=["loss", "grad", "verbose"], tags="heavy") == ["grad", "verbose"]


def test_argnames_choose_leaves_of_a_pytree_by_their_path() -> None:
    _, logs = logax.spool(program, keys=["grad/layers/*"])(X)
    assert list(logs) == ["grad"]
    assert logs["grad"]["weight"] is None
    np.testing.assert_array_equal(logs["grad"]["layers"][0], [X])
    np.testing.assert_array_equal(logs["grad"]["layers"][1], [X + 1])
    _, logs = logax.spool(program, keys="*/weight")(X)
    np.testing.assert_array_equal(logs["grad"]["weight"], [X * 2])
    assert logs["grad"]["layers"] == [None, None]


def test_names_that_match_nothing_are_warned_about_with_the_keys_there_are() -> None:
    there_are = "`debug`, `grad`, `grad/layers/0`, `grad/layers/1`, `grad/weight`, `loss`"
    message = f"`keys` has 'lose', which matches no log. Names in the program: {there_are}"
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert keys(keys=["lose", "plain"]) == ["plain"]
    with pytest.warns(UserWarning, match="Names in the program: none"):
        logax.spool(lambda x: x, keys="loss")(X)


def test_a_tag_that_no_log_has_is_warned_about_with_the_tags_there_are() -> None:
    message = "`tags` has 'unknown', which no log has. Tags in the program: `heavy`, `train`."
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert keys(tags="unknown") == []


@pytest.mark.parametrize("name", ["keys", "tags", "exclude"])
def test_a_choice_that_is_no_string_is_an_error(name: str) -> None:
    with pytest.raises(TypeError, match=f"`{name}` takes a string or strings"):
        logax.spool(program, **{name: ["loss", 3]})  # type: ignore[arg-type]


def test_a_prefix_goes_in_front_of_every_key_everywhere() -> None:
    def body(carry: Any, i: Any) -> Any:
        logax.log({"carry": carry}, step=i, prefix="inner/")
        return carry + 1, None

    def function(x: Any) -> Any:
        x, _ = jax.jit(lambda x: lax.scan(body, x, jnp.arange(2)))(x)
        return lax.cond(x[0] > 0, lambda x: (logax.log({"branch": x}), x)[1], lambda x: x, x)

    _, logs = logax.spool(function, prefix="run1-")(X)
    assert list(logs) == ["run1-inner/carry", "run1-branch"]
    np.testing.assert_array_equal(logs["run1-inner/carry"], [X, X + 1])
    np.testing.assert_array_equal(logs.steps["step"]["run1-inner/carry"], [0, 1])
    # All options go by the names that `log` gave.
    options = {"keys": "inner/carry", "reduce": {"inner/*": "last"}}
    _, logs = logax.spool(function, prefix="run1-", **options)(X)
    assert list(logs) == ["run1-inner/carry"]
    np.testing.assert_array_equal(logs["run1-inner/carry"], [X + 1])


def test_an_inner_harvest_takes_its_logs_and_leaves_the_rest_to_the_outer_one() -> None:
    def outer(x: Any) -> Any:
        logax.log({"before": x})
        out, logs = logax.spool(program, keys=["loss", "grad/weight"])(x)
        logax.log({"after": logs["loss"][0]})
        return out, logs

    (out, inside), outside = logax.spool(outer)(X)
    np.testing.assert_array_equal(out, X + 1)
    assert list(inside) == ["loss", "grad"]
    assert inside["grad"]["layers"] == [None, None]
    assert list(outside) == ["before", "loss/aux", "grad", "plain", "after"]
    assert outside["grad"]["weight"] is None
    np.testing.assert_array_equal(outside["grad"]["layers"], [[X], [X + 1]])
    np.testing.assert_array_equal(outside["after"], [X.sum()])


def test_keep_logs_leaves_those_that_are_taken_as_well() -> None:
    inner = logax.spool(program, keys=["loss", "debug"], keep_logs=True, prefix="inner/")
    (_, inside), outside = logax.spool(inner)(X)
    assert list(inside) == ["inner/loss", "inner/debug"]
    assert list(outside) == ["loss", "loss/aux", "grad", "plain"]
    (_, inside), outside = logax.spool(inner, keys=["debug", "loss"])(X)
    assert list(outside) == ["loss", "debug"]


@pytest.mark.parametrize("keep_logs", [False, True])
def test_each_of_three_nested_harvests_takes_its_own(keep_logs: bool) -> None:
    first = logax.spool(program, keys="loss", keep_logs=keep_logs)
    second = logax.spool(jax.jit(first), tags="train", keep_logs=keep_logs)
    ((_, one), two), three = logax.spool(second)(X)
    assert list(one) == ["loss"]
    assert list(two) == (["loss"] if keep_logs else []) + ["loss/aux", "grad"]
    assert list(three) == (["loss", "loss/aux", "grad", "plain"] if keep_logs else ["plain"])


@pytest.mark.parametrize("keep_logs", [False, True])
def test_an_inner_harvest_in_a_loop_and_in_lanes_leaves_right_records(keep_logs: bool) -> None:
    def each(x: Any) -> Any:
        logax.log({"taken": x, "left": -x})
        return x

    def body(carry: Any, i: Any) -> Any:
        out, logs = jax.vmap(logax.spool(each, keys="taken", keep_logs=keep_logs))(carry)
        return out + 1, logs

    (_, inside), outside = logax.spool(lambda x: lax.scan(body, x, jnp.arange(2)))(X)
    np.testing.assert_array_equal(inside["taken"], np.stack([X, X + 1])[..., None])
    assert list(outside) == (["taken", "left"] if keep_logs else ["left"])
    np.testing.assert_array_equal(outside["left"], [-X, -X - 1])
    if keep_logs:
        np.testing.assert_array_equal(outside["taken"], [X, X + 1])


def test_a_log_in_a_branch_that_does_not_run_is_left_to_the_outer_harvest_as_it_is() -> None:
    def branching(x: Any) -> Any:
        def yes(x: Any) -> Any:
            logax.log({"taken": x, "left": x * 2})
            return x

        return lax.cond(x[0] > 0, yes, lambda x: x, x)

    inner = logax.spool(branching, keys="taken")
    for x, count in ((X, 1), (-X, 0)):
        (_, inside), outside = logax.spool(inner)(x)
        assert int(inside.count["taken"]) == int(outside.count["left"]) == count
        if count:
            np.testing.assert_array_equal(outside["left"], [2 * x])


def test_options_of_an_inner_harvest_do_not_touch_what_it_leaves() -> None:
    def function(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            logax.log({"a": carry, "b": carry}, step=i)
            return carry * 2, None

        return lax.scan(body, x, jnp.arange(4))[0]

    inner = logax.spool(function, keys="a", reduce="last", keep_logs=True)
    (_, inside), outside = logax.spool(inner, interval=2)(X)
    np.testing.assert_array_equal(inside["a"], [8 * X])
    for key in ("a", "b"):
        np.testing.assert_array_equal(outside[key], [X, 4 * X])
        np.testing.assert_array_equal(outside.steps["step"][key], [0, 2])


@pytest.mark.parametrize("inner", ["spool", "tap"])
@pytest.mark.parametrize("options", [{"keep_logs": True}, {"keys": "other"}])
def test_lanes_that_are_done_leave_nothing_to_an_outer_harvest(
    inner: str, options: dict[str, Any]
) -> None:
    def function(n: Any) -> Any:
        def body(i: Any) -> Any:
            logax.log({"i": i, "other": -i})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    def harvested(n: Any) -> Any:
        if inner == "tap":
            return logax.tap(function, seen.append, **options)(n)
        return logax.spool(function, capacity=4, **options)(n)[0]

    seen: list[Any] = []
    lengths = jnp.array([1, 3, 0])
    out, logs = jax.jit(jax.vmap(logax.spool(harvested, keys="i", capacity=4)))(lengths)
    np.testing.assert_array_equal(out, lengths)
    np.testing.assert_array_equal(logs.count["i"], lengths)
    np.testing.assert_array_equal(logs["i"][1, :3], [0, 1, 2])

    outer: list[tuple[int, int]] = []

    def note(record: Any) -> None:
        outer.append((record.lane[0], int(record["i"])))

    jax.jit(jax.vmap(logax.tap(harvested, note, keys="i")))(lengths)
    logax.flush()
    assert sorted(outer) == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_without_an_outer_harvest_what_is_left_disappears() -> None:
    def by_hand(x: Any) -> Any:
        out = x + 1
        return out, {"plain": jnp.expand_dims(x, 0)}

    def chosen(x: Any) -> Any:
        out, logs = logax.spool(program, keys="plain", keep_logs=True)(x)
        return out, dict(logs)

    texts = [jax.jit(function).lower(X).as_text() for function in (chosen, by_hand)]
    assert texts[0].replace("@jit_chosen", "@jit_by_hand") == texts[1]


def test_nolog_silences_a_part_and_nothing_else() -> None:
    def function(x: Any) -> Any:
        logax.log({"before": x})
        x = logax.nolog(program)(x)
        x = jax.vmap(logax.nolog(jax.jit(lambda x: (logax.log({"inner": x}), x * 2)[1])))(x)
        logax.log({"after": x})
        return x

    out, logs = logax.spool(function, keys="*")(X)
    np.testing.assert_array_equal(out, 2 * (X + 1))
    assert list(logs) == ["before", "after"]
    np.testing.assert_array_equal(logs["after"], [out])


def test_a_harvest_inside_nolog_still_works() -> None:
    def function(x: Any) -> Any:
        logax.log({"silent": x})
        out, logs = logax.spool(program, keys="plain")(x)
        return out, logs

    (_, inside), outside = logax.spool(logax.nolog(function))(X)
    assert list(inside) == ["plain"]
    assert dict(outside) == {}


def test_nolog_gives_results_and_gradients_of_the_function() -> None:
    def loss(x: Any) -> Any:
        logax.log({"x": x})
        return (x * x).sum()

    quiet = logax.nolog(loss)
    assert float(quiet(X)) == float(loss(X))
    np.testing.assert_array_equal(jax.grad(quiet)(X), jax.grad(loss)(X))
    np.testing.assert_array_equal(jax.vmap(quiet)(X[None]), jax.vmap(loss)(X[None]))
    (out, gradient), logs = logax.spool(jax.value_and_grad(quiet))(X)
    assert (float(out), dict(logs)) == (float(loss(X)), {})
    np.testing.assert_array_equal(gradient, 2 * X)


@pytest.mark.parametrize("option", ["keys", "exclude"])
def test_a_key_without_leaves_is_a_name_of_the_program(option: str) -> None:
    def function(x: Any) -> Any:
        logax.log({"empty": {}, "x": x})
        return x

    _, logs = logax.spool(function, **{option: "empty"})(X)  # type: ignore[arg-type]
    assert ("x" in logs) == (option == "exclude")
