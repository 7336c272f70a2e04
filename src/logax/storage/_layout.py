"""Names, shapes and schema of an HDF5 trajectory, as docs/layout.md specifies them.

The names in a file:

    frames/energy   one dataset per array of a group, with an axis for the rows in front
    frames/step     step of each row, a dimension scale
    logax/schema    `FileLayout` as JSON
    logax/commits   slots for commits, see `_commits`
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from logax._logdict.export import free_name
from logax._serialization.dtypes import StorageError, parse_stored_type
from logax._serialization.trees import LeafPath, Node, leaf_paths, validate_outline
from logax._version import __version__
from logax.storage._view import ArrayLayout

LAYOUT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
RESERVED_NAME = "logax"
SCHEMA_PATH, COMMITS_PATH = f"{RESERVED_NAME}/schema", f"{RESERVED_NAME}/commits"
STEP_DTYPE = np.dtype("<i8")
NO_STEP = -1

_TARGET_BLOCK_BYTES = 64 * 2**10  # a larger row is a block by itself
_ESCAPED_CHARACTERS = re.compile("[/%\x00\ud800-\udfff]")
_MAX_COUNT = 2**62


@dataclasses.dataclass(frozen=True)
class GroupLayout:
    """Layout of one group of the file.

    Attributes:
      parts: Keys that lead to the group in the configuration.
      schedule: `repr` of its schedule, for information only.
      is_once: True if its arrays have no axis for rows.
      block_rows: Number of rows that are written at once, as one chunk of each dataset.
      outline: Structure of a row.
      leaves: Arrays of a row.
    """

    parts: LeafPath
    schedule: str
    is_once: bool
    block_rows: int
    outline: Node
    leaves: tuple[ArrayLayout, ...]

    @functools.cached_property
    def name(self) -> str:
        """Name of the group in the file."""
        return dataset_path(self.parts)

    @functools.cached_property
    def paths(self) -> list[str]:
        """Paths of the datasets, one per leaf."""
        return [f"{self.name}/{dataset_path(leaf.parts)}" for leaf in self.leaves]

    @functools.cached_property
    def step_path(self) -> str:
        """Path of the dataset that holds the steps."""
        return self.unused_path("step")

    def unused_path(self, name: str) -> str:
        """Return a path in the group that no array has, with `name` or a similar name."""
        tops = {_link_name(leaf.parts[0]) if leaf.parts else "value" for leaf in self.leaves}
        return f"{self.name}/{free_name(name, tops)}"

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return sum(leaf.row_bytes for leaf in self.leaves)


@dataclasses.dataclass(frozen=True)
class FileLayout:
    """Layout of a file, fixed before the first row is written."""

    config: Node
    groups: tuple[GroupLayout, ...]
    version: int = LAYOUT_VERSION

    @property
    def commit_copies(self) -> int:
        """Number of copies of each commit."""
        return 1 if self.version == 1 else 2

    @property
    def commits_shape(self) -> tuple[int, int]:
        """Shape of the dataset of commits: slots for two of them, and bytes of a slot."""
        return 2 * self.commit_copies, self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """Size of the slot for one commit."""
        tails = sum(
            0
            if group.is_once or group.block_rows == 1
            else group.block_rows * (group.row_bytes + 8)
            for group in self.groups
        )
        leaves = sum(len(group.leaves) for group in self.groups)
        return -(-(4096 + 128 * len(self.groups) + 12 * leaves + tails) // 512) * 512

    def to_json(self) -> bytes:
        """Return the schema that is stored in the file."""
        groups = [
            {
                "name": group.name,
                "parts": group.parts,
                "schedule": group.schedule,
                "once": group.is_once,
                "block": group.block_rows,
                "step": group.step_path,
                "outline": group.outline,
                "leaves": [
                    {
                        "name": path,
                        "shape": leaf.shape,
                        "dtype": leaf.kind.name,
                        "more": leaf.kind.extra_axes,
                    }
                    for path, leaf in zip(group.paths, group.leaves, strict=True)
                ],
            }
            for group in self.groups
        ]
        schema = {
            "layout": self.version,
            "config": self.config,
            "groups": groups,
            "slot_bytes": self.slot_bytes,
            "written_by": {"logax": __version__, "jax": jax.__version__},
        }
        return json.dumps(schema).encode()

    @classmethod
    def from_json(cls, text: bytes) -> FileLayout:
        """Return the layout that a stored schema describes.

        Raises:
          StorageError: A newer logax wrote the schema, or the schema is damaged.
        """
        try:
            schema = json.loads(text)
            if schema["layout"] not in _READABLE_VERSIONS:
                raise StorageError(
                    f"it has layout {schema['layout']!r}, and this logax reads layouts up to "
                    f"{LAYOUT_VERSION}. Read it with the logax that wrote it"
                    f"{_writer_version(schema)}, or a newer one."
                )
            groups = tuple(_parse_group(each) for each in schema["groups"])
            layout = cls(validate_outline(schema["config"]), groups, _parse_count(schema["layout"]))
            if list(leaf_paths(layout.config)) != [group.parts for group in groups]:
                raise ValueError("the configuration has other groups")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error) if type(error) is ValueError else type(error).__name__
            raise StorageError(f"its schema is damaged: {reason}.") from error
        return layout

    def describe_difference(self, other: FileLayout) -> str | None:
        """Return how another layout differs from this one; None if rows of both fit.

        Args:
          other: The layout of a writer that is to continue the file, which has this layout.
        """
        mine, theirs = ({group.name: group for group in x.groups} for x in (self, other))
        if mine.keys() != theirs.keys():
            return f"the groups are {_list_names(mine)} in the file, and {_list_names(theirs)} now"
        for name, group in mine.items():
            new = theirs[name]
            if group.is_once != new.is_once:
                return f"`{name}` is{'' if group.is_once else ' not'} written once in the file"
            leaves, others = (dict(zip(x.paths, x.leaves, strict=True)) for x in (group, new))
            if leaves.keys() != others.keys():
                return (
                    f"the arrays are {_list_names(leaves)} in the file, "
                    f"and {_list_names(others)} now"
                )
            for path, leaf in leaves.items():
                if leaf != others[path]:
                    return (
                        f"`{path}` is {leaf.description} in the file, "
                        f"and {others[path].description} now"
                    )
            if group.outline != new.outline:
                return f"`{name}` has containers of other types in the file"
        return None if self.config == other.config else "the configuration has another structure"


def axis_names(lengths: Iterable[int]) -> list[str]:
    """Return names for the axes of a row: their lengths, numbered where a length repeats."""
    seen: collections.Counter[int] = collections.Counter()
    names = []
    for length in lengths:
        names.append(f"axis_{length}" + (f"_{seen[length]}" if seen[length] else ""))
        seen[length] += 1
    return names


def choose_block_rows(row_bytes: int, max_rows: int | None) -> int:
    """Return the number of rows to write at once."""
    rows = max(1, _TARGET_BLOCK_BYTES // (row_bytes + STEP_DTYPE.itemsize))
    return rows if max_rows is None else max(1, min(rows, max_rows))


def check_names(groups: Sequence[GroupLayout]) -> None:
    """Raise if two groups or two arrays would have the same name in the file."""
    for name in _find_conflicts([group.name for group in groups]):
        raise ValueError(
            f"`HDF5StorageWriter` got two groups called `{name}`. Rename one in the configuration."
        )
    for group in groups:
        if group.name.partition("/")[0] == RESERVED_NAME:
            raise ValueError(
                f"`HDF5StorageWriter` got a group called `{group.name}`, and reserves "
                f"`{RESERVED_NAME}` for itself. Rename it in the configuration."
            )
        for path in _find_conflicts(group.paths):
            raise ValueError(
                f"The view of `{group.name}` returns two arrays called `{path}`. Rename one."
            )


def _find_conflicts(names: Sequence[str]) -> list[str]:
    """Return the names that occur twice, or that continue the path of another name."""
    seen: set[str] = set()
    found = []
    for name in sorted(names):
        parts = name.split("/")
        if any("/".join(parts[:n]) in seen for n in range(1, len(parts) + 1)):
            found.append(name)
        seen.add(name)
    return found


def dataset_path(parts: LeafPath) -> str:
    """Return the path in the file for the keys that lead to a group or an array."""
    return "/".join(map(_link_name, parts)) or "value"


def _link_name(part: str) -> str:
    """Return a key with the characters escaped that HDF5 does not allow in names."""
    escaped = _ESCAPED_CHARACTERS.sub(lambda found: f"%{ord(found[0]):02X}", part)
    return {"": "%", ".": "%2E"}.get(escaped, escaped)


def _parse_group(fields: Any) -> GroupLayout:
    leaves = tuple(_parse_leaf(each) for each in fields["leaves"])
    group = GroupLayout(
        parts=_parse_parts(fields["parts"]),
        schedule=str(fields["schedule"]),
        is_once=bool(fields["once"]),
        block_rows=max(1, _parse_count(fields["block"])),
        outline=validate_outline(fields["outline"]),
        leaves=leaves,
    )
    parts = list(leaf_paths(group.outline))
    if len(parts) != len(leaves):
        raise ValueError("a group has an outline for other arrays")
    named = [dataclasses.replace(x, parts=own) for x, own in zip(leaves, parts, strict=True)]
    group = dataclasses.replace(group, leaves=tuple(named))
    if [each["name"] for each in fields["leaves"]] != group.paths or group.name != fields["name"]:
        raise ValueError("a group has other names than its outline")
    return group


def _parse_leaf(fields: Any) -> ArrayLayout:
    more, shape = (tuple(_parse_count(n) for n in fields[name]) for name in ("more", "shape"))
    return ArrayLayout((), shape, parse_stored_type(str(fields["dtype"]), more))


def _parse_parts(parts: Iterable[Any]) -> LeafPath:
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("a name is not a string")
    return tuple(parts)


def _parse_count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < _MAX_COUNT:
        raise ValueError("a number is not a valid count")
    return n


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _writer_version(schema: Any) -> str:
    writer = schema.get("written_by")
    writer = writer.get("logax") if isinstance(writer, dict) else None
    return f" ({writer})" if isinstance(writer, str) and len(writer) < 40 else ""
