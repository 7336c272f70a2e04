"""What is written to a folder of runs is what is read from it, bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import logax
from logax._delivery.record_batch import RecordBatch, RunInfo, Stream
from logax._runs import encoding, layouts
from logax.loggers.save import SaveSink

NARROW = [
    name
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3b11fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
        "int4",
        "uint4",
        "int2",
    )
    if hasattr(ml_dtypes, name)
]
WIDE = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 "
WIDE += "complex128 >f4 >i8 longdouble M8[s] m8[us] S3 U3"


def a_run(name: str = "a", **more: Any) -> RunInfo:
    return RunInfo(name, name, began=time.time(), **more)


def written(folder: Path, *batches: RecordBatch, end: bool = True) -> logax._runs.runs.Runs:
    """A folder with these batches, whose runs are opened and finished."""
    sink = SaveSink(folder)
    runs = list(dict.fromkeys(s.run for batch in batches for s in batch.streams))
    sink.open(runs)
    for batch in batches:
        sink.write(batch)
    sink.close(runs, "finished")
    sink.flush()
    if end:
        sink.end()
    return logax.load(folder)


def one(values: dict[str, Any], run: RunInfo | None = None, **steps: Any) -> RecordBatch:
    """Records of one run, from arrays without an axis of streams."""
    first = {key: jax.tree.map(lambda x: x[None], value) for key, value in values.items()}
    return RecordBatch.of(
        [run or a_run()], first, **{n: np.asarray(s)[None] for n, s in steps.items()}
    )


def same_bits(a: Any, b: Any) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


# Types.


@pytest.mark.parametrize("name", [*NARROW, *WIDE.split()])
def test_every_type_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name) if name in NARROW else name)
    values = {str(shape): numbers(dtype, name, shape) for shape in [(3,), (3, 2, 5), (3, 0)]}
    run = written(tmp_path, one(values))["a"]
    for key, x in values.items():
        same_bits(run[key], x)


def numbers(dtype: np.dtype[Any], name: str, shape: tuple[int, ...]) -> Any:
    """Random bits, where all of them mean something, else zeros and ones."""
    generator = np.random.default_rng(0)
    if dtype.kind in "biuSU" or name in ("longdouble", "int4", "uint4", "int2", "float4_e2m1fn"):
        return generator.integers(0, 2, shape).astype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(generator.bytes(size), dtype).reshape(shape)


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324])
    same_bits(written(tmp_path, one({"x": x}))["a"]["x"], x)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_typed_keys_come_back_as_such(tmp_path: Path, kind: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=kind), (2, 4, 3))
    runs = [a_run("a"), a_run("b")]
    found = written(tmp_path, RecordBatch.of(runs, {"k": keys}))
    for at, run in enumerate(runs):
        read = found[run.id]["k"]
        assert read.dtype == keys.dtype
        same_bits(*(np.asarray(jax.random.key_data(x)) for x in (read, keys[at])))
    both = found["k"]
    same_bits(*(np.asarray(jax.random.key_data(x)) for x in (both, keys)))


# Trees.


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Settings:
    rate: float
    point: Point


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Weights:
    w: Any
    parts: list[Any]


def test_trees_come_back_as_dictionaries_lists_and_tuples(tmp_path: Path) -> None:
    a, b = np.arange(3.0), np.arange(6).reshape(3, 2)
    tree = {"p": Point(a, b), "w": Weights(a + 1, [b, None, (a, {})]), 3: [a]}
    read = written(tmp_path, one({"t": tree["p"], "u": tree["w"], "v": {3: [a], 1: (b,)}}))["a"]
    np.testing.assert_equal(read["t"], {"x": a, "y": b})
    np.testing.assert_equal(read["u"], {"w": a + 1, "parts": [b, None, (a, {})]})
    np.testing.assert_equal(read["v"], {1: (b,), 3: [a]})
    assert isinstance(read["v"][1], tuple)
    assert isinstance(read["v"][3], list)


def test_trees_of_ones_own_come_back_by_the_names_of_their_parts(tmp_path: Path) -> None:
    class Named(dict[str, Any]):
        """A pytree whose parts have keys."""

    class Plain:
        """A pytree whose parts have none."""

        def __init__(self, *parts: Any) -> None:
            self.parts = parts

    class Keyed(Plain):
        """A pytree that is no dictionary, and whose parts have keys."""

    key = jax.tree_util.DictKey
    jax.tree_util.register_pytree_with_keys(
        Named,
        lambda x: ([(key(k), x[k]) for k in x], tuple(x)),
        lambda k, x: Named(zip(k, x, strict=True)),
    )
    jax.tree_util.register_pytree_with_keys(
        Keyed, lambda x: ([(key("a"), x.parts[0])], None), lambda _, x: Keyed(*x)
    )
    jax.tree_util.register_pytree_node(Plain, lambda x: (x.parts, None), lambda _, x: Plain(*x))
    x = np.arange(2.0)
    tree = {"named": Named(z=x, b=x + 1), "plain": Plain(x, {"y": x}), "keyed": Keyed(x)}
    (run,) = written(tmp_path, one({"tree": tree})).values()
    np.testing.assert_equal(
        run["tree"],
        {"named": {"z": x, "b": x + 1}, "plain": (x, {"y": x}), "keyed": {"a": x}},
    )


def test_histograms_and_images_come_back_as_such(tmp_path: Path) -> None:
    bins = logax.HistogramBins(np.ones((3, 4), np.int32), np.zeros((3, 5)), np.arange(3))
    pixels = logax.ImagePixels(np.arange(12, dtype=np.uint8).reshape(3, 2, 2))
    run = written(tmp_path, one({"h": bins, "i": {"deep": [pixels]}}))["a"]
    assert isinstance(run["h"], logax.HistogramBins)
    for field in ("counts", "edges", "nonfinite"):
        same_bits(getattr(run["h"], field), getattr(bins, field))
    (found,) = run["i"]["deep"]
    assert isinstance(found, logax.ImagePixels)
    same_bits(found.pixels, pixels.pixels)
    assert list(run.logs) == ["h", "i"]


def test_a_value_without_arrays_has_a_count(tmp_path: Path) -> None:
    order = np.arange(4)[None]
    batch = RecordBatch((Stream(a_run()),), {"none": None, "empty": {}}, {}, order)
    run = written(tmp_path, batch)["a"]
    assert run["none"] is None
    assert run["empty"] == {}
    assert run.logs.count["none"] == 4


def test_an_array_that_cannot_be_stored_is_refused_and_what_is_around_it_is_kept(
    tmp_path: Path,
) -> None:
    sink, run = SaveSink(tmp_path), a_run()
    sink.open([run])
    sink.write(one({"x": np.arange(2)}, run))
    with pytest.raises(TypeError, match="`SaveLogger` cannot store 'bad', an array of object"):
        sink.write(one({"bad": np.array([None, "x"])}, run))
    sink.write(one({"x": np.arange(2, 4)}, run))
    sink.end()
    assert logax.load(tmp_path)["a"]["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("streams", "records", "error", "said"),
    [
        ((Stream(a_run(), (), 2**70),), 3, OverflowError, "too large to convert to SQLite INTEGER"),
        (
            (Stream(a_run()),),
            2,
            ValueError,
            r"must have the shape \(streams, records, ...\), but a batch with 1 streams and 2 ",
        ),
    ],
    ids=["shard", "records"],
)
def test_an_invalid_batch_is_refused_and_the_batches_around_it_are_kept(
    tmp_path: Path, streams: tuple[Stream, ...], records: int, error: Any, said: str
) -> None:
    sink, run = SaveSink(tmp_path), a_run("b")
    sink.open([run])
    sink.write(one({"x": np.arange(2)}, run))
    with pytest.raises(error, match=said):
        sink.write(RecordBatch(streams, {"x": np.ones((1, 3))}, {}, np.ones((1, records))))
    sink.write(one({"x": np.arange(2, 4)}, run))
    sink.end()
    runs = logax.load(tmp_path)
    assert list(runs) == ["b"]
    assert runs["b"]["x"].tolist() == [0, 1, 2, 3]


# Keys.


HOSTILE = [
    "../x",
    "",
    "/",
    "a//b",
    "a/../../b",
    "'; DROP TABLE portions; --",
    "\0",
    "\n\t",
    "ключ 鍵 🔑",
    "\ud800",
    "x" * 10**6,
    "%s {}",
    "CON",
    ".",
]


def test_keys_are_data_whatever_they_are(tmp_path: Path) -> None:
    values = {key: np.arange(3.0) + at for at, key in enumerate(HOSTILE)}
    steps = {key: np.arange(3) * 10 + at for at, key in enumerate(HOSTILE) if at != 3}
    run = written(tmp_path / "runs", one(values, **steps))["a"]
    assert list(run.keys()) == HOSTILE
    for at, key in enumerate(HOSTILE):
        same_bits(run[key], values[key])
        if at != 3:
            same_bits(run.steps[key][HOSTILE[0]], steps[key])
    (file,) = (tmp_path / "runs").iterdir()
    assert file.suffix == ".sqlite"
    assert [each.name for each in tmp_path.iterdir()] == ["runs"]
    assert len(repr(run)) < 3000


def test_names_and_configs_of_runs_are_data_too(tmp_path: Path) -> None:
    config = {
        "\ud800": "\0",
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "narrow": jnp.ones(2, jnp.bfloat16),
        "nested": {"list": [1, 2.5, None, True, "x"], "$array": "mine", "deep": ({"$dict": 1},)},
        "nan": float("nan"),
        "number": np.float32(0.5),
        "path": Path("x"),
        "point": Point(1, 2),
        "big": 2**80,
        "settings": Settings(0.5, Point(1, 2)),
        "key": jax.random.key_data(jax.random.key(3)),
        "typed": jax.random.key(3),
        "object": np.array([object], object),
    }
    name = "'; DROP TABLE runs; --\ud800\0"
    batch = one({"x": np.zeros(1)}, RunInfo("id", name, config, 1.5, {"host": "h"}, "g", (3,), 7))
    run = written(tmp_path, batch).find(name)
    assert (run.id, run.name, run.group, run.lane, run.lanes) == ("id", name, "g", (3,), 7)
    assert (run.began, run.machine, run.status) == (1.5, {"host": "h"}, "finished")
    found = run.config
    same_bits(found.pop("array"), config["array"])
    same_bits(found.pop("narrow"), np.asarray(config["narrow"]))
    same_bits(found.pop("typed"), found.pop("key"))
    np.testing.assert_equal(
        found,
        {
            "\ud800": "\0",
            "nested": {
                "list": [1, 2.5, None, True, "x"],
                "$array": "mine",
                "deep": [{"$dict": 1}],
            },
            "nan": float("nan"),
            "number": 0.5,
            "path": repr(Path("x")),
            "point": {"x": 1, "y": 2},
            "big": 2**80,
            "settings": {"rate": 0.5, "point": {"x": 1, "y": 2}},
            "object": repr(config["object"]),
        },
    )


def test_a_config_that_is_nested_without_end_is_cut(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    batch = one({"x": np.zeros(1)}, RunInfo("id", "name", {"endless": endless}))
    found = written(tmp_path, batch)["id"].config["endless"]
    depth = 0
    while isinstance(found, list):
        (found,), depth = found, depth + 1
    assert (found, depth) == ("[[...]]", 100)


def test_a_tree_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep: Any = np.zeros(1)
    for _ in range(101):
        deep = [deep]
    sink, batch = SaveSink(tmp_path), one({"deep": deep})
    sink.open([batch.streams[0].run])
    with pytest.raises(ValueError, match="A tree to be stored is nested more than 100 deep"):
        sink.write(batch)
    sink.end()
    assert list(logax.load(tmp_path)["a"]) == []


# Sizes.


@pytest.mark.parametrize("records", [1, 1000, 300_000])
@pytest.mark.parametrize("streams", [1, 3])
def test_small_and_large_arrays_come_back(tmp_path: Path, records: int, streams: int) -> None:
    runs = [a_run(f"r{i}") for i in range(streams)]
    x = np.arange(streams * records, dtype=np.float64).reshape(streams, records)
    y = (x % 251).astype(np.uint8)
    step = np.broadcast_to(np.arange(records), x.shape)
    batches = [RecordBatch.of(runs, {"x": x + 1e9 * i, "y": y}, step=step) for i in range(2)]
    found = written(tmp_path, *batches)
    same_bits(found["x"], np.concatenate([x, x + 1e9], 1))
    for at, run in enumerate(runs):
        same_bits(found[run.id]["y"], np.concatenate([y[at]] * 2))
        same_bits(found[run.id].steps["step"]["y"], np.concatenate([step[at]] * 2))


def test_many_keys_in_one_batch_come_back(tmp_path: Path) -> None:
    values = {f"k{i}": np.full((100, 30), i, np.float32) for i in range(150)}  # 1.8 MB together
    run = written(tmp_path, one(values))["a"]
    assert list(run) == list(values)
    for key, x in run.logs.items():
        same_bits(x, values[key])


def test_batches_of_more_shapes_than_are_remembered_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_MAX_CACHED_LAYOUTS", 3)
    monkeypatch.setattr(layouts, "_MAX_CACHED_PLANS", 3)
    run = a_run()
    sizes = [1, 2, 3, 4, 5, 1, 5]
    x = {f"k{n}": np.arange(n) for n in sizes}
    batches = [one({key: value, "n": value}, run) for key, value in x.items()]
    batches += [one({"same": np.full(n, n)}, run) for n in sizes]
    found = written(tmp_path, *batches)["a"]
    for key, value in x.items():
        same_bits(found[key], value)
    same_bits(found["n"], np.concatenate(list(x.values())))
    same_bits(found["same"], np.repeat(sizes, sizes))


def test_nothing_at_all_is_no_file_and_no_records_are_a_key_without_any(tmp_path: Path) -> None:
    SaveSink(tmp_path / "none").end()
    assert list((tmp_path / "none").iterdir()) == []
    run = written(tmp_path / "some", one({"x": np.zeros((0, 3), np.int8)}, step=np.zeros(0)))["a"]
    same_bits(run["x"], np.zeros((0, 3), np.int8))
    assert run.logs.count["x"] == 0
    assert written(tmp_path / "empty", one({}))["a"].logs == {}


# `logax.save`.


def test_save_keeps_a_logdict_as_it_is(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            logax.log({"loss": x, "grad": {"w": jnp.ones(2) * x}}, step=i)
            return x * 0.5, None

        x, _ = jax.lax.scan(body, x, jnp.arange(5))
        logax.log({"last": x})
        return x

    _, logs = logax.spool(f)(jnp.float32(8))
    name = logax.save(logs, tmp_path, name="mine", config={"rate": 0.5})
    run = logax.load(tmp_path)[name]
    assert (run.name, run.status, run.config) == ("mine", "finished", {"rate": 0.5})
    assert run.logs == jax.device_get(logs)
    assert [*run.logs.site.items()] == [*logs.site.items()]


@pytest.mark.parametrize("lanes", ["split", "group", "batch"])
def test_save_of_lanes_makes_a_run_of_each_or_one_that_has_them(tmp_path: Path, lanes: str) -> None:
    data = np.arange(24.0).reshape(2, 3, 4)
    count = np.array([[4, 2, 0], [1, 4, 3]], np.int32)
    step = np.broadcast_to(np.arange(4), data.shape)
    logs = logax.logdict(
        {"x": data}, rank={"x": 0}, count={"x": count}, steps={"t": {"x": step}}
    ) | logax.logdict({"common": np.arange(2)})
    ids = logax.save(logs, tmp_path, lanes=lanes, config={"seed": 1})
    runs = logax.load(tmp_path)
    if lanes == "batch":
        run = runs[ids]
        assert run.logs.filter("x") == logs.filter("x")
        assert run["common"].shape == (2, 3, 2)
        return
    assert list(runs) == ids
    for at, (lane, run) in enumerate(zip(np.ndindex(2, 3), runs.values(), strict=True)):
        assert run.lane == lane
        same_bits(run["x"], data[lane][: count[lane]])
        same_bits(run.steps["t"]["x"], np.arange(4)[: count[lane]])
        assert run["common"].tolist() == [0, 1]
        assert (run.group is None) == (lanes == "split"), at
    assert len({run.group for run in runs.values()}) == 1


def test_save_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"`logax\.save` takes a logdict, and got 3 of type `int`"):
        logax.save(3, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`logax\.save` takes `lanes` as 'split', 'group' or"):
        logax.save({}, tmp_path, lanes="all")
    one, two = (logax.logdict({n: np.zeros((i, 2))}, rank={n: 0}) for n, i in (("a", 2), ("b", 3)))
    with pytest.raises(ValueError, match=r"'a' has \(2,\), and 'b' has \(3,\)"):
        logax.save(one | two, tmp_path)
    with pytest.raises(TypeError, match="needs to see the numbers"):
        jax.jit(lambda x: logax.save(logax.logdict({"x": x}), tmp_path) and x)(jnp.ones(2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'key'"):
        logax.save({}, tmp_path, key=jax.random.key(0))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes a `name` that is a string, and got 3 of type `int`"):
        logax.save({}, tmp_path, name=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="takes `mode` as 'a', 'w' or 'x', and got 'r'"):
        logax.save({}, tmp_path, mode="r")
    assert list(tmp_path.iterdir()) == []


def test_save_adds_to_the_runs_of_a_folder_replaces_them_or_wants_none(tmp_path: Path) -> None:
    data = {"x": np.zeros(1)}
    logax.save(data, tmp_path / "runs", name="one", mode="x")
    with pytest.raises(FileExistsError, match=r"which has runs in it, and mode 'x' wants none"):
        logax.save(data, tmp_path / "runs", name="two", mode="x")
    logax.save(data, tmp_path / "runs", name="two")
    assert list(logax.load(tmp_path / "runs").names().values()) == ["one", "two"]
    for name in ("of another program.sqlite", "notes.txt"):
        (tmp_path / "runs" / name).write_text(name)
    logger = logax.loggers.SaveLogger(tmp_path / "runs")
    with logger.run("live"):
        logax.flush()
        with pytest.raises(
            ValueError, match=r"cannot replace the runs in .*: a process still writ"
        ):
            logax.save(data, tmp_path / "runs", name="three", mode="w")
    logger.close()
    left = tmp_path / "left.sqlite"
    with sqlite3.connect(next((tmp_path / "runs").glob("*-*.sqlite"))) as one:
        one.execute(f"VACUUM INTO '{left}'")
    one.close()
    for end in (".sqlite", ".sqlite-wal", ".lock"):  # as of a process that was killed
        shutil.copy(left, tmp_path / "runs" / f"killed{end}")
    logax.save(data, tmp_path / "runs", name="three", mode="w")
    (new,) = (tmp_path / "runs").glob("*-*.sqlite")
    assert list(logax.load(new).names().values()) == ["three"]
    others = {path.name for path in (tmp_path / "runs").iterdir()} - {new.name}
    assert others == {"of another program.sqlite", "notes.txt"}
