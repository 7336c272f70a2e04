"""Validate paths, create folders and replace files atomically."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

from logax._support.messages import describe_error, describe_value


def validate_path(what: str, name: str, path: Any) -> str:
    """Return a path-like option as a string, or raise a TypeError."""
    if isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str):
        return os.fspath(path)
    raise TypeError(f"`{what}` takes a path as `{name}`, and got {describe_value(path)}.")


def check_writable(what: str, path: str) -> None:
    """Raise an OSError if it is already clear that a file cannot be written to `path`."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"`{what}` writes to {path}, and there is no folder {folder}. Make it first."
        )
    if os.path.isdir(path):
        raise IsADirectoryError(f"`{what}` takes the path of a file, and {path} is a folder.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(f"`{what}` takes the path of a file, and {path} is something else.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"`{what}` may not write to the folder {folder}.")


def partial_path(path: str) -> str:
    """Return a unique hidden path in the same folder, for a file that will replace `path`."""
    return os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.part")


@contextlib.contextmanager
def open_atomic(what: str, path: str) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` at the end of the block.

    Readers see the old or the new file, never a part. If the block fails, the temporary file is
    removed and `path` is unchanged.
    """
    check_writable(what, path)
    target = os.path.realpath(path)  # so that a link stays a link
    part = partial_path(target)
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def make_folder(what: str, folder: str, takes: str, advice: str) -> None:
    """Create a folder and its parents.

    Args:
      what: Function or class that needs the folder, for errors.
      folder: Path of the folder.
      takes: Description of the option that gave the path, for errors.
      advice: Last sentence of the error for a path that is a file.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"`{what}` takes {takes}, and {folder} is a file, or lies in one. {advice}"
        ) from error
    except PermissionError as error:
        raise PermissionError(f"`{what}` may not make the folder {folder}.") from error
    except (OSError, ValueError) as error:
        raise OSError(
            f"`{what}` cannot make the folder {folder!r}: {describe_error(error)}"
        ) from error


def make_writable_folder(what: str, name: str, path: Any) -> str:
    """Create the folder that an option names, if necessary, and return its absolute path."""
    folder = os.path.abspath(validate_path(what, name, path))
    make_folder(what, folder, f"the path of a folder as `{name}`", "Give another path.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"`{what}` may not write to the folder {folder}.")
    return folder
