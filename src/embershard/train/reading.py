"""What all kinds of files share: errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from embershard.errors import InvalidInput
from embershard.formats.files import about
from embershard.train.split import Split


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is told as InvalidInput that begins with the path."""
    with about(path, "read"):
        try:
            yield
        except MemoryError:  # Arrow's own is an ArrowException, too, and no damage
            raise
        except pa.ArrowException as error:
            raise InvalidInput(f"is damaged, or of another format: {str(error)[:300]}") from error


def named(paths: Sequence[Path], split: Split | None) -> str:
    """Files, and which of their rows, for a message."""
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}" + (f", rows of {split}" if split else "")
