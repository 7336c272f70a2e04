"""What stands where in the file. docs/layout.md specifies it; this is the one place that knows.

The names in a file:

    frames/energy   one dataset for each array of a group, with an axis for the rows in front
    frames/step     the step of each row: a dimension scale
    logax/schema    what `Layout` holds, as JSON
    logax/commits   slots for records of what is in the file for good, see `_commits`
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
from logax._serialization.dtypes import StorageError, kind_named
from logax._serialization.trees import Node, Parts, checked, parts_of
from logax._version import __version__
from logax.storage._view import Leaf

VERSION = 2
_READABLE = (1, 2)
OWN = "logax"
SCHEMA, COMMITS = f"{OWN}/schema", f"{OWN}/commits"
STEP = np.dtype("<i8")
NO_STEP = -1

_BLOCK = 64 * 2**10  # bytes of rows that are written at once; larger rows are written alone
_UNFIT = re.compile("[/%\x00\ud800-\udfff]")
_MOST_ROWS = 2**62


@dataclasses.dataclass(frozen=True)
class Group:
    """One group of the file.

    Attributes:
      parts: Where it stands in the configuration.
      schedule: What is said of its schedule, for people.
      is_once: Whether its arrays have no axis for rows.
      block: How many rows are written at once: a chunk of each dataset.
      outline: The structure of a row.
      leaves: The arrays of a row.
    """

    parts: Parts
    schedule: str
    is_once: bool
    block: int
    outline: Node
    leaves: tuple[Leaf, ...]

    @functools.cached_property
    def name(self) -> str:
        """Its name in the file."""
        return path_of(self.parts)

    @functools.cached_property
    def paths(self) -> list[str]:
        """The names of its datasets, one for each leaf."""
        return [f"{self.name}/{path_of(leaf.parts)}" for leaf in self.leaves]

    @functools.cached_property
    def step_path(self) -> str:
        """The name of the dataset with the steps."""
        return self.free("step")

    def free(self, name: str) -> str:
        """A name in the group that is like this and that no array has."""
        tops = {_link(leaf.parts[0]) if leaf.parts else "value" for leaf in self.leaves}
        return f"{self.name}/{free_name(name, tops)}"

    @property
    def row_bytes(self) -> int:
        """What a row takes."""
        return sum(leaf.row_bytes for leaf in self.leaves)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All that is said before the first row."""

    config: Node
    groups: tuple[Group, ...]
    version: int = VERSION

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
        """The room for one commit."""
        tails = sum(
            0 if group.is_once or group.block == 1 else group.block * (group.row_bytes + 8)
            for group in self.groups
        )
        leaves = sum(len(group.leaves) for group in self.groups)
        return -(-(4096 + 128 * len(self.groups) + 12 * leaves + tails) // 512) * 512

    def to_json(self) -> bytes:
        """The text that stands in the file."""
        groups = [
            {
                "name": group.name,
                "parts": group.parts,
                "schedule": group.schedule,
                "once": group.is_once,
                "block": group.block,
                "step": group.step_path,
                "outline": group.outline,
                "leaves": [
                    {
                        "name": path,
                        "shape": leaf.shape,
                        "dtype": leaf.kind.name,
                        "more": leaf.kind.more,
                    }
                    for path, leaf in zip(group.paths, group.leaves, strict=True)
                ],
            }
            for group in self.groups
        ]
        said = {
            "layout": self.version,
            "config": self.config,
            "groups": groups,
            "slot_bytes": self.slot_bytes,
            "written_by": {"logax": __version__, "jax": jax.__version__},
        }
        return json.dumps(said).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """The same from a file.

        Raises:
          StorageError: It is of a newer logax, or no such text.
        """
        try:
            said = json.loads(text)
            if said["layout"] not in _READABLE:
                raise StorageError(
                    f"it has layout {said['layout']!r}, and this logax reads layouts up to "
                    f"{VERSION}. Read it with the logax that wrote it{_shown_writer(said)}, or a "
                    "newer one."
                )
            groups = tuple(_group(each) for each in said["groups"])
            layout = cls(checked(said["config"]), groups, _count(said["layout"]))
            _check_outline(layout.config, [group.parts for group in groups])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise StorageError(f"its schema is damaged: {_told(error)}.") from error
        return layout

    def difference(self, other: Layout) -> str | None:
        """What another one, of the same file, has differently; None if rows of both fit."""
        mine, theirs = ({group.name: group for group in x.groups} for x in (self, other))
        if mine.keys() != theirs.keys():
            return f"the groups are {_listed(mine)} in the file, and {_listed(theirs)} now"
        for name, group in mine.items():
            own = theirs[name]
            if group.is_once != own.is_once:
                return f"`{name}` is{'' if group.is_once else ' not'} written once in the file"
            leaves, others = (dict(zip(x.paths, x.leaves, strict=True)) for x in (group, own))
            if leaves.keys() != others.keys():
                return f"the arrays are {_listed(leaves)} in the file, and {_listed(others)} now"
            for path, leaf in leaves.items():
                if leaf != others[path]:
                    return f"`{path}` is {leaf.said} in the file, and {others[path].said} now"
            if group.outline != own.outline:
                return f"`{name}` has containers of other types in the file"
        return None if self.config == other.config else "the configuration has another structure"


def axis_names(lengths: Iterable[int]) -> list[str]:
    """What the axes of a row are called: by length, with a number where one is there twice."""
    seen: collections.Counter[int] = collections.Counter()
    names = []
    for length in lengths:
        names.append(f"axis_{length}" + (f"_{seen[length]}" if seen[length] else ""))
        seen[length] += 1
    return names


def block_rows(row_bytes: int, most: int | None) -> int:
    """How many rows to write at once."""
    rows = max(1, _BLOCK // (row_bytes + STEP.itemsize))
    return rows if most is None else max(1, min(rows, most))


def check_names(groups: Sequence[Group]) -> None:
    """Raise where two things would have one name in the file."""
    for name in _doubles([group.name for group in groups]):
        raise ValueError(
            f"`HDF5StorageWriter` got two groups called `{name}`. Rename one in the configuration."
        )
    for group in groups:
        if group.name.partition("/")[0] == OWN:
            raise ValueError(
                f"`HDF5StorageWriter` got a group called `{group.name}`, and keeps `{OWN}` for "
                "itself. Rename it in the configuration."
            )
        for path in _doubles(group.paths):
            raise ValueError(
                f"The view of `{group.name}` gives two arrays called `{path}`. Rename one."
            )


def _doubles(names: Sequence[str]) -> list[str]:
    """The names that are there twice, or are part of the path of another."""
    seen: set[str] = set()
    found = []
    for name in sorted(names):
        parts = name.split("/")
        if any("/".join(parts[:n]) in seen for n in range(1, len(parts) + 1)):
            found.append(name)
        seen.add(name)
    return found


def path_of(parts: Parts) -> str:
    """The name in the file of what stands at a place."""
    return "/".join(map(_link, parts)) or "value"


def _link(part: str) -> str:
    """A part of a name as HDF5 takes it."""
    fit = _UNFIT.sub(lambda found: f"%{ord(found[0]):02X}", part)
    return {"": "%", ".": "%2E"}.get(fit, fit)


def _group(said: Any) -> Group:
    leaves = tuple(_leaf(each) for each in said["leaves"])
    group = Group(
        parts=_texts(said["parts"]),
        schedule=str(said["schedule"]),
        is_once=bool(said["once"]),
        block=max(1, _count(said["block"])),
        outline=checked(said["outline"]),
        leaves=leaves,
    )
    parts = list(parts_of(group.outline))
    if len(parts) != len(leaves):
        raise ValueError("a group has an outline for other arrays")
    named = [dataclasses.replace(x, parts=own) for x, own in zip(leaves, parts, strict=True)]
    group = dataclasses.replace(group, leaves=tuple(named))
    if [each["name"] for each in said["leaves"]] != group.paths or group.name != said["name"]:
        raise ValueError("a group has other names than its outline says")
    return group


def _leaf(said: Any) -> Leaf:
    more, shape = (tuple(_count(n) for n in said[name]) for name in ("more", "shape"))
    return Leaf((), shape, kind_named(str(said["dtype"]), more))


def _check_outline(config: Node, found: list[Parts]) -> None:
    if list(parts_of(config)) != found:
        raise ValueError("the configuration has other groups")


def _texts(parts: Iterable[Any]) -> Parts:
    if not all(isinstance(part, str) for part in parts):
        raise ValueError("a name is no text")
    return tuple(parts)


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < _MOST_ROWS:
        raise ValueError("a number in it is none")
    return n


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _shown_writer(said: Any) -> str:
    writer = said.get("written_by")
    writer = writer.get("logax") if isinstance(writer, dict) else None
    return f" ({writer})" if isinstance(writer, str) and len(writer) < 40 else ""


def _told(error: Exception) -> str:
    return str(error) if type(error) is ValueError else type(error).__name__
