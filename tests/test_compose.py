"""Composing is a linear map, and the way back its adjoint; rows start finite, fair and alike wherever they are cut."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenario import FACTORS, ID_KINDS, POOLINGS, everything, random_batch

from embershard.collection import Collection
from embershard.config import Matrix, TableSpec
from embershard.engine.initial import CHUNK_ROWS, fill_initial, initial_rows


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(POOLINGS),
    st.sampled_from(sorted(ID_KINDS)),
    st.sampled_from(["wide", *FACTORS]),
)
def test_the_way_back_is_what_autograd_gives(seed: int, pooling: str, ids: str, table: str) -> None:
    random = np.random.default_rng(seed)
    config = everything("sgd", pooling, ids)
    part = Collection(config).read([random_batch(random, config, table, examples=8)]).parts[0]
    if part.ids.keys is not None:  # some of the ids own a row, some don't
        part = part.settled(random.integers(-1, 2, len(part.ids.keys.keys_n)), part.table.rows - 2)
    own = [matrix for matrix in part.table.matrices if not matrix.shared]
    shared = next((matrix for matrix in part.table.matrices if matrix.shared), None)

    def numbers(rows: int, dim: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(size=(rows, dim)).astype(np.float32)).requires_grad_()

    stored = [numbers(len(part.ids.rows_M), matrix.dim) for matrix in own]
    projection = numbers(shared.rows, shared.dim) if shared else None
    answer = part.compose(stored, projection)
    gradients = torch.from_numpy(random.normal(size=tuple(answer.shape)).astype(np.float32))
    pulled, of_projection = part.pull(gradients, [tensor.detach() for tensor in stored], projection)
    leaves = [*stored, *([] if projection is None else [projection])]
    expected = torch.autograd.grad(answer, leaves, gradients, allow_unused=True)
    for found, wanted, leaf in zip([*pulled, of_projection], expected, leaves, strict=False):
        assert found is not None
        torch.testing.assert_close(found, torch.zeros_like(leaf) if wanted is None else wanted, rtol=1e-4, atol=1e-4)


def table(rows: int, kind: str) -> Matrix:
    spec = TableSpec(name="t", rows=rows, dim=3, init={"kind": kind, "scale": 0.5})  # type: ignore[arg-type]  # read
    return spec.matrices[0]


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_rows_start_finite_whatever_bits_come(kind: str, bits: int) -> None:
    with mock.patch("numpy.random.Philox") as philox:
        philox.return_value.random_raw = lambda count: np.full(count, bits, np.uint64)
        rows = initial_rows(table(10, kind), 7, 0)
    assert rows.isfinite().all()
    assert rows.abs().max() < (3 if kind == "normal" else 0.5)


def test_rows_start_with_the_spread_that_was_asked_for() -> None:
    normal, uniform = (initial_rows(table(CHUNK_ROWS, kind), 7, 0) for kind in ("normal", "uniform"))
    assert abs(normal.std().item() - 0.5) < 0.02
    assert abs(normal.mean().item()) < 0.02
    assert abs(uniform.std().item() - 0.5 / 3**0.5) < 0.01
    assert uniform.abs().max() <= 0.5
    assert initial_rows(table(5, "zeros"), 7, 0).tolist() == [[0.0] * 3] * 5


@given(st.integers(0, 2 * CHUNK_ROWS), st.integers(0, 2 * CHUNK_ROWS))
def test_a_row_starts_the_same_wherever_the_table_is_cut(first: int, last: int) -> None:
    first, last = sorted((first, last))
    whole, part = torch.empty(2 * CHUNK_ROWS, 3), torch.empty(last - first, 3)
    fill_initial(whole, table(2 * CHUNK_ROWS, "normal"), 7, 0)
    fill_initial(part, table(2 * CHUNK_ROWS, "normal"), 7, first)
    assert torch.equal(whole[first:last], part)


def test_rows_start_the_same_on_every_machine_for_ever() -> None:
    found = initial_rows(table(2, "uniform"), 7, 0)
    np.testing.assert_array_equal(found.numpy(), np.array(PINNED, np.float32))


PINNED = [
    [-0.04478543996810913, 0.38825100660324097, 0.4261701703071594],
    [-0.1776236891746521, -0.1016656756401062, -0.27465707063674927],
]
