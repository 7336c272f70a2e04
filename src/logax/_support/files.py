"""Files that are whole whenever somebody looks at them."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

from logax._support.messages import described, received


def as_path(what: str, name: str, path: Any) -> str:
    """The path that an option gives, or an error."""
    if isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str):
        return os.fspath(path)
    raise TypeError(f"`{what}` takes a path as `{name}`, and got {received(path)}.")


def check_place(what: str, path: str) -> None:
    """Raise where a file could not be written, as far as that can be seen."""
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


def part_beside(path: str) -> str:
    """A hidden name next to a file, for what is to become it."""
    return os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.part")


@contextlib.contextmanager
def replacing(what: str, path: str) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` at the end; on failure nothing is left."""
    check_place(what, path)
    whole = os.path.realpath(path)  # a link stays one
    part = part_beside(whole)
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, whole)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def make_folder(what: str, folder: str, takes: str, advice: str) -> None:
    """Make a folder, with those above it, or say why that cannot be."""
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"`{what}` takes {takes}, and {folder} is a file, or lies in one. {advice}"
        ) from error
    except PermissionError as error:
        raise PermissionError(f"`{what}` may not make the folder {folder}.") from error
    except (OSError, ValueError) as error:
        raise OSError(f"`{what}` cannot make the folder {folder!r}: {described(error)}") from error


def writable_folder(what: str, name: str, path: Any) -> str:
    """The folder that an option gives, made if it is not there, or an error."""
    folder = os.path.abspath(as_path(what, name, path))
    make_folder(what, folder, f"the path of a folder as `{name}`", "Give another path.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"`{what}` may not write to the folder {folder}.")
    return folder
