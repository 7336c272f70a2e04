"""Import on use: optional packages, and the modules behind the public names of a package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def import_optional(module: str, what: str, extra: str | None = None) -> Any:
    """Import a module of an optional package.

    Args:
      module: Name of the module.
      what: Function or class that needs it, for the error.
      extra: Extra of logax that installs the package; by default the name of the package.

    Raises:
      ImportError: The package is not installed. The message names the `pip install` to run.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"`{what}` needs {package}, which is not installed. "
            f'Write `pip install "logax[{extra or package}]"`.'
        ) from error


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
