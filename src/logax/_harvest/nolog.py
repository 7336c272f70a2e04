"""`nolog`: a function with every log inside it silenced.

While the function is traced the context is off, so none of its logs is bound. Its derivative
rules, though, run later, wherever somebody differentiates; so the walker gives every function
with a custom rule one that is silent too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from logax._compat import Array
from logax._harvest.call import Harvested
from logax._harvest.harvest import Frame, Silent
from logax._harvest.tracing import Harvester, Traced
from logax._harvest.walker import walk
from logax._log import silence


def nolog(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with every log inside it silenced, whatever harvest is outside.

    Its derivative rules are silenced with it. Results and gradients are those of `fun`.
    """
    return Harvested(fun, _HARVESTER, None)


def _silenced(traced: Traced, options: None) -> tuple[Sequence[Array], None]:
    return walk(Frame(_Quiet(), {}, {}), traced.jaxpr, traced.args), None


class _Quiet(Silent):
    """Drops every log, and looks at all that has a rule of its own."""

    def concerns_primitive(self, name: str) -> bool:
        return name.startswith("custom_") or super().concerns_primitive(name)

    def rule_context(self) -> AbstractContextManager[None]:
        return silence()

    outer_context = rule_context


_HARVESTER = Harvester("nolog", _silenced, bind_logs=False)
