r"""Commits: records of what is in the file for good.

A trajectory consists of what its last commit says, and of nothing else. A row goes to the datasets
when a whole block of rows is there, so that no chunk is ever written twice; until then it stands in
the commits. Whatever is in the datasets beyond the rows that a commit counts is not there.

A commit is written over the last but one, and only after HDF5 has passed on all that it counts. So
at any moment one of the two slots holds a whole commit, and a checksum says which.

A slot:

    8 bytes  b"logax\0\0\1"
    8 bytes  sequence number, little-endian, as all numbers here
    8 bytes  length of what follows the head
    4 bytes  CRC-32 of the 24 bytes before it and of what follows the head
    4 bytes  how often the file was continued by another run, which is in the JSON too
    then     4 bytes with the length of the JSON, the JSON, and for each group whose JSON has
             "tail": k, the steps of k rows (8 bytes each), and k rows of each dataset in turn

    {"actual_steps": 120, "total_steps": 1000, "complete": false, "runs": 1, "kept": [[1, 800, 1]],
     "groups": [{"rows": 1024, "tail": 7, "cuts": [], "checks": null}, ...]}

`rows` counts those in the datasets. Each of the `cuts`, a pair (end, step), says that of the rows
before `end` those at and after `step` are void. `checks` is that of groups that are written once:
null until they are, then the CRC-32 of each of their arrays.

`kept` is for those who have read rows before another run went on: each entry is the number of a run
and, for each group, how many of the first rows it kept; what stands behind them is new. Runs that
kept everything are left out, and of the others only the last few are told apart: an older one is
taken together with the next, by the lower numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from logax.storage._layout import STEP, Group, Layout

_MAGIC = b"logax\0\0\1"
_HEAD = struct.Struct("<8sQQII")
_LENGTH = struct.Struct("<I")
_MOST_KEPT = 4  # entries, for which there is room
_MOST_ROWS = 2**62 - 1
HEAD = _HEAD.size

Numbers = np.ndarray[Any, Any]


@dataclasses.dataclass
class Stand:
    """How far one group is.

    Attributes:
      rows: The number of rows in its datasets.
      steps: The steps of the rows that are in no dataset yet.
      columns: These rows, for each leaf.
      cuts: Pairs (end, step): of the rows before `end` those at and after `step` are void.
      checks: Of a group that is written once, when it is: a checksum for each array.
      void: How many rows the cuts leave out, where the file is being written. Not in the file.
    """

    rows: int
    steps: Numbers
    columns: list[Numbers]
    cuts: list[tuple[int, int]]
    checks: list[int] | None
    void: int = 0

    @property
    def places(self) -> int:
        """How many rows that are, void ones too."""
        return int(self.checks is not None) + self.rows + len(self.steps)

    @property
    def number(self) -> int:
        """How many rows that are."""
        return self.places - self.void

    @classmethod
    def at_start(cls, group: Group) -> Stand:
        """Nothing is there."""
        columns = [np.empty((0, *x.stored_shape), x.kind.stored) for x in group.leaves]
        return cls(0, np.empty(0, STEP), columns, [], None)


@dataclasses.dataclass
class Commit:
    """What is in the file for good."""

    sequence: int
    runs: int  # that have continued the file
    actual_steps: int
    total_steps: int | None
    is_complete: bool
    groups: list[Stand]
    kept: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    def kept_since(self, runs: int, group: int) -> int:
        """How many of the first rows of a group are still those that a run before has left."""
        found = (own[1 + group] for own in self.kept if own[0] > runs)
        return min(found, default=self.groups[group].places)

    def kept_by(self, run: int, groups: list[Stand]) -> list[tuple[int, ...]]:
        """The entries where a run goes on with what is left of the groups."""
        now = tuple(stand.places for stand in groups)
        if now == tuple(stand.places for stand in self.groups):
            return self.kept
        # What kept no fewer rows says nothing more.
        kept = [own for own in self.kept if any(a < b for a, b in zip(own[1:], now, strict=True))]
        kept.append((run, *now))
        while len(kept) > _MOST_KEPT:
            first, second = kept[:2]
            kept[:2] = [(second[0], *map(min, first[1:], second[1:]))]
        return kept


def encoded(commit: Commit) -> list[bytes]:
    """A commit as the bytes that stand in a slot, in parts."""
    said = {
        "actual_steps": commit.actual_steps,
        "total_steps": commit.total_steps,
        "complete": commit.is_complete,
        "runs": commit.runs,
        "kept": commit.kept,
        "groups": [
            {"rows": x.rows, "tail": len(x.steps), "cuts": x.cuts, "checks": x.checks}
            for x in commit.groups
        ],
    }
    text = json.dumps(said, separators=(",", ":")).encode()
    parts = [_LENGTH.pack(len(text)), text]
    for group in commit.groups:
        if len(group.steps):
            parts += [x.tobytes() for x in (group.steps, *group.columns)]
    head = _HEAD.pack(_MAGIC, commit.sequence, sum(map(len, parts)), 0, 0)
    check = zlib.crc32(head[:24])
    for part in parts:
        check = zlib.crc32(part, check)
    return [head[:24] + struct.pack("<II", check, commit.runs), *parts]


def runs_of(head: bytes) -> int:
    """How many runs have continued the file, by the head of a slot; 0 if it is none."""
    if len(head) < HEAD or not head.startswith(_MAGIC):
        return 0
    return int(_HEAD.unpack(head)[-1])


def latest(slots: Sequence[bytes], layout: Layout) -> Commit | None:
    """The last commit of those in the slots, or None if none is whole."""
    found = [commit for slot in slots if (commit := _decoded(slot, layout)) is not None]
    return max(found, key=lambda commit: commit.sequence, default=None)


def _decoded(slot: bytes, layout: Layout) -> Commit | None:
    if len(slot) < _HEAD.size:
        return None
    magic, sequence, length, check, _ = _HEAD.unpack_from(slot)
    body = memoryview(slot)[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(body) != length:
        return None
    if zlib.crc32(body, zlib.crc32(slot[:24])) != check:
        return None
    try:
        (size,) = _LENGTH.unpack_from(body)
        said = json.loads(bytes(body[4 : 4 + size]))
        groups, rest = [], body[4 + size :]
        for group, own in zip(layout.groups, said["groups"], strict=True):
            stand, rest = _stand(group, own, rest)
            groups.append(stand)
        if len(rest):
            return None
        total = None if said["total_steps"] is None else int(said["total_steps"])
        steps, runs = int(said["actual_steps"]), int(said["runs"])
        kept = [tuple(int(n) for n in own) for own in said.get("kept", [])]
        if any(len(own) != 1 + len(groups) for own in kept):
            return None
        return Commit(sequence, runs, steps, total, said["complete"] is True, groups, kept)
    except (LookupError, TypeError, ValueError, OverflowError, struct.error, RecursionError):
        return None


def _stand(group: Group, said: Any, rest: memoryview) -> tuple[Stand, memoryview]:
    rows, tail = int(said["rows"]), int(said["tail"])
    most_rows, most_tail = (0, 0) if group.is_once else (_MOST_ROWS, group.block)
    if not (0 <= rows <= most_rows and 0 <= tail <= most_tail):
        raise ValueError
    cuts = [(int(end), int(step)) for end, step in said["cuts"]]
    checks = said["checks"]
    if checks is not None:
        checks = [int(check) for check in checks]
        if not group.is_once or len(checks) != len(group.leaves):
            raise ValueError
    taken = []
    for shape, dtype in [((), STEP), *((x.stored_shape, x.kind.stored) for x in group.leaves)]:
        size = tail * math.prod(shape) * dtype.itemsize
        if size > len(rest):
            raise ValueError
        taken.append(np.frombuffer(rest[:size], dtype).reshape(tail, *shape))
        rest = rest[size:]
    return Stand(rows, taken[0], taken[1:], cuts, checks), rest
