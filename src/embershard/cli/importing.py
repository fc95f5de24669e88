"""Files of vectors into a running service: all is checked that can be before the first row is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embershard.errors import EmbershardError, InvalidInput, Overloaded
from embershard.formats import Vectors
from embershard.types import Provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.client import Client
    from embershard.v1 import embershard_pb2 as pb

CHUNK_BYTES = 4 * 2**20
"""Most that one request has of the file: other callers wait while it is written, a few milliseconds."""
_AROUND_BYTES, _AROUND_STRING_BYTES = 256, 4
"""Most that a request has around its ids and vectors, and around each string."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What was written."""

    version: int
    """The version that has all of it."""
    rows: int
    """Rows."""
    left_out: int
    """1 if the file has the padding id with zeros, which is what that answers by itself."""


def import_vectors(client: Client, feature: str, vectors: Vectors, *, source: str) -> Imported:
    """Overwrites the rows that ids own by a file's vectors; an id of a vocabulary is given a row by it.

    Raises:
        InvalidInput: a feature, dim, id or number that doesn't fit: with the row, counted from 0, and nothing is
            changed.
        Overloaded: a vocabulary has no room for all of the ids; likewise.
        EmbershardError: what only the server finds while it is done; it tells how far that came, and may be repeated.
    """
    described = client.describe()
    table = _table(described, feature)
    _check(source, table, vectors)
    chunks = _chunks(source, vectors, described.limits)
    provenance_N = _looked_up(client, feature, vectors, chunks, described.fingerprint, source)
    _notice_integers(source, table, vectors)
    vectors = _without_padding(source, vectors, provenance_N == Provenance.PADDING)
    if table.HasField("vocabulary"):
        _check_room(source, table, int((provenance_N != Provenance.OWN_ROW).sum()) - len(provenance_N) + len(vectors))
    version = described.version
    with _progress("written", len(vectors)) as progress:
        for chunk in _chunks(source, vectors, described.limits):
            with _told(source, chunk, f"; the {chunk.start:,} rows before are written, the import can be repeated"):
                version = client.assign(
                    {feature: _ids(vectors, chunk)},
                    values={feature: vectors.vectors_ND[chunk]},
                    fingerprint=described.fingerprint,
                )
            progress(chunk.stop - chunk.start)
    return Imported(version=version, rows=len(vectors), left_out=len(provenance_N) - len(vectors))


def _notice_integers(source: str, table: pb.Table, vectors: Vectors) -> None:
    """Text files don't tell 7 from "7", which are different ids wherever both are allowed."""
    texts = vectors.ids
    if table.id_kind != "direct" and isinstance(texts, tuple) and all(text.lstrip("-").isdigit() for text in texts):
        print(
            f"embershard: {source}: all {len(texts):,} ids look like integers, and are taken as strings; "
            "--integer-ids takes them as integers",
            file=sys.stderr,
        )


def _table(described: pb.DescribeResponse, feature: str) -> pb.Table:
    tables = {name: table for table in described.tables for name in table.features}
    if feature not in tables:
        raise InvalidInput(f"unknown feature {feature!r}; the collection has {', '.join(tables)}")
    return tables[feature]


def _check(source: str, table: pb.Table, vectors: Vectors) -> None:
    """Finds what Describe is enough to know."""
    where = f"table {table.name!r}"
    if table.id_kind == "hashed":
        raise InvalidInput(f"{where} has hashed ids, which share rows: vectors of ids can't be written there")
    if table.factor:
        raise InvalidInput(f"the rows of {where} are made of factors ({table.factor}): vectors can't be written there")
    if table.frozen:
        raise InvalidInput(f"{where} is frozen by its configuration: nothing can be written there")
    if vectors.dim != table.dim:
        raise InvalidInput(f"{source}: has vectors of dim {vectors.dim:,}, and {where} has dim {table.dim:,}")
    if table.id_kind == "direct" and isinstance(vectors.ids, np.ndarray):
        beyond_N = (vectors.ids < 0) | (vectors.ids >= table.rows)
        if beyond_N.any():
            row = int(beyond_N.argmax())
            raise InvalidInput(
                f"{source}: row {row}: id {vectors.ids[row]} is out of range; {where} has rows 0 to {table.rows - 1}"
            )
    largest = np.finfo(table.dtype).max
    large_N = np.abs(vectors.vectors_ND).max(axis=1) > largest
    if large_N.any():
        row = int(large_N.argmax())
        raise InvalidInput(f"{source}: row {row}: a number is larger than {largest:g}; {where} stores {table.dtype}")


def _check_room(source: str, table: pb.Table, new: int) -> None:
    """Finds that ids would have to leave, of which the file's own would be the first, as they were sighted least."""
    room = table.vocabulary.capacity - table.vocabulary.ids
    if new > room:
        raise Overloaded(
            f"{source}: {new:,} of its ids own no row in table {table.name!r} yet, which has room for {room:,}; make "
            f"room first: embershard grow --table {table.name} --capacity {table.vocabulary.ids + new}"
        )


def _chunks(source: str, vectors: Vectors, limits: pb.Limits) -> list[slice]:
    """Consecutive rows that fit into one request each."""
    most = min(limits.message_bytes - _AROUND_BYTES, CHUNK_BYTES)
    sizes_N = np.full(len(vectors), 4 * vectors.dim + 8)
    if isinstance(vectors.ids, tuple):
        sizes_N += np.fromiter((len(key.encode()) + _AROUND_STRING_BYTES - 8 for key in vectors.ids), int, len(vectors))
    if (sizes_N > most).any():
        row = int((sizes_N > most).argmax())
        raise InvalidInput(f"{source}: row {row}: has {sizes_N[row]:,} bytes, more than fits into a message")
    ends_N, chunks, start = np.cumsum(sizes_N), [], 0
    while start < len(vectors):
        before = int(ends_N[start - 1]) if start else 0
        fits = int(np.searchsorted(ends_N, before + most, side="right"))
        chunks.append(slice(start, min(fits, start + limits.ids_per_request)))
        start = chunks[-1].stop
    return chunks


def _looked_up(
    client: Client, feature: str, vectors: Vectors, chunks: Sequence[slice], fingerprint: str, source: str
) -> NDArray[np.uint8]:
    """uint8 [N]: where the vector of each id comes from; whatever is wrong with an id, the server says here.

    The vectors themselves come along, in their shortest form.
    """
    found = []
    with _progress("checked", len(vectors)) as progress:
        for chunk in chunks:
            with _told(source, chunk, "; nothing was changed"):
                rows = client.lookup(
                    {feature: _ids(vectors, chunk)}, dtype="float16", with_provenance=True, fingerprint=fingerprint
                )
            found.append(rows.provenance[feature])
            progress(chunk.stop - chunk.start)
    return np.concatenate(found)


def _without_padding(source: str, vectors: Vectors, padding_N: NDArray[np.bool_]) -> Vectors:
    """Leaves out a padding id whose vector is zeros."""
    if not padding_N.any():
        return vectors
    row, ids = int(padding_N.argmax()), vectors.ids
    if vectors.vectors_ND[row].any():
        shown = int(ids[row]) if isinstance(ids, np.ndarray) else repr(ids[row])
        raise InvalidInput(
            f"{source}: row {row}: id {shown} is the padding id, which answers zeros; leave it out, or make it zeros "
            "in the file"
        )
    if len(vectors) == 1:
        raise InvalidInput(f"{source}: has only the padding id; there is nothing to write")
    kept = ids[~padding_N] if isinstance(ids, np.ndarray) else ids[:row] + ids[row + 1 :]
    return Vectors(ids=kept, vectors_ND=vectors.vectors_ND[~padding_N])


def _ids(vectors: Vectors, chunk: slice) -> object:
    """As the client takes them: a tuple would be something else there."""
    return vectors.ids[chunk] if isinstance(vectors.ids, np.ndarray) else list(vectors.ids[chunk])


@contextmanager
def _told(source: str, chunk: slice, after: str) -> Iterator[None]:
    """Says of an error which rows of the file it is about."""
    try:
        yield
    except EmbershardError as error:
        raise type(error)(f"{source}: rows {chunk.start:,} to {chunk.stop - 1:,}: {error}{after}") from error


@contextmanager
def _progress(done: str, rows: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal, where it takes over two seconds and tqdm is installed; only the server needs it."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda _: None
        return
    with tqdm(desc=done, total=rows, unit="rows", unit_scale=True, delay=2, disable=None, file=sys.stderr) as bar:
        yield bar.update
