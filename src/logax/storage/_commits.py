r"""Commits: records of the rows that are safely in the file.

The last commit alone defines the contents of a trajectory; readers ignore rows in the datasets that
it does not count. The writer adds rows to the datasets a whole block at a time, so it never writes
a chunk twice; rows of an incomplete block are stored in the commit itself.

The writer stores every commit twice, in a pair of slots. Two pairs take turns: a commit replaces
the last but one, and only after HDF5 has written everything that the commit counts. So one pair
holds a whole commit at any moment, also during a write, and damage to one copy loses nothing. If
both copies of a pair are damaged, their heads still give the number of rows that may be missing.

A slot:

    8 bytes  b"logax\0\0\2"
    8 bytes  sequence number; all numbers are little-endian
    8 bytes  length of the body, which follows the head
    8 bytes  number of times that another run continued the file, also in the JSON
    8 bytes  number of rows in all groups, including void ones
    4 bytes  CRC-32 of the body
    4 bytes  CRC-32 of the 44 bytes before it
    body     4 bytes with the length of the JSON, the JSON, and for each group whose JSON has
             "tail": k, the steps of k rows (8 bytes each), and k rows of each dataset in turn

Files of layout 1 have one slot instead of a pair, with another head (`_HEAD_1`): the length is
followed by the CRC-32 of the 24 bytes before it and the body, and by the number of runs.

    {"actual_steps": 120, "total_steps": 1000, "complete": false, "runs": 1, "kept": [[1, 800, 1]],
     "groups": [{"rows": 1024, "tail": 7, "cuts": [], "checks": null}, ...]}

`rows` is the number of rows in the datasets. Each of the `cuts` is a pair (end, step): among the
rows before `end`, those at and after `step` are void. `checks` belongs to groups that are written
once: null until then, and afterwards the CRC-32 of each array.

`kept` tells readers which of the rows that they have read are still valid after another run has
continued the file. An entry consists of the number of a run and, for each group, the number of
leading rows that the run kept; all rows after them are new. Runs that kept everything have no
entry. Only the last few entries are separate: older ones are merged with the next entry, with the
lower number of rows for each group.
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

from logax.storage._layout import STEP_DTYPE, FileLayout, GroupLayout

_MAGIC, _MAGIC_1 = b"logax\0\0\2", b"logax\0\0\1"
_HEAD = struct.Struct("<8sQQQQII")
_HEAD_1 = struct.Struct("<8sQQII")
_CHECK = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_MAX_KEPT_ENTRIES = 4  # a slot has room for them
_MAX_ROWS = 2**62 - 1
HEAD_BYTES = _HEAD.size

Numbers = np.ndarray[Any, Any]


@dataclasses.dataclass
class GroupCommit:
    """The part of a commit that describes one group.

    Attributes:
      rows: Number of rows in the datasets.
      steps: Steps of the rows that are in the commit and not in the datasets yet.
      columns: These rows, as one array per leaf.
      cuts: Pairs (end, step): among the rows before `end`, those at and after `step` are void.
      checksums: One checksum per array of a group that is written once; None until it is written.
      void_rows: Number of rows that the cuts make void. Known to the writer only; not in the file.
    """

    rows: int
    steps: Numbers
    columns: list[Numbers]
    cuts: list[tuple[int, int]]
    checksums: list[int] | None
    void_rows: int = 0

    @property
    def total_rows(self) -> int:
        """Number of rows, including void ones."""
        return int(self.checksums is not None) + self.rows + len(self.steps)

    @property
    def valid_rows(self) -> int:
        """Number of rows without the void ones."""
        return self.total_rows - self.void_rows

    @classmethod
    def empty(cls, group: GroupLayout) -> GroupCommit:
        """Return the commit of a group without rows."""
        columns = [np.empty((0, *x.stored_shape), x.kind.stored_dtype) for x in group.leaves]
        return cls(0, np.empty(0, STEP_DTYPE), columns, [], None)


@dataclasses.dataclass
class Commit:
    """A record of the rows that are safely in the file.

    Attributes:
      sequence: Number of the commit.
      runs: Number of runs that have continued the file.
      actual_steps: Number of steps whose rows are all in the file.
      total_steps: Number of steps that the run was to take, None if unknown.
      is_complete: True if the writer has finished.
      groups: Commit of each group.
      kept: Rows that later runs kept, see the module docstring.
    """

    sequence: int
    runs: int
    actual_steps: int
    total_steps: int | None
    is_complete: bool
    groups: list[GroupCommit]
    kept: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    @property
    def total_rows(self) -> int:
        """Number of rows in all groups, including void ones."""
        return sum(group.total_rows for group in self.groups)

    def rows_kept_since(self, runs: int, group: int) -> int:
        """Return the number of leading rows of a group that no run after `runs` has replaced."""
        found = (entry[1 + group] for entry in self.kept if entry[0] > runs)
        return min(found, default=self.groups[group].total_rows)

    def kept_entries(self, run: int, groups: list[GroupCommit]) -> list[tuple[int, ...]]:
        """Return the value of `kept` for a run that continues with the rows in `groups`."""
        now = tuple(group.total_rows for group in groups)
        if now == tuple(group.total_rows for group in self.groups):
            return self.kept
        # An entry that kept at least as many rows of each group adds no information.
        kept = [old for old in self.kept if any(a < b for a, b in zip(old[1:], now, strict=True))]
        kept.append((run, *now))
        while len(kept) > _MAX_KEPT_ENTRIES:
            first, second = kept[:2]
            kept[:2] = [(second[0], *map(min, first[1:], second[1:]))]
        return kept


def encode_commit(commit: Commit, version: int) -> bytes:
    """Return the bytes of a slot that holds a commit, in a file of layout `version`."""
    fields = {
        "actual_steps": commit.actual_steps,
        "total_steps": commit.total_steps,
        "complete": commit.is_complete,
        "runs": commit.runs,
        "kept": commit.kept,
        "groups": [
            {"rows": x.rows, "tail": len(x.steps), "cuts": x.cuts, "checks": x.checksums}
            for x in commit.groups
        ],
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    parts = [_LENGTH.pack(len(text)), text]
    for group in commit.groups:
        if len(group.steps):
            parts += [x.tobytes() for x in (group.steps, *group.columns)]
    body = b"".join(parts)
    if version == 1:
        head = _HEAD_1.pack(_MAGIC_1, commit.sequence, len(body), 0, commit.runs)
        check = zlib.crc32(body, zlib.crc32(head[:24]))
        return head[:24] + _CHECK.pack(check) + head[28:] + body
    numbers = (commit.sequence, len(body), commit.runs, commit.total_rows, zlib.crc32(body))
    head = _HEAD.pack(_MAGIC, *numbers, 0)[: -_CHECK.size]
    return head + _CHECK.pack(zlib.crc32(head)) + body


class _SlotHead(NamedTuple):
    """The head of a slot, whose body may be damaged.

    Attributes:
      sequence: Number of the commit.
      runs: Number of runs that have continued the file.
      total_rows: Number of rows in all groups; None in layout 1.
      begin: Offset of the body in the slot.
      end: Offset of the end of the body.
      start: CRC-32 to start from: that of the head, where it is checked together with the body.
      check: Expected CRC-32.
    """

    sequence: int
    runs: int
    total_rows: int | None
    begin: int
    end: int
    start: int
    check: int


def _decode_head(slot: bytes, version: int) -> _SlotHead | None:
    """Return the head of a slot, or None if it is damaged.

    The head of layout 1 has no checksum, so a damaged one may be returned.
    """
    form = _HEAD_1 if version == 1 else _HEAD
    if len(slot) < form.size:
        return None
    if version == 1:
        magic, sequence, length, check, runs = form.unpack_from(slot)
        if magic != _MAGIC_1:
            return None
        return _SlotHead(
            sequence, runs, None, form.size, form.size + length, zlib.crc32(slot[:24]), check
        )
    magic, sequence, length, runs, total_rows, check, head_check = form.unpack_from(slot)
    if magic != _MAGIC or zlib.crc32(slot[: form.size - _CHECK.size]) != head_check:
        return None
    return _SlotHead(sequence, runs, total_rows, form.size, form.size + length, 0, check)


def read_run_count(slot: bytes, layout: FileLayout) -> int:
    """Return the number of runs in the head of a slot; 0 if the head is damaged."""
    head = _decode_head(slot, layout.version)
    return 0 if head is None else head.runs


def latest_commit(slots: Sequence[bytes], layout: FileLayout) -> tuple[Commit | None, str | None]:
    """Return the last whole commit, and a description of the rows missing after it.

    Args:
      slots: Bytes of all slots.
      layout: Layout of the file.

    Returns:
      The commit, or None if no slot holds a whole one; and a sentence if a later commit is damaged,
      else None.
    """
    copies = layout.commit_copies
    pairs = [slots[first : first + copies] for first in range(0, len(slots), copies)]
    decoded = [_latest_of_pair(pair, layout) for pair in pairs]
    found = [commit for commit in decoded if commit is not None]
    if not found:
        return None, None
    last = max(found, key=lambda commit: commit.sequence)
    damaged = [pair for pair, commit in zip(pairs, decoded, strict=True) if commit is None]
    return last, _describe_missing_rows(damaged, layout, last)


def _latest_of_pair(pair: Sequence[bytes], layout: FileLayout) -> Commit | None:
    """Return the later of the commits in the slots of a pair.

    They differ only while the writer is between the two.
    """
    distinct = pair[:1] if all(slot == pair[0] for slot in pair) else pair
    found = [commit for slot in distinct if (commit := _decode_commit(slot, layout)) is not None]
    return max(found, key=lambda commit: commit.sequence, default=None)


def _describe_missing_rows(
    damaged: Sequence[Sequence[bytes]], layout: FileLayout, commit: Commit
) -> str | None:
    """Describe the rows that may be missing, by the heads of pairs without a whole commit."""
    for pair in damaged:
        # A head of layout 1 has no checksum, so its numbers cannot be trusted.
        heads = [
            None if layout.version == 1 else _decode_head(slot, layout.version) for slot in pair
        ]
        later = [head for head in heads if head is None or head.sequence > commit.sequence]
        if not later:
            continue
        rows = max((head.total_rows or 0 for head in later if head is not None), default=None)
        missing = "an unknown number of rows"
        if rows is not None:
            missing = f"{max(rows - commit.total_rows, 0)} rows"
        return (
            "its newest commit is damaged, or was only partly written. The commit before it is "
            f"read, with {commit.total_rows} rows and {commit.actual_steps} steps: {missing} may "
            "be missing at the end."
        )
    return None


def _decode_commit(slot: bytes, layout: FileLayout) -> Commit | None:
    head = _decode_head(slot, layout.version)
    if head is None or head.end > len(slot):
        return None
    sequence, body = head.sequence, memoryview(slot)[head.begin : head.end]
    if zlib.crc32(body, head.start) != head.check:
        return None
    try:
        (size,) = _LENGTH.unpack_from(body)
        fields = json.loads(bytes(body[4 : 4 + size]))
        groups, rest = [], body[4 + size :]
        for group, group_fields in zip(layout.groups, fields["groups"], strict=True):
            group_commit, rest = _decode_group(group, group_fields, rest)
            groups.append(group_commit)
        if len(rest):
            return None
        total = None if fields["total_steps"] is None else int(fields["total_steps"])
        steps, runs = int(fields["actual_steps"]), int(fields["runs"])
        kept = [tuple(int(n) for n in entry) for entry in fields.get("kept", [])]
        if any(len(entry) != 1 + len(groups) for entry in kept):
            return None
        return Commit(sequence, runs, steps, total, fields["complete"] is True, groups, kept)
    except (LookupError, TypeError, ValueError, OverflowError, struct.error, RecursionError):
        return None


def _decode_group(
    group: GroupLayout, fields: Any, rest: memoryview
) -> tuple[GroupCommit, memoryview]:
    rows, tail = int(fields["rows"]), int(fields["tail"])
    max_rows, max_tail = (0, 0) if group.is_once else (_MAX_ROWS, group.block_rows)
    if not (0 <= rows <= max_rows and 0 <= tail <= max_tail):
        raise ValueError
    cuts = [(int(end), int(step)) for end, step in fields["cuts"]]
    checksums = fields["checks"]
    if checksums is not None:
        checksums = [int(check) for check in checksums]
        if not group.is_once or len(checksums) != len(group.leaves):
            raise ValueError
    columns = []
    leaves = ((x.stored_shape, x.kind.stored_dtype) for x in group.leaves)
    for shape, dtype in [((), STEP_DTYPE), *leaves]:
        size = tail * math.prod(shape) * dtype.itemsize
        if size > len(rest):
            raise ValueError
        columns.append(np.frombuffer(rest[:size], dtype).reshape(tail, *shape))
        rest = rest[size:]
    return GroupCommit(rows, columns[0], columns[1:], cuts, checksums), rest
