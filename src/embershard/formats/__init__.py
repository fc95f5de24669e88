"""Vectors of ids in and out of files. Importing this needs numpy alone; a format's package is imported on first use.

| format      | suffixes          | ids                              | needs       |
|-------------|-------------------|----------------------------------|-------------|
| npy         | .npy              | row numbers                      |             |
| npz         | .npz              | int64, strings                   |             |
| parquet     | .parquet          | int64, strings                   | pyarrow     |
| word2vec    | .txt .vec .w2v    | text without blanks              |             |
| tsv         | .tsv              | text, in a second file           |             |
| safetensors | .safetensors      | int64, strings                   | safetensors |
| pt          | .pt .pth          | row numbers                      | torch       |

`arrays`, `columns`, `tensors` and `text` say what each holds. Nothing that is read can run code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embershard.errors import InvalidInput
from embershard.formats.arrays import read_npy, read_npz, write_npy, write_npz
from embershard.formats.columns import read_parquet, write_parquet
from embershard.formats.files import about
from embershard.formats.tensors import read_pt, read_safetensors, write_pt, write_safetensors
from embershard.formats.text import read_tsv, read_word2vec, write_tsv, write_word2vec
from embershard.formats.vectors import Vectors

if TYPE_CHECKING:
    import os

__all__ = ["FORMATS", "Format", "Vectors", "read", "write"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One format: how a path tells it, and the options that it takes besides those that all take."""

    suffixes: tuple[str, ...]
    """The ends of a file's name that tell it, in lower case."""
    read: Callable[..., Vectors]
    """(path, **options) → vectors; its errors don't name the path yet."""
    write: Callable[..., None]
    """(path, vectors, *, overwrite, **options); its errors don't name the path yet."""
    read_options: frozenset[str] = frozenset()
    """The options of `read` that mean something to it."""
    write_options: frozenset[str] = frozenset()
    """The options of `write` that mean something to it."""


FORMATS: Final[dict[str, Format]] = {
    "npy": Format(suffixes=(".npy",), read=read_npy, write=write_npy),
    "npz": Format(suffixes=(".npz",), read=read_npz, write=write_npz),
    "parquet": Format(suffixes=(".parquet",), read=read_parquet, write=write_parquet),
    "word2vec": Format(
        suffixes=(".txt", ".vec", ".w2v"),
        read=read_word2vec,
        write=write_word2vec,
        read_options=frozenset({"integer_ids"}),
    ),
    "tsv": Format(
        suffixes=(".tsv",),
        read=read_tsv,
        write=write_tsv,
        read_options=frozenset({"integer_ids", "metadata"}),
        write_options=frozenset({"metadata"}),
    ),
    "safetensors": Format(suffixes=(".safetensors",), read=read_safetensors, write=write_safetensors),
    "pt": Format(suffixes=(".pt", ".pth"), read=read_pt, write=write_pt, read_options=frozenset({"key"})),
}
"""Every format by its name."""


def read(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  # what it is called everywhere
    integer_ids: bool = False,
    key: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
) -> Vectors:
    """Reads all vectors of a file, or none.

    Args:
        path: the file.
        format: a name of `FORMATS`; None: the path's suffix tells it.
        integer_ids: word2vec and tsv: the ids are integers, not strings.
        key: pt: which tensor, if the file has several.
        metadata: tsv: the file of labels; None: `words.metadata.tsv` beside `words.tsv`.

    Raises:
        InvalidInput: the file can't be read, is damaged, or holds something else; names file, line or row.
        InstallError: the package that the format needs isn't installed.
    """
    path = Path(path)
    name = _format_of(path, format)
    options = {"integer_ids": integer_ids or None, "key": key, "metadata": metadata}
    with about(path, "read"):
        return FORMATS[name].read(path, **_given(name, options, FORMATS[name].read_options))


def write(
    path: str | os.PathLike[str],
    vectors: Vectors,
    *,
    format: str | None = None,  # noqa: A002  # what it is called everywhere
    overwrite: bool = False,
    metadata: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a file that appears whole or not at all.

    Args:
        path: the file.
        vectors: what to write.
        format: a name of `FORMATS`; None: the path's suffix tells it.
        overwrite: replace a file that is there; else it is refused.
        metadata: tsv: the file of labels; None: `words.metadata.tsv` beside `words.tsv`.

    Raises:
        InvalidInput: the format can't hold these ids, or the file can't be written or is there already.
        InstallError: the package that the format needs isn't installed.
    """
    path = Path(path)
    name = _format_of(path, format)
    with about(path, "written"):
        options = _given(name, {"metadata": metadata}, FORMATS[name].write_options)
        FORMATS[name].write(path, vectors, overwrite=overwrite, **options)


def _format_of(path: Path, name: str | None) -> str:
    known = ", ".join(f"{known} ({' '.join(form.suffixes)})" for known, form in FORMATS.items())
    if name is not None:
        if name not in FORMATS:
            raise InvalidInput(f"unknown format {name!r}; known are {known}")
        return name
    for found, form in FORMATS.items():
        if path.suffix.lower() in form.suffixes:
            return found
    raise InvalidInput(f"{path}: the suffix {path.suffix!r} tells no format; name it (--format, format=): {known}")


def _given(name: str, options: dict[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    """The options that are not at their defaults, all of which the format must take."""
    given = {option: value for option, value in options.items() if value is not None}
    if strange := sorted(given.keys() - taken):
        raise InvalidInput(f"the format {name} takes no {strange[0]}; leave it out")
    return given
