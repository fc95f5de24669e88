"""Bytes ↔ arrays: everything comes back as it was, and is protobuf to everybody else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embershard import codec
from embershard.errors import InvalidInput
from embershard.types import FeatureBatch, FeatureUpdate, Provenance
from embershard.v1 import embershard_pb2 as pb

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    arrays.arrays("<f4", arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9), elements=floats),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_an_answer_is_what_protobuf_itself_would_say(
    rows_ND: np.ndarray[tuple[int, int], np.dtype[np.float32]], version: int, told: bool
) -> None:
    counts = np.arange(len(rows_ND), dtype=np.int32)
    known = [{"provenance": counts.astype(np.uint8), "updates": counts, "sightings": 2 * counts}] * 2 if told else []
    data = codec.encode_answer(["a", "ü"], [rows_ND, rows_ND[:0]], known, version)
    message = pb.LookupResponse.FromString(data)
    first = pb.FeatureRows(
        feature="a",
        rows=rows_ND.shape[0],
        dim=rows_ND.shape[1],
        **{name: array.tobytes() for name, array in (known[0] if told else {}).items()},
        values=rows_ND.tobytes(),
    )
    message.features[0].ClearField("padding")
    assert message.features[0] == first
    decoded = codec.decode_answer(data, pb.D_TYPE_FLOAT32)
    np.testing.assert_array_equal(decoded["a"], rows_ND)
    assert decoded["ü"].shape == (0, rows_ND.shape[1])
    assert decoded.version == version
    if told and len(rows_ND):
        np.testing.assert_array_equal(decoded.provenance["a"], counts)
        np.testing.assert_array_equal(decoded.updates["a"], counts)
        np.testing.assert_array_equal(decoded.sightings["a"], 2 * counts)


@given(st.lists(st.none() | st.text()))
def test_strings_of_which_some_are_missing_come_back_as_they_were(strings: list[str | None]) -> None:
    assert codec.unpack_strings(codec.pack_strings(strings)) == strings


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_lengths_of_every_size_are_framed_right(size: int) -> None:
    rows_ND = np.arange(size, dtype="<f4").reshape(-1, 1)
    message = pb.LookupResponse.FromString(codec.encode_answer(["f"], [rows_ND], [], 1))
    assert message.features[0].values == rows_ND.tobytes()


@given(
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20) | st.lists(st.text(max_size=5), max_size=20),
    cut=st.integers(0, 20),
    weighted=st.booleans(),
)
def test_a_batch_comes_back_as_it_was(ids: list[int] | list[str], cut: int, weighted: bool) -> None:
    lengths = [min(cut, len(ids)), 0, len(ids) - min(cut, len(ids))]
    weights = np.linspace(0, 1, len(ids)) if weighted else None
    batch = FeatureBatch.of("f", (ids, lengths, weights))
    again = codec.decode_batch(pb.FeatureIds.FromString(codec.encode_batch(batch).SerializeToString()))
    assert list(again.ids) == list(batch.ids)
    np.testing.assert_array_equal(again.lengths, batch.lengths)
    assert (again.weights is None) == (batch.weights is None or len(ids) == 0)


def test_an_update_comes_back_as_it_was() -> None:
    batch = FeatureBatch.of("f", [1, 2])
    numbers = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    for name in ("gradients", "values"):
        again = codec.decode_update(codec.encode_update(FeatureUpdate(batch=batch, **{name: numbers})), {"f": 3})
        np.testing.assert_array_equal(getattr(again, name), numbers)
    parents = FeatureBatch.of("f", ([7, 8, 9], [1, 2]))
    again = codec.decode_update(codec.encode_update(FeatureUpdate(batch=batch, parents=parents)), {"f": 3})
    assert again.parents is not None
    assert again.parents.ids.tolist() == [7, 8, 9]  # type: ignore[union-attr]  # integers
    np.testing.assert_array_equal(again.parents.lengths, [1, 2])


def test_provenance_is_numbered_as_on_the_wire() -> None:
    wire = {name.removeprefix("PROVENANCE_"): value for name, value in pb.Provenance.items() if value}
    assert {kind.name: kind.value for kind in Provenance} == wire


def test_bytes_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(InvalidInput, match="feature 'f': ids have 9 bytes, which is no multiple of 8"):
        codec.decode_batch(pb.FeatureIds(feature="f", ids=b"123456789"))
