"""Import on use: optional packages, and the modules behind the public names of a package."""

from __future__ import annotations

import importlib
import os
import sys
import threading
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


class _ImportLock:
    """A lock for lazy imports, replaced in forked processes.

    The modules of JAX import each other in circles, which fails if several threads start at once.
    """

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"):  # pragma: no branch - not on every system
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        self._lock = threading.RLock()

    def get(self) -> threading.RLock:
        return self._lock


_import_lock = _ImportLock()


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
        if name not in module_of and name not in subpackages:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _import_lock.get():
            if name in module_of:
                value = getattr(importlib.import_module(module_of[name]), name)
            else:
                value = importlib.import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, value)  # the next use does not come here
        return value

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of, *subpackages})

    return get_attribute, list_attributes, sorted(module_of)
