"""Outlines of pytrees as JSON, and trees from outlines.

A node of an outline is a list of one or two elements:

    ["leaf"]                            the next leaf, in order
    ["none"]                            None
    ["list", [node, ...]]               also "tuple"
    ["dict", [[key, node], ...]]        a key is a string, a number, a boolean or null
    ["namespace", [[name, node], ...]]  a class with attributes: dataclasses, named tuples and all
                                        other pytrees of JAX

An outline names no class. A tree that is read back consists of built-in types, and of the user's
classes only where the user passes an example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import jax

from logax._compat import Tree

Node: TypeAlias = list[Any]
LeafPath: TypeAlias = tuple[str, ...]

_MAX_DEPTH = 100
_KEY_TYPES = (str, int, float, bool, type(None))


def outline_tree(
    tree: Tree, is_leaf: Callable[[Any], bool] = lambda x: False
) -> tuple[Node, list[tuple[LeafPath, Any]]]:
    """Return the outline of a tree, and its leaves with their paths, in order."""
    leaves: list[tuple[LeafPath, Any]] = []

    def walk(tree: Tree, parts: LeafPath) -> Node:
        if is_leaf(tree):
            leaves.append((parts, tree))
            return ["leaf"]
        if tree is None:
            return ["none"]
        kind, children = _children(tree)
        if kind == "leaf":
            leaves.append((parts, tree))
            return ["leaf"]
        if len(parts) >= _MAX_DEPTH:
            raise ValueError(f"A tree to be stored is nested more than {_MAX_DEPTH} deep.")
        nodes = [(key, walk(child, (*parts, str(key)))) for key, child in children]
        if kind in ("list", "tuple"):
            return [kind, [node for _, node in nodes]]
        return [kind, [[key, node] for key, node in nodes]]

    return walk(tree, ()), leaves


def _children(tree: Tree) -> tuple[str, list[tuple[Any, Any]]]:
    """Return the kind of the root of a tree, and its children by key."""
    if isinstance(tree, list | tuple) and not hasattr(tree, "_fields"):
        return "list" if isinstance(tree, list) else "tuple", list(enumerate(tree))
    if type(tree) is dict:
        return "dict", [(_validate_key(key), tree[key]) for key in _sort_keys(tree)]
    if jax.tree_util.all_leaves([tree]):
        if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            names = [field.name for field in dataclasses.fields(tree)]
            return "namespace", [(name, getattr(tree, name)) for name in names]
        return "leaf", []
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    keys = [path[0] for path, _ in found]
    children = [child for _, child in found]
    if isinstance(tree, dict):
        return "dict", [(_validate_key(key.key), x) for key, x in zip(keys, children, strict=True)]
    if all(isinstance(key, jax.tree_util.GetAttrKey) for key in keys) and keys:
        return "namespace", [(key.name, x) for key, x in zip(keys, children, strict=True)]
    if all(isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, str) for key in keys):
        return "dict", [(key.key, x) for key, x in zip(keys, children, strict=True)]
    return "tuple", list(enumerate(children))


def _validate_key(key: Any) -> Any:
    if not isinstance(key, _KEY_TYPES):
        raise TypeError(
            f"The key {key!r} of a dictionary cannot be stored. Use strings or numbers."
        )
    return key


def _sort_keys(keys: Iterable[Any]) -> list[Any]:
    """Return the keys in the order of JAX, which sorts them if it can."""
    try:
        return sorted(keys)
    except TypeError:
        return list(keys)


def validate_outline(node: Any, depth: int = 0) -> Node:
    """Return an outline from a file unchanged, or raise ValueError if it is not valid."""
    if not (isinstance(node, list) and node and isinstance(node[0], str)) or depth > _MAX_DEPTH:
        raise ValueError("a part of its outline is not valid")
    kind = node[0]
    if kind in ("leaf", "none") and len(node) == 1:
        return node
    if len(node) == 2 and isinstance(node[1], list):
        if kind in ("list", "tuple"):
            for child in node[1]:
                validate_outline(child, depth + 1)
            return node
        if kind in ("dict", "namespace"):
            kinds = _KEY_TYPES if kind == "dict" else (str,)
            for child in node[1]:
                if not (
                    isinstance(child, list) and len(child) == 2 and isinstance(child[0], kinds)
                ):
                    raise ValueError("a part of its outline has no name")
                validate_outline(child[1], depth + 1)
            return node
    raise ValueError(f"its outline has a part of the kind {kind[:40]!r}")


def children_of(node: Node) -> list[tuple[Any, Node]]:
    """Return the children of a node, each with its key, name or index."""
    if node[0] in ("leaf", "none"):
        return []
    if node[0] in ("list", "tuple"):
        return list(enumerate(node[1]))
    return [(key, child) for key, child in node[1]]


def leaf_count(node: Node) -> int:
    """Return the number of leaves."""
    return 1 if node[0] == "leaf" else sum(leaf_count(child) for _, child in children_of(node))


def leaf_paths(node: Node, parts: LeafPath = ()) -> Iterator[LeafPath]:
    """Yield the path of each leaf, in order."""
    if node[0] == "leaf":
        yield parts
    for key, child in children_of(node):
        yield from leaf_paths(child, (*parts, str(key)))


def build_tree(
    node: Node, leaves: Iterator[Any], namespace: Callable[..., Any] = SimpleNamespace
) -> Tree:
    """Return the tree of an outline, made of built-in types, with these leaves in order.

    `namespace` is called with the attributes of each class, and returns what replaces it.
    """
    if node[0] == "leaf":
        return next(leaves)
    if node[0] == "none":
        return None
    children = [(key, build_tree(child, leaves, namespace)) for key, child in children_of(node)]
    if node[0] == "dict":
        return dict(children)
    if node[0] == "namespace":
        return namespace(**dict(children))
    values = [value for _, value in children]
    return values if node[0] == "list" else tuple(values)


class PathRecorder:
    """Stand-in for a tree that records which part of it a function selects."""

    _logax_steps: tuple[Any, ...]

    def __init__(self, steps: tuple[Any, ...] = ()) -> None:
        self._logax_steps = steps

    def __getattr__(self, name: str) -> PathRecorder:
        if name.startswith("__"):
            raise AttributeError(name)
        return PathRecorder((*self._logax_steps, name))

    def __getitem__(self, key: Any) -> PathRecorder:
        return PathRecorder((*self._logax_steps, key))


def select_subtree(
    what: str, node: Node, where: Callable[[Any], Any]
) -> tuple[Node, int, LeafPath]:
    """Return the part that a function selects, the number of leaves before it, and its path.

    Raises:
      LookupError: The tree has no such part. The message begins with `what` and lists the parts.
      TypeError: The function does not return a part of its argument.
    """
    try:
        return _follow(node, where)
    except LookupError as error:
        raise LookupError(f"{what}: {error.args[0]}.") from None
    except TypeError as error:
        raise TypeError(f"{what}: {error}.") from error


def _follow(node: Node, where: Callable[[Any], Any]) -> tuple[Node, int, LeafPath]:
    found = where(PathRecorder())
    if not isinstance(found, PathRecorder):
        raise TypeError(
            "the function must return a part of what it is given, such as `lambda c: c.frames`, "
            f"and returned {found!r}"
        )
    before = 0
    parts: LeafPath = ()
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
        before += sum(leaf_count(child) for _, child in children[:at])
        node, parts = children[at][1], (*parts, str(names[at]))
    return node, before, parts


def _is_negative(step: Any) -> bool:
    return isinstance(step, int) and step < 0
