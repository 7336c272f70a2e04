"""Layout of the records of one `log` call: its keys, their trees and arrays, and its steps.

A file stores a layout as JSON: `{"keys": [key, ...], "steps": [step, ...], "site": text, "tags":
[text, ...]}`, with

    key     [name, outline, media kinds, arrays]: the outline of the tree (see `_serialization`),
            the kind of each leaf ("" for an array, "histogram", "image"), and the arrays of all
            leaves
    array   [type, extra axes of the stored array, shape of one record]
    step    [name, type, extra axes, shape]

Trees come back as dictionaries, lists and tuples; an object with attributes becomes a dictionary.
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
from logax._runs.format import StoragePlan, plan_storage
from logax._serialization.dtypes import StorageError, StoredType, parse_stored_type, stored_type_of
from logax._serialization.trees import Node, build_tree, leaf_count, outline_tree, validate_outline

_MEDIA: dict[str, tuple[Any, int]] = {"histogram": (HistogramBins, 3), "image": (ImagePixels, 1)}
_MAX_CACHED_PLANS = 256  # per layout
_MAX_RECORD_BYTES = 2**48
_MAX_AXIS_LENGTH = 2**48
_MAX_AXES = 32


def number_of_arrays(media_kind: str) -> int:
    """Return the number of arrays that a leaf of this kind has."""
    return _MEDIA[media_kind][1] if media_kind else 1


@dataclasses.dataclass(frozen=True)
class StoredLeaf:
    """Type and shape of one record of an array.

    Attributes:
      kind: Type of the elements, in memory and in the file.
      shape: Shape of one record.
    """

    kind: StoredType
    shape: tuple[int, ...]

    @functools.cached_property
    def size(self) -> int:
        """Number of bytes of one record."""
        return math.prod((*self.shape, *self.kind.extra_axes)) * self.kind.stored_dtype.itemsize

    def from_bytes(self, data: Any, rows: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return stored bytes as an array of shape (*rows, *shape); PRNG keys as their key data."""
        stored = np.frombuffer(data, self.kind.stored_dtype)
        if self.kind.is_key:
            return stored.reshape(*rows, *self.shape, *self.kind.extra_axes)
        decoded: np.ndarray[Any, Any] = self.kind.decode(stored, (*rows, *self.shape))
        return decoded

    def to_logged(self, numbers: np.ndarray[Any, Any]) -> Any:
        """Return an array as it was logged: key data as typed PRNG keys."""
        if not self.kind.is_key:
            return numbers
        try:
            return self.kind.decode(numbers, numbers.shape[: -len(self.kind.extra_axes)])
        except StorageError as error:
            raise RunsError(str(error)) from error


@dataclasses.dataclass(frozen=True, eq=False)
class KeyLayout:
    """Tree of the values of one key.

    Attributes:
      name: The key.
      outline: Outline of the tree.
      media_kinds: Kind of each leaf: "" for an array, "histogram" or "image".
      leaves: Arrays of all leaves; a histogram has several.
    """

    name: str
    outline: Node
    media_kinds: tuple[str, ...]
    leaves: tuple[StoredLeaf, ...]

    def build_tree(self, arrays: Sequence[Any]) -> Any:
        """Return the tree of these arrays, with histograms and images as such."""
        remaining = iter(arrays)

        def leaf(media_kind: str) -> Any:
            if not media_kind:
                return next(remaining)
            media, number = _MEDIA[media_kind]
            return media(*itertools.islice(remaining, number))

        return build_tree(self.outline, map(leaf, self.media_kinds), namespace=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class LogLayout:
    """All keys and steps of one `log` call.

    Attributes:
      keys: Layouts of the keys.
      steps: Names of the steps, each with the array that holds it.
      site: File and line of the call.
      tags: Tags of the call.
    """

    keys: tuple[KeyLayout, ...]
    steps: tuple[tuple[str, StoredLeaf], ...]
    site: str
    tags: tuple[str, ...]

    @functools.cached_property
    def keys_by_name(self) -> dict[str, tuple[int, KeyLayout]]:
        """Layout of each key by its name, with the number of its first array."""
        found, at = {}, 0
        for key in self.keys:
            found[key.name] = at, key
            at += len(key.leaves)
        return found

    @functools.cached_property
    def leaves(self) -> tuple[StoredLeaf, ...]:
        """Arrays of all keys."""
        return tuple(leaf for key in self.keys for leaf in key.leaves)

    @functools.cached_property
    def _plan_cache(self) -> dict[tuple[int, ...], StoragePlan]:
        return {}

    def plan(self, streams: int, records: int, ragged: int, shared_steps: int) -> StoragePlan:
        """Return the location of each array of a batch.

        Args:
          streams: Number of streams.
          records: Maximum number of records of a stream.
          ragged: 1 if some streams have fewer records, and the batch stores their counts.
          shared_steps: Bit `i` is set if all streams have the same step `i`.
        """
        which = streams, records, ragged, shared_steps
        if which not in self._plan_cache:
            if len(self._plan_cache) >= _MAX_CACHED_PLANS:
                self._plan_cache.clear()
            steps = [
                records * leaf.size * (1 if shared_steps >> at & 1 else streams)
                for at, (_, leaf) in enumerate(self.steps)
            ]
            leaves = [streams * records * leaf.size for leaf in self.leaves]
            self._plan_cache[which] = plan_storage([4 * streams] * ragged + steps + leaves)
        return self._plan_cache[which]


def layout_of(
    values: Mapping[str, Any], steps: Mapping[str, Any], site: str, tags: tuple[str, ...]
) -> tuple[LogLayout, str]:
    """Return the layout of a batch, and the same as JSON.

    Raises:
      TypeError: A value cannot be stored.
    """
    keys = tuple(_key_of(name, value) for name, value in values.items())
    columns = tuple((name, _leaf_of(name, step)) for name, step in steps.items())
    content = {
        "keys": [
            [key.name, key.outline, key.media_kinds, [*map(_leaf_as_json, key.leaves)]]
            for key in keys
        ],
        "steps": [[name, *_leaf_as_json(leaf)] for name, leaf in columns],
        "site": site,
        "tags": tags,
    }
    return LogLayout(keys, columns, site, tuple(tags)), json.dumps(content, separators=(",", ":"))


def _key_of(name: str, value: Any) -> KeyLayout:
    shown = tuple(kind for kind, _ in _MEDIA.values())
    outline, found = outline_tree(value, lambda x: isinstance(x, shown))
    media_kinds = tuple(
        next((media_kind for media_kind, (kind, _) in _MEDIA.items() if isinstance(leaf, kind)), "")
        for _, leaf in found
    )
    arrays = jax.tree.leaves([leaf for _, leaf in found])
    return KeyLayout(name, outline, media_kinds, tuple(_leaf_of(name, array) for array in arrays))


def _leaf_of(name: str, array: Any) -> StoredLeaf:
    kind = stored_type_of(array)
    if kind is None:
        raise TypeError(
            f"`SaveLogger` cannot store {name[:80]!r}, an array of {array.dtype}. It stores "
            "numbers and booleans of all widths, strings, times and PRNG keys."
        )
    return StoredLeaf(kind, tuple(array.shape[2:]))


def _leaf_as_json(leaf: StoredLeaf) -> list[Any]:
    return [leaf.kind.name, leaf.kind.extra_axes, leaf.shape]


def parse_layout(content: Any) -> LogLayout:
    """Parse a layout from a file, or raise ValueError."""
    found = json.loads(content)
    if not (isinstance(found, dict) and found.keys() == {"keys", "steps", "site", "tags"}):
        raise ValueError("a layout does not have the four parts of a layout")
    keys = tuple(_key_from(*_items(each, 4)) for each in _listed(found["keys"]))
    steps = tuple(_step_from(*_items(each, 4)) for each in _listed(found["steps"]))
    tags = tuple(_text(tag) for tag in _listed(found["tags"]))
    if len({key.name for key in keys}) < len(keys) or len(dict(steps)) < len(steps):
        raise ValueError("a layout has a key or a step twice")
    return LogLayout(keys, steps, _text(found["site"]), tags)


def _key_from(name: Any, outline: Any, media_kinds: Any, arrays: Any) -> KeyLayout:
    leaves = tuple(_leaf_from(*_items(each, 3)) for each in _listed(arrays))
    media_kinds = tuple(_text(media_kind) for media_kind in _listed(media_kinds))
    if not all(media_kind in ("", *_MEDIA) for media_kind in media_kinds):
        raise ValueError("a layout has a leaf of unknown kind")
    number = sum(map(number_of_arrays, media_kinds))
    if number != len(leaves) or leaf_count(validate_outline(outline)) != len(media_kinds):
        raise ValueError("a layout and its tree differ in their number of arrays")
    return KeyLayout(_text(name), outline, media_kinds, leaves)


def _step_from(name: Any, kind: Any, more: Any, shape: Any) -> tuple[str, StoredLeaf]:
    leaf = _leaf_from(kind, more, shape)
    if leaf.kind.is_key or not jnp.issubdtype(leaf.kind.dtype, jnp.number):
        raise ValueError("a layout has a step that is not a number")
    return _text(name), leaf


def _leaf_from(kind: Any, more: Any, shape: Any) -> StoredLeaf:
    leaf = StoredLeaf(parse_stored_type(_text(kind), _shape(more)), _shape(shape))
    if (
        math.prod(n or 1 for n in (*leaf.shape, leaf.kind.stored_dtype.itemsize))
        > _MAX_RECORD_BYTES
    ):
        raise ValueError("a layout has a record of impossible size")
    return leaf


def _shape(shape: Any) -> tuple[int, ...]:
    if (
        not all(type(n) is int and 0 <= n < _MAX_AXIS_LENGTH for n in _listed(shape))
        or len(shape) > _MAX_AXES
    ):
        raise ValueError("a layout has an impossible shape")
    return tuple(shape)


def _items(items: Any, number: int) -> list[Any]:
    if len(_listed(items)) != number:
        raise ValueError("a layout has a part of the wrong length")
    return list(items)


def _listed(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise ValueError("a layout has a part that is not a list")
    return items


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("a layout has a name that is not a string")
    return text
