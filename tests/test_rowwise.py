"""int8 rows: what their bytes mean, and how far they are from what they were made of."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from embershard import codec
from embershard.rowwise import error_bound, floats, quantised, stored_as
from embershard.v1 import embershard_pb2 as pb

Array = np.ndarray[Any, Any]
LARGEST = float(np.float32(1.7e38))
SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=19)
anything = st.floats(-LARGEST, LARGEST, width=32)
tiny = st.floats(-(2.0**-126), 2.0**-126, width=32)
"""Mostly denormal."""
narrow = st.floats(1, 1.0000019073486328, width=32)
"""The width of a row is a few units in the last place."""
usual = st.floats(-1, 1, width=32)


@given(st.one_of(*(arrays.arrays("<f4", SHAPES, elements=some) for some in (anything, tiny, narrow, usual))))
def test_a_value_is_within_the_bound_of_what_it_was(rows_ND: Array) -> None:
    rows = torch.from_numpy(rows_ND)
    errors_N = (floats(quantised(rows)).double() - rows.double()).abs().amax(dim=1)
    assert (errors_N <= error_bound(rows)).all()


def test_the_bound_is_half_a_step_for_rows_as_they_are() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(scale=0.1, size=(1000, 64)).astype(np.float32))
    width_N = (rows.amax(dim=1) - rows.amin(dim=1)).double()
    assert ((error_bound(rows) / (width_N / 510)).max()) < 1.001
    errors_N = (floats(quantised(rows)).double() - rows.double()).abs().amax(dim=1)
    assert ((errors_N / (width_N / 510)).max()) > 0.95, "the bound is no larger than it need be"


@pytest.mark.parametrize("number", [0.0, -0.0, 2.5, -1e-30, 1e-42, 3e38])
def test_a_row_of_one_number_is_exact(number: float) -> None:
    rows = torch.full((3, 5), number)
    assert torch.equal(floats(quantised(rows)), rows)


def test_rows_too_wide_for_a_scale_end_at_half_of_the_largest_float_and_leave_others_alone() -> None:
    most = torch.finfo(torch.float32).max
    rows = torch.tensor([[most, -most, 0], [float("inf"), 1, 2], [1, 2, 3], [-float("inf")] * 3])
    found = floats(quantised(rows))
    assert found.isfinite().all()
    assert found[0, :2].tolist() == pytest.approx([most / 2, -most / 2], rel=1e-6)
    assert found[1, 0] == pytest.approx(most / 2, rel=1e-6)
    assert torch.equal(found[2], floats(quantised(rows[2:3]))[0])


def test_no_rows_are_no_rows() -> None:
    assert quantised(torch.empty(0, 6)).shape == (0, 14)
    assert floats(torch.empty(0, 14, dtype=torch.uint8)).shape == (0, 6)


@given(arrays.arrays("<f4", SHAPES, elements=anything))
def test_bytes_are_as_the_proto_says_to_any_language(rows_ND: Array) -> None:
    count, dim = rows_ND.shape
    made = quantised(torch.from_numpy(rows_ND))
    data = codec.encode_answer(["f"], [made.numpy()], [], 1)
    part = pb.LookupResponse.FromString(data).features[0]
    assert (part.rows, part.dim, len(part.values)) == (count, dim, count * (dim + 8))
    assert len(part.values) == codec.vector_bytes([(count, dim)], pb.D_TYPE_INT8)
    decoded = codec.decode_answer(data, pb.D_TYPE_INT8)["f"]
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, floats(made).numpy(), "clients and servers compute the same bits")
    scale, bias = struct.unpack_from("<ff", part.values, dim)
    by_hand = [np.float32(number) * np.float32(scale) + np.float32(bias) for number in part.values[:dim]]
    np.testing.assert_array_equal(decoded[0], by_hand)


def test_a_row_that_fewer_bits_can_not_hold_ends_at_their_largest() -> None:
    rows = torch.tensor([[1e6, -1e6, 0.5]])
    assert stored_as(torch.float16, rows).tolist() == [[65504, -65504, 0.5]]
    assert torch.equal(stored_as(torch.float32, rows), rows)
    assert torch.equal(stored_as(torch.uint8, rows.half().clamp(-65504, 65504)), quantised(rows.clamp(-65504, 65504)))
