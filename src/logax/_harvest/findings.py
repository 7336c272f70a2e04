"""What a harvest came across, and what it did not: names that match nothing, logs out of sight."""

from __future__ import annotations

from collections.abc import Iterable

from logax._entries import LogSpec
from logax._errors import warn_user
from logax._harvest.choice import Choice
from logax._logdict import matches


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
