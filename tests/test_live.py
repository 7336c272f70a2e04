"""`live`: every log of what runs inside a block, with nothing wrapped."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import blackjax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import logax


def count(x: Any, steps: int = 3) -> Any:
    """Logs `x`, and twice of it under another key, at each step."""

    def body(x: Any, i: Any) -> Any:
        logax.log({"x": x}, step=i, tags="often")
        logax.log({"twice": {"a": 2 * x, "b": x}}, step=i)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(steps))[0]


def values(got: list[Any], key: str = "x") -> list[Any]:
    return [np.asarray(one[key]).tolist() for one in got if key in one]


def test_a_function_that_was_compiled_before_shows_its_logs_and_is_free_again() -> None:
    function = jax.jit(count)
    function(0.0)
    plain = function.lower(0.0).as_text()
    got: list[Any] = []
    with logax.live(got.append):
        assert function(5.0) == 8.0
    assert values(got) == [5.0, 6.0, 7.0]
    assert [one.step for one in got if "x" in one] == [0, 1, 2]
    assert function(5.0) == 8.0
    assert len(got) == 6
    assert function.lower(0.0).as_text() == plain
    with logax.live(got.append):
        function(1.0)
    assert function._cache_size() == 2  # with logs and without, whatever the callbacks
    assert values(got)[3:] == [1.0, 2.0, 3.0]


def test_records_know_their_tags_and_site() -> None:
    got: list[Any] = []
    with logax.live(got.append):
        count(1.0)
    assert got[0].tags == ("often",)
    assert got[0].site == f"{__file__}:{count.__code__.co_firstlineno + 4}"


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"keys": "x"}, [{"x"}] * 3),
        ({"keys": "twice/a"}, [{"twice"}] * 3),
        ({"tags": "often"}, [{"x"}] * 3),
        ({"keys": "twice", "tags": "often"}, []),
    ],
)
def test_names_and_tags_choose(options: Any, keys: list[set[str]]) -> None:
    got: list[Any] = []
    with logax.live(got.append, **options):
        jax.jit(count)(1.0)
    assert [set(one) for one in got] == keys
    if options == {"keys": "twice/a"}:
        assert got[0]["twice"] == {"a": np.float32(2.0), "b": None}


def test_several_callbacks_and_blocks_get_every_record() -> None:
    one: list[Any] = []
    two: list[Any] = []
    outer: list[Any] = []
    function = jax.jit(count)
    with logax.live(outer.append):
        with logax.live(one.append, two.append):
            function(1.0)
        function(7.0)
    assert values(one) == values(two) == [1.0, 2.0, 3.0]
    assert values(outer) == [1.0, 2.0, 3.0, 7.0, 8.0, 9.0]


def test_without_a_callback_records_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with logax.live(keys="x"):
        jax.jit(count)(1.0)
    assert capsys.readouterr().out == "step=0 x=1\nstep=1 x=2\nstep=2 x=3\n"


def test_one_host_call_serves_all_lanes() -> None:
    got: list[Any] = []
    with logax.live(got.append, keys="x"):
        jax.jit(jax.vmap(count))(jnp.arange(4.0))
    assert [(one.lane, one.step.item(), one["x"].item()) for one in got] == [
        ((lane,), step, float(lane + step)) for step in range(3) for lane in range(4)
    ]


def test_a_harvest_inside_takes_its_logs_and_leaves_the_others() -> None:
    got: list[Any] = []
    with logax.live(got.append):
        _, logs = logax.spool(count, keys="x")(1.0)
        silent = logax.nolog(count)(1.0)
    assert silent == 4.0
    assert logs["x"].tolist() == [1.0, 2.0, 3.0]
    assert values(got, "x") == []
    assert [jax.tree.map(float, one["twice"]) for one in got] == [
        {"a": 2.0 * x, "b": x} for x in (1.0, 2.0, 3.0)
    ]


def test_a_log_outside_of_any_program_is_shown() -> None:
    got: list[Any] = []
    with logax.live(got.append):
        logax.log({"a": 1.5, "b": np.arange(2)}, step=3)
    assert got[0]["a"] == 1.5
    assert got[0]["b"].tolist() == [0, 1]
    assert got[0].step == 3


def test_logs_of_a_gradient_are_those_of_its_forward_run() -> None:
    got: list[Any] = []
    with logax.live(got.append, keys="x"):
        jax.jit(jax.grad(lambda x: count(x) ** 2))(1.0)
    assert values(got) == [1.0, 2.0, 3.0]


def test_an_nnx_step_that_mutates_shows_its_logs() -> None:
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: nnx.Linear, optimizer: nnx.Optimizer[nnx.Linear], x: Any) -> None:
        def loss_of(model: nnx.Linear) -> Any:
            loss = jnp.mean(model(x) ** 2)
            logax.log({"loss": loss})
            return loss

        optimizer.update(model, nnx.grad(loss_of)(model))

    x = jnp.ones((4, 2))
    step(model, optimizer, x)
    wanted, got = [], []
    with logax.live(got.append):
        for _ in range(3):
            wanted.append(float(jnp.mean(model(x) ** 2)))
            step(model, optimizer, x)
    np.testing.assert_allclose([float(one["loss"]) for one in got], wanted, rtol=1e-6)
    assert wanted[0] > wanted[2]


def test_an_equinox_step_that_was_compiled_before_shows_its_logs() -> None:
    model = eqx.nn.Linear(2, 1, key=jax.random.key(0))

    @eqx.filter_jit
    def step(model: eqx.nn.Linear, x: Any) -> Any:
        y = model(x)
        logax.log({"y": y})
        return y

    x = jnp.ones(2)
    before = step(model, x)
    got: list[Any] = []
    with logax.live(got.append):
        step(model, x)
    np.testing.assert_array_equal(got[0]["y"], before)


def test_the_driver_of_a_library_shows_the_logs_of_the_function_it_is_given() -> None:
    def density(x: Any) -> Any:
        value = -0.5 * jnp.sum(x**2)
        logax.log({"density": value})
        return value

    kernel = blackjax.hmc(density, 0.1, jnp.ones(2), 3)
    state = kernel.init(jnp.array([1.0, 2.0]))
    step = jax.jit(kernel.step)
    step(jax.random.key(0), state)
    got: list[Any] = []
    with logax.live(got.append):
        new, _ = step(jax.random.key(0), state)
    densities = [float(one["density"]) for one in got]
    assert len(densities) >= 3
    assert any(np.isclose(value, float(new.logdensity), rtol=1e-5) for value in densities)


def test_an_error_of_a_callback_comes_out_at_the_end_of_the_block() -> None:
    def callback(one: Any) -> None:
        raise ValueError(f"not {one['x']}")

    with (
        pytest.raises(logax.DeliveryError, match="`x` logged at") as raised,
        logax.live(callback, keys="x"),
    ):
        jax.jit(count)(1.0)
    assert repr(raised.value.__cause__) == "ValueError('not 1.0')"
    logax.flush()


def run_and_raise(error: BaseException) -> None:
    jax.jit(count)(1.0)
    raise error


def test_an_error_in_the_block_leaves_nothing_open() -> None:
    got: list[Any] = []

    with pytest.raises(KeyError, match="mine"), logax.live(got.append, keys="x"):
        run_and_raise(KeyError("mine"))
    jax.jit(count)(1.0)
    logax.flush()
    assert values(got) == [1.0, 2.0, 3.0]


def failing(one: Any) -> None:
    raise ValueError("of the callback")


def test_an_error_in_the_block_is_the_one_that_comes_out() -> None:
    with pytest.raises(KeyError, match="mine") as caught, logax.live(failing):
        run_and_raise(KeyError("mine"))
    (note,) = caught.value.__notes__
    assert note.startswith(
        "`live` also failed to deliver records: The callback `failing` raised ValueError"
    )
    logax.flush()


def test_an_error_that_takes_no_notes_comes_out_all_the_same() -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):  # noqa: N818
        number: int

    with (
        pytest.raises(Frozen) as caught,
        pytest.warns(
            UserWarning, match="`live` also failed to deliver records: The callback `failing`"
        ),
        logax.live(failing),
    ):
        run_and_raise(Frozen(3))
    assert caught.value.number == 3
    logax.flush()


def test_lanes_that_are_not_due_say_nothing() -> None:
    def f(i: Any) -> Any:
        logax.log({"x": 10 * i}, step=i, every=2)
        return i

    got: list[Any] = []
    with logax.live(got.append):
        jax.jit(jax.vmap(f))(jnp.arange(5))
    assert values(got) == [0, 20, 40]
    assert [(one.lane, int(one.step)) for one in got] == [((0,), 0), ((2,), 2), ((4,), 4)]


def test_an_interrupt_is_not_kept_waiting() -> None:
    go_on, got = threading.Event(), []  # type: tuple[threading.Event, list[Any]]

    def callback(one: Any) -> None:
        assert go_on.wait(60)
        got.append(one)

    with pytest.raises(KeyboardInterrupt), logax.live(callback, keys="x"):
        run_and_raise(KeyboardInterrupt())
    go_on.set()
    logax.flush()
    assert values(got) == [1.0, 2.0, 3.0]  # what had left the program by then


def test_names_and_tags_that_no_log_has_are_a_warning() -> None:
    with (
        pytest.warns(UserWarning, match="`keys` has 'y', which matches no log") as caught,
        logax.live(print, keys="y", tags="often"),
    ):
        jax.jit(count)(1.0)
    assert "`twice`, `twice/a`, `twice/b`, `x`" in str(caught[0].message)
    with logax.live(print, keys="y"):
        pass  # where nothing is logged, nothing is missing


def test_a_block_that_is_not_open_cannot_be_left() -> None:
    with pytest.raises(RuntimeError, match="This `live` is not open"):
        logax.live(print).__exit__(None, None, None)


def test_threads_outside_of_the_block_stay_silent() -> None:
    got: list[Any] = []
    function = jax.jit(count)
    with logax.live(got.append):
        thread = threading.Thread(target=function, args=(1.0,))
        thread.start()
        thread.join()
    assert got == []


def test_a_block_can_be_used_again_but_not_twice_at_once() -> None:
    got: list[Any] = []
    block = logax.live(got.append, keys="x")
    for _ in range(2):
        with block:
            jax.jit(count)(1.0)
    assert values(got) == 2 * [1.0, 2.0, 3.0]
    with block, pytest.raises(RuntimeError, match="`live` is open already"):
        block.__enter__()


def test_blocks_of_overlapping_tasks_get_what_runs_while_they_are_open() -> None:
    function = jax.jit(count)
    got: dict[str, list[Any]] = {"first": [], "second": []}

    async def first(opened: asyncio.Event, second_opened: asyncio.Event) -> None:
        with logax.live(got["first"].append, keys="x"):
            function(0.0)
            opened.set()
            await second_opened.wait()

    async def second(opened: asyncio.Event, second_opened: asyncio.Event) -> None:
        await opened.wait()
        with logax.live(got["second"].append, keys="x"):
            second_opened.set()
            await task
            function(10.0)

    async def both() -> None:
        nonlocal task
        events = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(first(*events))
        await second(*events)

    task: asyncio.Task[None]
    asyncio.run(both())
    assert values(got["first"]) == [0.0, 1.0, 2.0]
    assert values(got["second"]) == [10.0, 11.0, 12.0]
    assert_free(function)


def test_blocks_may_be_left_in_any_order() -> None:
    function = jax.jit(count)
    for order in itertools.permutations(range(3)):
        got: list[list[Any]] = [[], [], []]
        blocks = [logax.live(each.append, keys="x") for each in got]
        for block in blocks:
            block.__enter__()
        wanted: list[list[float]] = [[], [], []]
        for turn, index in enumerate(order):
            function(float(turn))
            logax.flush()
            for open_one in order[turn:]:
                wanted[open_one] += [turn, turn + 1.0, turn + 2.0]
            blocks[index].__exit__(None, None, None)
        assert [values(each) for each in got] == wanted
        assert_free(function)


def test_a_block_that_a_generator_keeps_open_does_not_outlive_it() -> None:
    def streamed(records: list[Any]) -> Iterator[None]:
        with logax.live(records.append, keys="x"):
            yield

    function = jax.jit(count)
    inside: list[Any] = []
    outside: list[Any] = []
    generator = streamed(inside)
    with logax.live(outside.append, keys="x"):
        next(generator)
    function(1.0)
    generator.close()
    assert (values(inside), values(outside)) == ([1.0, 2.0, 3.0], [])
    assert_free(function)


def test_a_block_that_is_left_open_by_a_harvested_function_does_not_outlive_its_trace() -> None:
    blocks: list[Any] = []
    seen: list[Any] = []

    def function(x: Any) -> Any:
        blocks.append(logax.live(seen.append).__enter__())
        return count(x)

    with logax.live(seen.append, keys="x"):
        assert logax.spool(function)(1.0)[1] == {}
        logax.flush()
        seen.clear()
        assert [float(x) for x in logax.spool(count)(1.0)[1]["x"]] == [1.0, 2.0, 3.0]
        blocks[0].__exit__(None, None, None)
        jax.jit(count)(5.0)
    assert values(seen) == [5.0, 6.0, 7.0]
    assert_free(jax.jit(count))


def test_a_block_that_a_harvested_function_closes_leaves_nothing_bound() -> None:
    got: list[Any] = []
    block = logax.live(got.append, keys="x").__enter__()

    def function(x: Any) -> Any:
        block.__exit__(None, None, None)
        return count(x)

    assert logax.spool(function)(1.0)[1]["x"].tolist() == [1.0, 2.0, 3.0]
    assert got == []
    assert_free(jax.jit(count))


def test_a_block_that_another_thread_leaves_is_closed_and_said_to_be() -> None:
    got: list[Any] = []
    errors: list[BaseException] = []
    function = jax.jit(count)

    def streamed() -> Iterator[None]:
        with logax.live(got.append, keys="x"):
            yield

    def close() -> None:
        try:
            generator.close()
        except RuntimeError as error:
            errors.append(error)

    generator = streamed()
    next(generator)
    function(1.0)
    thread = threading.Thread(target=close, name="other")
    thread.start()
    thread.join()
    assert [str(error) for error in errors] == [
        "This `live` was opened in the thread 'MainThread' and closed in 'other'. It gets no more "
        "records, but programs of 'MainThread' still send them until that thread opens another "
        "block. Close a block in the thread that opened it."
    ]
    function(5.0)
    with logax.live(lambda record: None):
        pass
    assert values(got) == [1.0, 2.0, 3.0]
    assert_free(function)

    block = logax.live(got.append)
    opening = threading.Thread(target=block.__enter__)
    opening.start()
    opening.join()
    block.__exit__(None, None, None)  # nothing is bound by a thread that has ended
    assert_free(function)


def assert_free(function: Any) -> None:
    """Raise unless a log in this thread adds nothing to a program."""
    assert "callback" not in function.lower(1.0).as_text()
    assert "callback" not in str(jax.make_jaxpr(count)(1.0))


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`live` takes callbacks .* and got 'x'"):
        logax.live("x")  # type: ignore[arg-type]


def test_a_program_that_was_compiled_in_a_block_is_silent_after_it() -> None:
    got: list[Any] = []
    with logax.live(got.append):
        compiled = jax.jit(count).lower(1.0).compile()
        inside = compiled(1.0)
    assert compiled(2.0) == inside + 1
    logax.flush()
    assert values(got) == [1.0, 2.0, 3.0]
