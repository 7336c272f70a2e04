"""Trees of dictionaries, lists, tuples and classes, as JSON and back.

A node of the outline is a list of one or two:

    ["leaf"]                      the next leaf, in order
    ["none"]                      None
    ["list", [node, ...]]         also "tuple"
    ["dict", [[key, node], ...]]  a key is a text, a number, a boolean or null
    ["namespace", [[name, node], ...]]  a class with attributes: dataclasses, named tuples and
                                  whatever else JAX knows as a pytree

Nothing in it names a class: what is read back is made of Python's own types, and of the user's
where an example of them is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import jax

from logax._compat import Tree

Node: TypeAlias = list[Any]
Parts: TypeAlias = tuple[str, ...]

_DEEPEST = 100
_KEYS = (str, int, float, bool, type(None))


def outlined(
    tree: Tree, is_leaf: Callable[[Any], bool] = lambda x: False
) -> tuple[Node, list[tuple[Parts, Any]]]:
    """The outline of a tree, and its leaves with where they stand, in order."""
    leaves: list[tuple[Parts, Any]] = []

    def walk(tree: Tree, parts: Parts) -> Node:
        if is_leaf(tree):
            leaves.append((parts, tree))
            return ["leaf"]
        if tree is None:
            return ["none"]
        kind, children = _children(tree)
        if kind == "leaf":
            leaves.append((parts, tree))
            return ["leaf"]
        if len(parts) >= _DEEPEST:
            raise ValueError(f"A tree to be stored is nested more than {_DEEPEST} deep.")
        nodes = [(key, walk(child, (*parts, str(key)))) for key, child in children]
        if kind in ("list", "tuple"):
            return [kind, [node for _, node in nodes]]
        return [kind, [[key, node] for key, node in nodes]]

    return walk(tree, ()), leaves


def _children(tree: Tree) -> tuple[str, list[tuple[Any, Any]]]:
    """What one level of a tree is, and what it holds."""
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return "list" if isinstance(tree, list) else "tuple", list(enumerate(tree))
    if type(tree) is dict:
        return "dict", [(_key(key), tree[key]) for key in _in_order(tree)]
    if jax.tree_util.all_leaves([tree]):
        if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            names = [field.name for field in dataclasses.fields(tree)]
            return "namespace", [(name, getattr(tree, name)) for name in names]
        return "leaf", []
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    keys = [path[0] for path, _ in found]
    children = [child for _, child in found]
    if isinstance(tree, dict):
        return "dict", [(_key(key.key), x) for key, x in zip(keys, children, strict=True)]
    if all(isinstance(key, jax.tree_util.GetAttrKey) for key in keys) and keys:
        return "namespace", [(key.name, x) for key, x in zip(keys, children, strict=True)]
    if all(isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, str) for key in keys):
        return "dict", [(key.key, x) for key, x in zip(keys, children, strict=True)]
    return "tuple", list(enumerate(children))


def _key(key: Any) -> Any:
    if not isinstance(key, _KEYS):
        raise TypeError(f"The key {key!r} of a dictionary cannot be stored; texts and numbers can.")
    return key


def _in_order(keys: Iterable[Any]) -> list[Any]:
    """The keys as JAX orders them, where it can."""
    try:
        return sorted(keys)
    except TypeError:
        return list(keys)


def checked(node: Any, depth: int = 0) -> Node:
    """An outline that comes from a file, or a ValueError."""
    if not (isinstance(node, list) and node and isinstance(node[0], str)) or depth > _DEEPEST:
        raise ValueError("a part of its outline is not one")
    kind = node[0]
    if kind in ("leaf", "none") and len(node) == 1:
        return node
    if len(node) == 2 and isinstance(node[1], list):
        if kind in ("list", "tuple"):
            for child in node[1]:
                checked(child, depth + 1)
            return node
        if kind in ("dict", "namespace"):
            kinds = _KEYS if kind == "dict" else (str,)
            for child in node[1]:
                if not (
                    isinstance(child, list) and len(child) == 2 and isinstance(child[0], kinds)
                ):
                    raise ValueError("a part of its outline has no name")
                checked(child[1], depth + 1)
            return node
    raise ValueError(f"its outline has a part of the kind {kind[:40]!r}")


def children_of(node: Node) -> list[tuple[Any, Node]]:
    """The parts of a node, each with its key, name or index."""
    if node[0] in ("leaf", "none"):
        return []
    if node[0] in ("list", "tuple"):
        return list(enumerate(node[1]))
    return [(key, child) for key, child in node[1]]


def count_of(node: Node) -> int:
    """The number of leaves."""
    return 1 if node[0] == "leaf" else sum(count_of(child) for _, child in children_of(node))


def parts_of(node: Node, parts: Parts = ()) -> Iterator[Parts]:
    """Where its leaves stand, in order."""
    if node[0] == "leaf":
        yield parts
    for key, child in children_of(node):
        yield from parts_of(child, (*parts, str(key)))


def filled(
    node: Node, leaves: Iterator[Any], namespace: Callable[..., Any] = SimpleNamespace
) -> Tree:
    """The tree, of Python's own types, with these leaves in order.

    What a class with attributes becomes is made by `namespace`, which is called with them.
    """
    if node[0] == "leaf":
        return next(leaves)
    if node[0] == "none":
        return None
    children = [(key, filled(child, leaves, namespace)) for key, child in children_of(node)]
    if node[0] == "dict":
        return dict(children)
    if node[0] == "namespace":
        return namespace(**dict(children))
    values = [value for _, value in children]
    return values if node[0] == "list" else tuple(values)


class Focus:
    """Stands for a tree in a function that picks a part of it, and notes which."""

    _logax_steps: tuple[Any, ...]

    def __init__(self, steps: tuple[Any, ...] = ()) -> None:
        self._logax_steps = steps

    def __getattr__(self, name: str) -> Focus:
        if name.startswith("__"):
            raise AttributeError(name)
        return Focus((*self._logax_steps, name))

    def __getitem__(self, key: Any) -> Focus:
        return Focus((*self._logax_steps, key))


def focused(what: str, node: Node, where: Callable[[Any], Any]) -> tuple[Node, int, Parts]:
    """The part that a function picks, how many leaves stand before it, and where it stands.

    Raises:
      LookupError: There is no such part. The message begins with `what`, and says what there is.
      TypeError: The function gives no part.
    """
    try:
        return _followed(node, where)
    except LookupError as error:
        raise LookupError(f"{what}: {error.args[0]}.") from None
    except TypeError as error:
        raise TypeError(f"{what}: {error}.") from error


def _followed(node: Node, where: Callable[[Any], Any]) -> tuple[Node, int, Parts]:
    found = where(Focus())
    if not isinstance(found, Focus):
        raise TypeError(
            "the function must return a part of what it is given, such as `lambda c: c.frames`, "
            f"and returned {found!r}"
        )
    before = 0
    parts: Parts = ()
    for step in found._logax_steps:
        children = children_of(node)
        names = [key for key, _ in children]
        wanted = step + len(names) if _is_negative(step) and node[0] in ("list", "tuple") else step
        at = next((i for i, key in enumerate(names) if key == wanted), None)
        if at is None:
            place = "/".join(parts) or "the top"
            if node[0] == "leaf":
                raise LookupError(f"{place} has no parts, and got {step!r}; index what is read")
            there = ", ".join(map(repr, names[:20])) or "nothing"
            raise LookupError(f"at {place} there is no {step!r}; there is {there}")
        before += sum(count_of(child) for _, child in children[:at])
        node, parts = children[at][1], (*parts, str(names[at]))
    return node, before, parts


def _is_negative(step: Any) -> bool:
    return isinstance(step, int) and step < 0
