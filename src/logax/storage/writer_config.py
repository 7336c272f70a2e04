"""Configuration of a writer: the views of the state to store, and their schedules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from logax._schedule import Schedule, as_schedule
from logax._serialization.trees import LeafPath, Node, outline_tree
from logax._support.messages import describe_value
from logax.loop.protocol import validate_view

State = TypeVar("State")
Storage = TypeVar("Storage")


@dataclasses.dataclass(frozen=True)
class WriterGroupConfig(Generic[State, Storage]):
    """Describe one group of a trajectory: a view of the state, and the steps to store it at.

        WriterGroupConfig(lambda state: {"energy": state.energy}, EveryNStep(10))

    Attributes:
      view: Function from the state to a pytree of arrays and numbers. It must return the same
        structure, shapes and dtypes for every state. `HDF5StorageWriter` compiles it, so it must
        not depend on anything but its argument.
      logging_frequency: Schedule of the steps to store, or an integer n for every n-th step. With
        `Once()` the stored arrays have no axis for the steps.
    """

    view: Callable[[State], Storage]
    logging_frequency: int | Schedule = 1

    def __post_init__(self) -> None:
        validate_view("WriterGroupConfig", self.view)
        schedule = as_schedule(self.logging_frequency, "The schedule of `WriterGroupConfig`")
        object.__setattr__(self, "logging_frequency", schedule)


def flatten_config(config: Any) -> tuple[Node, list[tuple[LeafPath, WriterGroupConfig[Any, Any]]]]:
    """Return the outline of a configuration, and its groups in order.

    Group configurations of other libraries are accepted if they have the attributes `view` and
    `logging_frequency`.
    """
    outline, found = outline_tree(config, _is_group_config)
    for parts, leaf in found:
        if not _is_group_config(leaf):
            where = f"`{'/'.join(parts)}`" if parts else "the configuration"
            hint = "Write `WriterGroupConfig(view, schedule)`"
            if isinstance(leaf, type) and dataclasses.is_dataclass(leaf):
                hint = f"Write `{leaf.__name__}(...)`, an object and not the class"
            elif callable(leaf):
                hint = "Write `WriterGroupConfig(view, EveryNStep(10))` with that function as view"
            raise TypeError(
                "`HDF5StorageWriter` takes a configuration of `WriterGroupConfig`s, and "
                f"{where} is {describe_value(leaf)}. {hint}."
            )
    if not found:
        raise ValueError(
            "`HDF5StorageWriter` got a configuration without a `WriterGroupConfig`. Write "
            '`{"frames": WriterGroupConfig(view, EveryNStep(10))}`.'
        )
    return outline, [(parts, _as_group_config(leaf)) for parts, leaf in found]


def _is_group_config(x: Any) -> bool:
    return not isinstance(x, type) and hasattr(x, "view") and hasattr(x, "logging_frequency")


def _as_group_config(group: Any) -> WriterGroupConfig[Any, Any]:
    if isinstance(group, WriterGroupConfig):
        return group
    return WriterGroupConfig(group.view, group.logging_frequency)
