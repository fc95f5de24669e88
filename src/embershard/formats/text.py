"""Text, UTF-8: numbers are written with nine digits, which is what it takes to read each float32 back bit by bit.

word2vec  `id v1 … vD` a line, parted by blanks or tabs; a first line of exactly two whole numbers is the header "N D".
          GloVe's files are the same without a header. An id can't be empty nor hold blanks, tabs or line ends
tsv       for TensorBoard's projector: a vector a line, parted by tabs, and beside it a file of metadata, a label (the
          id) a line, in one column without a header. A label can't be blank nor hold tabs or line ends

Ids are read as strings, "7" as well, unless integer ids are asked for. Lines without content are skipped.
"""

from __future__ import annotations

import codecs
import re
from array import array
from typing import TYPE_CHECKING, Final

import numpy as np

from embershard.errors import InvalidInput
from embershard.formats.files import about, writing
from embershard.formats.vectors import MUST_BE_FINITE, Vectors, first_not_finite

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_BLOCK_LINES: Final = 4096
"""Lines whose numbers are held as float64 before they become a block of float32."""
_HEADER: Final = re.compile(rb"\s*(\d{1,18})\s+(\d{1,18})\s*")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_WORD_ENDS: Final = re.compile(r"[ \t\n\r\v\f]")
_LABEL_ENDS: Final = re.compile(r"[\t\n\r]")


def read_word2vec(path: Path, *, integer_ids: bool = False) -> Vectors:
    """With or without header; the header's N and D must be true."""
    ids: list[str] = []
    rows, promised = _Rows(separator=None), None
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if header := _HEADER.fullmatch(line):
                    promised, rows.dim = map(int, header.groups())
                    continue
            word, *numbers = line.split(None, 1) or [b""]
            if word:
                ids.append(_decoded(word, number))
                rows.add(numbers[0] if numbers else b"", number)
    if promised is not None and promised != len(ids):
        raise InvalidInput(f"the header says {promised:,} vectors, but there are {len(ids):,}; is the file cut off?")
    return Vectors.of(_integers(ids) if integer_ids else ids, rows.matrix())


def write_word2vec(path: Path, vectors: Vectors, *, overwrite: bool) -> None:
    """With a header."""
    texts = vectors.texts
    _check_ids(texts, lambda text: not text or _WORD_ENDS.search(text), "is empty or has blanks")
    with writing(path, overwrite=overwrite) as file:
        file.write(f"{len(vectors)} {vectors.dim}\n".encode())
        for text, numbers in zip(texts, _formatted(vectors, " "), strict=True):
            file.write(f"{text} {numbers}\n".encode())


def read_tsv(path: Path, *, metadata: str | os.PathLike[str] | None = None, integer_ids: bool = False) -> Vectors:
    """Labels come from `metadata`; for `words.tsv` that is `words.metadata.tsv` unless given."""
    labels_path, rows = _metadata_path(path, metadata), _Rows(separator=b"\t")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                rows.add(line.rstrip(b"\r\n"), number)
    with about(labels_path, "read"):
        with labels_path.open("rb") as file:
            ids = [_label(line, number) for number, line in enumerate(file, 1) if not line.isspace()]
        vectors_ND = rows.matrix()
        if len(ids) != len(vectors_ND):
            raise InvalidInput(f"has {len(ids):,} labels for {len(vectors_ND):,} vectors; it must have one a vector")
        chosen = _integers(ids) if integer_ids else ids
    return Vectors.of(chosen, vectors_ND)


def write_tsv(path: Path, vectors: Vectors, *, overwrite: bool, metadata: str | os.PathLike[str] | None = None) -> None:
    """Both files appear, the labels first; the projector skips blank labels, so that they are refused."""
    labels_path, texts = _metadata_path(path, metadata), vectors.texts
    _check_ids(texts, lambda text: not text.strip() or _LABEL_ENDS.search(text), "is blank, or has tabs or line ends")
    with writing(path, overwrite=overwrite) as file:
        for numbers in _formatted(vectors, "\t"):
            file.write(f"{numbers}\n".encode())
        with about(labels_path, "written"), writing(labels_path, overwrite=overwrite) as labels:
            labels.writelines(f"{text}\n".encode() for text in texts)


class _Rows:
    """Takes the numbers of lines and makes float32 of them block by block, to need little more memory than that."""

    def __init__(self, *, separator: bytes | None) -> None:
        self.dim: int | None = None
        self._separator = separator
        self._numbers = array("d")
        self._lines: list[int] = []
        self._blocks: list[NDArray[np.float32]] = []

    def add(self, text: bytes, line: int) -> None:
        words = text.split(self._separator)
        if self.dim is None:
            self.dim = len(words)
        if len(words) != self.dim:
            raise InvalidInput(
                f"line {line}: has {len(words):,} numbers where {self.dim:,} are expected; all vectors have one length"
                + (", and ids no blanks" if self._separator is None else "")
            )
        try:
            self._numbers.extend(map(float, words))
        except ValueError as error:
            raise InvalidInput(f"line {line}: {_first_bad(words)!r} is no number") from error
        if b"_" in text:  # Python's float takes 1_000, which no other reader does
            raise InvalidInput(f"line {line}: has an underscore in a number")
        self._lines.append(line)
        if len(self._lines) == _BLOCK_LINES:
            self._end_block()

    def matrix(self) -> NDArray[np.float32]:
        """float32 [N, D] of all lines."""
        self._end_block()
        return np.concatenate(self._blocks)

    def _end_block(self) -> None:
        numbers_ND = np.asarray(self._numbers).reshape(len(self._lines), self.dim or 0)
        with np.errstate(over="ignore"):  # an overflow becomes infinite, and is found so
            block_ND = numbers_ND.astype(np.float32)
        if (at := first_not_finite(block_ND)) is not None:
            raise InvalidInput(f"line {self._lines[at[0]]}: number {at[1] + 1} is {numbers_ND[at]}; {MUST_BE_FINITE}")
        self._blocks.append(block_ND)
        self._numbers, self._lines = array("d"), []


def _first_bad(words: Sequence[bytes]) -> str:
    """The first word that is no number, cut if it is long."""
    for word in words:
        try:
            float(word)
        except ValueError:
            return word[:40].decode(errors="replace")
    return ""


def _decoded(data: bytes, line: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"line {line}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _label(line: bytes, number: int) -> str:
    label = line.removesuffix(b"\n").removesuffix(b"\r")
    if b"\t" in label:
        raise InvalidInput(f"line {number}: has several columns; metadata must be one column of labels, no header")
    return _decoded(label, number)


def _integers(texts: Sequence[str]) -> NDArray[np.int64]:
    bounds = np.iinfo(np.int64)
    for at, text in enumerate(texts):
        if not (_INTEGER.fullmatch(text) and bounds.min <= int(text) <= bounds.max):
            raise InvalidInput(f"ids[{at}] is {text[:60]!r}, which is no integer within int64; read ids as strings")
    return np.array([int(text) for text in texts], np.int64)


def _check_ids(texts: Sequence[str], unfit: Callable[[str], object], problem: str) -> None:
    for at, text in enumerate(texts):
        if unfit(text):
            raise InvalidInput(f"ids[{at}] {problem}, which this format can't hold: {text[:60]!r}; write parquet")


def _formatted(vectors: Vectors, separator: str) -> Iterator[str]:
    """A line of numbers a vector."""
    line = separator.join(["%.9g"] * vectors.dim)
    for start in range(0, len(vectors), _BLOCK_LINES):
        for row in vectors.vectors_ND[start : start + _BLOCK_LINES].tolist():
            yield line % tuple(row)


def _metadata_path(path: Path, metadata: str | os.PathLike[str] | None) -> Path:
    labels_path = path.with_suffix(".metadata.tsv") if metadata is None else type(path)(metadata)
    if labels_path == path:
        raise InvalidInput("can't be its own metadata; give another path for that")
    return labels_path
