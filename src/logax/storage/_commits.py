r"""Commits: records of what is in the file for good.

A trajectory consists of what its last commit says, and of nothing else. A row goes to the datasets
when a whole block of rows is there, so that no chunk is ever written twice; until then it stands in
the commits. Whatever is in the datasets beyond the rows that a commit counts is not there.

Every commit is written twice, into a pair of slots. There are two pairs, which take turns: a
commit replaces the last but one, and only after HDF5 has passed on all that it counts. So at any
moment, also in the middle of a write, one pair holds a whole commit twice, and damage to one copy
costs nothing. Where both copies of a pair are damaged, the heads say how many rows may be missing.

A slot:

    8 bytes  b"logax\0\0\2"
    8 bytes  sequence number, little-endian, as all numbers here
    8 bytes  length of the body, which follows the head
    8 bytes  how often the file was continued by another run, which is in the JSON too
    8 bytes  number of rows in all groups, void ones too
    4 bytes  CRC-32 of the body
    4 bytes  CRC-32 of the 44 bytes before it
    body     4 bytes with the length of the JSON, the JSON, and for each group whose JSON has
             "tail": k, the steps of k rows (8 bytes each), and k rows of each dataset in turn

Files of layout 1 have one slot where this has a pair, with another head (`_HEAD_1`): the length is
followed by the CRC-32 of the 24 bytes before it and the body, and by the number of runs.

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
from typing import Any, NamedTuple

import numpy as np

from logax.storage._layout import STEP, Group, Layout

_MAGIC, _MAGIC_1 = b"logax\0\0\2", b"logax\0\0\1"
_HEAD = struct.Struct("<8sQQQQII")
_HEAD_1 = struct.Struct("<8sQQII")
_CHECK = struct.Struct("<I")
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
        """Number of rows, void ones too."""
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

    @property
    def places(self) -> int:
        """Number of rows in all groups, void ones too."""
        return sum(stand.places for stand in self.groups)

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


def encoded(commit: Commit, version: int) -> bytes:
    """Return the bytes of a slot that holds a commit, in a file of this layout."""
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
    body = b"".join(parts)
    if version == 1:
        head = _HEAD_1.pack(_MAGIC_1, commit.sequence, len(body), 0, commit.runs)
        check = zlib.crc32(body, zlib.crc32(head[:24]))
        return head[:24] + _CHECK.pack(check) + head[28:] + body
    numbers = (commit.sequence, len(body), commit.runs, commit.places, zlib.crc32(body))
    head = _HEAD.pack(_MAGIC, *numbers, 0)[: -_CHECK.size]
    return head + _CHECK.pack(zlib.crc32(head)) + body


class _Head(NamedTuple):
    """The head of a slot, whose body may be damaged.

    Attributes:
      sequence: Number of the commit.
      runs: Number of runs that have continued the file.
      places: Number of rows in all groups; None if the head does not say.
      begin: Place of the first byte of the body in the slot.
      end: Place after its last byte.
      start: CRC-32 of what is checked together with the body.
      check: CRC-32 of both.
    """

    sequence: int
    runs: int
    places: int | None
    begin: int
    end: int
    start: int
    check: int


def _head(slot: bytes, version: int) -> _Head | None:
    """Return the head of a slot, or None if it is damaged; that of layout 1 may be damaged."""
    own = _HEAD_1 if version == 1 else _HEAD
    if len(slot) < own.size:
        return None
    if version == 1:
        magic, sequence, length, check, runs = own.unpack_from(slot)
        if magic != _MAGIC_1:
            return None
        return _Head(
            sequence, runs, None, own.size, own.size + length, zlib.crc32(slot[:24]), check
        )
    magic, sequence, length, runs, places, check, own_check = own.unpack_from(slot)
    if magic != _MAGIC or zlib.crc32(slot[: own.size - _CHECK.size]) != own_check:
        return None
    return _Head(sequence, runs, places, own.size, own.size + length, 0, check)


def runs_of(slot: bytes, layout: Layout) -> int:
    """Return how many runs have continued the file, by the head of a slot; 0 if it is damaged."""
    head = _head(slot, layout.version)
    return 0 if head is None else head.runs


def latest(slots: Sequence[bytes], layout: Layout) -> tuple[Commit | None, str | None]:
    """Return the last whole commit, and what may be missing if a later one is damaged.

    Args:
      slots: The bytes of all slots.
      layout: The layout of the file.

    Returns:
      The commit, None if no slot holds one; and a sentence, None where the commit is the last one
      for sure.
    """
    copies = layout.commit_copies
    pairs = [slots[first : first + copies] for first in range(0, len(slots), copies)]
    decoded = [_last_of_pair(pair, layout) for pair in pairs]
    found = [commit for commit in decoded if commit is not None]
    if not found:
        return None, None
    last = max(found, key=lambda commit: commit.sequence)
    damaged = [pair for pair, commit in zip(pairs, decoded, strict=True) if commit is None]
    return last, _missing(damaged, layout, last)


def _last_of_pair(pair: Sequence[bytes], layout: Layout) -> Commit | None:
    """Return the later commit of those in the slots of a pair.

    They are the same, unless the writer is between the two.
    """
    distinct = pair[:1] if all(slot == pair[0] for slot in pair) else pair
    found = [commit for slot in distinct if (commit := _decoded(slot, layout)) is not None]
    return max(found, key=lambda commit: commit.sequence, default=None)


def _missing(damaged: Sequence[Sequence[bytes]], layout: Layout, commit: Commit) -> str | None:
    """Say how many rows may be missing, by the heads of pairs without a whole commit."""
    for pair in damaged:
        # A head of layout 1 has no checksum of its own, and says nothing.
        heads = [None if layout.version == 1 else _head(slot, layout.version) for slot in pair]
        later = [head for head in heads if head is None or head.sequence > commit.sequence]
        if not later:
            continue
        rows = max((head.places or 0 for head in later if head is not None), default=None)
        missing = "an unknown number of rows"
        if rows is not None:
            missing = f"{max(rows - commit.places, 0)} rows"
        return (
            "its newest commit is damaged, or was only partly written. The commit before it is "
            f"read, with {commit.places} rows and {commit.actual_steps} steps: {missing} may be "
            "missing at the end."
        )
    return None


def _decoded(slot: bytes, layout: Layout) -> Commit | None:
    head = _head(slot, layout.version)
    if head is None or head.end > len(slot):
        return None
    sequence, body = head.sequence, memoryview(slot)[head.begin : head.end]
    if zlib.crc32(body, head.start) != head.check:
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
