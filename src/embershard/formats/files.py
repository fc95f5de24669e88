"""What formats share: errors that name the file, files that appear whole, and packages imported only when needed."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from embershard.errors import InstallError, InvalidInput

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@contextmanager
def about(path: Path, done: str) -> Iterator[None]:
    """Whatever goes wrong inside is told as InvalidInput that begins with the path; `done` is "read" or "written"."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    except OSError as error:
        raise InvalidInput(f"{path}: can't be {done}: {error.strerror or error}") from error
    except MemoryError as error:
        raise InvalidInput(f"{path}: can't be {done}: it needs more memory than there is") from error


@contextmanager
def writing(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file that is written beside and renamed once complete, so that a reader sees all of it or nothing.

    Raises:
        InvalidInput: the path is taken, by a file unless it may be overwritten, or by something else.
    """
    _check(path, overwrite=overwrite)
    partial = _beside(path)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Whether a file can be written there, over one that there is: finds out before there is something to lose.

    Raises:
        InvalidInput: no.
    """
    with about(path, "written"):
        _check(path, overwrite=True)
        partial = _beside(path)
        partial.open("xb").close()
        partial.unlink()


def _check(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not path.is_file():  # a rename would replace even /dev/null
        raise InvalidInput("is there already, and is no regular file; give another path")
    if os.path.lexists(path) and not overwrite:
        raise InvalidInput("is there already; let it be overwritten (--overwrite, overwrite=True) or give another path")


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.partial")  # a name has at most 255 bytes


def needed(module: str) -> ModuleType:
    """Imports a module that only one format needs.

    Raises:
        InstallError: it isn't installed.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ImportError as error:
        raise InstallError(
            f"this format needs the package {package}, which can't be imported ({error}): pip install {package}"
        ) from error
