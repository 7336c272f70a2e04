"""Packages that are not required, imported when something needs them."""

from __future__ import annotations

import importlib
from typing import Any


def imported(module: str, what: str, extra: str | None = None) -> Any:
    """The module, or an error that says what needs it and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"`{what}` needs {package}, which is not installed. "
            f'Write `pip install "logax[{extra or package}]"`.'
        ) from error
