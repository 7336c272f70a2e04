"""What is read of a run, as a `logdict`, and what is said where that cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from logax._columns.views import listed
from logax._logdict import logdict
from logax._runs.columns import Column
from logax._runs.pieces import Cell, Piece
from logax._runs.source import Member
from logax._runs.tables import form

if TYPE_CHECKING:
    from logax._runs.run import Run


def cell_of(member: Member) -> Cell:
    """Where a stream stands among those of its run."""
    return member.lane if member.shard is None else (*member.lane, member.shard)


def as_logdict(columns: Mapping[str, Column]) -> logdict:
    """Columns with their steps, counts and sites."""
    steps: dict[str, dict[str, Any]] = {}
    count, rank = {}, {}
    for key, column in columns.items():
        for name, step in column.steps.items():
            steps.setdefault(name, {})[key] = step
        leaves = jax.tree.leaves(column.value)
        rank[key] = leaves[0].ndim - 1 - column.rank if leaves else 0
        if not (column.is_full and leaves):
            count[key] = column.counts
    return logdict(
        {key: column.value for key, column in columns.items()},
        steps=steps,
        count=count,
        site={key: column.site for key, column in columns.items()},
        rank=rank,
    )


def changed(key: str, groups: Sequence[Sequence[Piece]]) -> ValueError:
    """The error for a key whose records are not alike."""
    forms = [form(group[0].key, len(group[0].cells[0])) for group in groups]
    shown = ", then ".join(forms[:4]) + (", and so on" if len(forms) > 4 else "")
    return ValueError(
        f"The records of {key!r} cannot be one array, because they changed midway: {shown}. Write "
        f"`run.parts({key!r})` for a list of those that belong together."
    )


class Steps(Mapping[str, Mapping[str, Any]]):
    """The steps of a run by name; those of a key are read when they are asked for."""

    def __init__(self, run: Run, names: Mapping[str, Sequence[str]]) -> None:
        self._run, self._names = run, names

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._names:
            raise KeyError(
                f"{name!r} is no step of run {self._run.id}; there is {listed(self._names)}"
            )
        return _Step(self._run, name, self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        own = f"the steps {listed(self._names)}" if self._names else "no steps"
        return f"<{own} of run {self._run.id}>"


class _Step(Mapping[str, Any]):
    """One step by key."""

    def __init__(self, run: Run, name: str, keys: Sequence[str]) -> None:
        self._run, self._name, self._keys = run, name, keys

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(f"{key!r} has no step {self._name!r}; {listed(self._keys)} have it")
        return self._run.logdict(key).steps[self._name][key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<the step {self._name!r} of {listed(self._keys)} of run {self._run.id}>"
