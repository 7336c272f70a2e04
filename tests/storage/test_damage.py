"""Files that are damaged, truncated or malicious.

Reading one gives exactly what was written, or raises `StorageError`: it does not crash, hang, take
memory without bounds, or open another file. All this is tried in processes whose memory and time
are limited.
"""

from __future__ import annotations

import collections
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logax
from logax.storage import HDF5StorageReader, HDF5StorageWriter, Once, WriterGroupConfig
from storage_processes import run

BEGIN = """
import collections, json, random, resource, struct, zlib
from logax._serialization import dtypes
from logax.storage import _commits, _layout

ROWS = 400

def state(step):
    return {
        "a": np.arange(40) + step,
        "b": np.float32(step),
        "c": np.full(3, -1 - step, np.int32),
        "d": np.float64(1) / (step + 1),
    }

def make(path, is_killed, **options):
    config = two_groups()
    pid = os.fork()
    if not pid:
        with HDF5StorageWriter(path, config, state(0), flush_seconds=0.01, **options) as logger:
            for step in range(ROWS):
                logger.log(state(step), step)
            if is_killed:
                with HDF5StorageReader(path) as reader:
                    while len(reader.focus_group("rows")) < ROWS:
                        reader.refresh()
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.waitpid(pid, 0)

def is_right(path):
    with warnings.catch_warnings(record=True) as caught, HDF5StorageReader(path) as reader:
        warnings.simplefilter("always")
        group = reader.focus_group("rows")
        steps, found, n = group.steps, group[...], len(group)
        once = reader.focus_group("start")
        start = once[...] if len(once) else state(0)
    is_warned = any("newest commit is damaged" in str(each.message) for each in caught)
    wanted = [state(step) for step in range(n)]
    right = np.array_equal(steps, np.arange(n))
    for name in "abcd":
        right &= found[name].shape == (n, *state(0)[name].shape)
        right &= not n or np.array_equal(found[name], [each[name] for each in wanted])
        right &= np.array_equal(start[name], state(0)[name])
        right &= found[name].dtype == state(0)[name].dtype
    return bool(right and (n == ROWS or is_warned))

def limit(more):
    with open("/proc/self/statm") as text:
        now = int(text.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))

def judged(path):
    try:
        return "right" if is_right(path) else "WRONG"
    except StorageError:
        return "told"
    except Exception as error:
        return f"{type(error).__name__}, WRONG"
"""

DAMAGE = """
names, ways, number, seed = arguments
options = {"complete": (False, {}), "complete, compressed": (False, {"compression": 4})}
options |= {"killed": (True, {}), "killed, compressed": (True, {"compression": 4})}
whole = {}
for name in names:
    is_killed, own = options[name]
    make(folder / name, is_killed, **own)
    assert judged(folder / name) == "right"
    whole[name] = (folder / name).read_bytes()
limit(2**28)
signal.alarm(60)
draw = random.Random(seed)
for name in names:
    for way in ways:
        for _ in range(number):
            data = bytearray(whole[name])
            at, other = draw.randrange(len(data)), draw.randrange(len(data))
            length = min(draw.choice([1, 8, 100, 1000, 10_000]), len(data) - max(at, other))
            if way == "flip":
                data[at] ^= 1 << draw.randrange(8)
            elif way == "cut":
                del data[at:]
            elif way == "zero":
                data[at : at + length] = bytes(length)
            elif way == "overwrite":
                data[at : at + length] = draw.randbytes(length)
            elif way == "double":
                data[at : at + length] = data[other : other + length]
            elif way == "remove":
                del data[at : at + length]
            elif way == "random":
                data = data[: draw.choice([0, 8])] + draw.randbytes(length)
            path.write_bytes(data)
            print(name, way, at, other, length, end=": ")
            print(judged(path))
"""


def check_damage(
    folder: Path, names: list[str], ways: list[str], number: int, seed: int
) -> collections.Counter[str]:
    """Damage files, and count the outcomes of reading them."""
    code, said, errors = run(BEGIN + DAMAGE, folder, names, ways, number, seed)
    lines = said.splitlines()
    assert (code, errors) == (0, ""), lines[-1]
    assert len(lines) == len(names) * len(ways) * number
    assert [line for line in lines if line.endswith("WRONG")] == []
    return collections.Counter(line.rpartition(": ")[2] for line in lines)


def test_a_bit_that_flips_in_a_commit_of_a_killed_file_costs_nothing(tmp_path: Path) -> None:
    code, said, errors = run(
        BEGIN
        + """
make(path, True)
with HDF5StorageReader(path) as reader:
    start, (slots, room) = reader._source._commits_offset, reader._source.layout.commits_shape
whole = path.read_bytes()
draw = random.Random(0)
warnings.simplefilter("error")
for slot in range(slots):
    for place in [*range(0, 60, 4), *(draw.randrange(room) for _ in range(10))]:
        data = bytearray(whole)
        data[start + slot * room + place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        with HDF5StorageReader(path) as reader:
            assert len(reader.focus_group("rows")) == ROWS, (slot, place)
print("done")
""",
        tmp_path,
    )
    assert (code, said, errors) == (0, "done\n", "")


BOTH_COPIES = """
def again(path):
    return HDF5StorageWriter(path, two_groups(), state(0), mode="a")

make(path, True)
with HDF5StorageReader(path) as reader:
    start, room = reader._source._commits_offset, reader._source.layout.slot_bytes
    newest, rows = reader._source.commit.sequence % 2, reader._source.commit.total_rows
data = bytearray(path.read_bytes())
for slot in (2 * newest, 2 * newest + 1):
    data[start + slot * room + arguments[0]] ^= 4
path.write_bytes(data)
for open_file in (HDF5StorageReader, again):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with open_file(path) as opened:
            if open_file is HDF5StorageReader:
                left = opened._source.commit
                print(rows - left.total_rows, left.total_rows, left.actual_steps, is_right(path))
    print([str(each.message) for each in caught][0])
"""


@pytest.mark.parametrize("place", [10, 60])  # in the head, and in the body
def test_a_newest_commit_that_is_damaged_twice_is_told_with_what_may_be_missing(
    tmp_path: Path, place: int
) -> None:
    code, said, errors = run(BEGIN + BOTH_COPIES, tmp_path, place)
    assert (code, errors) == (0, "")
    numbers, *messages = said.splitlines()
    missing, left, steps, is_right = numbers.split()
    assert is_right == "True"
    assert int(missing) > 0
    what = "an unknown number of rows" if place == 10 else f"{missing} rows"
    assert messages == [
        f"`HDF5Storage{who}` reads {tmp_path / 'run.h5'}, which is damaged: its newest commit is "
        "damaged, or was only partly written. The commit before it is read, with "
        f"{left} rows and {steps} steps: {what} may be missing at the end."
        for who in ("Reader", "Writer")
    ]


def file_of_layout_1(name: str, folder: Path) -> Path:
    """Return a file of layout 1: 20 rows of two arrays."""
    path = folder / f"{name}.h5"
    stored = Path(__file__).parent / "files" / f"layout_1_{name}.h5.gz"
    path.write_bytes(gzip.decompress(stored.read_bytes()))
    return path


def old_state(step: int) -> dict[str, Any]:
    return {"x": np.arange(3, dtype=np.int32) + step, "y": np.float64(step) / 7}


def check_old(path: Path, rows: int) -> None:
    """Compare the rows of a file of layout 1."""
    with HDF5StorageReader(path) as reader:
        frames = reader.focus_group("frames")
        found = frames[...]
        assert frames.steps.tolist() == list(range(rows))
        assert reader.focus_group("setup")[...]["start"].tolist() == [0, 1, 2]
    wanted = [old_state(step) for step in range(rows)]
    for name in ("x", "y"):
        np.testing.assert_array_equal(found[name], [each[name] for each in wanted])


@pytest.mark.parametrize("name", ["complete", "killed"])
def test_files_of_the_first_layout_are_read_and_continued(tmp_path: Path, name: str) -> None:
    path = file_of_layout_1(name, tmp_path)
    check_old(path, 20)
    config = {
        "frames": WriterGroupConfig(lambda state: state),
        "setup": WriterGroupConfig(lambda state: {"start": state["x"]}, Once()),
    }
    with HDF5StorageWriter(path, config, old_state(0), mode="a", start_step=15) as writer:
        for step in range(15, 40):
            writer.log(old_state(step), step)
    check_old(path, 40)


def test_a_damaged_commit_in_a_file_of_the_first_layout_is_told(tmp_path: Path) -> None:
    path = file_of_layout_1("killed", tmp_path)
    with HDF5StorageReader(path) as reader:
        start, room = reader._source._commits_offset, reader._source.layout.slot_bytes
        newest = reader._source.commit.sequence % 2
    data = bytearray(path.read_bytes())
    data[start + newest * room + 50] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="an unknown number of rows may be missing at the end"):
        HDF5StorageReader(path).close()


COMPLETE, KILLED = ["complete", "complete, compressed"], ["killed", "killed, compressed"]


def test_a_bit_that_flips_is_told_or_does_no_harm(tmp_path: Path) -> None:
    found = check_damage(tmp_path, [*COMPLETE, *KILLED], ["flip"], 40, 0)
    assert found["told"] > 0 < found["right"]  # some bits are unused, and commits have copies


def test_a_file_that_is_cut_is_told(tmp_path: Path) -> None:
    found = check_damage(tmp_path, ["complete", "killed"], ["cut"], 30, 0)
    assert found["told"] > 40


def test_a_file_of_other_bytes_is_told(tmp_path: Path) -> None:
    assert check_damage(tmp_path, ["complete"], ["random"], 50, 0) == {"told": 50}


def test_parts_that_are_lost_or_doubled_are_told(tmp_path: Path) -> None:
    check_damage(tmp_path, ["complete"], ["zero", "overwrite", "double", "remove"], 15, 0)


WAYS = ["flip", "cut", "zero", "overwrite", "double", "remove", "random"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMPLETE, *KILLED])
def test_files_that_are_damaged_in_any_way_are_told_or_right(tmp_path: Path, name: str) -> None:
    check_damage(tmp_path, [name], WAYS, 20, 1)


@pytest.mark.campaign
@pytest.mark.parametrize("name", [*COMPLETE, *KILLED])
@pytest.mark.parametrize("way", WAYS)
def test_hundreds_of_damaged_files_are_told_or_right(
    tmp_path: Path, way: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    times = {"flip": 500, "cut": 200}.get(way, 50)
    found = check_damage(tmp_path, [name], [way], times, 2)
    record_property("files", times)
    record_property("outcomes", dict(found))


CRAFTED = """
def with_schema(file, change):
    text = json.loads(bytes(file["logax/schema"][...]))
    change(text)
    put_schema(file, json.dumps(text).encode())

def put_schema(file, text):
    del file["logax/schema"]
    data = np.frombuffer(text, np.uint8)
    file.create_dataset("logax/schema", data=data, chunks=data.shape, fletcher32=True)

def with_commit(file, change):
    layout = _layout.FileLayout.from_json(bytes(file["logax/schema"][...]))
    slots = [bytes(each) for each in file["logax/commits"][...]]
    commit, _ = _commits.latest_commit(slots, layout)
    change(commit)
    body = _commits.encode_commit(commit, 1)[32:]  # layout 1, whose head is not checked
    head = struct.pack("<8sQQQQI", _commits._MAGIC, 9, len(body), 0, 0, zlib.crc32(body))
    data = head + zlib.crc32(head).to_bytes(4, "little") + body
    data = data.ljust(layout.slot_bytes, bytes(1))
    file["logax/commits"][...] = np.frombuffer(data, np.uint8)

def huge_shape(file):
    with_schema(file, lambda text: text["groups"][0]["leaves"][0].update(shape=[2**40]))

def huge_once(file):
    with_schema(file, lambda text: text["groups"][1]["leaves"][0].update(shape=[2**40]))

def huge_block(file):
    with_schema(file, lambda text: text["groups"][0].update(block=2**50))

def huge_dataset(file):
    old = file["rows/a"]
    chunks, dtype = old.chunks, old.dtype
    del file["rows/a"]
    file.create_dataset("rows/a", (2**40, 40), dtype, chunks=chunks, maxshape=(None, 40))
    huge_rows(file)

def huge_rows(file):
    with_commit(file, lambda commit: setattr(commit.groups[0], "rows", 2**50))

def negative_rows(file):
    with_commit(file, lambda commit: setattr(commit.groups[0], "rows", -5))

def more_rows(file):
    with_commit(file, lambda commit: setattr(commit.groups[0], "rows", ROWS + 100))

def odd_cuts(file):
    with_commit(file, lambda commit: setattr(commit.groups[0], "cuts", [(2**70, "x")]))

def external_link(file):
    del file["rows/a"]
    file["rows/a"] = h5py.ExternalLink(str(folder / "secret.h5"), "rows/a")

def external_group(file):
    del file["rows"]
    file["rows"] = h5py.ExternalLink(str(folder / "secret.h5"), "rows")

def external_schema(file):
    del file["logax/schema"]
    file["logax/schema"] = h5py.ExternalLink(str(folder / "secret.h5"), "logax/schema")

def soft_link(file):
    file.move("rows/a", "elsewhere")
    file["rows/a"] = h5py.SoftLink("/elsewhere")

def virtual(file):
    old = file["rows/a"]
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource(str(folder / "secret.h5"), "rows/a", old.shape)
    del file["rows/a"]
    file.create_virtual_dataset("rows/a", layout)

def external_bytes(file):
    old = file["rows/a"]
    shape, dtype = old.shape, old.dtype
    del file["rows/a"]
    file.create_dataset("rows/a", shape, dtype, external=[(str(folder / "secret.h5"), 0, 2**20)])

def external_commits(file):
    shape = file["logax/commits"].shape
    del file["logax/commits"]
    file.create_dataset(
        "logax/commits", shape, "u1", external=[(str(folder / "secret.h5"), 0, 2**24)]
    )

def unknown_filter(file):
    old = file["rows/a"]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(old.chunks)
    plist.set_filter(32_100, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple(old.shape, (h5py.h5s.UNLIMITED, 40))
    kind = old.id.get_type()
    del file["rows/a"]
    h5py.h5d.create(file["rows"].id, b"a", kind, space, plist)

def nested(file):
    put_schema(file, b"[" * 200_000 + b"]" * 200_000)

def nested_outline(file):
    def change(text):
        for _ in range(200):
            text["groups"][0]["outline"] = ["list", [text["groups"][0]["outline"]]]
    with_schema(file, change)

def newer(file):
    with_schema(file, lambda text: text.update(layout=99))

def no_schema(file):
    del file["logax/schema"]

def no_rows(file):
    del file["rows/b"]

def other_type(file):
    with_schema(file, lambda text: text["groups"][0]["leaves"][0].update(dtype="object"))

def text_for_numbers(file):
    with_schema(file, lambda text: text["groups"][0].update(block="many", leaves={"a": 1}))

def other_program(file):
    for name in list(file):
        del file[name]
    del file.attrs["logax_layout"]
    file["data"] = np.arange(10)

def newer_without_schema(file):
    no_schema(file)
    file.attrs["logax_layout"] = 99

def other_outline(file):
    with_schema(file, lambda text: text["groups"][0].update(outline=["leaf"]))

def outline_without_names(file):
    with_schema(file, lambda text: text["groups"][0].update(outline=["dict", [["leaf"]]]))

def outline_of_another_kind(file):
    with_schema(file, lambda text: text["groups"][0].update(outline=["import", []]))

def other_names(file):
    with_schema(file, lambda text: text["groups"][0]["leaves"][0].update(name="z"))

def other_groups(file):
    with_schema(file, lambda text: text.update(config=["leaf"]))

def numbers_for_names(file):
    with_schema(file, lambda text: text["groups"][0].update(parts=[3]))

def numbers_below_zero(file):
    with_schema(file, lambda text: text["groups"][0]["leaves"][0].update(shape=[-1]))

def schema_of_numbers(file):
    del file["logax/schema"]
    file["logax/schema"] = np.arange(10.0)

def dataset(file, name, **changes):
    old = file[name]
    options = {"shape": old.shape, "dtype": old.dtype, "chunks": old.chunks, **changes}
    options = {"maxshape": (None, *options["shape"][1:]), **options}
    del file[name]
    file.create_dataset(name, **options)

def rows_of_another_type(file):
    dataset(file, "rows/a", dtype="f4")

def rows_of_another_shape(file):
    dataset(file, "rows/a", shape=(ROWS, 39), chunks=(1, 39))

def rows_that_were_never_written(file):
    dataset(file, "rows/a")

def few_rows(file):
    old = file["rows/a"]
    dataset(file, "rows/a", shape=(1, 40), maxshape=(old.chunks[0], 40))

def start_that_changed(file):
    file["start/a"][...] = 0

def commit_with_more_behind(file):
    with_commit(file, lambda commit: commit.groups.append(commit.groups[0]))

def commit_that_keeps_other_groups(file):
    with_commit(file, lambda commit: commit.kept.append((1, 2, 3, 4)))

def commit_with_other_checks(file):
    with_commit(file, lambda commit: commit.groups[1].checksums.append(3))

def commit_with_fewer_rows_than_it_says(file):
    def change(commit):
        commit.groups[0].steps = np.arange(3)
    with_commit(file, change)

def commit_with_more_bytes_than_rows(file):
    def change(commit):
        commit.groups[0].steps = np.arange(3)
        commit.groups[0].columns = [np.stack([state(0)[name]] * 3) for name in "abcda"]
    with_commit(file, change)

def once_of_many_rows(file):
    with_commit(file, lambda commit: setattr(commit.groups[1], "rows", 2**40))

def once_with_rows_in_the_commit(file):
    def change(commit):
        own = commit.groups[1]
        own.steps = np.arange(3)
        own.columns = [np.repeat(state(0)[name][None], 3, axis=0) for name in "abcd"]
    with_schema(file, lambda text: text["groups"][1].update(block=10))
    with_commit(file, change)

def checks_of_rows(file):
    with_commit(file, lambda commit: setattr(commit.groups[0], "checksums", [1, 2, 3, 4]))

def numbers_without_end(file):
    with_commit(file, lambda commit: setattr(commit.groups[0], "rows", float("inf")))

def huge_scalar(file, shape, **leaf):
    def change(text):
        text["groups"][1]["leaves"][1].update(shape=[], **leaf)
    with_schema(file, change)
    del file["start/b"]
    kind = dtypes.parse_stored_type(leaf["dtype"], tuple(leaf["more"]))
    file.create_dataset("start/b", shape, kind.stored_dtype)

def huge_key(file):
    huge_scalar(file, (2**32,), dtype="key<threefry2x32>", more=[2**32])

def huge_text(file):
    huge_scalar(file, (400_000_000,), dtype="<U400000000", more=[400_000_000])

def huge_bytes(file):
    huge_scalar(file, (), dtype="|S800000000", more=[])

def deflated_twice(file):
    "A chunk of 128 MB, whatever its shape is: deflate makes 128 kB of it, and deflate again 1 kB."
    block = file["rows/step"].chunks
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(block)
    plist.set_deflate(9)
    plist.set_deflate(9)
    space = h5py.h5s.create_simple((ROWS,), (h5py.h5s.UNLIMITED,))
    del file["rows/step"]
    steps = h5py.h5d.create(file["rows"].id, b"step", h5py.h5t.STD_I64LE, space, plist)
    once = zlib.compressobj(9)
    packed = b"".join(once.compress(bytes(2**20)) for _ in range(2**7)) + once.flush()
    for start in range(0, ROWS, *block):
        steps.write_direct_chunk((start,), zlib.compress(packed, 9))

def fewer_steps_than_rows(file):
    "In a dataset that cannot grow, whose chunk holds more than its rows."
    old = file["rows/step"]
    steps, block = old[...], old.chunks[0]
    del file["rows/step"]
    options = {"shuffle": True, "compression": 1, "fletcher32": True, "maxshape": (block,)}
    short = file.create_dataset("rows/step", (10,), "<i8", chunks=(block,), **options)
    short[...] = steps[:10]

def newer_by_nobody(file):
    with_schema(file, lambda text: text.update(layout=99, written_by=[3]))

make(folder / "good.h5", False)
make(folder / "secret.h5", False)
secret = os.stat(folder / "secret.h5")
os.utime(folder / "secret.h5", ns=(0, secret.st_mtime_ns))
crafts = [huge_shape, huge_once, huge_block, huge_dataset, huge_rows, negative_rows, more_rows]
crafts += [odd_cuts, external_link, external_group, external_schema, soft_link, virtual]
crafts += [external_bytes, external_commits, unknown_filter, nested, nested_outline, newer]
crafts += [no_schema, no_rows, other_type, text_for_numbers, other_program, newer_without_schema]
crafts += [other_outline, outline_without_names, outline_of_another_kind, other_names, other_groups]
crafts += [numbers_for_names, numbers_below_zero, schema_of_numbers, rows_of_another_type]
crafts += [rows_of_another_shape, rows_that_were_never_written, few_rows, start_that_changed]
crafts += [commit_with_more_behind, commit_that_keeps_other_groups, commit_with_other_checks]
crafts += [commit_with_fewer_rows_than_it_says, once_of_many_rows, once_with_rows_in_the_commit]
crafts += [checks_of_rows, numbers_without_end, huge_key, huge_text, huge_bytes, deflated_twice]
crafts += [fewer_steps_than_rows, newer_by_nobody, commit_with_more_bytes_than_rows]
for craft in crafts:
    path = folder / f"{craft.__name__}.h5"
    path.write_bytes((folder / "good.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        craft(file)
limit(2**28)
signal.alarm(60)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for craft in crafts:
    print(craft.__name__, end=": ")
    print(judged(folder / f"{craft.__name__}.h5"))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_files_that_mean_harm_are_told(tmp_path: Path) -> None:
    code, said, errors = run(BEGIN + CRAFTED, tmp_path)
    assert (code, errors) == (0, ""), said.splitlines()[-1:]
    *lines, more_memory = said.splitlines()
    assert [line for line in lines if not line.endswith(": told")] == []
    assert int(more_memory) < 2**26


def test_a_schema_that_is_damaged_is_told_with_the_file_and_who_reads_it(tmp_path: Path) -> None:
    code, said, errors = run(
        BEGIN
        + """
make(path, False)
with h5py.File(path, "r+") as file:
    text = json.loads(bytes(file["logax/schema"][...]))
    for number, change in enumerate([{"layout": 99}, {"groups": 3}]):
        del file["logax/schema"]
        data = np.frombuffer(json.dumps(text | change).encode(), np.uint8)
        file.create_dataset("logax/schema", data=data, chunks=data.shape, fletcher32=True)
        file.flush()
        (folder / f"{number}.h5").write_bytes(path.read_bytes())
for number in range(2):
    for act in (HDF5StorageReader, lambda path: write_rows(path, 5, mode="a")):
        try:
            act(folder / f"{number}.h5")
        except StorageError as error:
            print(error)
""",
        tmp_path,
    )
    assert (code, errors) == (0, "")
    why = [
        "it has layout 99, and this logax reads layouts up to 2. Read it with the logax that "
        f"wrote it ({logax.__version__}), or a newer one.",
        "its schema is damaged: TypeError.",
    ]
    assert said.splitlines() == [
        f"`HDF5Storage{who}` cannot read {tmp_path / f'{number}.h5'}: {why[number]}"
        for number in range(2)
        for who in ("Reader", "Writer")
    ]
