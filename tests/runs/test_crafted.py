"""Files that an attacker has made, with right checksums: an error, in bounded memory and time."""

from __future__ import annotations

import collections
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import logax
from run_crafting import ENDLESS, altered, random_rewrites
from slow_cases import slow, slow_but
from storage_processes import run


def layout(**changes: Any) -> str:
    whole = {
        "keys": [["x", ["leaf"], [""], [["float32", [], []]]]],
        "steps": [["step", "int32", [], []]],
        "site": "",
        "tags": [],
    }
    text = json.dumps({**whole, **changes}).replace("'", "''")
    return f"UPDATE layouts SET content = '{text}'"


def array(*form: Any) -> str:
    return layout(keys=[["x", ["leaf"], [""], [list(form)]]])


ABSURD = [
    "UPDATE portions SET records = 1000000000000",
    "UPDATE portions SET records = -1",
    "UPDATE portions SET records = 'many'",
    "UPDATE portions SET streams = 1099511627776",
    "UPDATE portions SET streams = 0",
    "UPDATE portions SET streams = 1.5",
    "UPDATE portions SET layout = 99",
    "UPDATE portions SET ragged = 1000000000",
    "UPDATE portions SET ragged = 1 - ragged",
    "UPDATE portions SET alike = 9223372036854775807",
    "UPDATE portions SET blob = 77",
    "UPDATE portions SET blob = -1",
    "UPDATE portions SET data = zeroblob(10)",
    "UPDATE portions SET data = 3",
    "UPDATE portions SET data = zeroblob(length(data) + 1)",
    "UPDATE portions SET data = replace(hex(zeroblob(length(data) / 2)), '00', 'xx')",
    "UPDATE blobs SET data = zeroblob(10)",
    "UPDATE blobs SET data = 'text'",
    "DELETE FROM blobs",
    "DELETE FROM layouts",
    "DELETE FROM texts",
    "UPDATE texts SET content = '3'",
    "UPDATE texts SET content = '{'",
    "UPDATE texts SET content = x'ff00'",
    "UPDATE texts SET content = CAST(x'22ff22' AS TEXT)",
    'UPDATE texts SET content = \'{"a": {"$array": ["float32", [], [1000000000000], ""]}}\'',
    'UPDATE texts SET content = \'{"a": {"$array": ["float32", [], [0, 1e30], ""]}}\'',
    'UPDATE texts SET content = \'{"a": {"$array": ["O", [], [1], "AAAA"]}}\'',
    'UPDATE texts SET content = \'{"a": {"$array": 3}}\'',
    f"UPDATE texts SET content = '{'[' * 100_000}'",
    f"UPDATE texts SET content = '{'9' * 10_000}'",
    "UPDATE runs SET content = '{}'",
    "UPDATE runs SET content = '[1, 2]'",
    "UPDATE runs SET content = x'00'",
    "UPDATE runs SET content = replace(content, '\"lane\": []', '\"lane\": [null]')",
    "UPDATE runs SET opened = 'never'",
    "UPDATE runs SET config = 'x'",
    "UPDATE ends SET status = 'great'",
    "UPDATE ends SET ended = 'never'",
    "UPDATE streams SET place = place + 1000000",
    "UPDATE streams SET place = 'p' || place",
    "UPDATE streams SET lane = 'x'",
    "UPDATE streams SET lane = '[-1]'",
    "UPDATE streams SET lane = '[[1]]'",
    "UPDATE streams SET lane = '[4611686018427387903]'",
    "UPDATE streams SET lane = '[1000000, 1000000]'",
    "UPDATE streams SET shard = -1",
    f"UPDATE layouts SET content = '{'[' * 100_000}'",
    "UPDATE layouts SET content = '{}'",
    array("float32", [], [10**30]),
    array("float32", [], [-1]),
    array("float32", [], [1.5]),
    array("float32", [], "x"),
    array("float32", [], [2**40, 2**40]),
    array("float32", [], [0, 2**40, 2**40]),
    array("float32", [], [1] * 70),
    array("O", [], []),
    array("V8", [], []),
    array("S999999999", [], []),
    array("float32", [7], []),
    array("key<none>", [2], []),
    array("key<threefry2x32>", [2**30], []),
    array("key<threefry2x32>", [3], []),
    array(3, [], []),
    array("float32", []),
    layout(keys=3),
    layout(keys=[["x", ["leaf"], [], [["float32", [], []]]]]),
    layout(keys=[["x", ["import"], [""], [["float32", [], []]]]]),
    layout(keys=[["x", ["leaf"], ["picture"], [["float32", [], []]]]]),
    layout(keys=[["x", ["leaf"], [""], [["float32", [], []]]]] * 2),
    layout(keys=[[3, ["leaf"], [""], [["float32", [], []]]]]),
    layout(steps=[["step", "S4", [], []]]),
    layout(site=3),
    layout(tags="x"),
    "UPDATE streams SET lane = '[]' WHERE number = 5",  # lanes of different depths, side by side
    "UPDATE portions SET statistics = replace(statistics, '[[0,', '[[-1,')",
    "UPDATE portions SET statistics = replace(statistics, '[[0,', '[[7,')",
    "UPDATE portions SET statistics = replace(statistics, ',30,', ',30.5,')",
]
CRAFTED = {
    # A step that is alike for all streams, and values without bytes.
    "alike": [
        "UPDATE portions SET records = 1000000, alike = 1, ragged = 0, blob = 0, "
        "data = zeroblob(4000000), streams = 3 WHERE number = 1",
        "DELETE FROM portions WHERE number > 1",
        "WITH n(x) AS (SELECT 3 UNION ALL SELECT x + 1 FROM n LIMIT 50000) INSERT INTO streams "
        "SELECT x + 10, 1, 1, x, '[' || x || ']', NULL, 0 FROM n",
        "UPDATE portions SET streams = 50003",
        layout(keys=[["x", ["leaf"], [""], [["float32", [], [0]]]]]) + " WHERE number = 1",
    ],
    "records": [
        "UPDATE portions SET records = 1 << 40, ragged = 0, alike = 0, blob = 0, data = x'' "
        "WHERE number = 1",
    ],
    "blobs": ["UPDATE portions SET blob = 1 WHERE blob > 0"],
    "nested": [
        "UPDATE layouts SET content = '{\"keys\":' || replace(hex(zeroblob(200000)), "
        "'00', '[') || '}'"
    ],
    "text": ["UPDATE texts SET content = replace(hex(zeroblob(500000)), '00', '[')"],
    "statistics": ["UPDATE portions SET statistics = replace(hex(zeroblob(500000)), '00', '[')"],
    "grid": ["UPDATE streams SET lane = '[' || 1000000000 * place || ']'"],
    "view": [
        "DROP TABLE tally",
        f"CREATE VIEW tally AS {ENDLESS} x AS number, zeroblob(1000000000) AS commits FROM n",
    ],
    "virtual": ["ALTER TABLE portions ADD COLUMN y AS (zeroblob(1000000000))"],
}
UNSEALED = ("view", "virtual")  # which are refused before a checksum is read
READ = """
import contextlib, io, json
import logax, resource
from logax._cli import main
from logax._runs.run import summarize_batches
from run_crafting import altered

original, cases = arguments
FILE_SECONDS = 60


def read(path):
    runs = logax.load(path)
    repr(runs)
    for each in runs.values():
        each.config, each.machine, each.updated, repr(each), list(summarize_batches(each))
        for key in each:
            each[key]
    for key in runs.logged():
        runs[key]
    return [each["x"] for each in runs.values() if "x" in each]


def outcome(path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = read(path)
        except logax.RunsError as error:
            return "refused"
        except ValueError as error:
            if "cannot be one array" not in str(error):
                raise
            return "refused"
    for x in found:
        if x.dtype != np.float32 or not np.isin(x, written).all():
            return f"wrong: {x}"
    damage = any(issubclass(each.category, logax.DamageWarning) for each in caught)
    return "reported" if damage else "read"


written = np.concatenate(read(original))  # so that JAX has all its threads, too
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
for statements, sealed in cases:
    signal.alarm(FILE_SECONDS)  # ends the process
    bad = altered(Path(original), folder, *statements, sealed=sealed)
    found, status = "", None
    try:
        found = outcome(bad)
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(["verify", str(bad)])
    except Exception as error:
        found = f"{found} raised {type(error).__name__}: {error}"
    print(json.dumps([found, status]))
"""


def outcomes_of(
    folder: Path, original: Path, cases: Sequence[tuple[Sequence[str], bool]]
) -> list[tuple[str, int]]:
    """Read altered files in a process with little memory; return outcomes and those of verify."""
    code, said, errors = run(READ, folder, str(original), list(cases))
    found = [tuple(json.loads(line)) for line in said.splitlines()]
    ended_at = cases[min(len(found), len(cases) - 1)]
    assert code == 0, (code, str(ended_at)[:300], errors)
    assert "Traceback" not in errors
    assert len(found) == len(cases)
    return found


@pytest.mark.parametrize("name", slow_but(["records"], CRAFTED))
def test_a_crafted_file_is_refused_in_little_memory(
    tmp_path: Path, original: Path, name: str
) -> None:
    case = CRAFTED[name], name not in UNSEALED
    ((found, status),) = outcomes_of(tmp_path, original, [case])
    assert (found in ("refused", "reported"), status) == (True, 1), found


@pytest.mark.parametrize("statements", [ABSURD[:5], *slow(ABSURD)], ids=["few", "all"])
def test_rows_that_say_something_absurd_are_told_in_little_memory(
    tmp_path: Path, original: Path, statements: list[str]
) -> None:
    cases = [([each], True) for each in statements]
    found = outcomes_of(tmp_path, original, cases)
    strange = [
        (statement[:100], outcome[:200])
        for statement, (outcome, _) in zip(statements, found, strict=True)
        if outcome not in ("refused", "reported")
    ]
    assert strange == []


def check_rewrites(folder: Path, original: Path, times: int, seed: int) -> collections.Counter[str]:
    """Read files with one number or text changed at random, and count the outcomes."""
    statements = random_rewrites(original, times, seed)
    found = outcomes_of(folder, original, [([each], True) for each in statements])
    strange = [
        (statement[:300], outcome[:300], status)
        for statement, (outcome, status) in zip(statements, found, strict=True)
        if outcome not in ("refused", "reported", "read") or status not in (0, 1)
    ]
    assert strange == []
    return collections.Counter(outcome for outcome, _ in found)


@pytest.mark.slow
def test_numbers_and_texts_that_are_changed_are_read_or_told(
    tmp_path: Path, original: Path
) -> None:
    outcomes = check_rewrites(tmp_path, original, 60, 0)
    assert outcomes["refused"] > 10


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_crafted_file_is_read_or_told_in_bounded_memory_and_time(
    tmp_path: Path, original: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    crafted = [(CRAFTED[name], name not in UNSEALED) for name in CRAFTED]
    crafted += [([each], True) for each in ABSURD]
    random.Random(seed).shuffle(crafted)
    known = outcomes_of(tmp_path, original, crafted)
    assert {outcome for outcome, _ in known} <= {"refused", "reported"}
    outcomes = check_rewrites(tmp_path, original, 150, seed)
    record_property("crafted files", len(known))
    record_property("random files", sum(outcomes.values()))
    record_property("outcomes", dict(outcomes + collections.Counter(each for each, _ in known)))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE portions SET data = CAST(x'ffffff7f' || substr(data, 5) AS BLOB) WHERE ragged",
            "one of its batches has more records than it claims.",
        ),
        (layout(steps=[["step", "|S4", [], []]]), "a layout has a step that is not a number."),
        (array("<f7", [], []), "it has the unknown type '<f7'."),
        (
            "UPDATE layouts SET content = replace(content, 'threefry2x32', 'threefry2x99')",
            "The file holds PRNG keys of type 'key<threefry2x99>', which this version of JAX does ",
        ),
    ],
    ids=["records", "step", "type", "keys"],
)
def test_what_is_wrong_is_said(tmp_path: Path, original: Path, statement: str, said: str) -> None:
    with pytest.raises(logax.RunsError) as told:
        logax.load(altered(original, tmp_path, statement, sealed=True))["bad-0"]["tree"]
    assert said in str(told.value)


def test_streams_of_one_run_that_stand_in_a_batch_twice_are_read_one_after_the_other(
    tmp_path: Path, original: Path
) -> None:
    bad = altered(original, tmp_path, "UPDATE streams SET run = 1 WHERE number = 2", sealed=True)
    x = logax.load(bad)["bad-0"]["x"]
    real = [number for number in range(20) if number % 4]
    assert x.tolist() == [*range(20), *real]
