"""A table of more than 2^31 numbers: no row, and no place in memory, is taken for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.implementation import Implementation
from support.ranks import Ranks
from support.scenario import collection
from support.service import Service

from embershard import Client, InvalidInput
from embershard.types import FeatureBatch, updates_of

ROWS, DIM = 40_000_000, 64  # 2.56e9 numbers, 5.1 GB in half precision
EDGE = 2**31 // DIM  # the row at which the number of numbers passes 2^31
LAST = [0, EDGE - 1, EDGE, EDGE + 1, ROWS - 1]


@pytest.fixture(params=[0, 2], ids=["local", "torchrec-2"])
def large(request: pytest.FixtureRequest, world: Callable[[int], Ranks]) -> Iterator[Implementation]:
    implementation = Implementation(world(request.param) if request.param else None)
    table = {"name": "t", "rows": ROWS, "dim": DIM, "dtype": "float16", "init": {"kind": "zeros"}}
    implementation.build(collection([table], kind="sgd", learning_rate=1.0))
    yield implementation
    implementation.build(collection([{"name": "t", "rows": 1, "dim": 1}]))  # gives the memory back


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_beyond_two_to_the_31_numbers_are_read_and_moved(large: Implementation) -> None:
    values = np.arange(len(LAST) * DIM, dtype=np.float32).reshape(-1, DIM)
    large.update(large.on_first(updates_of({"t": LAST}, values={"t": values})))
    large.update(large.on_first(updates_of({"t": LAST[::-1]}, gradients={"t": np.ones_like(values)})))
    around = sorted({near for row in LAST for near in (row - 1, row, row + 1) if 0 <= near < ROWS})
    (found,) = large.lookup(large.on_first([FeatureBatch.of("t", around)]))[0]
    expected = np.zeros((len(around), DIM))
    for row, vector in zip(LAST, values, strict=True):
        expected[around.index(row)] = vector - 1
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_large_table_is_served_and_told_from_what_does_not_fit(tmp_path: Path) -> None:
    config = f"""
    [collection]
    name = "large"
    [[tables]]
    name = "t"
    rows = {ROWS}
    dim = {DIM}
    dtype = "float16"
    init = {{ kind = "zeros" }}
    optimizer = {{ kind = "sgd" }}
    """
    service = Service(config, tmp_path)
    try:
        service.wait()
        with Client(service.target) as client:
            assert client.lookup({"t": [ROWS - 1]})["t"].shape == (1, DIM)
            with pytest.raises(InvalidInput, match=f"ids\\[0\\] = {ROWS} is out of range"):
                client.lookup({"t": [ROWS]})
    finally:
        service.process.kill()  # it would write five gigabytes
        service.ended()
