"""Write the public names and signatures of logax to tests/public_api.txt.

    python tools/public_api.py

A test compares the file with the package, so that a change of the public API is seen in the diff of
a commit. Needs an environment with logax.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "tests" / "public_api.txt"
MODULES = ("", ".loggers", ".loop", ".storage", ".iterations", ".testing")
SPECIAL_METHODS = ("__call__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__")


def describe_signature(value: Any) -> str:
    """Return the parameters of a function or class, with defaults and without annotations."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # built-in classes have none
        return "(...)"
    parameters = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    text = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return re.sub(r"<(?:function )?([\w.]+)[^>]* at 0x\w+>", r"<\1>", str(text))


def describe_members(name: str, cls: type) -> Iterator[str]:
    """Yield the public methods and properties that a class of this package defines or inherits."""
    for member in sorted(dir(cls)):
        owner = next((each for each in cls.__mro__ if member in vars(each)), object)
        is_public = not member.startswith("_") or member in SPECIAL_METHODS
        if not is_public or not owner.__module__.startswith("logax"):
            continue
        value = inspect.getattr_static(cls, member)
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if inspect.isfunction(value):
            yield f"{name}.{member}{describe_signature(value)}"
        else:
            yield f"{name}.{member}"


def describe_package() -> str:
    """Return one line per public name, method and property."""
    lines = []
    for suffix in MODULES:
        module = importlib.import_module(f"logax{suffix}")
        for attribute in sorted(module.__all__):
            value, name = getattr(module, attribute), f"logax{suffix}.{attribute}"
            if inspect.isclass(value):
                lines += [
                    f"class {name}{describe_signature(value)}",
                    *describe_members(name, value),
                ]
            elif callable(value):
                lines.append(f"{name}{describe_signature(value)}")
            else:
                lines.append(name)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the file."""
    FILE.write_text(describe_package())
    return 0


if __name__ == "__main__":
    sys.exit(main())
