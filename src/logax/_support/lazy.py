"""Re-export public names lazily: import the module of a name when the name is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]], subpackages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package.

    A stub beside the package lists the same names for type checkers.

    Args:
      package: Name of the package.
      modules: Names to export, by the module that defines them.
      subpackages: Subpackages that are imported when they are first used as attributes.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get_attribute(name: str) -> Any:
        if name in module_of:
            value = getattr(importlib.import_module(module_of[name]), name)
        elif name in subpackages:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of, *subpackages})

    return get_attribute, list_attributes, sorted(module_of)
