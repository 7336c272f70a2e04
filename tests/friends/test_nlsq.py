"""Our iteration logging, harvests and writer in real fits of NLSQ, which `fits.py` runs."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 13), reason="NLSQ is tested with Python 3.13"),
]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("fits")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("fits.py")), str(folder)],
        env={**os.environ, "NLSQ_JAX_CACHE_DIR": str(folder / "compiled")},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "fits.json").read_text())


@pytest.mark.parametrize("name", ["with_lines", "kept", "tapped", "stored"])
def test_what_is_seen_does_not_change_the_fit(fits: Any, name: str) -> None:
    known = ("params", "cost", "nit", "evaluations")
    assert {key: fits[name][key] for key in known} == fits["plain"]
    assert fits["plain"]["params"] == pytest.approx([2.5, 1.3, 0.5], abs=0.05)


def test_a_callback_says_a_line_for_each_iteration_and_one_for_the_end(fits: Any) -> None:
    found = fits["with_lines"]
    reason, nit, cost, optimality = found["end"]
    assert len(found["states"]) == nit >= 4
    assert found["lines"] == [
        *(
            f"Optimization: iter={i} | cost={cost:.6e} | ‖∇f‖={slope:.6e} | {moved:.1e}"
            for i, cost, slope, moved, _ in found["states"]
        ),
        f"Convergence: reason={reason} | iterations={nit} | final_cost={cost:.6e} | "
        f"time=1.500s | final_gradient_norm={optimality:.6e}",
    ]


def test_a_live_run_keeps_iterations_and_what_the_model_logs(fits: Any) -> None:
    history, states = fits["kept"]["history"], fits["with_lines"]["states"]
    assert fits["kept"]["steps"] == [state[0] for state in states]
    assert history["cost"] == [state[1] for state in states]
    assert history["gradient_norm"] == [state[2] for state in states]
    assert history["params"] == [state[4] for state in states]
    for number, name in enumerate(("height", "rate", "floor")):
        assert history[name] == [point[number] for point in fits["tapped"]["points"]]


@pytest.mark.parametrize(
    ("name", "rejected"), [("tapped", False), ("bounded", False), ("far", True)]
)
def test_a_tapped_model_says_every_point_that_it_was_evaluated_at(
    fits: Any, name: str, rejected: bool
) -> None:
    points = [tuple(point) for point in fits[name]["points"]]
    assert len(points) == fits[name]["evaluations"]
    assert list(points[-1]) == fits[name]["params"]
    # Once for the residuals, and where the step is accepted once more for the derivatives.
    times = Counter(Counter(points).values())
    assert times[2] == fits[name]["derivatives"]
    assert times[1] == len(points) - 2 * times[2]
    assert (times[1] > 0) == rejected


def test_iterations_are_stored_as_the_steps_of_a_loop(fits: Any) -> None:
    states = fits["with_lines"]["states"]
    assert fits["stored"]["steps"] == [state[0] for state in states]
    assert fits["stored"]["rows"] == {
        "cost": [state[1] for state in states],
        "params": [state[4] for state in states],
    }


def test_a_check_stops_a_fit_only_if_it_says_so_in_the_way_of_nlsq(fits: Any) -> None:
    found = fits["checked"]
    assert found["nit"] == fits["plain"]["nit"]
    assert found["warnings"][0] == (
        "Callback raised exception: Step 2: Good enough.. Continuing optimization."
    )
    assert found["stopped at"] == 2


def test_a_whole_fit_cannot_be_spooled(fits: Any) -> None:
    assert fits["spooled"] == "TracerArrayConversionError"
