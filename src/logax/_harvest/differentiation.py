"""Make a log run as often in a program that JAX differentiates as in the program itself.

A harvest around `grad` walks the program that JAX has made of the function. Where JAX's rules for
splitting a program would lose, add or repeat logs, `_compat.register_partial_eval` wraps them.
"""

from __future__ import annotations

from typing import Any

from logax import _compat
from logax._compat import Jaxpr
from logax._harvest.harvest import Frame, Silent
from logax._harvest.walker import walk
from logax._log import is_harvested, log_p


def _holds_log(jaxpr: Jaxpr) -> bool:
    return Silent().concerns_jaxpr(jaxpr)


def _silenced(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program without its logs."""

    def run(*args: Any) -> list[Any]:
        return walk(Frame(Silent(), {}, {}), jaxpr, args)

    return _compat.trace(run, *(v.aval for v in _compat.parts(jaxpr)[0].invars))[0]


_compat.register_partial_eval(_compat.Logs(log_p, is_harvested, _holds_log, _silenced))
