"""What to store of a state, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from logax._schedule import Schedule, as_schedule
from logax._serialization.trees import Node, Parts, outlined
from logax._support.messages import received
from logax.loop._base import checked_view

State = TypeVar("State")
Storage = TypeVar("Storage")


@dataclasses.dataclass(frozen=True)
class WriterGroupConfig(Generic[State, Storage]):
    """One group of a trajectory: what is stored of the state, and when.

        WriterGroupConfig(lambda state: {"energy": state.energy}, EveryNStep(10))

    Attributes:
      view: A function of the state that gives a pytree of arrays, always of the same structure,
        shapes and types. It is compiled, and so must depend on nothing but the state.
      logging_frequency: When: a schedule, or a number n for every n-th step. `Once()` gives arrays
        without an axis for the steps.
    """

    view: Callable[[State], Storage]
    logging_frequency: int | Schedule = 1

    def __post_init__(self) -> None:
        checked_view("WriterGroupConfig", self.view)
        schedule = as_schedule(self.logging_frequency, "The schedule of `WriterGroupConfig`")
        object.__setattr__(self, "logging_frequency", schedule)


def groups_of(config: Any) -> tuple[Node, list[tuple[Parts, WriterGroupConfig[Any, Any]]]]:
    """The outline of a configuration, and its groups, in order.

    Those of other libraries count too, if they have a view and a schedule under the same names.
    """
    outline, found = outlined(config, _is_group)
    for parts, leaf in found:
        if not _is_group(leaf):
            where = f"`{'/'.join(parts)}`" if parts else "the configuration"
            hint = "Write `WriterGroupConfig(view, schedule)`"
            if isinstance(leaf, type) and dataclasses.is_dataclass(leaf):
                hint = f"Write `{leaf.__name__}(...)`, an object and not the class"
            elif callable(leaf):
                hint = "Write `WriterGroupConfig(view, EveryNStep(10))` with that function as view"
            raise TypeError(
                "`HDF5StorageWriter` takes a configuration of `WriterGroupConfig`s, and "
                f"{where} is {received(leaf)}. {hint}."
            )
    if not found:
        raise ValueError(
            "`HDF5StorageWriter` got a configuration without a `WriterGroupConfig`. Write "
            '`{"frames": WriterGroupConfig(view, EveryNStep(10))}`.'
        )
    return outline, [(parts, _own(leaf)) for parts, leaf in found]


def _is_group(x: Any) -> bool:
    return not isinstance(x, type) and hasattr(x, "view") and hasattr(x, "logging_frequency")


def _own(group: Any) -> WriterGroupConfig[Any, Any]:
    if isinstance(group, WriterGroupConfig):
        return group
    return WriterGroupConfig(group.view, group.logging_frequency)
