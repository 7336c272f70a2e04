"""Which logs a harvest takes: by name, by tag, or all that do not ask to be named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from logax._checks import as_names, as_text
from logax._compat import Array
from logax._entries import Entry, LogSpec
from logax._logdict import matches

Names = str | Iterable[str] | None


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `argnames` and `tags` choose; `prefix` goes in front of every chosen key."""

    argnames: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    prefix: str = ""

    @staticmethod
    def of(argnames: Names, tags: Names, prefix: str = "") -> Choice:
        """The choice that these options make, checked."""
        names = as_names("argnames", argnames)
        return Choice(names, as_names("tags", tags), as_text("prefix", prefix))

    def split(
        self, spec: LogSpec, operands: Sequence[Any], takes: Callable[[str], bool] = lambda _: True
    ) -> tuple[Part, Part]:
        """The chosen part of a log, and the rest, with what each has of the operands.

        `takes` is asked about the key, prefix and all, of what would be chosen.
        """
        chosen, rest = Part(spec), Part(spec)
        at = 0
        for entry in spec.entries:
            own = operands[at : at + len(entry.leaves)]
            at += len(entry.leaves)
            here = takes(self.prefix + entry.key)
            taken = [here and self._takes(spec, entry, leaf.name) for leaf in entry.leaves]
            if not entry.leaves:
                taken_whole = here and self._takes(spec, entry, entry.key)
                (chosen if taken_whole else rest).add(entry, [])
            for part, wanted in ((chosen, True), (rest, False)):
                pairs = [
                    (f, x) for f, x, t in zip(entry.leaves, own, taken, strict=True) if t == wanted
                ]
                if pairs:
                    leaves, arrays = zip(*pairs, strict=True)
                    part.add(dataclasses.replace(entry, leaves=leaves), arrays)
        steps = list(operands[at:])
        chosen.steps, rest.steps = steps, steps
        chosen.entries = [dataclasses.replace(e, key=self.prefix + e.key) for e in chosen.entries]
        return chosen, rest

    def _takes(self, spec: LogSpec, entry: Entry, name: str) -> bool:
        if self.argnames is None and self.tags is None:
            return not spec.explicit
        by_tag = self.tags is None or any(tag in spec.tags for tag in self.tags)
        by_name = self.argnames is None or any(
            matches(text, self.argnames) for text in (entry.key, name)
        )
        return by_tag and by_name


def leave(
    bind: Callable[[Sequence[Any], LogSpec], None],
    args: Sequence[Array],
    spec: LogSpec,
    rest: Part,
    keep_logs: bool,
) -> None:
    """Bind for an outer harvest what this one does not take, or with `keep_logs` all of it."""
    if keep_logs:
        bind(args, spec)
    elif rest.entries:
        bind(rest.flat(), rest.as_spec())


class Part:
    """Some entries of a log with their operands."""

    def __init__(self, spec: LogSpec) -> None:
        self.spec = spec
        self.entries: list[Entry] = []
        self.operands: list[list[Any]] = []
        self.steps: list[Array] = []

    def add(self, entry: Entry, operands: Iterable[Any]) -> None:
        """Take in one entry."""
        self.entries.append(entry)
        self.operands.append(list(operands))

    def apart(self) -> Iterator[Part]:
        """Each entry by itself."""
        for entry, operands in zip(self.entries, self.operands, strict=True):
            one = Part(self.spec)
            one.add(entry, operands)
            one.steps = self.steps
            yield one

    def flat(self) -> list[Any]:
        """The operands of a log of this part alone."""
        return [x for own in self.operands for x in own] + self.steps

    def as_spec(self) -> LogSpec:
        """What such a log says of itself."""
        return dataclasses.replace(self.spec, entries=tuple(self.entries))
