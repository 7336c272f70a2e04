"""Our loggers and our writer in real runs of kUPS, beside its own."""

import inspect
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from logax import loop, storage

if sys.version_info < (3, 13):
    pytest.skip("kUPS is tested with Python 3.13", allow_module_level=True)

import kups.core.logging
import kups.core.storage
import kups.core.utils.jax
from kups.application.md.analysis import analyze_md, analyze_md_file
from kups.application.md.logging import InitData, MDLoggedData, MDStepData
from kups.application.utils.propagate import (
    make_cycle_function,
    make_sampled_cycle_function,
    run_sampled_cycles,
    run_simulation_cycles,
)
from kups.core.utils.jax import no_post_init

from friends.argon import argon
from trajectories import assert_same

# ASE, which kUPS reads structures with, does what NumPy 2.5 calls deprecated.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning:ase"),
]

STEPS, EVERY = 20, 2


COUNTERPARTS = [
    (ours, theirs, name)
    for ours, theirs, names in [
        (loop, kups.core.logging, "CompositeLogger NullLogger TqdmLogger ProfileLogger"),
        (loop.TqdmLogger, kups.core.logging.TqdmLogger, "log"),
        (loop, kups.core.utils.jax, "key_chain"),
        (storage, kups.core.storage, "EveryNStep WriterGroupConfig"),
        (storage, kups.core.storage, "HDF5StorageWriter HDF5StorageReader"),
        (
            storage.HDF5StorageReader,
            kups.core.storage.HDF5StorageReader,
            "focus_group list_groups",
        ),
    ]
    for name in names.split()
]


@pytest.mark.parametrize(("ours", "theirs", "name"), COUNTERPARTS)
def test_parameters_have_the_names_and_positions_of_kups(ours: Any, theirs: Any, name: str) -> None:
    own, wanted = (inspect.signature(getattr(of, name)).parameters for of in (ours, theirs))
    positional = [name for name, each in wanted.items() if each.kind is not each.KEYWORD_ONLY]
    assert list(own)[: len(positional)] == positional
    # `compile_views` and `compression` of a group have no counterpart, as docs/kups.md says.
    assert set(wanted) - set(own) <= {"compile_views", "compression"}


def groups(of: Any) -> MDLoggedData:
    """What kUPS stores of a simulation, with the classes of ours or of its own storage."""
    return MDLoggedData(
        init=of.WriterGroupConfig(InitData.from_state, of.Once()),
        step=of.WriterGroupConfig(MDStepData.from_state, of.EveryNStep(EVERY)),
    )


@pytest.fixture(scope="module")
def simulation() -> SimpleNamespace:
    """The compiled cycle, and a function that gives a fresh state, since cycles donate theirs."""
    propagator, state = argon()
    cycle = make_cycle_function(propagator)
    return SimpleNamespace(cycle=cycle, start=lambda: jax.tree.map(jnp.copy, state))


@pytest.fixture(scope="module")
def run(simulation: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One run with loggers of both, and every state of it."""
    folder = tmp_path_factory.mktemp("argon")
    ours, mixed, theirs = (folder / name for name in ("ours.h5", "mixed.h5", "theirs.h5"))
    state = simulation.start()
    states: list[Any] = []
    bar = loop.TqdmLogger(STEPS, lambda state: {"step": state.step}, file=io.StringIO())
    ring = loop.RingBufferLogger(3, lambda state: state.particles.data.positions)
    logger = loop.CompositeLogger(
        bar,
        ring,
        loop.CheckLogger(loop.nan_check(), 5),
        storage.HDF5StorageWriter(ours, groups(storage), state, STEPS),
        storage.HDF5StorageWriter(mixed, groups(kups.core.storage), state, STEPS),
        kups.core.storage.HDF5StorageWriter(theirs, groups(kups.core.storage), state, STEPS),
        loop.CallbackLogger(lambda state, step: states.append(jax.device_get(state)), 1),
    )
    end = run_simulation_cycles(jax.random.key(0), simulation.cycle, state, STEPS, logger)
    rows = MDLoggedData(init=InitData.from_state(end), step=MDStepData.from_state(end))
    return SimpleNamespace(
        ours=ours, mixed=mixed, theirs=theirs, states=states, bar=bar, ring=ring, rows=rows
    )


def test_groups_and_schedules_of_kups_are_stored_as_ours_are(run: SimpleNamespace) -> None:
    def arrays(path: Any) -> dict[str, Any]:
        with storage.HDF5StorageReader(path) as reader:
            return {
                f"{name}/{part}": values.values
                for name in ("init", "step")
                for part, values in reader.focus_group(name).to_xarray().items()
            }

    mixed, ours = arrays(run.mixed), arrays(run.ours)
    assert {name.split("/")[0] for name in mixed} == {"init", "step"}
    assert list(mixed) == list(ours)
    for name, values in mixed.items():
        np.testing.assert_array_equal(values, ours[name])


@pytest.fixture
def reader(run: SimpleNamespace) -> Iterator[storage.HDF5StorageReader[Any]]:
    with storage.HDF5StorageReader(run.ours) as reader:
        yield reader


def test_rows_are_the_states_bit_for_bit(run: SimpleNamespace, reader: Any) -> None:
    steps = reader.focus_group(lambda config: config.step)
    due = run.states[::EVERY]
    assert steps.steps.tolist() == list(range(0, STEPS, EVERY))
    assert len(due) == len(steps) == 10
    for row, state in zip(steps, due, strict=True):
        np.testing.assert_array_equal(row.atoms.data.positions, state.particles.data.positions)
        np.testing.assert_array_equal(row.atoms.data.momenta, state.particles.data.momenta)
        np.testing.assert_array_equal(row.potential_energy, state.systems.data.potential_energy)
    moved = due[-1].particles.data.positions - due[0].particles.data.positions
    assert np.abs(moved).max() > 0


def test_a_row_comes_back_in_the_classes_of_kups(run: SimpleNamespace, reader: Any) -> None:
    row = reader.focus_group(lambda config: config.step, like=run.rows.step)[3]
    assert isinstance(row, MDStepData)
    assert_same(row.atoms, run.states[3 * EVERY].particles)


def test_files_of_both_hold_the_same(run: SimpleNamespace, reader: Any) -> None:
    # Stacked rows do not pass the checks of the tables of kUPS, which look at single ones.
    with kups.core.storage.HDF5StorageReader(run.theirs) as theirs, no_post_init():
        for pick, row in [
            (lambda config: config.init, run.rows.init),
            (lambda config: config.step, run.rows.step),
        ]:
            assert_same(reader.focus_group(pick, like=row)[...], theirs.focus_group(pick)[...])


def test_the_analysis_of_kups_takes_what_our_reader_gives(
    run: SimpleNamespace, reader: Any
) -> None:
    start = reader.focus_group(lambda config: config.init, like=run.rows.init)[...]
    rows = reader.focus_group(lambda config: config.step)[...]
    (ours,) = analyze_md(start, rows, n_blocks=2).values()
    (theirs,) = analyze_md_file(run.theirs, n_blocks=2).values()
    assert (ours.n_steps, ours.n_atoms) == (theirs.n_steps, theirs.n_atoms) == (10, 32)
    assert ours.energy_drift == theirs.energy_drift
    for name in ("temperature", "total_energy", "pressure"):
        assert_same(getattr(ours, name).mean, getattr(theirs, name).mean)


def test_bars_and_rings_follow_the_loop_of_kups(run: SimpleNamespace) -> None:
    assert run.bar.position == STEPS
    assert [step for step, _ in run.ring.buf] == [17, 18, 19]
    for step, positions in run.ring.buf:
        np.testing.assert_array_equal(positions, run.states[step].particles.data.positions)


def test_a_check_ends_the_loop_of_kups_and_the_rows_before_it_are_there(
    simulation: SimpleNamespace, run: SimpleNamespace, tmp_path: Path
) -> None:
    state = simulation.start()
    logger = kups.core.logging.CompositeLogger(
        storage.HDF5StorageWriter(tmp_path / "argon.h5", groups(storage), state, STEPS),
        loop.CheckLogger(lambda state: state.step[0] < 5, 1, "Five steps are enough."),
    )
    with pytest.raises(loop.InvariantViolation, match=r"Step 4: Five steps are enough\."):
        run_simulation_cycles(jax.random.key(0), simulation.cycle, state, STEPS, logger)
    with storage.HDF5StorageReader(tmp_path / "argon.h5") as reader:
        rows = reader.focus_group(lambda config: config.step)
        assert (rows.steps.tolist(), reader.complete) == ([0, 2, 4], True)
        np.testing.assert_array_equal(
            rows[-1].atoms.data.momenta, run.states[4].particles.data.momenta
        )


def test_samples_that_kups_has_fetched_are_stored_as_they_are(tmp_path: Path) -> None:
    def walk(key: jax.Array, state: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"x": state["x"] + jax.random.normal(key, (3,))}

    paths = tmp_path / "ours.h5", tmp_path / "theirs.h5"
    sample = {"x": np.zeros(3, np.float32)}
    ours, theirs = (
        {"walk": of.WriterGroupConfig(lambda sample: sample, of.EveryNStep(3))}
        for of in (storage, kups.core.storage)
    )
    logger = loop.CompositeLogger(
        storage.HDF5StorageWriter(
            out_path=paths[0], config=ours, initial_state=sample, total_steps=10
        ),
        kups.core.storage.HDF5StorageWriter(paths[1], theirs, sample, 10, compile_views=False),
    )
    cycles = make_sampled_cycle_function(walk, lambda state: state)
    run_sampled_cycles(jax.random.key(0), cycles, {"x": jnp.zeros(3)}, 10, logger, 4)
    with (
        storage.HDF5StorageReader(paths[0]) as own,
        kups.core.storage.HDF5StorageReader(paths[1]) as other,
    ):
        rows = own.focus_group(view_or_name="walk")
        assert rows.steps.tolist() == [0, 3, 6, 9]
        assert_same(rows[...], other.focus_group(lambda config: config["walk"])[...])
