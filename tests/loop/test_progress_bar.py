"""`TqdmLogger`: position and values of the bar, and times of drawings."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from logax._support import progress_bars as _bars
from logax.loop import TqdmLogger
from loops import held_state, run


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bars, "LINE_INTERVAL_SECONDS", 0.0)


def drawn(text: str) -> list[int]:
    """The positions that were drawn."""
    return [int(found) for found in re.findall(r"(\d+)/\d+ \[", text)]


def bar_of(**options: Any) -> tuple[TqdmLogger, io.StringIO]:
    text = io.StringIO()
    return TqdmLogger(options.pop("num_steps", 10), file=text, **options), text


@pytest.mark.usefixtures("_no_pause")
def test_each_step_that_is_drawn_stands_at_its_number() -> None:
    bar, text = bar_of()
    run(bar)
    assert drawn(text.getvalue()) == list(range(11))
    assert bar.position == 10
    assert text.getvalue().splitlines()[-1].startswith("100%|")


@pytest.mark.usefixtures("_no_pause")
def test_a_bar_that_is_told_of_every_tenth_step_shows_the_truth() -> None:
    bar, text = bar_of(num_steps=101)
    with bar:
        for step in range(0, 101, 10):
            bar.log({"x": jnp.float32(step)}, step)
    assert drawn(text.getvalue()) == [0, *range(1, 102, 10)]


@pytest.mark.usefixtures("_no_pause")
def test_a_run_that_is_resumed_begins_where_it_stopped() -> None:
    bar, text = bar_of(initial=400, num_steps=500)
    with bar:
        bar.log(0.0, 400)
        bar.log(0.0, 401)
    assert drawn(text.getvalue()) == [400, 401, 402]
    assert bar.position == 402


def test_between_two_drawings_nothing_is_looked_at() -> None:
    looks: list[Any] = []
    bar, text = bar_of(postfix=lambda state: looks.append(state) or {}, num_steps=1000)
    run(bar, steps=999, at=lambda step: looks and pytest.fail("looked"))
    assert [float(state.energy) for state in looks] == [999.0]  # at the end
    assert drawn(text.getvalue()) == [0, 999]


def test_a_loop_that_breaks_off_leaves_the_values_of_its_last_step() -> None:
    bar, text = bar_of(postfix=lambda state: {"energy": state.energy}, num_steps=100)

    def fail(step: int) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(bar, at=fail)
    assert text.getvalue().splitlines()[-1].endswith("energy=6]")


@pytest.mark.parametrize("initial", [0, 40])
def test_a_loop_that_ends_before_its_first_step_has_nothing_to_look_at(initial: int) -> None:
    looks: list[Any] = []
    bar, text = bar_of(
        postfix=lambda state: looks.append(state) or {}, initial=initial, num_steps=100
    )
    with bar:
        pass
    assert looks == []
    assert set(drawn(text.getvalue())) == {initial}


def test_a_bar_without_anything_to_draw_on_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without a console have no standard error."""
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.warns(UserWarning, match="progress bar cannot be drawn: AttributeError.*'write'"):
        assert float(run(TqdmLogger(10)).energy) == 10


@pytest.mark.usefixtures("_no_pause")
def test_values_of_an_earlier_step_do_not_stand_next_to_a_later_one() -> None:
    bar, text = bar_of(postfix=lambda state: {"x": state}, num_steps=100)
    with bar:
        bar.log(jnp.float32(7), 0)
        bar._due = float("inf")
        last = jnp.float32(8)
        bar.log(last, 1)
        last.delete()  # donated to a step that failed
    assert [line.partition("it/s")[2] for line in text.getvalue().splitlines()[1:]] == [
        ", x=7]",
        "]",
    ]


class Broken(io.StringIO):
    """A disk that is full after a while."""

    def write(self, text: str) -> int:
        if self.tell() > 100:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.usefixtures("_no_pause")
def test_a_bar_that_cannot_be_drawn_is_one_warning() -> None:
    with pytest.warns(UserWarning, match="progress bar cannot be drawn: OSError.*No space") as told:
        assert float(run(TqdmLogger(10, file=Broken())).energy) == 10
    assert len(told) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_no_pause")
def test_where_tqdm_is_disabled_there_is_no_bar() -> None:
    program = (
        "import io, os\n"
        "os.environ['TQDM_DISABLE'] = '1'\n"
        "from logax.loop import TqdmLogger\n"
        "text = io.StringIO()\n"
        "with TqdmLogger(3, lambda state: 1 / 0, file=text) as bar:\n"
        "    for step in range(3): bar.log(None, step)\n"
        "print(bar.position, text.getvalue())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("3 `TqdmLogger` continues without its postfix: ZeroDivisionError")


def test_the_last_step_is_drawn_with_its_values() -> None:
    bar, text = bar_of(postfix=lambda state: {"energy": state.energy, "phase": "warm"})
    run(bar)
    last = text.getvalue().splitlines()[-1]
    assert "10/10" in last
    assert last.endswith("energy=10, phase=warm]")


@pytest.mark.usefixtures("_no_pause")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1 / 3, "0.3333"),
        (jnp.float32(1 / 3), "0.3333"),
        (jnp.arange(5), "2"),
        (jnp.bfloat16(1.5), "1.5"),
        (7, "7"),
        (True, "True"),
        (jnp.array([]), "nan"),
        (1 + 2j, "1+2j"),
        ("warm", "warm"),
        (None, ""),
    ],
)
def test_values_are_short(value: Any, shown: str) -> None:
    bar, text = bar_of(postfix=lambda state: {"x": value}, num_steps=1)
    with bar:
        bar.log(0.0, 0)
    assert text.getvalue().splitlines()[-1].endswith(f", x={shown}]" if shown else "it/s]")


@pytest.mark.usefixtures("_no_pause")
@pytest.mark.parametrize(
    ("postfix", "said"),
    [
        (lambda state: [1.0], "TypeError: it returned [1.0] of type `list`, which is not a dict"),
        (lambda state: {"x": state.nothing}, "AttributeError: 'Particles' object has no attribute"),
        (lambda state: {"x": 1 / 0}, "ZeroDivisionError: division by zero."),
    ],
)
def test_a_postfix_that_fails_is_said_once_and_the_run_goes_on(postfix: Any, said: str) -> None:
    bar, text = bar_of(postfix=postfix)
    assert float(run(bar).energy) == 10
    lines = [line for line in text.getvalue().splitlines() if "postfix" in line]
    assert len(lines) == 1
    assert lines[0].startswith("`TqdmLogger` continues without its postfix: ")
    assert said in lines[0]
    assert drawn(text.getvalue())[-1] == 10


def test_nobody_waits_for_the_device_unless_the_bar_is_drawn() -> None:
    bar, _ = bar_of(postfix=lambda state: {"energy": state.energy})
    with bar, held_state() as state:
        for step in range(9):
            bar.log(state, step)


def test_an_error_leaves_the_bar_where_it_is() -> None:
    bar, text = bar_of()

    def fail(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(bar, at=fail)
    assert drawn(text.getvalue()) == [0, 4]


def test_on_a_terminal_it_is_one_line_that_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bars, "SCREEN_INTERVAL_SECONDS", 0.0)
    screen = Screen()
    run(TqdmLogger(10, file=screen))
    assert screen.getvalue().count("\n") == 1
    assert drawn(screen.getvalue())[-1] == 10


def test_without_a_file_it_is_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    run(TqdmLogger(10))
    out, err = capsys.readouterr()
    assert out == ""
    assert drawn(err) == [0, 10]


def test_a_loop_of_no_steps_and_one_that_is_longer_than_said() -> None:
    bar, text = bar_of(num_steps=0)
    with bar:
        pass
    bar, text = bar_of(num_steps=5)
    run(bar, steps=8)
    assert text.getvalue().splitlines()[-1].startswith("8it [")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TqdmLogger(-1), "`TqdmLogger` takes `num_steps` of 0 or more, and got -1."),
        (lambda: TqdmLogger(2.5), "and got 2.5."),  # type: ignore[arg-type]
        (
            lambda: TqdmLogger(3, initial=-2),
            "`TqdmLogger` takes `initial` of 0 or more, and got -2",
        ),
        (lambda: TqdmLogger(3, {"x": 1}), "`TqdmLogger` takes a view, a function of the state"),
        (lambda: TqdmLogger(3, file="log.txt"), "takes a `file` to write to, and got 'log.txt'"),
    ],
)
def test_wrong_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert message in str(caught.value)


def test_a_state_with_prng_keys_ends_like_any_other() -> None:
    bar, text = bar_of(num_steps=10)
    with bar:
        bar.log({"key": jax.random.key(0), "x": jnp.float32(1)}, 3)
    assert bar.position == 4
    assert "4/10" in text.getvalue()


def test_an_error_of_a_loop_with_prng_keys_stays_what_it_is() -> None:
    bar, _ = bar_of(num_steps=10, postfix=lambda state: {"x": state["x"]})
    bar.__enter__()
    bar.log({"key": jax.random.key(0), "x": jnp.float32(1)}, 3)
    error = KeyboardInterrupt()
    bar.__exit__(KeyboardInterrupt, error, None)  # raises nothing of its own
    assert bar.position == 4
