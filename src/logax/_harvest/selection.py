"""Select logs by name and tag, and warn about names, tags and logs that a harvest misses.

Without names and tags, a harvest selects every log that is not marked `explicit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from logax._compat import Array
from logax._log_spec import KeySpec, LogSpec
from logax._logdict.logdict import matches
from logax._support.messages import warn_user
from logax._support.validation import validate_names, validate_string

Names = str | Iterable[str] | None

MAX_NAMES_SHOWN = 30  # in a warning


@dataclasses.dataclass(frozen=True)
class Selection:
    """A selection of logs.

    Attributes:
      keys: Names or glob patterns; None for all names.
      tags: Tags, of which a log needs one; None for all logs.
      prefix: Text in front of every selected key.
      exclude: Names or glob patterns of logs that are not selected.
    """

    keys: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    prefix: str = ""
    exclude: tuple[str, ...] = ()

    @staticmethod
    def of(
        keys: Names,
        tags: Names,
        prefix: str = "",
        exclude: Names = None,
        argnames: Names = None,
    ) -> Selection:
        """Validate the options, and return their selection. `argnames` is an alias of `keys`."""
        if keys is not None and argnames is not None:
            raise TypeError(
                f"`argnames` is another name of `keys`, and both were given: {keys!r} and "
                f"{argnames!r}. Write `keys`."
            )
        return Selection(
            validate_names("keys", argnames if keys is None else keys),
            validate_names("tags", tags),
            validate_string("prefix", prefix),
            validate_names("exclude", exclude) or (),
        )

    def split(
        self, spec: LogSpec, operands: Sequence[Any], takes: Callable[[str], bool] = lambda _: True
    ) -> tuple[LogPart, LogPart]:
        """Split a log and its operands into the selected part and the rest.

        `takes` is a further condition on the key, prefix included.
        """
        chosen, rest = LogPart(spec), LogPart(spec)
        at = 0
        for entry in spec.entries:
            own = operands[at : at + len(entry.leaves)]
            at += len(entry.leaves)
            here = takes(self.prefix + entry.key)
            selected = [here and self._takes(spec, entry, leaf.name) for leaf in entry.leaves]
            if not entry.leaves:
                takes_entry = here and self._takes(spec, entry, entry.key)
                (chosen if takes_entry else rest).add(entry, [])
            for part, is_chosen in ((chosen, True), (rest, False)):
                pairs = [
                    (f, x)
                    for f, x, t in zip(entry.leaves, own, selected, strict=True)
                    if t == is_chosen
                ]
                if pairs:
                    leaves, arrays = zip(*pairs, strict=True)
                    part.add(dataclasses.replace(entry, leaves=leaves), arrays)
        steps = list(operands[at:])
        chosen.steps, rest.steps = steps, steps
        chosen.entries = [dataclasses.replace(e, key=self.prefix + e.key) for e in chosen.entries]
        return chosen, rest

    def _takes(self, spec: LogSpec, entry: KeySpec, name: str) -> bool:
        names = (entry.key, name)
        if any(matches(each, self.exclude) for each in names):
            return False
        if self.keys is None and self.tags is None:
            return not spec.explicit
        by_tag = self.tags is None or any(tag in spec.tags for tag in self.tags)
        return by_tag and (self.keys is None or any(matches(each, self.keys) for each in names))


def pass_to_outer(
    bind: Callable[[Sequence[Any], LogSpec], None],
    args: Sequence[Array],
    spec: LogSpec,
    rest: LogPart,
    keep_logs: bool,
) -> None:
    """Bind the part that this harvest does not select, or with `keep_logs` the whole log."""
    if keep_logs:
        bind(args, spec)
    elif rest.entries:
        bind(rest.flat_operands(), rest.to_spec())


class LogPart:
    """Some entries of a log with their operands."""

    def __init__(self, spec: LogSpec) -> None:
        self.spec = spec
        self.entries: list[KeySpec] = []
        self.operands: list[list[Any]] = []
        self.steps: list[Array] = []

    def add(self, entry: KeySpec, operands: Iterable[Any]) -> None:
        """Add one entry."""
        self.entries.append(entry)
        self.operands.append(list(operands))

    def split_entries(self) -> Iterator[LogPart]:
        """Yield each entry as a part."""
        for entry, operands in zip(self.entries, self.operands, strict=True):
            one = LogPart(self.spec)
            one.add(entry, operands)
            one.steps = self.steps
            yield one

    def flat_operands(self) -> list[Any]:
        """Return the operands of a log that consists of this part."""
        return [x for own in self.operands for x in own] + self.steps

    def to_spec(self) -> LogSpec:
        """Return the spec of a log that consists of this part."""
        return dataclasses.replace(self.spec, entries=tuple(self.entries))


class SeenLogs:
    """The logs that a harvest saw in a program."""

    def __init__(self) -> None:
        self._last: LogSpec | None = None
        self._names: set[tuple[str, str]] = set()
        self._sites: set[tuple[str, str]] = set()
        self._tags: set[str] = set()

    def add(self, spec: LogSpec) -> None:
        """Add a log."""
        if spec is self._last:
            return
        self._last = spec
        self._names |= {(leaf.name, entry.key) for entry in spec.entries for leaf in entry.leaves}
        self._names |= {(entry.key, entry.key) for entry in spec.entries}
        self._sites |= {(entry.key, spec.site) for entry in spec.entries}
        self._tags |= set(spec.tags)

    def warn(self, selection: Selection, bound_logs: Iterable[tuple[str, str]]) -> None:
        """Warn about names and tags that match no log, and about bound logs that were not seen."""
        self.warn_about_names("keys", selection.keys or ())
        self.warn_about_names("exclude", selection.exclude)
        self._warn_about_tags(selection.tags or ())
        self._warn_about_losses(bound_logs)

    def warn_if_any(self, selection: Selection) -> None:
        """Warn about names and tags that match no log, if there was any log."""
        if self._sites:
            self.warn(selection, ())

    def warn_about_names(self, option: str, patterns: Iterable[str]) -> None:
        """Warn about patterns that match no log."""
        for pattern in patterns:
            if not any(matches(name, [pattern]) for both in self._names for name in both):
                names = _enumerate_names({name for both in self._names for name in both})
                warn_user(
                    f"`{option}` has {pattern!r}, which matches no log. Names in the program: "
                    f"{names}."
                )

    def _warn_about_tags(self, tags: Iterable[str]) -> None:
        """Warn about tags that no log has."""
        for tag in tags:
            if tag not in self._tags:
                warn_user(
                    f"`tags` has {tag!r}, which no log has. Tags in the program: "
                    f"{_enumerate_names(self._tags)}."
                )

    def _warn_about_losses(self, bound_logs: Iterable[tuple[str, str]]) -> None:
        """Warn about logs that were bound while tracing and that the harvest did not see."""
        for key, site in sorted(set(bound_logs) - self._sites):
            warn_user(
                f"`{key}`, logged at {site}, is lost: it was traced, but it is in no part of the "
                "program that a harvest can see. A primitive that hides its function, such as "
                "`lax.custom_root` or a linear solver of lineax, contains it, or a derivative rule "
                "runs in its place. Log outside of it."
            )


def _enumerate_names(names: set[str]) -> str:
    shown = [f"`{name}`" for name in sorted(names)]
    return (
        ", ".join(shown[:MAX_NAMES_SHOWN]) + (" and more" if len(shown) > MAX_NAMES_SHOWN else "")
        or "none"
    )
