"""How fast runs advance."""

from __future__ import annotations

import collections

_SAMPLES = 40


class Pace:
    """How fast something advances: lately while it goes on, and all in all.

    Args:
      now: When it began.
    """

    def __init__(self, now: float) -> None:
        self.began = now
        self._total = 0.0
        self._last = 0.0
        self._seen: collections.deque[tuple[float, float]] = collections.deque(maxlen=_SAMPLES)

    def see(self, now: float, advanced: float) -> None:
        """It has advanced so far now; what goes back has begun again."""
        self._total += max(advanced - self._last, 0.0)
        self._last = advanced
        self._seen.append((now, self._total))

    def lately(self) -> float | None:
        """A second, over the last few times that were seen; overall if there was but one."""
        return _rate(self._seen[0], self._seen[-1]) if len(self._seen) > 1 else self.overall()

    def overall(self) -> float | None:
        """A second, from the beginning on."""
        return _rate((self.began, 0.0), self._seen[-1]) if self._seen else None


def _rate(a: tuple[float, float], b: tuple[float, float]) -> float | None:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] and b[1] > a[1] else None
