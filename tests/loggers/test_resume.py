"""Runs that go on: which are meant, lane by lane, and what cannot be."""

from __future__ import annotations

import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import logax
from logax._runs.search import find_one_run
from logax.loggers import (
    CallbackLogger,
    ConsoleLogger,
    CSVLogger,
    JSONLLogger,
    KnownRuns,
    Logger,
    MultiLogger,
    SaveLogger,
    Sink,
)
from logax.testing import MemoryLogger


def keys(number):
    return jax.random.split(jax.random.key(0), number)


def write(logger, number, value, **options):
    """A run for each lane with one record, in one mapped call."""

    def one(key, x):
        state = logger.init(key, **options)
        logger.log(state, {"x": x})
        return state

    states = jax.vmap(one)(keys(number), value + jnp.arange(number))
    logger.finish(states)
    return states


def found(path):
    return {run.name: run["x"].tolist() for run in logax.load(path).values()}


@pytest.fixture
def logger(tmp_path):
    made = SaveLogger(tmp_path)
    yield made
    made.close()


# Selection of the runs to resume.


def test_init_resumes_one_run_in_python_and_inside_a_program(tmp_path, logger):
    state = logger.init(jax.random.key(0), name="a", config={"rate": 1, "old": 2})
    logger.log(state, {"x": jnp.float32(1)})
    logger.finish(state)

    @jax.jit
    def go_on(key, rate):
        state = logger.init(key, resume="a", config={"rate": rate, "new": 3})
        logger.log(state, {"x": rate.astype(jnp.float32)})
        return state

    again = logger.init(jax.random.key(1), resume="last", config={"rate": 4})
    logger.log(again, {"x": jnp.float32(2)})
    logger.finish(again)
    for value in (3, 4):  # the same program, called again, goes on with the same run
        logger.finish(go_on(jax.random.key(2), value))
    (run,) = logax.load(tmp_path).values()
    assert (run.id, run.name, run.resumed) == (state.id, "a", 3)
    assert run["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert run.config == {"rate": 4, "old": 2, "new": 3}


@pytest.mark.parametrize("way", ["name", "id", "beginning", "last", "each", "other order"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_sweep_goes_on_lane_by_lane(tmp_path, logger, way, compiled):
    sweep = write(logger, 3, 0.0, name="s")
    with logger.run("newer"):
        pass
    same = [f"s-{i}" for i in range(3)]
    resume = {
        "name": "s",
        "id": sweep.id[0].removesuffix("-0"),
        "beginning": sweep.id[0].removesuffix("-0")[:-1],
        "last": "last",
        "each": same,
        "other order": tuple(reversed(sweep.id)),
    }[way]
    go_on = functools.partial(write, logger, 3, resume=resume)
    again = jax.jit(go_on)(10.0) if compiled else go_on(10.0)
    logax.flush()
    order = [2, 1, 0] if way == "other order" else [0, 1, 2]
    assert again.id == [sweep.id[i] for i in order]
    runs = logax.load(tmp_path)
    for lane, at in enumerate(order):
        run = runs[sweep.id[at]]
        assert (run.name, run.lane, run.resumed) == (f"s-{at}", (at,), 1)
        assert run["x"].tolist() == [at, 10.0 + lane]
    assert len(runs) == 4


def test_nested_maps_and_renamed_groups_go_on(tmp_path):
    logger = SaveLogger(tmp_path, lanes="group")
    grid = jax.random.split(jax.random.key(0), (2, 2))

    def write_grid(value, **options):
        def one(key):
            state = logger.init(key, **options)
            logger.log(state, {"x": value})
            return state

        logger.finish(jax.vmap(jax.vmap(one))(grid))

    write_grid(1.0, name="g")
    write_grid(2.0, resume="g")
    write_grid(3.0, resume="last", name="h")
    with logger.run(resume="h-1-0") as state:
        logger.log(state, {"x": 4.0})
    logger.close()
    assert found(tmp_path) == {
        "h-0-0": [1.0, 2.0, 3.0],
        "h-0-1": [1.0, 2.0, 3.0],
        "h-1-0": [1.0, 2.0, 3.0, 4.0],
        "h-1-1": [1.0, 2.0, 3.0],
    }
    runs = logax.load(tmp_path)
    assert [run.lane for run in runs.values()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {run.group for run in runs.values()} == {"h"}


def test_an_aggregate_goes_on_beside_its_lanes(tmp_path):
    split, whole = SaveLogger(tmp_path / "split"), SaveLogger(tmp_path / "all", lanes="aggregate")
    logger = MultiLogger(whole, ConsoleLogger(file=io.StringIO()), split)
    sweep = write(logger, 2, 0.0, name="s")
    write(logger, 2, 10.0, resume="s")
    write(logger, 2, 20.0, resume=["s-0", "s-1"])
    with pytest.raises(
        ValueError, match=r"cannot resume single lanes: `SaveLogger` has one run fo"
    ):
        write(logger, 2, 30.0, resume=sweep.id[::-1])
    logger.close()
    assert found(tmp_path / "split") == {"s-0": [0.0, 10.0, 20.0], "s-1": [1.0, 11.0, 21.0]}
    (run,) = logax.load(tmp_path / "all").values()
    assert (run.name, run.id, run["x/mean"].tolist()) == ("s", sweep.id[0][:-2], [0.5, 10.5, 20.5])
    alone = SaveLogger(tmp_path / "all", lanes="aggregate")
    write(alone, 2, 40.0, resume="last")
    write(alone, 2, 50.0, resume=sweep.id)
    alone.close()
    (run,) = logax.load(tmp_path / "all").values()
    assert run["x/mean"].tolist() == [0.5, 10.5, 20.5, 40.5, 50.5]


def test_a_destination_that_cannot_list_runs_is_given_what_another_finds(tmp_path):
    opened = []

    class ByID(Sink):
        def open(self, runs):
            opened.extend((run.id, run.name, run.given_name, run.resumed) for run in runs)

        def known_runs(self):
            return KnownRuns("a service", None)

    logger = MultiLogger(Logger(ByID()), SaveLogger(tmp_path))
    states = write(logger, 2, 0.0, name="s")
    write(logger, 2, 1.0, resume="last")
    one, two = states.id
    assert opened == [
        (one, "s-0", "s-0", False),
        (two, "s-1", "s-1", False),
        (one, one, None, True),
        (two, two, None, True),
    ]
    logger.close()
    alone = Logger(ByID())
    with alone.run(resume="theirs") as state:
        assert state.id == "theirs"
    assert jax.vmap(lambda key: alone.init(key, resume="theirs"))(keys(2)).id == [
        "theirs-0", "theirs-1",
    ]  # fmt: skip
    assert jax.vmap(lambda key: alone.init(key, resume=["a", "b"]))(keys(2)).id == ["a", "b"]
    with pytest.raises(
        ValueError, match=r"`Logger` cannot list the runs of a service, so it does n"
    ):
        alone.init(jax.random.key(0), resume="last")
    alone.close()


def test_no_lanes_resume_no_runs(logger):
    write(logger, 2, 0.0, name="s")
    states = jax.vmap(lambda key: logger.init(key, resume="s"))(keys(2)[:0])
    assert states.id == []


def test_a_lane_that_has_another_name_now_is_still_one_of_its_sweep(tmp_path, logger):
    write(logger, 2, 0.0, name="s")
    with logger.run(resume="s-1", name="best"):
        pass
    write(logger, 2, 1.0, resume="s")
    assert found(tmp_path) == {"s-0": [0.0, 1.0], "best": [1.0, 2.0]}


# What cannot be.


@pytest.mark.parametrize(
    ("resume", "text"),
    [
        ("t", r"`SaveLogger\.init` cannot resume a sweep: 't' means no sweep in .*of:\n  \S+  s\n"),
        (
            "one",
            r"'one' means one run in .*has lanes of the shape \(3,\)\. Name the sweep, without",
        ),
        ("s-1", r"sweep: 's-1' means one run in .*, or resume the run outside of `vmap`\."),
        (
            ["s-0", "s-1"],
            r"a name for each lane, and got 2 names for 3 lanes\. .* In a loop, such as ",
        ),
        (
            ["s-0", "s-1", "s-0"],
            r"of which two mean the run \S+-0\. Each lane resumes a different run",
        ),
        (["s-0", "s-1", "s-9"], "cannot resume a run: 's-9' means no run in"),
        (
            "s",
            r"the sweep s in \S+: its lanes have the shape \(2,\), and here `vmap` has lanes of "
            r"the shape \(3,\)\. Map over keys of the shape \(2,\), with a `vmap` for each axis",
        ),
    ],
)
def test_a_sweep_that_cannot_go_on_is_told_before_anything_runs(logger, resume, text, tmp_path):
    write(logger, 2, 0.0, name="s")
    with logger.run("one"):
        pass
    number = len(logax.load(tmp_path))
    for begin in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        with pytest.raises(ValueError, match=text):
            begin(lambda key: logger.init(key, resume=resume))(keys(3))
    logax.flush()
    assert len(logax.load(tmp_path)) == number


def test_a_grid_goes_on_only_under_the_same_maps(tmp_path):
    logger = MemoryLogger()
    grid = jax.random.split(jax.random.key(0), (2, 3))
    states = jax.vmap(jax.vmap(lambda key: logger.init(key, name="g")))(grid)
    logger.finish(states)
    with pytest.raises(
        ValueError, match=r"have the shape \(2, 3\), and here .* the shape \(6,\)\."
    ):
        jax.vmap(lambda key: logger.init(key, resume="g"))(keys(6))
    with pytest.raises(
        ValueError, match=r"`jax\.vmap\(jax\.vmap\(lambda .*\)\)\)\(keys\)`, keys of"
    ):
        logger.run(resume="g").__enter__()
    logger.close()


def test_a_sweep_that_lacks_a_lane_is_told(tmp_path):
    logger = JSONLLogger(tmp_path / "a.jsonl")
    states = jax.vmap(lambda key: logger.init(key, name="s"))(keys(3))
    logger.close()
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(x for x in lines if states.id[1] not in x))
    logger = JSONLLogger(tmp_path / "a.jsonl")
    with pytest.raises(
        ValueError, match=r"it has 2 runs, and none of the lane \(1,\)\. Name the run"
    ):
        jax.vmap(lambda key: logger.init(key, resume="s"))(keys(3))
    logger.close()


def test_a_sweep_is_not_one_run(tmp_path, logger):
    ids = write(logger, 2, 0.0, name="s").id
    rows = "\n".join(f"  {own}  s-{lane}" for lane, own in enumerate(ids))
    message = f"'s' means a sweep of 2 runs in {tmp_path}, and not one run. Name one of them"
    resume = (
        ", or resume a sweep with `jax.vmap(lambda key: logger.init(key, resume='s'))(keys)`, keys "
        "of the shape (2,), which gives each lane a key of its own"
    )
    one = jax.random.key(0)
    for use, begin, end in (
        (lambda: logax.load(tmp_path).find("s"), "", ""),
        (
            lambda: logger.run(resume="s").__enter__(),
            "`SaveLogger.run` cannot resume a run: ",
            resume,
        ),
        (  # one key for all lanes: one run
            lambda: jax.vmap(lambda x: logger.init(one, resume="s"))(jnp.arange(2)),
            "`SaveLogger.init` cannot resume a run: ",
            resume,
        ),
    ):
        with pytest.raises(ValueError, match="means a sweep of 2") as caught:
            use()
        assert str(caught.value).split("\n---")[0] == f"{begin}{message}{end}:\n{rows}"
    again = write(logger, 2, 0.0, name="s").id
    with pytest.raises(ValueError, match=rf"'s' means 2 sweeps of 4 .* resume='{again[0][:-2]}'"):
        logger.run(resume="s").__enter__()


def test_runs_without_names_are_given_by_id(tmp_path):
    logger = CSVLogger(tmp_path / "a.csv")
    with logger.run("a") as state:
        logger.log(state, {"x": 1.0})
    with pytest.raises(ValueError, match="'a' means no run in ") as caught:
        logger.run(resume="a").__enter__()
    assert str(caught.value).endswith(
        "a.csv. Give an id, or the beginning of one, since no run there has a name, or `last` for "
        f"the newest, of:\n  {state.id}"
    )
    logger.close()


def test_an_error_lists_the_newest_runs():
    names = {f"id{i}": f"name{i}" for i in range(25)}
    with pytest.raises(ValueError, match="'x' means no run in here") as caught:
        find_one_run("x", names, "here")
    rows = [f"  id{i}  name{i}" for i in range(5, 25)]
    assert str(caught.value).splitlines()[1:] == ["  ... 5 older", *rows]


@pytest.mark.parametrize("resume", [3, "", [], ["a", 3], jnp.zeros(2)])
def test_what_names_no_run_is_told(logger, resume):
    for use in (logger.run, functools.partial(logger.init, jax.random.key(0))):
        with pytest.raises(
            TypeError, match=r"takes as `resume` the id or the name of a run, or un"
        ):
            use(resume=resume)


def test_several_names_need_as_many_lanes(logger):
    with pytest.raises(
        ValueError, match=r"`SaveLogger.run` takes as `resume` a name for each lane"
    ):
        logger.run(resume=["a", "b"]).__enter__()


@pytest.mark.parametrize(
    "make", [lambda: CallbackLogger(print), lambda: MultiLogger(print), ConsoleLogger]
)
def test_a_logger_that_keeps_no_runs_says_which_do(make):
    logger = make()
    with pytest.raises(ValueError, match=r"keeps no runs\. `SaveLogger`, `JSONLLogger`"):
        logger.run(resume="a").__enter__()
    logger.close()


def test_all_destinations_that_keep_runs_must_have_it(tmp_path):
    save = SaveLogger(tmp_path)
    with save.run("a") as state:
        pass
    logger = MultiLogger(save, CSVLogger(tmp_path / "b.csv"))
    with pytest.raises(
        ValueError, match=rf"the run {state.id}, which is not in .*b\.csv\. All dest"
    ):
        logger.run(resume="a").__enter__()
    logger.close()
    save.close()


def test_a_run_that_is_open_is_not_resumed(tmp_path, logger):
    states = jax.vmap(lambda key: logger.init(key, name="s"))(keys(2))
    other = JSONLLogger(tmp_path / "a.jsonl", lanes="aggregate")
    open_too = jax.vmap(lambda key: other.init(key, name="s"))(keys(2))
    for use, who in (
        (lambda: logger.run(resume="s-1").__enter__(), states.id[1]),
        (lambda: jax.vmap(lambda key: logger.init(key, resume="s"))(keys(2)), states.id[0]),
        (lambda: other.run(resume="s").__enter__(), open_too.id[0][:-2]),
    ):
        with pytest.raises(
            ValueError, match=rf"cannot resume the run {who}, which is still open her"
        ):
            use()
    another = SaveLogger(tmp_path)
    with pytest.raises(ValueError, match=rf"the run {states.id[0]}, which a process still writes"):
        jax.vmap(lambda key: another.init(key, resume="s"))(keys(2))
    logger.finish(states)  # and stays open itself
    write(another, 2, 1.0, resume="s")
    assert found(tmp_path) == {"s-0": [1.0], "s-1": [2.0]}
    another.close()
    other.close()


def test_a_program_that_resumes_an_open_run_has_a_new_one_and_says_so():
    logger = MemoryLogger()
    with logger.run("a"):
        pass

    @jax.jit
    def go_on(key):
        state = logger.init(key, resume="a")
        logger.log(state, {"x": 1.0})
        return state

    one = go_on(jax.random.key(0))
    two = go_on(jax.random.key(0))
    with pytest.raises(logax.DeliveryError) as caught:
        logax.flush()
    assert str(caught.value) == (
        f"`MemoryLogger.init` was to resume the run {one.id} while it is open: the program "
        "called it again before the run was finished. Its later records are in new runs, the first "
        f"of them {two.id}. Call `logger.finish(state)` and `logax.flush()` in between."
    )
    assert [run.info.id for run in logger.runs] == [one.id, one.id, two.id]
    assert [len(run.records) for run in logger.runs] == [0, 1, 1]
    logger.close()


def test_nothing_is_resumed_inside_a_shard_map(logger):
    with logger.run("a"):
        pass
    mesh = Mesh(np.array(jax.devices()[:1]), "d")
    spec = PartitionSpec("d")

    def begin(keys):
        return logger.init(keys[0], resume="a").number[None]

    with pytest.raises(ValueError, match="cannot resume runs inside `shard_map`, where each shard"):
        jax.shard_map(begin, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(keys(1))
