"""What bad use gets: an error that says the key, the place, what came and what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import logax


def logging(data: Any, **options: Any) -> Callable[[Any], Any]:
    """A function with one `log` of this."""

    def f(x: Any) -> Any:
        logax.log(data, **options)
        return x

    return f


def site_of(function: Any, line: int = 1) -> str:
    """The place of the `log` call so many lines below the head of a function."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + line}"


def message_of(error: type[Exception], run: Callable[[], Any]) -> str:
    with pytest.raises(error) as raised:
        run()
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def assert_says(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, message


# What is logged.

BAD_DATA: dict[str, tuple[Any, list[str]]] = {
    "a string": ("loss", ["takes a mapping", "'loss' of type `str`", '`log({"name": value})`']),
    "an array": (np.ones(2), ["takes a mapping", "of type `ndarray`", '`log({"name": value})`']),
    "None": (None, ["takes a mapping", "None of type `NoneType`"]),
    "a list": ([1.0], ["takes a mapping", "[1.0] of type `list`"]),
    "a function of nothing": (lambda: None, ["a function that returns one", "None of type"]),
    "a number as key": ({3: 1.0}, ["non-empty strings", "got 3", '`log({"name": value})`']),
    "an empty key": ({"": 1.0}, ["non-empty strings", "got ''"]),
    "an object": ({"x": object()}, ["<object object", "of type `object`", "for `x`"]),
    "a string as value": ({"x": "text"}, ["'text' of type `str`", "for `x`", "Convert it to"]),
    "a function as value": ({"x": jnp.sin}, ["for `x`", "Convert it to"]),
    "a string in a pytree": ({"x": {"a": [1, "b"]}}, ["'b' of type `str`", "for `x/a/1`"]),
    "an array of objects": ({"x": np.array([object()])}, ["object", "`ndarray`", "for `x`"]),
    "an array of strings": ({"x": np.array(["a"])}, ["'a'", "`ndarray`", "for `x`"]),
    "a date": ({"x": np.datetime64("2020-01-01")}, ["2020-01-01", "`datetime64`", "for `x`"]),
    "a masked array": ({"x": np.ma.masked_equal([1, 2], 1)}, ["MaskedArray", "for `x`"]),
    "a huge number": ({"x": 2**70}, [str(2**70), "for `x`", "int32"]),
    "an array of huge numbers": ({"x": np.array([1, 2**40])}, ["int64", "for `x`", "int32"]),
    "a float beyond float32": ({"x": np.float64(1e300)}, ["float64", "for `x`", "float32"]),
    "a Python float beyond float32": ({"x": 1e300}, ["float64", "for `x`", "float32"]),
    "a prefixed key": ({"x": "text"}, ["for `train/x`"]),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_data_that_cannot_be_logged_is_named_with_key_and_place(case: str) -> None:
    data, parts = BAD_DATA[case]
    f = logging(data, prefix="train/") if case == "a prefixed key" else logging(data)
    message = message_of(TypeError, lambda: logax.spool(f)(1.0))
    assert_says(message, f"`log` at {site_of(f)}", *parts)


@pytest.mark.parametrize("case", BAD_DATA)
def test_nothing_is_checked_when_nothing_harvests(case: str) -> None:
    f = logging(BAD_DATA[case][0])
    assert jax.jit(f)(1.0) == f(1.0) == 1.0


BAD_STEPS: dict[str, tuple[Any, list[str]]] = {
    "a vector": (jnp.arange(2), ["int32[2]"]),
    "an array of one": (np.ones(1, np.float32), ["float32[1]"]),
    "a truth value": (True, ["bool[]"]),
    "a complex number": (1j, ["complex64[]"]),
    "a PRNG key": (jax.random.key(0), ["key<fry>[]"]),
    "a string": ("one", ["'one' of type `str`"]),
    "None": (None, ["None of type `NoneType`"]),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_step_that_is_no_scalar_number_is_named_with_place(case: str) -> None:
    step, parts = BAD_STEPS[case]
    f = logging({"x": 1.0}, episode=step)
    message = message_of(TypeError, lambda: logax.spool(f)(1.0))
    assert_says(message, f"`log` at {site_of(f)}", "steps that are scalar numbers", *parts)
    assert_says(message, "for the step `episode`")


@pytest.mark.parametrize("step", [2**40, np.int64(2**40)])
def test_a_step_that_does_not_fit_is_refused(step: Any) -> None:
    f = logging({"x": 1.0}, step=step)
    message = message_of(TypeError, lambda: logax.spool(f)(1.0))
    assert_says(message, f"`log` at {site_of(f)}", "for the step `step`", "int32")


BAD_OPTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no step": ({"every": 5}, ["every=5", "the step called `step`", "got none", "step=i"]),
    "another step": ({"every": 5, "episode": 1}, ["got `episode`", "every=5, step=i"]),
    "every 0": ({"every": 0, "step": 1}, ["`every`", "1 or more", "and got 0"]),
    "every 2.5": ({"every": 2.5, "step": 1}, ["`every`", "a schedule", "and got 2.5"]),
    "every True": ({"every": True, "step": 1}, ["`every`", "1 or more", "and got True"]),
    "every a class": ({"every": logax.Once, "step": 1}, ["`every`", "a schedule", "Once"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_schedule_that_cannot_be_followed_is_refused_with_place(case: str) -> None:
    options, parts = BAD_OPTIONS[case]
    f = logging({"x": 1.0}, **options)
    assert_says(message_of(ValueError, lambda: logax.spool(f)(1.0)), site_of(f), *parts)


class Pairs:
    """A schedule that answers twice."""

    def __repr__(self) -> str:
        return "Pairs()"

    def should_log(self, step: Any) -> Any:
        return jnp.stack([step == 0, step == 1])


@pytest.mark.parametrize("traced", [True, False])
def test_a_schedule_that_gives_no_single_answer_is_refused_with_place(traced: bool) -> None:
    def f(i: Any) -> None:
        logax.log({"x": 1.0}, every=Pairs(), step=i if traced else 3)

    message = message_of(TypeError, lambda: logax.spool(f)(0))
    assert_says(message, "`should_log` of Pairs()", site_of(f), "one boolean", "with shape (2,)")


class Vague:
    """A schedule that answers with what is no truth value."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __repr__(self) -> str:
        return "Vague()"

    def should_log(self, step: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("answer", ["no", None, 0.5])
def test_a_schedule_that_answers_neither_yes_nor_no_is_refused(answer: Any, traced: bool) -> None:
    def f(i: Any) -> None:
        logax.log({"x": 1.0}, every=Vague(answer), step=i if traced else 3)

    message = message_of(TypeError, lambda: logax.spool(f)(0))
    assert_says(message, "`should_log` of Vague()", site_of(f), "one boolean", repr(answer))


@pytest.mark.parametrize("option", ["tags", "prefix"])
def test_words_that_are_none_are_named_with_place(option: str) -> None:
    f = logging({"x": 1.0}, **{option: 3})
    message = message_of(TypeError, lambda: logax.spool(f)(1.0))
    assert_says(message, f"`log` at {site_of(f)} takes as `{option}`", "and got 3")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: logax.spool(f, reduce={3: "mean"}), "`spool` takes as `reduce` a string"),
        (lambda f: logax.spool(f, capacity={3: 5}), "`spool` takes as `capacity` a string"),
        (lambda f: logax.spool(f)(1.0)[1].filter(3), "`logs.filter` takes as `keys` a string"),
        (lambda f: logax.spool(f)(1.0)[1].prefix(3), "`logs.prefix` takes as `prefix` a string"),
        (lambda f: logax.spool(f)(1.0)[1].slice["a":], "`logs.slice` takes a slice of records"),
    ],
)
def test_names_and_bounds_that_are_none_are_refused(make: Any, said: str) -> None:
    assert_says(message_of(TypeError, lambda: make(logging({"x": 1.0}))), said)


@pytest.mark.parametrize(
    "function", [lambda n: list(range(n)), lambda n: 1 if n else 2, np.asarray]
)
def test_numbers_that_make_the_program_must_be_named(function: Any) -> None:
    with pytest.raises(jax.errors.JAXTypeError) as raised:
        logax.spool(function)(3)
    assert_says(
        "".join(raised.value.__notes__), "`spool` traces", "`spool(f, static_argnames=...)`"
    )


def test_lanes_and_no_lanes_of_one_key_are_refused_with_the_way_out() -> None:
    def f(x: Any) -> None:
        logax.log({"x": x})
        logax.log({"x": 0.0})

    message = message_of(TypeError, lambda: logax.spool(jax.vmap(f))(jnp.ones(3)))
    assert_says(message, "`x` is logged with different shapes", "`vmap(spool(f))`")
    assert np.asarray(jax.vmap(logax.spool(f))(jnp.ones(3))[1]["x"]).tolist() == [[1.0, 0.0]] * 3


def test_batches_of_different_sizes_are_refused_with_ways_out_that_work() -> None:
    def f(x: Any) -> Any:
        logax.log({"x": x})
        return 2 * x

    def mapped(f: Any, size: int) -> Callable[[Any], Any]:
        return lambda xs: lax.map(f, xs, batch_size=size)

    xs = np.arange(10.0, dtype=np.float32)
    message = message_of(TypeError, lambda: logax.spool(mapped(f, 4))(xs))
    assert_says(message, "`x`", f"float32[4] at {site_of(f, 1)}", f"float32[2] at {site_of(f, 1)}")
    assert_says(message, "`lax.map(spool(f), xs, batch_size=n)`", "`tap(f)`", "a mean")
    out, logs = mapped(logax.spool(f), 4)(xs)
    np.testing.assert_array_equal(out, 2 * xs)
    np.testing.assert_array_equal(logs["x"][:, 0], xs)
    # A stream has no arrays that all records must fit into.
    for way in (
        lambda take: logax.tap(mapped(f, 4), take),
        lambda take: mapped(logax.tap(f, take), 4),
    ):
        got: list[logax.record] = []
        way(got.append)(xs)
        logax.flush()
        np.testing.assert_array_equal(np.concatenate([np.ravel(r["x"]) for r in got]), xs)
    with logax.live(got.append):
        mapped(f, 4)(xs)
    assert [float(r["x"]) for r in got[-10:]] == xs.tolist()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: logax.EveryNStep(0), ["`EveryNStep`", "1 or more", "and got 0"]),
        (lambda: logax.EveryNStep(1.5), ["`EveryNStep`", "1 or more", "and got 1.5"]),  # type: ignore[arg-type]
        (lambda: logax.OnSteps([3, -1]), ["`OnSteps`", "0 or more", "(3, -1)"]),
        (lambda: logax.OnSteps(3), ["`OnSteps`", "several steps", "and got 3"]),  # type: ignore[arg-type]
        (lambda: logax.OnSteps([0.5]), ["`OnSteps`", "0 or more", "(0.5,)"]),  # type: ignore[list-item]
        (lambda: logax.Histogram(1.0, bins=0), ["`Histogram`", "`bins`", "and got 0"]),
        (lambda: logax.FirstNonFinite(window=0), ["`FirstNonFinite`", "`window`", "and got 0"]),
    ],
)
def test_what_is_out_of_range_is_refused_where_it_is_made(
    make: Callable[[], Any], parts: list[str]
) -> None:
    assert_says(message_of(ValueError, make), *parts)


# Records of one key that do not fit together.


def twice(first: Any, second: Any) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        logax.log({"x": first})
        logax.log({"x": second})
        return x

    return f


def in_branches(first: Any, second: Any) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        lax.cond(
            x > 0,
            lambda: logax.log({"x": first}),
            lambda: logax.log({"x": second}),
        )
        return x

    return f


PAIR = np.ones(2, np.float32)
KEY = jax.random.key(0)
SHAPES, DTYPES, STRUCTURES = (
    "different shapes",
    "dtypes that cannot be combined",
    "different struct",
)
MISFITS: dict[str, tuple[Any, Any, list[str]]] = {
    "shapes": (PAIR, np.ones(3, np.float32), [f"`x` is logged with {SHAPES}", "float32[3]"]),
    "ranks": (np.float32(1), PAIR, [SHAPES, "float32[]", "float32[2]"]),
    "shapes in a pytree": ({"a": 1.0, "b": PAIR}, {"a": 1.0, "b": 1.0}, ["`x/b`", SHAPES]),
    "int32 and float32": (np.int32(1), np.float32(1), [DTYPES, "int32[]", "float32[]"]),
    "uint32 and int32": (np.uint32(1), np.int32(1), [DTYPES, "uint32[]", "int32[]"]),
    "bool and int8": (np.bool_(1), np.int8(1), [DTYPES, "bool[]", "int8[]"]),
    "int32 and complex64": (np.int32(1), np.complex64(1), [DTYPES, "complex64[]"]),
    "float8 and float32": (jnp.float8_e5m2(1), np.float32(1), [DTYPES, "float8_e5m2[]"]),
    "int4 and int8": (jnp.int4(1), np.int8(1), [DTYPES, "int4[]", "int8[]"]),
    "structures": ({"a": 1.0}, {"b": 1.0}, ["`x` is logged", STRUCTURES]),
    "a list and a tuple": ([1.0], (1.0,), ["`x` is logged", STRUCTURES]),
    "a PRNG key and its numbers": (KEY, jax.random.key_data(KEY), ["`x` is logged", STRUCTURES]),
    "nothing and something": ({}, 1.0, ["`x` is logged", STRUCTURES]),
}


@pytest.mark.parametrize("case", MISFITS)
def test_records_that_do_not_fit_are_shown_with_both_places(case: str) -> None:
    first, second, parts = MISFITS[case]
    for f, lines in ((twice(first, second), (1, 2)), (in_branches(first, second), (3, 4))):
        message = message_of(TypeError, lambda f=f: logax.spool(f)(1.0))
        assert_says(message, *(site_of(f, line) for line in lines), *parts)
        assert_says(message, "where it is logged" if DTYPES in message else "different keys")


@pytest.mark.parametrize("case", ["a list and a tuple", "a PRNG key and its numbers"])
def test_structures_that_differ_look_different(case: str) -> None:
    first, second, _ = MISFITS[case]
    message = message_of(TypeError, lambda: logax.spool(twice(first, second))(1.0))
    one, two = re.findall(r"(\S+|`[^`]+`) at \S+:\d+", message)
    assert one != two


def test_structures_of_which_parts_are_chosen_are_shown_by_these() -> None:
    f = twice({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "c": 1.0})
    message = message_of(TypeError, lambda: logax.spool(f, keys=["x/a", "x/b"])(1.0))
    assert_says(message, STRUCTURES, f"`x/a,x/b` at {site_of(f, 1)}", f"`x/a` at {site_of(f, 2)}")


def test_steps_that_cannot_be_joined_without_loss_are_shown_with_both_places() -> None:
    def f(x: Any) -> None:
        logax.log({"x": x}, step=np.int32(1))
        logax.log({"x": x}, step=np.float32(1.5))

    message = message_of(TypeError, lambda: logax.spool(f)(1.0))
    assert_says(message, "the step `step`", DTYPES, "int32[]", "float32[]")
    assert_says(message, site_of(f, 1), site_of(f, 2))


# What is asked of a harvest.


def counting(x: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        logax.log({"loss": carry, "grad/a": carry, "grad/b": carry}, step=i)
        return carry + 1, None

    return lax.scan(body, x, jnp.arange(3))[0]


@pytest.mark.parametrize("name", ["interval", "capacity"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "many", True])
def test_interval_and_capacity_are_whole_numbers_of_one_or_more(name: str, value: Any) -> None:
    message = message_of(ValueError, lambda: logax.spool(counting, **{name: value}))
    assert_says(message, "`spool`", f"`{name}` of 1 or more", f"and got {value!r}")


def test_capacities_of_keys_are_whole_numbers_of_one_or_more() -> None:
    message = message_of(ValueError, lambda: logax.spool(counting, capacity={"loss": 0}))
    assert_says(message, "`spool`", "`capacity` of 1 or more", "and got 0")


@pytest.mark.parametrize(
    ("reduce", "received"),
    [
        ("average", "'average'"),
        ({"loss": "average"}, "'average'"),
        ({"loss": "mean", "*": 3}, "and got 3"),
        (jnp.mean, "<function mean"),
    ],
)
def test_an_unknown_reduction_is_refused_with_those_there_are(reduce: Any, received: str) -> None:
    message = message_of(ValueError, lambda: logax.spool(counting, reduce=reduce))
    known = "'mean', 'sum', 'min', 'max', 'std', 'first', 'last', 'count'"
    assert_says(message, f"`reduce` takes {known}", "`Reducer`", received)


@pytest.mark.parametrize("name", ["keys", "tags"])
@pytest.mark.parametrize("value", [3, [3]])
def test_names_and_tags_are_strings(name: str, value: Any) -> None:
    message = message_of(TypeError, lambda: logax.spool(counting, **{name: value}))
    assert_says(message, f"`{name}` takes a string or strings", f"and got {value!r}")


@pytest.mark.parametrize(
    ("option", "value", "unknown"),
    [
        ("keys", "los", "los"),
        ("keys", ["loss", "gard/*"], "gard/*"),
        ("reduce", {"los": "mean"}, "los"),
        ("capacity", {"gard/*": 3}, "gard/*"),
    ],
)
def test_a_name_that_matches_nothing_is_warned_about_with_those_there_are(
    option: str, value: Any, unknown: str
) -> None:
    with pytest.warns(UserWarning, match="matches no log") as warned:
        logax.spool(counting, **{option: value})(1.0)
    (message,) = [str(each.message) for each in warned]
    assert_says(message, f"`{option}` has {unknown!r}", "`grad/a`, `grad/b`, `loss`")


def test_a_name_that_matches_nothing_in_a_program_without_logs_says_so() -> None:
    with pytest.warns(UserWarning, match=r"'loss', which matches no log.* none"):
        logax.spool(lambda x: x, keys="loss")(1.0)


LOOPS: dict[str, Callable[[Any], Any]] = {
    "while_loop": lambda x: lax.while_loop(lambda c: c < x, logging({"w": 1.0}), 0.0),
    "fori_loop": lambda x: lax.fori_loop(0, x, lambda i, c: logging({"w": 1.0})(c), 0.0),
    "while_loop in scan": lambda x: lax.scan(
        lambda c, _: (lax.while_loop(lambda c: c < x, logging({"w": 1.0}), c), None), 0.0, None, 3
    )[0],
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", ["spool(f)", "jit(spool(f))", "vmap(spool(f))"])
def test_a_loop_without_static_bound_needs_a_capacity_and_says_the_three_ways_out(
    loop: str, way: str
) -> None:
    spooled = logax.spool(LOOPS[loop])
    run = {"spool(f)": spooled, "jit(spool(f))": jax.jit(spooled)}.get(way, jax.vmap(spooled))
    x = jnp.arange(3) if way == "vmap(spool(f))" else 3
    message = message_of(ValueError, lambda: run(x))
    assert_says(message, f"`w` is logged at {site_of(logging({}))}", "not known before it runs")
    assert_says(message, "`spool(f, capacity=n)`", "`spool(f, reduce=...)`", "`tap(f)`")


def test_after_an_error_while_tracing_the_function_is_as_it_was() -> None:
    f = logging({"x": "text"})
    before = jax.jit(f).lower(1.0).as_text()
    for _ in range(2):
        message_of(TypeError, lambda: logax.spool(f)(1.0))
    assert jax.jit(f).lower(1.0).as_text() == before
