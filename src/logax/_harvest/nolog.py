"""`nolog`: silence every log inside a function.

While the function is traced, logs are off, so none is bound. Derivative rules run later, when a
caller differentiates the function. So the walker gives every function with a custom rule a rule
that is silent too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from logax._compat import Array
from logax._harvest.call import HarvestedFunction
from logax._harvest.harvest import Frame, SilentHarvest
from logax._harvest.tracing import Harvester, TracedFunction
from logax._harvest.walker import walk
from logax._log import disable_logs


def nolog(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Silence every log inside `fun`, for all harvests outside.

    Return a function with the arguments, the results and the gradients of `fun`. The logs in its
    derivative rules are silenced, too.
    """
    return HarvestedFunction(fun, _NOLOG_HARVESTER, None)


def _run_silently(traced: TracedFunction, options: None) -> tuple[Sequence[Array], None]:
    return walk(Frame(_NologHarvest(), {}, {}), traced.jaxpr, traced.args), None


class _NologHarvest(SilentHarvest):
    """Drops every log, and walks every function with a custom derivative or batching rule."""

    def concerns_primitive(self, name: str) -> bool:
        return name.startswith("custom_") or super().concerns_primitive(name)

    def rule_context(self) -> AbstractContextManager[None]:
        return disable_logs()

    outer_context = rule_context


_NOLOG_HARVESTER = Harvester("nolog", _run_silently, bind_logs=False)
