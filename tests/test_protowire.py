"""Answers are taken apart without protobuf's copies: whatever protobuf reads is read the same, and nothing else is."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from embershard import codec
from embershard.errors import InternalError
from embershard.protowire import fields, tag, varint
from embershard.v1 import embershard_pb2 as pb

PARTS = st.lists(
    st.builds(
        lambda feature, rows, told, padding: pb.FeatureRows(
            feature=feature,
            rows=rows,
            dim=4_096,
            provenance=b"\1" * rows if told else b"",
            updates=bytes(4 * rows) if told else b"",
            padding=bytes(padding),
            values=np.random.default_rng(rows).random((rows, 4_096), np.float32).tobytes(),
        ),
        st.text(max_size=5),
        st.integers(0, 9),
        st.booleans(),
        st.integers(0, 40),
    ),
    max_size=4,
    unique_by=lambda part: part.feature,
)


UNKNOWN = [b"\xf8\x07\x05", b"\xfa\x07\x03abc", b"\xfd\x07" + bytes(4), b"\xf9\x07" + bytes(8)]
"""Fields that nobody knows, of every type."""


def shuffled(part: pb.FeatureRows, random: Random) -> bytes:
    """A feature of an answer, with its fields in any order, and strange ones between them."""
    pieces = [bytes(field) for _, field, _ in fields(memoryview(part.SerializeToString()))] + UNKNOWN
    random.shuffle(pieces)
    whole = b"".join(pieces)
    return tag(pb.LookupResponse.FEATURES_FIELD_NUMBER) + varint(len(whole)) + whole


@given(PARTS, st.integers(0, 2**64 - 1), st.randoms(use_true_random=False))
def test_what_any_server_may_write_is_read(parts: list[pb.FeatureRows], version: int, random: Random) -> None:
    """The fields of a message may come in any order, and there may be some that nobody knows."""
    others = [pb.LookupResponse(version=version).SerializeToString(), *UNKNOWN]
    pieces = [shuffled(part, random) for part in parts]
    for other in others:
        pieces.insert(random.randint(0, len(pieces)), other)
    rows = codec.decode_answer(b"".join(pieces), pb.D_TYPE_FLOAT32)
    assert rows.version == version
    assert list(rows) == [part.feature for part in parts]
    for part in parts:
        assert rows[part.feature].shape == (part.rows, part.dim)
        assert rows[part.feature].tobytes() == part.values
        assert rows[part.feature].flags.aligned
        assert not rows[part.feature].flags.writeable
        assert rows.provenance.get(part.feature, np.empty(0)).tobytes() == part.provenance


@given(st.lists(st.tuples(st.integers(0, 70), st.integers(1, 80)), min_size=1, max_size=5), st.booleans())
def test_values_begin_where_they_need_not_be_copied(shapes: list[tuple[int, int]], told: bool) -> None:
    vectors = [np.full(shape, number, np.float32) for number, shape in enumerate(shapes)]
    features = [f"feature {'x' * number}" for number in range(len(shapes))]
    known = [{"provenance": np.ones(shape[0], np.uint8)} for shape in shapes] if told else []
    data = codec.encode_answer(features, vectors, known, 300)
    for part, value in [(pb.FeatureRows.FromString(value), value) for _, _, value in fields(memoryview(data)) if value]:
        (values,) = [inner for number, _, inner in fields(value) if number == 15] or [None]
        if values is not None:
            begin = np.frombuffer(values, np.uint8).ctypes.data - np.frombuffer(data, np.uint8).ctypes.data
            assert begin % codec.ALIGNMENT == 0
            assert bytes(values) == part.values
    assert pb.LookupResponse.FromString(data).version == 300


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    """Behind what is large enough not to be read by protobuf alone."""
    whole = pb.LookupResponse(features=[pb.FeatureRows(rows=20, dim=4096, values=bytes(20 * 4096 * 4))])
    try:
        expected = pb.LookupResponse.FromString(whole.SerializeToString() + data)
        shapes = [len(part.values) == 4 * part.rows * part.dim for part in expected.features]
    except DecodeError:
        with pytest.raises(InternalError, match="no LookupResponse"):
            codec.decode_answer(whole.SerializeToString() + data, pb.D_TYPE_FLOAT32)
        return
    if all(shapes):
        assert codec.decode_answer(whole.SerializeToString() + data, pb.D_TYPE_FLOAT32).version == expected.version
    else:
        with pytest.raises(InternalError, match="no LookupResponse"):
            codec.decode_answer(whole.SerializeToString() + data, pb.D_TYPE_FLOAT32)
