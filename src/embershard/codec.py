"""The one module that turns bytes into arrays and arrays into bytes; client and server share it.

Numbers are little-endian. Arrays that come out are views of the bytes that came in, and so read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from embershard.errors import InternalError, InvalidInput
from embershard.protowire import fields, tag, varint
from embershard.types import FeatureBatch, FeatureUpdate, Rows
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

DTYPES: dict[int, np.dtype[Any]] = {
    pb.D_TYPE_UNSPECIFIED: np.dtype("<f4"),
    pb.D_TYPE_FLOAT32: np.dtype("<f4"),
    pb.D_TYPE_FLOAT16: np.dtype("<f2"),
    pb.D_TYPE_INT8: np.dtype(np.uint8),
}
"""What the wire's DType means: of what its rows are."""

DTYPE_BY_NAME = {"float32": pb.D_TYPE_FLOAT32, "float16": pb.D_TYPE_FLOAT16, "int8": pb.D_TYPE_INT8}

ALIGNMENT = 16
"""Values begin at a multiple of so many bytes, as far as is up to the server: whoever views them as an array needn't
copy them."""

INT8_TAIL = 8
"""Bytes that follow the numbers of an int8 row: what they are multiplied by, and what is added, float32 each."""


def encode_batch(batch: FeatureBatch) -> pb.FeatureIds:
    """A batch of ids → message.

    Raises:
        InvalidInput: a string that no bytes can carry.
    """
    integers = isinstance(batch.ids, np.ndarray)
    try:
        return pb.FeatureIds(
            feature=batch.feature,
            ids=_bytes(batch.ids, "<i8") if integers else b"",
            keys=() if integers else batch.ids,
            lengths=b"" if batch.lengths is None else _bytes(batch.lengths, "<i4"),
            weights=b"" if batch.weights is None else _bytes(batch.weights, "<f4"),
        )
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"feature {batch.feature!r}: {error.object!r} is no text: it has a lone surrogate at {error.start}"
        ) from error


def decode_batch(message: pb.FeatureIds) -> FeatureBatch:
    """Message → a checked batch of ids.

    Raises:
        InvalidInput: both ids and keys, or bytes that are no whole numbers, or what `FeatureBatch` refuses.
    """
    feature, ids, keys = message.feature, message.ids, message.keys  # each access of bytes makes a copy
    if ids and keys:
        raise InvalidInput(f"feature {feature!r}: give ids or keys, not both")
    lengths, weights = message.lengths, message.weights
    where = f"feature {feature!r}"
    return FeatureBatch(
        feature=feature,
        ids=tuple(keys) if keys else _array(ids, "<i8", f"{where}: ids"),
        lengths=_array(lengths, "<i4", f"{where}: lengths") if lengths else None,
        weights=_array(weights, "<f4", f"{where}: weights") if weights else None,
    )


def encode_update(update: FeatureUpdate) -> pb.FeatureUpdate:
    """One feature's share of an update → message."""
    batch = encode_batch(update.batch)
    if update.parents is not None:
        return pb.FeatureUpdate(batch=batch, parents=encode_batch(update.parents))
    if update.gradients is not None:
        return pb.FeatureUpdate(batch=batch, gradients=_bytes(update.gradients, "<f4"), dim=update.gradients.shape[1])
    assert update.values is not None
    return pb.FeatureUpdate(batch=batch, values=_bytes(update.values, "<f4"), dim=update.values.shape[1])


def decode_update(message: pb.FeatureUpdate, dims: Mapping[str, int]) -> FeatureUpdate:
    """Message → one feature's checked share of an update; `dims` is {feature: dim}.

    Raises:
        InvalidInput: no change, an unknown feature, or bytes that are no whole rows.
    """
    batch = decode_batch(message.batch)
    change = message.WhichOneof("change")
    if change is None:
        raise InvalidInput(f"feature {batch.feature!r}: an update needs gradients, values or parents")
    if batch.feature not in dims:
        raise InvalidInput(f"unknown feature {batch.feature!r}; the collection has {', '.join(dims)}")
    if change == "parents":
        parents = decode_batch(message.parents)
        named = parents if parents.feature else replace(parents, feature=batch.feature)
        return FeatureUpdate(batch=batch, parents=named)
    where, dim = f"feature {batch.feature!r}: {change}", dims[batch.feature]
    numbers = _array(getattr(message, change), "<f4", where)
    if message.dim not in (0, dim):
        raise InvalidInput(f"{where} have rows of {message.dim:,} numbers, but the feature has dim {dim:,}")
    if numbers.size % dim:
        raise InvalidInput(f"{where} have {numbers.size:,} numbers, which are no whole rows of dim {dim}")
    rows = numbers.reshape(-1, dim)
    return (
        FeatureUpdate(batch=batch, gradients=rows) if change == "gradients" else FeatureUpdate(batch=batch, values=rows)
    )


def encode_answer(
    features: Sequence[str],
    vectors: Sequence[NDArray[Any]],
    known: Sequence[Mapping[str, NDArray[Any]]],
    version: int,
) -> bytes:
    """A LookupResponse, serialised: a message like protobuf's own, but the vectors are copied once and not thrice.

    `known` has what is told of the ids of each feature, {field of FeatureRows: array}; it may be empty. Vectors of
    uint8 are int8 rows, [rows, dim + 8].
    """
    pieces: list[bytes | memoryview] = []
    size = 0
    for number, (feature, rows_ND) in enumerate(zip(features, vectors, strict=True)):
        rows, dim = rows_ND.shape[0], rows_ND.shape[1] - INT8_TAIL * (rows_ND.dtype == np.uint8)
        values = np.ascontiguousarray(rows_ND).data.cast("B") if rows_ND.size else b""
        if known and known[number]:
            told = {name: array.tobytes() for name, array in known[number].items()}
            head = _made_head(feature, rows, dim, len(values), size % ALIGNMENT, **told)
        else:
            head = _head(feature, rows, dim, len(values), size % ALIGNMENT)
        pieces += [head, values]
        size += len(head) + len(values)
    return b"".join([*pieces, pb.LookupResponse(version=version).SerializeToString()])


def _made_head(feature: str, rows: int, dim: int, size: int, begins: int, **told: bytes) -> bytes:
    """What precedes the `size` bytes of values of a feature: with padding, so that they begin at what is aligned, if
    it itself begins `begins` bytes behind that."""
    part = pb.FeatureRows(feature=feature, rows=rows, dim=dim, **told)
    for padding in range(2 * ALIGNMENT):
        part.padding = bytes(padding)
        head = part.SerializeToString() + (_VALUES_TAG + varint(size) if size else b"")
        whole = _FEATURES_TAG + varint(len(head) + size) + head
        if not size or (begins + len(whole)) % ALIGNMENT == 0:
            return whole
    raise AssertionError("no padding fits")  # of 16 that follow one another, one does


_head = lru_cache(maxsize=4096)(_made_head)
"""Requests of a service are alike."""


def decode_answer(data: bytes, dtype: int) -> Rows:
    """A LookupResponse, serialised → {feature: [rows, dim]}, views of these bytes; of int8 rows, what they stand for.

    Raises:
        InternalError: it is none.
    """
    try:
        message, parts = _taken_apart(data)
        vectors = {part.feature: _vectors(part, values, dtype) for part, values in parts}
        if len(vectors) < len(parts):
            raise ValueError("it has a feature twice")
        return Rows(
            vectors,
            version=message.version,
            provenance={part.feature: np.frombuffer(part.provenance, np.uint8) for part, _ in parts if part.provenance},
            updates={part.feature: np.frombuffer(part.updates, "<i4") for part, _ in parts if part.updates},
            sightings={part.feature: np.frombuffer(part.sightings, "<i4") for part, _ in parts if part.sightings},
        )
    except (DecodeError, ValueError) as error:
        raise InternalError(f"the answer is no LookupResponse: {error}") from error


def _taken_apart(data: bytes) -> tuple[pb.LookupResponse, list[tuple[pb.FeatureRows, bytes | memoryview]]]:
    """A LookupResponse, and each of its features with its values."""
    if len(data) < _LARGE:
        message = pb.LookupResponse.FromString(data)
        return message, [(part, part.values) for part in message.features]
    rest, parts = bytearray(), []
    for number, field, value in fields(memoryview(data)):
        if number == pb.LookupResponse.FEATURES_FIELD_NUMBER and value is not None:
            parts.append(_part(value))
        else:
            rest += field
    return pb.LookupResponse.FromString(bytes(rest)), parts


def _part(data: memoryview) -> tuple[pb.FeatureRows, bytes | memoryview]:
    """All about a feature but its vectors, which stay where they are."""
    rest, values = bytearray(), data[:0]
    for number, field, value in fields(data):
        if number == pb.FeatureRows.VALUES_FIELD_NUMBER and value is not None:
            values = value
        else:
            rest += field
    return pb.FeatureRows.FromString(bytes(rest)), values


def _vectors(part: pb.FeatureRows, values: bytes | memoryview, dtype: int) -> NDArray[np.floating[Any]]:
    if dtype != pb.D_TYPE_INT8:
        vectors_ND = np.frombuffer(values, DTYPES[dtype]).reshape(part.rows, part.dim)
        return vectors_ND if vectors_ND.flags.aligned else _copied(vectors_ND)
    rows_NT = np.frombuffer(values, np.uint8).reshape(part.rows, part.dim + INT8_TAIL)
    tails_N2 = np.ascontiguousarray(rows_NT[:, part.dim :]).view("<f4")
    # One after the other, each rounded, as `rowwise.floats` does it: the same bits.
    numbers_ND = rows_NT[:, : part.dim].astype(np.float32)
    numbers_ND *= tails_N2[:, :1]
    numbers_ND += tails_N2[:, 1:]
    return numbers_ND


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    """As read-only as what was received."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def pack_strings(strings: Sequence[str | None]) -> dict[str, NDArray[Any]]:
    """Strings, some of which may be missing, as arrays: `text` of all, `ends` of each, and `there`."""
    encoded = [(string or "").encode() for string in strings]
    return {
        "text": np.frombuffer(b"".join(encoded), np.uint8),
        "ends": np.cumsum([len(piece) for piece in encoded], dtype=np.int64),
        "there": np.array([string is not None for string in strings], bool),
    }


def unpack_strings(packed: Mapping[str, NDArray[Any]]) -> list[str | None]:
    """The way back."""
    text, ends = packed["text"].tobytes(), packed["ends"].tolist()
    pieces = zip([0, *ends], ends, packed["there"].tolist(), strict=False)
    return [text[start:end].decode() if there else None for start, end, there in pieces]


def vector_bytes(shapes: Iterable[tuple[int, int]], dtype: int) -> int:
    """Bytes of the vectors of an answer with parts of these shapes."""
    tail = INT8_TAIL * (dtype == pb.D_TYPE_INT8)
    return sum(rows * (DTYPES[dtype].itemsize * dim + tail) for rows, dim in shapes)


_LARGE = 2**16
"""Of answers with so many bytes, copying costs more than looking for where vectors are."""
_FEATURES_TAG, _VALUES_TAG = tag(pb.LookupResponse.FEATURES_FIELD_NUMBER), tag(pb.FeatureRows.VALUES_FIELD_NUMBER)


def _bytes(numbers: Any, dtype: str) -> bytes:
    return np.ascontiguousarray(numbers, np.dtype(dtype)).tobytes()


def _array(data: bytes, dtype: str, what: str) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if len(data) % size:
        raise InvalidInput(f"{what} have {len(data):,} bytes, which is no multiple of {size} ({np.dtype(dtype).name})")
    return np.frombuffer(data, dtype)
