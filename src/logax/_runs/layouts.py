"""What the records of one `log` call look like: its keys, their trees, arrays and steps.

As JSON, `{"keys": [key, ...], "steps": [step, ...], "site": text, "tags": [text, ...]}` with

    key     [name, outline, shows, arrays]: the tree as `logax.storage` outlines it, what each of
            its leaves is ("" for an array, "histogram", "image"), and the arrays of all leaves
    array   [type, axes that the stored array has in addition, shape of one record]
    step    [name, and what an array has]

Trees come back as dictionaries, lists and tuples: an object with attributes is a dictionary.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from logax._media import HistogramBins, ImagePixels
from logax._runs.errors import RunsError
from logax._runs.format import Plan, planned
from logax._serialization.dtypes import Kind, StorageError, kind_named, kind_of
from logax._serialization.trees import Node, checked, count_of, filled, outlined

_SHOWN: dict[str, tuple[Any, int]] = {"histogram": (HistogramBins, 3), "image": (ImagePixels, 1)}
_MOST_PLANS = 256  # that a layout remembers
_MOST = 2**48  # bytes of one record, and the length of an axis: more is no shape


def number_of_arrays(show: str) -> int:
    """How many arrays a leaf has: one, or as many as what it shows is made of."""
    return _SHOWN[show][1] if show else 1


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array: the type of its numbers and the shape of one record."""

    kind: Kind
    shape: tuple[int, ...]

    @functools.cached_property
    def size(self) -> int:
        """The bytes of one record."""
        return math.prod((*self.shape, *self.kind.more)) * self.kind.stored.itemsize

    def numbers(self, data: Any, rows: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Stored bytes as an array: PRNG keys as their numbers, all else as it was."""
        stored = np.frombuffer(data, self.kind.stored)
        if self.kind.is_key:
            return stored.reshape(*rows, *self.shape, *self.kind.more)
        true: np.ndarray[Any, Any] = self.kind.to_true(stored, (*rows, *self.shape))
        return true

    def restored(self, numbers: np.ndarray[Any, Any]) -> Any:
        """The array as it was logged."""
        if not self.kind.is_key:
            return numbers
        try:
            return self.kind.to_true(numbers, numbers.shape[: -len(self.kind.more)])
        except StorageError as error:
            raise RunsError(str(error)) from error


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    """One key: its tree, what its leaves are, and their arrays."""

    name: str
    outline: Node
    shows: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    def filled(self, arrays: Sequence[Any]) -> Any:
        """The tree of these arrays, with histograms and images as such."""
        given = iter(arrays)

        def leaf(show: str) -> Any:
            if not show:
                return next(given)
            made, number = _SHOWN[show]
            return made(*itertools.islice(given, number))

        return filled(self.outline, map(leaf, self.shows), namespace=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """All keys and steps of one `log` call, and where it stands."""

    keys: tuple[Key, ...]
    steps: tuple[tuple[str, Leaf], ...]
    site: str
    tags: tuple[str, ...]

    @functools.cached_property
    def places(self) -> dict[str, tuple[int, Key]]:
        """By name each key, and the number of the first of its arrays."""
        found, at = {}, 0
        for key in self.keys:
            found[key.name] = at, key
            at += len(key.leaves)
        return found

    @functools.cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The arrays of all keys."""
        return tuple(leaf for key in self.keys for leaf in key.leaves)

    @functools.cached_property
    def _plans(self) -> dict[tuple[int, ...], Plan]:
        return {}

    def plan(self, streams: int, records: int, ragged: int, alike: int) -> Plan:
        """Where the arrays of a portion stand."""
        which = streams, records, ragged, alike
        if which not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            steps = [
                records * leaf.size * (1 if alike >> at & 1 else streams)
                for at, (_, leaf) in enumerate(self.steps)
            ]
            leaves = [streams * records * leaf.size for leaf in self.leaves]
            self._plans[which] = planned([4 * streams] * ragged + steps + leaves)
        return self._plans[which]


def layout_of(
    values: Mapping[str, Any], steps: Mapping[str, Any], site: str, tags: tuple[str, ...]
) -> tuple[Layout, str]:
    """The layout of a portion, and the same as JSON.

    Raises:
      TypeError: Something in it cannot be stored.
    """
    keys = tuple(_key_of(name, value) for name, value in values.items())
    columns = tuple((name, _leaf_of(name, step)) for name, step in steps.items())
    content = {
        "keys": [
            [key.name, key.outline, key.shows, [*map(_leaf_as_json, key.leaves)]] for key in keys
        ],
        "steps": [[name, *_leaf_as_json(leaf)] for name, leaf in columns],
        "site": site,
        "tags": tags,
    }
    return Layout(keys, columns, site, tuple(tags)), json.dumps(content, separators=(",", ":"))


def _key_of(name: str, value: Any) -> Key:
    shown = tuple(kind for kind, _ in _SHOWN.values())
    outline, found = outlined(value, lambda x: isinstance(x, shown))
    shows = tuple(
        next((show for show, (kind, _) in _SHOWN.items() if isinstance(leaf, kind)), "")
        for _, leaf in found
    )
    arrays = jax.tree.leaves([leaf for _, leaf in found])
    return Key(name, outline, shows, tuple(_leaf_of(name, array) for array in arrays))


def _leaf_of(name: str, array: Any) -> Leaf:
    kind = kind_of(array)
    if kind is None:
        raise TypeError(
            f"`SaveLogger` cannot store {name[:80]!r}, an array of {array.dtype}. It takes numbers "
            "and truth values of all widths, texts, times and PRNG keys."
        )
    return Leaf(kind, tuple(array.shape[2:]))


def _leaf_as_json(leaf: Leaf) -> list[Any]:
    return [leaf.kind.name, leaf.kind.more, leaf.shape]


def layout_from(content: Any) -> Layout:
    """The layout that a file says, or a ValueError."""
    found = json.loads(content)
    if not (isinstance(found, dict) and found.keys() == {"keys", "steps", "site", "tags"}):
        raise ValueError("a layout is not one")
    keys = tuple(_key_from(*_items(each, 4)) for each in _listed(found["keys"]))
    steps = tuple(_step_from(*_items(each, 4)) for each in _listed(found["steps"]))
    tags = tuple(_text(tag) for tag in _listed(found["tags"]))
    if len({key.name for key in keys}) < len(keys) or len(dict(steps)) < len(steps):
        raise ValueError("a layout has a key or a step twice")
    return Layout(keys, steps, _text(found["site"]), tags)


def _key_from(name: Any, outline: Any, shows: Any, arrays: Any) -> Key:
    leaves = tuple(_leaf_from(*_items(each, 3)) for each in _listed(arrays))
    shows = tuple(_text(show) for show in _listed(shows))
    if not all(show in ("", *_SHOWN) for show in shows):
        raise ValueError("a layout shows something unknown")
    number = sum(map(number_of_arrays, shows))
    if number != len(leaves) or count_of(checked(outline)) != len(shows):
        raise ValueError("a layout has another number of arrays than its tree")
    return Key(_text(name), outline, shows, leaves)


def _step_from(name: Any, kind: Any, more: Any, shape: Any) -> tuple[str, Leaf]:
    leaf = _leaf_from(kind, more, shape)
    if leaf.kind.is_key or not jnp.issubdtype(leaf.kind.true, jnp.number):
        raise ValueError("a layout has a step that is no number")
    return _text(name), leaf


def _leaf_from(kind: Any, more: Any, shape: Any) -> Leaf:
    leaf = Leaf(kind_named(_text(kind), _shape(more)), _shape(shape))
    if math.prod(n or 1 for n in (*leaf.shape, leaf.kind.stored.itemsize)) > _MOST:
        raise ValueError("a layout has a record of absurd size")
    return leaf


def _shape(shape: Any) -> tuple[int, ...]:
    if not all(type(n) is int and 0 <= n < _MOST for n in _listed(shape)) or len(shape) > 32:
        raise ValueError("a layout has a shape that is none")
    return tuple(shape)


def _items(items: Any, number: int) -> list[Any]:
    if len(_listed(items)) != number:
        raise ValueError("a layout has a part that is none")
    return list(items)


def _listed(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise ValueError("a layout has a part that is no list")
    return items


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("a layout has a name that is no text")
    return text
