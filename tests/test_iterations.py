"""`logax.iterations`: lines about solvers, compiled or not, that delay nothing."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import logax
from gates import pending
from logax import iterations
from logax._delivery.worker import worker
from logax._iteration_lines import SolverClock
from logax.iterations import is_jax_array, log_convergence_async, log_iteration_async
from slow_cases import slow_but

LOGGER = logging.getLogger("logax.iterations")


class Lines(logging.Handler):
    """Keeps what is logged, and answers once all of it has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.levels: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.levels.add(record.levelno)

    def __call__(self) -> list[str]:
        logax.flush()
        taken, self.texts = self.texts, []
        return taken


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    before = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    log_convergence_async("to stop the clock", 0, 0.0, None, 0.0)
    handler()
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(before)


def line(i: int, cost: float, norm: float, rest: str = "") -> str:
    return f"Optimization: iter={i} | cost={cost:.6e} | ‖∇f‖={norm:.6e}{rest}"


def untimed(text: str) -> str:
    """The same line without the time, which must be there."""
    rest, found = re.subn(r" \| time=\d+\.\d{3}s", "", text)
    assert found == 1, text
    return rest


# Costs of powers of two are exact, and so are their lines.


def by_scan(x: Any, verbose: Any = 2, length: int = 25) -> Any:
    def body(x: Any, i: Any) -> Any:
        log_iteration_async(i, x, 2 * x, verbose=verbose)
        return x / 2, None

    return lax.scan(body, x, jnp.arange(length))[0]


def by_fori(x: Any, verbose: Any = 2, length: int = 25) -> Any:
    def body(i: Any, x: Any) -> Any:
        log_iteration_async(i, x, 2 * x, verbose=verbose)
        return x / 2

    return lax.fori_loop(0, length, body, x)


def by_while(x: Any, verbose: Any = 2, length: int = 25) -> Any:
    def body(state: Any) -> Any:
        i, x = state
        log_iteration_async(i, x, 2 * x, verbose=verbose)
        return i + 1, x / 2

    return lax.while_loop(lambda state: state[0] < length, body, (0, x))[1]


def by_hand(x: Any, verbose: Any = 2, length: int = 25) -> Any:
    for i in range(length):
        log_iteration_async(i, x, 2 * x, verbose=verbose)
        x = x / 2
    return x


def wanted(x: float, steps: Any, rest: str = "") -> list[str]:
    return [line(i, x * 0.5**i, 2 * x * 0.5**i, rest) for i in steps]


LOOPS = [by_scan, by_fori, by_while, by_hand]
WAYS: dict[str, Callable[..., Any]] = {
    "as it is": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "jit(grad)": lambda f: jax.jit(jax.grad(f)),
}
SHOWN = {0: range(0), 1: range(0, 25, 10), 2: range(25)}


def test_a_line_has_six_places_and_the_message_only_if_there_is_one(lines: Lines) -> None:
    log_iteration_async(12, 1.23456e-3, 5.67e-9, "message", verbose=2)
    log_iteration_async(12, 1.23456e-3, 5.67e-9, verbose=2)
    assert lines() == [
        "Optimization: iter=12 | cost=1.234560e-03 | ‖∇f‖=5.670000e-09 | message",
        "Optimization: iter=12 | cost=1.234560e-03 | ‖∇f‖=5.670000e-09",
    ]
    assert lines.levels == {logging.INFO}


def test_a_convergence_has_its_line(lines: Lines) -> None:
    log_convergence_async("gradient is small", 42, 1.23e-10, 2.4561, 5.67e-9)
    log_convergence_async("gradient is small", 42, 1.23e-10, 2.4561, 5.67e-9, verbose=0)
    assert lines() == [
        "Convergence: reason=gradient is small | iterations=42 | final_cost=1.230000e-10 | "
        "time=2.456s | final_gradient_norm=5.670000e-09"
    ]


@pytest.mark.parametrize(
    ("loop", "verbose"),
    slow_but([(by_scan, 1), (by_hand, 2)], itertools.product(LOOPS, SHOWN)),
)
def test_the_verbosity_counts_iterations_of_numbers_and_of_arrays(
    loop: Any, verbose: int, lines: Lines
) -> None:
    for x in (8.0, np.float32(8.0), jnp.float32(8.0)):
        assert loop(x, verbose) == 8.0 * 0.5**25
        assert lines() == wanted(8.0, SHOWN[verbose])


def test_iterations_and_verbosities_on_the_device_are_looked_at_there(lines: Lines) -> None:
    for i in range(25):
        log_iteration_async(jnp.int32(i), 1.0, 2.0, verbose=1)
        log_iteration_async(i, 1.0, 4.0, verbose=jnp.int32(i == 3))
        log_iteration_async(i, 1.0, 8.0, verbose=jnp.int32(2 * (i == 3)))
    assert lines() == [line(0, 1, 2), line(3, 1, 8), line(10, 1, 2), line(20, 1, 2)]


def loops_ways_and_verbosities() -> Iterator[Any]:
    """Each of them once, and all that meet where it is slow."""
    loops, ways = (by_scan, by_while, by_hand), ("jit", "grad", "jit(grad)")
    for (i, loop), (j, way), verbose in itertools.product(enumerate(loops), enumerate(ways), SHOWN):
        marks = [] if i == j and verbose == 1 + i % 2 else [pytest.mark.slow]
        yield pytest.param(loop, way, verbose, marks=marks, id=f"{loop.__name__}-{way}-{verbose}")


@pytest.mark.parametrize(("loop", "way", "verbose"), list(loops_ways_and_verbosities()))
def test_the_verbosity_counts_traced_iterations(
    loop: Any, way: str, verbose: int, lines: Lines
) -> None:
    if loop is by_while and "grad" in way:
        loop = by_fori  # the only while loop with a gradient
    function = WAYS[way](lambda x: loop(x, verbose))
    assert function(8.0) == (0.5**25 if "grad" in way else 8.0 * 0.5**25)
    assert lines() == wanted(8.0, SHOWN[verbose])


@pytest.mark.parametrize("loop", [by_scan, by_while])
def test_silent_lines_add_nothing_to_a_program(loop: Any) -> None:
    def silent(x: Any) -> Any:
        return loop(x, verbose=0)

    assert "callback" not in jax.jit(silent).lower(8.0).as_text()


def test_a_program_does_not_depend_on_the_level_of_the_logger(lines: Lines) -> None:
    function = jax.jit(by_scan)
    LOGGER.setLevel(logging.WARNING)
    function(8.0)
    by_hand(8.0)
    by_hand(jnp.float32(8.0))
    assert lines() == []
    LOGGER.setLevel(logging.INFO)
    function(8.0)
    assert lines() == wanted(8.0, range(25))


@pytest.mark.parametrize(
    ("loop", "verbose"),
    slow_but([(by_while, 1), (by_scan, 2)], itertools.product(LOOPS, SHOWN)),
)
def test_under_vmap_each_lane_has_its_lines(loop: Any, verbose: int, lines: Lines) -> None:
    jax.jit(jax.vmap(lambda x: loop(x, verbose)))(jnp.array([8.0, 2.0]))
    got = lines()
    for lane, x in enumerate((8.0, 2.0)):
        own = [text for text in got if text.endswith(f" | lane={lane}")]
        assert own == wanted(x, SHOWN[verbose], f" | lane={lane}")
    assert len(got) == 2 * len(SHOWN[verbose])


def test_nested_lanes_are_named_outermost_first(lines: Lines) -> None:
    jax.vmap(jax.vmap(lambda x: by_scan(x, length=1)))(jnp.array([[8.0, 4.0], [2.0, 1.0]]))
    assert lines() == [
        line(0, 8.0, 16.0, " | lane=0,0"),
        line(0, 4.0, 8.0, " | lane=0,1"),
        line(0, 2.0, 4.0, " | lane=1,0"),
        line(0, 1.0, 2.0, " | lane=1,1"),
    ]


def test_lanes_that_are_at_different_iterations_are_due_by_their_own(lines: Lines) -> None:
    def run(start: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            log_iteration_async(start + i, x, x, verbose=1)
            return x / 2, None

        return lax.scan(body, 8.0, jnp.arange(12))[0]

    jax.jit(jax.vmap(run))(jnp.array([0, 7, 100]))
    got = lines()
    assert sorted(got) == sorted(
        line(i, x, x, f" | lane={lane}")
        for lane, i, x in [(0, 0, 8), (0, 10, 8 / 2**10), (1, 10, 1), (2, 100, 8), (2, 110, 2**-7)]
    )


def test_a_traced_verbosity_silences_finished_lanes(lines: Lines) -> None:
    def count_to(end: Any) -> Any:
        def body(i: Any) -> Any:
            log_iteration_async(i, 1.0, 2.0, verbose=jnp.where(i < end, 2, 0))
            return i + 1

        return lax.while_loop(lambda i: i < end, body, 0)

    assert jax.jit(jax.vmap(count_to))(jnp.array([3, 1, 0])).tolist() == [3, 1, 0]
    assert lines() == [
        line(0, 1, 2, " | lane=0"),
        line(0, 1, 2, " | lane=1"),
        line(1, 1, 2, " | lane=0"),
        line(2, 1, 2, " | lane=0"),
    ]


@pytest.mark.parametrize(
    ("loop", "verbose", "transfers"), [(by_scan, 1, 3), (by_while, 1, 3), (by_scan, 2, 25)]
)
def test_what_is_not_shown_is_not_transferred(
    loop: Any, verbose: int, transfers: int, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = []
    queue_packet = iterations.queue_packet

    def counted(parcel: Any, deliver: Any) -> None:
        arrived.append(parcel)
        queue_packet(parcel, deliver)

    monkeypatch.setattr(iterations, "queue_packet", counted)
    jax.jit(lambda x: loop(x, verbose))(8.0)
    assert len(lines()) == len(arrived) == transfers
    jax.jit(jax.vmap(lambda x: loop(x, verbose)))(jnp.arange(5.0))
    assert len(lines()) == 5 * transfers
    assert len(arrived) == 2 * transfers


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_fields_fill_the_message(jit: Any, lines: Lines) -> None:
    def say(x: Any, k: Any, ok: Any) -> None:
        log_iteration_async(
            0, x, x, "step={step:.3e} {{{k:03d}}} {ok} {x}", 2, step=x / 8, k=k, ok=ok, x=x
        )

    for values in ((2.0, 7, True), (jnp.float32(2.0), jnp.int8(7), jnp.array(True))):
        jit(say)(*values)
        assert lines() == [line(0, 2, 2, " | step=2.500e-01 {007} True 2.0")]


def test_a_message_without_fields_is_literal(lines: Lines) -> None:
    for text in ("{step:.3e} 100% {", "%s {0}"):
        log_iteration_async(0, 1.0, 1.0, text, 2)
        jax.jit(lambda x, text=text: log_iteration_async(0, x, x, text, 2))(1.0)
        assert lines() == [line(0, 1, 1, f" | {text}")] * 2


@pytest.mark.parametrize("x", [1.0, jnp.float32(1.0)])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
@pytest.mark.parametrize("template", ["{stride:.3e}", "{}", "{step:q}", "{step", "{step.none}"])
def test_a_template_that_does_not_fit_is_an_error_at_the_call(
    template: str, jit: Any, x: Any, lines: Lines
) -> None:
    def say(x: Any) -> None:
        log_iteration_async(0, x, x, template, 2, step=x)

    with pytest.raises(ValueError, match=r"is a template for the fields `step`, and cannot be"):
        jit(say)(x)
    assert lines() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cost": jnp.ones(3)}, r"a real number as `cost`, and got float32\[3\]"),
        ({"cost": "low"}, "got 'low' of type `str` for `cost`"),
        ({"gradient_norm": 1j}, r"a real number as `gradient_norm`, and got complex128\[\]"),
        ({"iteration": True}, r"a whole number as `iteration`, and got bool\[\]"),
        ({"iteration": np.ones(1)}, r"a whole number as `iteration`, and got float64\[1\]"),
        ({"iteration": None}, "got None of type `NoneType` for `iteration`"),
        ({"verbose": 1.5}, r"a whole number as `verbose`, and got float64\[\]"),
        ({"message": 3}, "a string as `message`, and got 3"),
        ({"step": "small"}, "got 'small' of type `str` for `step`"),
        ({"step": jax.random.key(0)}, r"as fields, and got key<fry>\[\] for `step`"),
    ],
)
@pytest.mark.parametrize("x", [1.0, jnp.float32(1.0)])
def test_a_value_that_makes_no_line_is_an_error_at_the_call(
    given: dict[str, Any], message: str, x: Any, lines: Lines
) -> None:
    values = {"iteration": 0, "cost": x, "gradient_norm": x, "verbose": 2, **given}
    with pytest.raises(TypeError, match=message):
        log_iteration_async(**values)
    assert lines() == []


class Variable:
    """Array container, as neural network libraries have."""

    def __jax_array__(self) -> Any:
        return jnp.float32(1)


def test_numbers_of_all_kinds_make_lines(lines: Lines) -> None:
    log_iteration_async(3, Variable(), Variable(), verbose=2)
    assert lines() == [line(3, 1, 1)]
    for kind in (np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8, bool):
        for x in (kind(1), jnp.asarray(kind(1)), np.asarray(kind(1))):
            log_iteration_async(np.int64(3), x, x, "{x:.1f}", 2, x=x)
            assert lines() == [line(3, 1, 1, " | 1.0")]


def test_iterations_may_be_counted_in_floats(lines: Lines) -> None:
    for three in (3.0, np.float64(3), np.float32(3), np.array(3.0), jnp.float32(3), np.array(3)):
        log_iteration_async(three, 1.0, 2.0, verbose=2.0)
        log_convergence_async("done", three, 1.0, 0.5, 2.0, verbose=1.0)
        ended = "Convergence: reason=done | iterations=3 | final_cost=1.000000e+00 | time=0.500s"
        assert lines() == [line(3, 1, 2), f"{ended} | final_gradient_norm=2.000000e+00"]
    jax.jit(lambda i: [log_iteration_async(10 * i, i, i, verbose=v) for v in (1, 2)])(3.0)
    assert lines() == [line(30, 3, 3)] * 2
    shown = {1.5: "1.5", np.inf: "inf", float("nan"): "nan"}
    for number, text in shown.items():
        for of in (float, np.float32, np.array, jnp.float32):
            log_iteration_async(of(number), 1.0, 2.0, verbose=2)
            log_iteration_async(of(number), 1.0, 2.0, verbose=1)  # no tenth iteration
            assert lines() == [line(0, 1, 2).replace("iter=0", f"iter={text}")]


def test_a_record_of_a_whole_float_has_a_whole_step() -> None:
    _, logs = logax.spool(lambda x: log_iteration_async(3.0, x, x))(1.0)
    assert logs.step["cost"].tolist() == [3]
    assert logs.step["cost"].dtype == jnp.int32


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_what_is_none_is_left_out(jit: Any, lines: Lines) -> None:
    def say(x: Any) -> None:
        log_iteration_async(3, x, None, None, 2)
        log_iteration_async(3, None, x, verbose=2, width=x)
        log_iteration_async(3, None, None, None, 2)
        log_convergence_async("done", 3, None, 0.5, None)

    ended = "Convergence: reason=done | iterations=3 | time=0.500s"
    first, second = line(3, 1, 1).rsplit(" | ", 1)
    start = first.split(" | ")[0]
    for x in (1.0, jnp.float32(1)):
        jit(say)(x)
        assert sorted(lines()) == sorted([first, f"{start} | {second}", start, ended])
    _, logs = logax.spool(say)(1.0)
    assert sorted(logs) == ["cost", "gradient_norm", "iterations", "time", "width"]


def test_costs_that_are_not_finite_make_lines(lines: Lines) -> None:
    for x in (np.nan, np.inf, -np.inf):
        for of in (float, np.float32, np.array, jnp.float32):
            log_iteration_async(0, of(x), of(x), "{x}", 2, x=of(x))
            assert lines() == [line(0, x, x, f" | {x}")]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_a_code_chooses_the_reason(jit: Any, lines: Lines) -> None:
    reasons = ["out of iterations", "converged", "failed"]

    def say(code: Any) -> None:
        log_convergence_async(reasons, 1, 2.0, 3.0, 4.0, code=code)

    for code in (jnp.int32(2), jnp.array(True), jnp.uint8(0), jnp.int32(-1)):
        jit(say)(code)
    assert [text.split(" | ")[0] for text in lines()] == [
        "Convergence: reason=failed",
        "Convergence: reason=converged",
        "Convergence: reason=out of iterations",
        "Convergence: reason=unknown code -1",
    ]
    log_convergence_async(reasons, 1, 2.0, 3.0, 4.0, code=1)
    log_convergence_async(reasons, 1, 2.0, 3.0, 4.0, code=True)
    assert [text.split(" | ")[0] for text in lines()] == ["Convergence: reason=converged"] * 2


@pytest.mark.parametrize(
    ("reason", "code", "error", "message"),
    [
        (["a", "b"], None, ValueError, "several of which `code` chooses one"),
        ("a", 0, ValueError, "several of which `code` chooses one"),
        ([], 0, ValueError, "several of which `code` chooses one"),
        (["a", "b"], 2, ValueError, "got the code 2 for 2 reasons"),
        (["a", 3], 0, TypeError, "a string or several as `reason`"),
        (None, None, TypeError, "a string or several as `reason`"),
        (["a", "b"], 0.5, TypeError, "a whole number as `code`"),
    ],
)
def test_reasons_and_codes_that_do_not_fit_are_an_error(
    reason: Any, code: Any, error: type[Exception], message: str, lines: Lines
) -> None:
    with pytest.raises(error, match=message):
        log_convergence_async(reason, 1, 2.0, 3.0, 4.0, code=code)
    assert lines() == []


def test_the_time_is_that_since_the_first_line_of_an_iteration(lines: Lines) -> None:
    bare = "Convergence: reason=done | iterations=3 | final_cost=1.000000e+00 | "
    norm = "final_gradient_norm=2.000000e+00"
    log_convergence_async("done", 3, 1.0, None, 2.0)
    assert lines() == [bare + norm]  # there was none
    by_hand(8.0)
    log_convergence_async("done", 3, 1.0, None, 2.0)
    assert untimed(lines()[-1]) == bare + norm
    jax.jit(by_while)(8.0)
    log_convergence_async("done", 3, jnp.float32(1.0), None, 2.0)
    log_convergence_async("done", 3, 1.0, None, 2.0)
    *_, first, second = lines()
    assert (untimed(first), second) == (bare + norm, bare + norm)


def test_the_clock_starts_again_where_iterations_do() -> None:
    clock = SolverClock()
    for iteration, at in [(0, 1.0), (1, 2.0), (0, 10.0), (1, 11.0), (2, 12.0)]:
        clock.start((), iteration, at)
    assert clock.stop((), 13.0) == 3.0
    assert clock.stop((), 14.0) is None


def test_each_lane_has_its_own_time(lines: Lines) -> None:
    def run(x: Any) -> Any:
        x = by_scan(x, 2, 2)
        log_convergence_async("done", 2, x, None, x)
        return x

    jax.jit(jax.vmap(run))(jnp.array([8.0, 4.0]))
    norm = "final_gradient_norm="
    assert [untimed(text) for text in lines()[-2:]] == [
        f"Convergence: reason=done | iterations=2 | final_cost={x:.6e} | {norm}{x:.6e} | lane={i}"
        for i, x in enumerate((2.0, 1.0))
    ]
    jax.jit(jax.vmap(by_scan))(jnp.array([8.0, 4.0]))
    log_convergence_async("done", 2, 1.0, None, 1.0)
    assert "time=" in lines()[-1]


def solve(x: Any, verbose: Any = 0) -> Any:
    """Logs three iterations with a field, and the end."""

    def body(x: Any, i: Any) -> Any:
        log_iteration_async(i, x, 2 * x, "half={half}", verbose, half=x / 2)
        return x / 2, None

    x, _ = lax.scan(body, x, jnp.arange(3))
    log_convergence_async(["out", "in"], 3, x, 2.5, 2 * x, verbose, code=x < 2)
    return x


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_they_are_logs_at_every_iteration_whatever_the_verbosity(
    verbose: int, lines: Lines
) -> None:
    out, logs = logax.spool(lambda x: solve(x, verbose), tags="iteration")(8.0)
    assert out == 1.0
    assert {key: np.asarray(value).tolist() for key, value in logs.items()} == {
        "cost": [8.0, 4.0, 2.0],
        "gradient_norm": [16.0, 8.0, 4.0],
        "half": [4.0, 2.0, 1.0],
        "iterations": [3],
        "final_cost": [1.0],
        "final_gradient_norm": [2.0],
        "time": [2.5],
        "code": [True],
    }
    assert logs.step["cost"].tolist() == [0, 1, 2]
    assert logs.step["final_cost"].tolist() == [3]
    assert len(lines()) == {0: 0, 1: 2, 2: 4}[verbose]


@pytest.mark.parametrize("buffer", [1, 64])
def test_tap_and_live_see_them_beside_the_lines(buffer: int, lines: Lines) -> None:
    tapped: list[Any] = []
    lived: list[Any] = []
    assert logax.tap(lambda x: solve(x, 2), tapped.append, buffer=buffer)(8.0) == 1.0
    assert len(lines()) == 4
    with logax.live(lived.append, tags="iteration"):
        assert jax.jit(lambda x: solve(x, 2))(8.0) == 1.0
        log_iteration_async(7, 8.0, 9.0)
    assert len(lines()) == 4
    costs = [(int(one.step), float(one["cost"])) for one in tapped if "cost" in one]
    assert costs == [(0, 8.0), (1, 4.0), (2, 2.0)]
    assert [float(one["final_cost"]) for one in tapped if "final_cost" in one] == [1.0]
    costs = [(int(one.step), float(one["cost"])) for one in lived if "cost" in one]
    assert costs == [(0, 8.0), (1, 4.0), (2, 2.0), (7, 8.0)]
    assert {one.tags for one in (*tapped, *lived)} == {("iteration",)}


def test_a_buffer_may_be_donated_right_after(lines: Lines) -> None:
    update = jax.jit(lambda cost, k: (cost / 2, k + 1), donate_argnums=(0, 1))
    cost, k = jnp.float32(8.0), jnp.int32(0)
    for _ in range(5):
        before = cost
        log_iteration_async(k, cost, cost, "{k}", 2, k=k)
        log_iteration_async(9, cost, 1.0, verbose=2)
        cost, k = update(cost, k)
        assert before.is_deleted()
    assert lines() == [
        text
        for i in range(5)
        for text in (line(i, 8 / 2**i, 8 / 2**i, f" | {i}"), line(9, 8 / 2**i, 1))
    ]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()
    jax.effects_barrier()


def test_nobody_waits_for_a_computation(lines: Lines, gate: threading.Event) -> None:
    x = pending(gate)
    log_iteration_async(0, x, x, "{x}", 2, x=x)
    log_convergence_async("done", 1, x, x, x)
    log_iteration_async(1, 4.0, 4.0, verbose=2)  # in its turn
    assert not gate.is_set()
    assert lines.texts == []
    gate.set()
    assert lines() == [
        line(0, 8, 8, " | 8.0"),
        "Convergence: reason=done | iterations=1 | final_cost=8.000000e+00 | time=8.000s | "
        "final_gradient_norm=8.000000e+00",
        line(1, 4, 4),
    ]


def test_a_line_that_nobody_wants_any_more_is_not_written(
    lines: Lines, gate: threading.Event
) -> None:
    log_iteration_async(0, pending(gate), 1.0, verbose=2)
    LOGGER.setLevel(logging.WARNING)
    gate.set()
    assert lines() == []
    LOGGER.setLevel(logging.INFO)
    log_iteration_async(1, 2.0, 1.0, verbose=2)
    assert lines() == [line(1, 2, 1)]


def test_a_line_without_room_is_dropped_where_records_are_and_told(
    lines: Lines, gate: threading.Event
) -> None:
    before = worker.queue_bytes
    logax.configure(queue_bytes=1000, when_full="drop")
    try:
        worker.put(1000, gate.wait, 60)
        log_iteration_async(0, 1.0, 1.0, verbose=2)
        assert iterations._fetcher.drain(None)
        gate.set()
        with pytest.warns(UserWarning, match="were dropped") as caught:
            assert lines() == []
    finally:
        logax.configure(queue_bytes=before, when_full="block")
    assert [str(each.message) for each in caught] == [
        "1 records were dropped because the queue of 1000 bytes was full: 1 of the lines of "
        "`logax.iterations`. Make it larger, or wait for room: "
        '`logax.configure(queue_bytes=..., when_full="block")`.'
    ]


def test_other_records_do_not_wait_for_a_computation(lines: Lines, gate: threading.Event) -> None:
    log_iteration_async(0, pending(gate), 1.0, verbose=2)
    delivered = threading.Event()
    worker.put(0, delivered.set)
    assert delivered.wait(30)
    assert lines.texts == []
    gate.set()
    assert lines() == [line(0, 8, 1)]


def test_arrays_on_different_devices_make_one_line(lines: Lines) -> None:
    first, second = jax.devices()[:2]
    log_iteration_async(
        jax.device_put(3, first), jax.device_put(2.0, first), jax.device_put(4.0, second), "", 2
    )
    assert lines() == [line(3, 2, 4)]


def test_sharded_programs_say_each_line_once(lines: Lines) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    xs = jax.device_put(jnp.arange(8.0), sharding)

    @jax.jit
    def run(xs: Any) -> Any:
        log_iteration_async(0, jnp.sum(xs), jnp.max(xs), verbose=2)
        return jnp.sum(xs)

    log_iteration_async(1, run(xs), jnp.max(xs), verbose=2)
    assert lines() == [line(0, 28, 7), line(1, 28, 7)]


COMPILED: list[str] = []


def note_compilation(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(note_compilation)


def test_calling_again_compiles_nothing(lines: Lines) -> None:
    function = jax.jit(lambda x: solve(x, 1))
    x = jnp.float32(8.0)

    def all_ways() -> None:
        function(x)
        log_iteration_async(0, x, x, "{x}", 2, x=x)
        log_convergence_async(["a", "b"], 1, x, x, x, code=1)

    COMPILED.clear()
    all_ways()
    assert len(COMPILED) > 0
    assert len(lines()) == 4
    COMPILED.clear()
    for _ in range(3):
        all_ways()
    assert COMPILED == []
    assert len(lines()) == 12


class Broken(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise OSError("no place to log to")


def test_a_handler_that_raises_stops_nothing_and_is_reported(lines: Lines) -> None:
    broken = Broken()
    lines.addFilter(broken)
    for say in (jax.jit(by_scan), by_hand):
        say(jnp.float32(8.0))
        with pytest.raises(logax.DeliveryError, match="OSError: no place to log to") as caught:
            lines()
        assert isinstance(caught.value.__cause__, OSError)
        assert "raised for 24 more" in str(caught.value.__notes__) or say is by_hand
    with pytest.raises(OSError, match="no place"):
        log_iteration_async(0, 1.0, 1.0, verbose=2)
    lines.removeFilter(broken)
    by_scan(8.0, length=1)
    assert lines() == [line(0, 8, 16)]


def test_a_computation_that_fails_is_reported(lines: Lines, gate: threading.Event) -> None:
    def fail(x: Any) -> Any:
        raise OSError("no such cost")

    x = pending(gate, fail)
    log_iteration_async(0, x, x, verbose=2)
    gate.set()
    with pytest.raises(logax.DeliveryError, match=r"could not be computed[\s\S]*no such cost"):
        lines()


def test_arrays_and_tracers_are_arrays_of_jax_and_nothing_else_is() -> None:
    seen = []

    def look(x: Any) -> Any:
        seen.append(is_jax_array(x))
        return x

    jax.jit(look)(1.0)
    jax.vmap(look)(jnp.ones(3))
    jax.grad(look)(1.0)
    assert seen == [True, True, True]
    assert is_jax_array(jnp.ones(3))
    assert is_jax_array(jax.random.key(0))
    for other in (1, 1.0, True, None, "x", [jnp.ones(3)], np.ones(3), np.float32(1), jax.Array):
        assert not is_jax_array(other)


def test_a_field_that_looks_like_an_option_is_warned_of(lines: Lines) -> None:
    with pytest.warns(UserWarning, match=r"among its fields, got `verbos`, which .* `verbose` mea"):
        log_iteration_async(0, 1.0, 2.0, verbos=2)
    assert lines() == []
