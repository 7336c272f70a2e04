"""An equinox model whose methods log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx

import logax

TRACES: list[str] = []  # the methods that were traced


class Net(eqx.Module):
    """Arrays, a function, a string and a static field; its methods log."""

    weight: Any
    activation: Callable[[Any], Any]
    name: str
    times: int = eqx.field(static=True)

    def __call__(self, x: Any) -> Any:
        TRACES.append("call")
        for i in range(self.times):
            x = self.weight * x
            logax.log({self.name: x}, step=i)
        return self.activation(x).sum()

    def halved(self, x: Any) -> Any:
        TRACES.append("halved")
        logax.log({"halved": self.weight * x / 2})
        return self.weight * x / 2

    @eqx.filter_jit
    def jitted(self, x: Any) -> Any:
        return self(x)
