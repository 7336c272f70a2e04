"""Which logs a harvest takes: by name, by tag, or all that do not ask to be named.

What a harvest came across, and what it did not: names that match nothing, logs out of sight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from logax._compat import Array
from logax._log_spec import Entry, LogSpec
from logax._logdict.logdict import matches
from logax._support.messages import warn_user
from logax._support.validation import as_names, as_text

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


class Findings:
    """The logs that a harvest saw in a program."""

    def __init__(self) -> None:
        self._last: LogSpec | None = None
        self._names: set[tuple[str, str]] = set()
        self._sites: set[tuple[str, str]] = set()
        self._tags: set[str] = set()

    def add(self, spec: LogSpec) -> None:
        """Take in a log."""
        if spec is self._last:
            return
        self._last = spec
        self._names |= {(leaf.name, entry.key) for entry in spec.entries for leaf in entry.leaves}
        self._sites |= {(entry.key, spec.site) for entry in spec.entries}
        self._tags |= set(spec.tags)

    def warn(self, choice: Choice, ledger: Iterable[tuple[str, str]]) -> None:
        """Say what was asked for and is not there, and what is there and out of sight."""
        self.warn_of_names("argnames", choice.argnames or ())
        self._warn_of_tags(choice.tags or ())
        self._warn_of_losses(ledger)

    def warn_if_any(self, choice: Choice) -> None:
        """Say what was asked for and is not there, if there is anything at all."""
        if self._sites:
            self.warn(choice, ())

    def warn_of_names(self, option: str, patterns: Iterable[str]) -> None:
        """Say which patterns match no log."""
        for pattern in patterns:
            if not any(matches(name, [pattern]) for both in self._names for name in both):
                names = _enumerated({name for both in self._names for name in both})
                warn_user(
                    f"`{option}` has {pattern!r}, which matches no log. The names there are: "
                    f"{names}."
                )

    def _warn_of_tags(self, tags: Iterable[str]) -> None:
        """Say which tags no log has."""
        for tag in tags:
            if tag not in self._tags:
                warn_user(
                    f"`tags` has {tag!r}, which no log has. The tags there are: "
                    f"{_enumerated(self._tags)}."
                )

    def _warn_of_losses(self, ledger: Iterable[tuple[str, str]]) -> None:
        """Say which of the logs that were bound while tracing were not found afterwards."""
        for key, site in sorted(set(ledger) - self._sites):
            warn_user(
                f"`{key}`, logged at {site}, is lost: it was traced, but it is in no part of the "
                "program that a harvest can see. A primitive that hides its function, such as "
                "`lax.custom_root` or a linear solver of lineax, keeps it to itself, or a "
                "derivative rule runs in its place. Log outside of it."
            )


def _enumerated(names: set[str]) -> str:
    shown = [f"`{name}`" for name in sorted(names)]
    return ", ".join(shown[:30]) + (" and more" if len(shown) > 30 else "") or "none"
