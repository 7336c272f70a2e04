"""Import optional packages on use."""

from __future__ import annotations

import importlib
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
