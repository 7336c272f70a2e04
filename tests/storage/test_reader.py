"""Reading of files: groups, rows, parts of rows, and the errors for missing ones."""

from __future__ import annotations

import gc
import itertools
import os
import zlib
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from logax.storage import (
    EveryNStep,
    HDF5StorageReader,
    HDF5StorageWriter,
    Once,
    StorageError,
    WriterGroupConfig,
)
from storage_processes import count_rows, row, run, write_rows, writer
from trajectories import assert_same

ROWS = 25


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write energies and positions of 25 of 50 steps, and a group that is written once."""
    path = tmp_path_factory.mktemp("run") / "run.h5"

    def state(step: int) -> Any:
        return {"energy": np.float32(step), "position": np.full((2, 3), step, np.float64)}

    config = {
        "frames": WriterGroupConfig(lambda state: state, EveryNStep(2)),
        "nested": [WriterGroupConfig(lambda state: state["energy"], Once())],
        "never": (WriterGroupConfig(lambda state: state["energy"], EveryNStep(1)),),
    }
    with HDF5StorageWriter(path, config, state(0), 50) as writer:
        for step in range(50):
            writer.log(state(step), step)
    return path


INDICES: list[Any] = [
    *(slice(None), slice(3, 9), slice(None, None, 7), slice(None, None, -1), slice(20, 3, -4)),
    *(slice(30, 40), [3, 1, 1, -1], [], range(4), np.array([0, 24]), jnp.array([2, -1]), ...),
    np.arange(ROWS) % 3 == 1,
]


def energies(rows: Any) -> list[float]:
    return list(rows["energy"].tolist())


def test_rows_are_chosen_as_those_of_an_array(path: Path) -> None:
    everything = np.arange(0.0, 50, 2)
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("frames")
        for index in INDICES:
            chosen = group[index]
            own = np.asarray(index, int) if isinstance(index, list | range) else index
            expected = everything[own]
            assert energies(chosen) == expected.tolist()
            np.testing.assert_array_equal(chosen["position"][:, 1, 2], expected)
        for index in (0, 5, -1, -25, np.int64(3)):
            assert group[index]["energy"] == everything[index]
            assert group[index]["position"].shape == (2, 3)
        assert energies(group[()]) == everything.tolist()
        assert [row["energy"] for row in group] == everything.tolist()
        assert len(group) == ROWS
        assert group.steps.tolist() == list(range(0, 50, 2))


def test_only_what_is_asked_for_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("frames").focus(lambda row: row["energy"])
        read: list[str] = []
        usual = reader._source.read_rows
        monkeypatch.setattr(
            reader._source,
            "read_rows",
            lambda number, leaf, places: (
                read.append((leaf, len(places))) or usual(number, leaf, places)
            ),
        )
        assert group[3] == 6
        assert group[4:6].tolist() == [8, 10]
    assert read == [(0, 1), (0, 2)]


def test_names_and_functions_find_groups(path: Path) -> None:
    with HDF5StorageReader(path) as reader:
        assert reader.list_groups() == ["frames", "nested/0", "never/0"]
        assert reader.focus_group(lambda c: c["nested"][0])[...] == 0
        assert reader.focus_group(lambda c: c["nested"][-1]).name == "nested/0"
        assert reader.focus_group(lambda c: c.nested[0])[...] == 0  # also in a dictionary
        assert repr(reader) == f"<HDF5StorageReader {path}: frames, nested/0, never/0>"
        assert repr(reader.focus_group("frames")) == (
            "<StoredGroup `frames`, 25 rows: energy: float32, position: float64[2,3]>"
        )
        part = reader.focus_group("frames").focus(lambda row: row.position)
        assert repr(part) == "<StoredGroup `frames/position`, 25 rows: value: float64[2,3]>"


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        ("frame", LookupError, "has no such group. It has 'frames', 'nested/0', 'never/0'"),
        (lambda c: c.frame, LookupError, "at the top there is no 'frame'; there is 'frames', "),
        (lambda c: c["nested"][1], LookupError, "at nested there is no 1; there is 0"),
        (
            lambda c: c["nested"],
            LookupError,
            "takes one group, and got nested. Select one of 'nested/0'",
        ),
        (lambda c: 3, TypeError, "must return a part of what it is given"),
        (3, TypeError, "takes the name of a group, or a function such as"),
    ],
    ids=["name", "attribute", "index", "several", "else", "number"],
)
def test_a_group_that_is_not_there_is_named(
    group: Any, error: type[Exception], message: str, path: Path
) -> None:
    with HDF5StorageReader(path) as reader, pytest.raises(error) as caught:
        reader.focus_group(group)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (25, IndexError, "`frames` has 25 rows, and got index 25"),
        (-26, IndexError, "`frames` has 25 rows, and got index -26"),
        ([3, 30], IndexError, "`frames` has 25 rows: index 30 is out of bounds"),
        ("energy", TypeError, "write `group.focus(lambda row: row['energy'])`"),
        (1.5, TypeError, "is indexed by rows"),
        (True, TypeError, "is indexed by rows"),
        ((1, 2), TypeError, "is indexed by rows"),
        ([0.5, 1.5], TypeError, "is indexed by rows"),
    ],
)
def test_rows_that_are_not_there_are_named(
    index: Any, error: type[Exception], message: str, path: Path
) -> None:
    with HDF5StorageReader(path) as reader, pytest.raises(error) as caught:
        reader.focus_group("frames")[index]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (lambda row: row.speed, "at the top there is no 'speed'; there is 'energy', 'position'"),
        (lambda row: row.energy[0], "energy has no parts, and got 0; index what is read"),
    ],
)
def test_a_part_that_is_not_there_is_named(where: Any, message: str, path: Path) -> None:
    with HDF5StorageReader(path) as reader, pytest.raises(LookupError) as caught:
        reader.focus_group("frames").focus(where)
    assert str(caught.value) == f"`focus` finds no such part: {message}."


def test_a_function_that_asks_for_more_than_parts_is_told_what_to_write(path: Path) -> None:
    """NumPy looks for its protocol methods, which are not parts of a row."""
    with HDF5StorageReader(path) as reader, pytest.raises(TypeError) as caught:
        reader.focus_group("frames").focus(lambda row: np.asarray(row.energy).shape)
    assert str(caught.value).endswith("such as `lambda c: c.frames`, and returned ().")


def test_a_function_that_picks_nothing_is_told_what_to_write(path: Path) -> None:
    why = (
        "the function must return a part of what it is given, such as `lambda c: c.frames`, and "
        "returned 3."
    )
    with HDF5StorageReader(path) as reader:
        with pytest.raises(TypeError) as caught:
            reader.focus_group(lambda config: 3)
        assert str(caught.value) == f"`focus_group` finds no group: {why}"
        with pytest.raises(TypeError) as caught:
            reader.focus_group("frames").focus(lambda row: 3)
        assert str(caught.value) == f"`focus` finds no such part: {why}"


def test_rows_take_no_more_memory_than_they_have_bytes(tmp_path: Path) -> None:
    size = 2**16  # numbers in a row; 64 rows are 32 MB
    write_rows(tmp_path / "run.h5", 64, size)
    code, said, errors = run(
        """
        import resource
        (size,) = arguments
        with HDF5StorageReader(path) as reader:
            group = reader.focus_group("rows")
            group[:2], group[[1, 0]]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            found = group[...]["x"]
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
            for step in range(64):
                np.testing.assert_array_equal(found[step], large_row(step, size))
        """,
        tmp_path,
        size,
    )
    assert (code, errors) == (0, "")
    assert int(said) < 1.5 * 64 * size * 8


def test_rows_in_and_out_of_order_and_in_the_commit_come_as_they_are_asked_for(
    tmp_path: Path,
) -> None:
    with writer(tmp_path / "run.h5", flush_seconds=0) as logger:
        for step in (*range(500), *range(700, 1000), *range(500, 700), *range(1000, 1005)):
            logger.log(row(step), step)
        with HDF5StorageReader(tmp_path / "run.h5") as reader:
            group = reader.focus_group("rows")
            while len(group) < 1005:
                reader.refresh()
            commit = reader._source.commit.groups[0]
            assert 0 < len(commit.steps) < commit.rows  # some are in the commit
            for index in (slice(None), slice(None, None, -1), [1004, 3, 4, 1003, 5], slice(2, 999)):
                np.testing.assert_array_equal(group[index]["x0"], 10.0 * np.arange(1005)[index])


def test_what_is_to_be_written_once_may_come_yet(tmp_path: Path) -> None:
    config = {"start": WriterGroupConfig(lambda state: state, Once())}
    with HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(3)) as writer:
        assert writer.path == str(tmp_path / "a.h5")
        with HDF5StorageReader(tmp_path / "a.h5") as reader:
            told = r"`start` was not written: at the time of the last read; `reader.refresh\(\)`"
            with pytest.raises(IndexError, match=told):
                reader.focus_group("start")[...]
        writer.log(np.float32(3), 0)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.focus_group("start")[...] == 3


def test_what_was_written_once_has_no_rows(path: Path, tmp_path: Path) -> None:
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("nested/0")
        assert (group.is_once, group[...], group[()]) == (True, 0, 0)
        with pytest.raises(IndexError, match="was written once and has no rows to choose from"):
            group[0]
        with pytest.raises(TypeError, match="was written once and has no rows"):
            iter(group)
    config = {"start": WriterGroupConfig(lambda state: state, Once())}
    writer = HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0))
    with pytest.warns(UserWarning, match="`start` was never written"), writer:
        writer.log(np.float32(1), 5)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.actual_steps == 6
        assert reader.focus_group("start").steps.tolist() == []
        with pytest.raises(IndexError, match=r"`start` was not written: .* never got step 0"):
            reader.focus_group("start")[...]


def test_classes_of_ones_own_must_fit(path: Path) -> None:
    with HDF5StorageReader(path) as reader:
        with pytest.raises(
            ValueError, match="`like` must have the structure of the rows of `frames`"
        ):
            reader.focus_group("frames", like={"energy": 1})
        mine = reader.focus_group("frames", like={"position": 0, "energy": 0})
        assert_same(mine[1], reader.focus_group("frames")[1])


def test_a_closed_reader_says_so(path: Path) -> None:
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("frames")
    with pytest.raises(ValueError, match="`HDF5StorageReader` was closed"):
        reader.refresh()
    with pytest.raises(ValueError, match="`HDF5StorageReader` was closed"):
        group[0]
    reader.close()
    assert repr(group).startswith("<StoredGroup `frames`, closed: energy")


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="and there is no such file"):
        HDF5StorageReader(tmp_path / "none.h5")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        HDF5StorageReader(tmp_path)
    with pytest.raises(TypeError, match="takes a path as `path`"):
        HDF5StorageReader(3)  # type: ignore[arg-type]
    (tmp_path / "empty.h5").write_bytes(b"")
    with pytest.raises(StorageError, match=r"^`HDF5StorageReader` cannot open .*empty.h5"):
        HDF5StorageReader(tmp_path / "empty.h5")


def test_groups_are_datasets_of_xarray(path: Path) -> None:
    with HDF5StorageReader(path) as reader:
        dataset = reader.focus_group("frames").to_xarray()
        tree = reader.to_xarray()
    assert dict(dataset.sizes) == {"step": 25, "axis_2": 2, "axis_3": 3}
    np.testing.assert_array_equal(dataset["energy"].sel(step=[4, 48]), [4, 48])
    assert tree["frames"].to_dataset().identical(dataset)
    assert tree["nested/0/value"].item() == 0


def test_prng_keys_are_their_numbers_in_xarray(tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    config = {"frames": WriterGroupConfig(lambda state: {"key": state}, 1)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, keys[0]) as writer:
        for step in range(3):
            writer.log(keys[step], step)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        found = reader.focus_group("frames").to_xarray()["key"]
    assert (found.dims, found.dtype) == (("step", "axis_2"), np.uint32)
    np.testing.assert_array_equal(found, jax.random.key_data(keys))


def test_other_programs_read_it_by_its_names(path: Path) -> None:
    with xarray.open_dataset(path, group="frames", engine="h5netcdf", phony_dims="access") as found:
        np.testing.assert_array_equal(found["step"], np.arange(0, 50, 2))
        np.testing.assert_array_equal(found["energy"].sel(step=8), 8)
        assert found["position"].dims[0] == "step"
    with h5py.File(path) as file:
        assert file.attrs["logax_layout"] == 2
        assert file["frames/position"].dims[0].label == "step"


def test_a_run_that_goes_on_is_seen_as_of_the_last_look(tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(lambda state: state, 1)}
    writer = HDF5StorageWriter(tmp_path / "a.h5", config, np.float32(0), flush_seconds=0)
    with writer, HDF5StorageReader(tmp_path / "a.h5") as reader:
        group = reader.focus_group("frames")
        rows = reader.follow(group)
        for step in range(5):
            writer.log(np.float32(step), step)
            assert next(rows) == step
            assert (len(group), reader.complete) == (step + 1, False)
        writer.log(np.float32(5), 5)
        assert len(group) == 5
        assert next(rows) == 5
        with pytest.raises(TimeoutError, match=r"`follow` waited 0.01 s for the next row of `fr"):
            list(reader.follow("frames", timeout=0.01))


def test_a_file_that_another_run_has_continued_is_not_read_as_it_was(tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(lambda state: state, 1)}

    def run(value: float, **options: Any) -> None:
        with HDF5StorageWriter(tmp_path / "a.h5", config, np.zeros(9000), **options) as writer:
            for step in range(50):
                writer.log(np.full(9000, float(value)), step)

    run(1)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        group = reader.focus_group("frames")
        assert len(group) == 50
        run(7, mode="a", start_step=0)
        with pytest.raises(StorageError, match=r"continued by another run .* `reader.refresh\(\)`"):
            group[0]
        reader.refresh()
        assert group[0][0] == 7


def test_a_reader_that_must_look_again_does_not_call_the_file_damaged(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.h5", 50, 9000)
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("rows")
        assert len(group) == 50
        write_rows(path, 3, 9000, mode="a", start_step=0)  # which drops all other rows
        for _ in range(2):
            with pytest.raises(StorageError, match=r"continued by another run .* `reader.refresh"):
                group[40]
        reader.refresh()
        assert len(group) == 3


def test_rows_of_two_runs_are_not_mixed_where_they_are_gone_through(tmp_path: Path) -> None:
    path, size = write_rows(tmp_path / "a.h5", 12, 2**17), 2**17  # four are read at a time
    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("rows")
        rows, others = iter(group), iter(group)
        assert next(rows)["x"][0] == next(others)["x"][0] == 0
        with writer(path, size, mode="a", start_step=2) as logger:
            for step in range(2, 12):
                logger.log(row(step + 100, size), step)
        assert [next(others)["x"][0] for _ in range(3)] == [1, 2, 3]
        with pytest.raises(StorageError, match="continued by another run since it was last read"):
            next(others)
        reader.refresh()
        assert [next(rows)["x"][0] for _ in range(3)] == [1, 2, 3]  # rows of the first run
        with pytest.raises(StorageError, match="another run during an iteration over the rows of"):
            next(rows)
        assert [int(each["x"][0]) for each in group] == [0, 1, *range(102, 112)]


def commits(path: Path) -> tuple[int, int]:
    """Return the offset of the commits of a file, and the size of each of the two."""
    with h5py.File(path) as file:
        return file["logax/commits"].id.get_offset(), file["logax/commits"].shape[1]


def test_a_run_that_was_killed_before_its_first_commit_was_whole_does_no_harm(
    tmp_path: Path,
) -> None:
    path = write_rows(tmp_path / "a.h5", 30)
    at, room = commits(path)
    with open(path, "r+b") as file:
        file.seek(at)
        head = bytearray(file.read(32))
        sequence = int.from_bytes(head[8:16], "little") + 1
        head[8:16] = sequence.to_bytes(8, "little")
        head[28] = 1  # the run that has continued the file
        file.seek(at + sequence % 2 * room)
        file.write(head)
    assert count_rows(path, complete=True) == 30
    write_rows(path, 10, start=30, mode="a")
    assert count_rows(path, complete=True) == 40


def test_a_commit_that_changes_whenever_it_is_looked_at_is_that_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader never sees it whole, and its writer may have overwritten rows."""
    path = write_rows(tmp_path / "a.h5", 30)
    at, _ = commits(path)
    usual, looks = os.pread, itertools.count()

    def pread(fd: int, size: int, offset: int) -> bytes:
        with open(path, "r+b") as file:
            head = bytearray(usual(file.fileno(), 48, at))
            head[16:20] = next(looks).to_bytes(4, "little")
            head[24] = 1  # the run that has continued the file
            head[44:] = zlib.crc32(head[:44]).to_bytes(4, "little")
            file.seek(at)
            file.write(head)
        return usual(fd, size, offset)

    with HDF5StorageReader(path) as reader:
        group = reader.focus_group("rows")
        monkeypatch.setattr(os, "pread", pread)
        with pytest.raises(StorageError, match="continued by another run since it was last read"):
            group[0]
        monkeypatch.undo()
        assert group[0]["x1"] == 1  # that run ended before it wrote anything else


def test_a_file_that_is_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.h5", 30)
    with HDF5StorageReader(path) as reader:
        os.truncate(path, 100)
        with pytest.raises(StorageError) as caught:
            reader.refresh()
    assert str(caught.value) == (
        f"`HDF5StorageReader` cannot read {path}: it is damaged: none of its commits is whole."
    )


def test_a_reader_never_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with writer(path, flush_seconds=0) as logger, HDF5StorageReader(path) as reader:
        group = reader.focus_group("rows")
        rows = reader.follow(group, poll_seconds=0)
        for step in range(10):
            logger.log(row(step), step)
            next(rows)
        at, room = reader._source._commits_offset, reader._source.layout.slot_bytes
        pairs = [os.pread(reader._source._fd, 2 * room, at + 2 * room * each) for each in (0, 1)]
        last = max((0, 1), key=lambda each: pairs[each][8:16][::-1])
        with open(path, "r+b") as file:
            file.seek(at + 2 * last * room)
            file.write(bytes(2 * room))  # as if it were being written
            file.flush()
            reader.refresh()
            assert len(group) == 10
            file.seek(at + 2 * last * room)
            file.write(pairs[last])


def test_a_group_is_followed_by_its_own_reader(path: Path) -> None:
    with HDF5StorageReader(path) as one, HDF5StorageReader(path) as other:
        group = one.focus_group("frames")
        with pytest.raises(ValueError, match="`follow` got `frames` of another reader"):
            other.follow(group)


def test_a_reader_beside_a_writer_and_plain_h5py_in_one_process(tmp_path: Path) -> None:
    config = {"frames": WriterGroupConfig(lambda state: state, 1)}
    path = tmp_path / "a.h5"
    writer = HDF5StorageWriter(path, config, np.float32(0), flush_seconds=0)
    with writer, HDF5StorageReader(path) as before:
        writer.log(np.float32(5), 0)
        assert next(before.follow("frames")) == 5
    with h5py.File(path) as file, HDF5StorageReader(path) as reader:
        assert file["frames/value"][0] == reader.focus_group("frames")[0] == 5


def test_readers_that_are_forgotten_leave_nothing_open(path: Path) -> None:
    def number() -> int:
        return len(os.listdir("/dev/fd"))

    before = number()
    for _ in range(20):
        HDF5StorageReader(path).focus_group("frames")[0]
    gc.collect()
    assert number() == before


def test_names_that_clash_elsewhere_stay_apart(tmp_path: Path) -> None:
    state = {"step": 1.0, "step_": 2.0, "a/b": 3.0, "a": {"b": 4.0}, "a.b": 5.0}
    config = {"frames": WriterGroupConfig(lambda state: state, 1)}
    with HDF5StorageWriter(tmp_path / "a.h5", config, state) as writer:
        writer.log(state, 7)
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        group = reader.focus_group("frames")
        assert group[0] == state
        assert list(group.arrays) == ["a/b", "a.b", "a%2Fb", "step", "step_"]
        found = group.to_xarray()
        assert found["step__"].values.tolist() == [7]
        assert {name: float(x[0]) for name, x in found.data_vars.items()} == {
            "step": 1, "step_": 2, "a%2Fb": 3, "a/b": 4, "a.b": 5}  # fmt: skip
        assert len(reader.to_xarray()["frames"].data_vars) == 5
