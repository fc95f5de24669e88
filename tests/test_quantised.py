"""Tables of int8 rows, on every engine: what they answer, that they stay, and what they refuse."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from support import jobs
from support.implementation import Implementation
from support.reference import Reference
from support.scenario import FACTORS, ID_KINDS, POOLINGS, collection, everything, random_batches
from support.subject import local

from embershard.collection import Collection
from embershard.config import Config
from embershard.engine.growth import Growth
from embershard.engine.placement import groups_of
from embershard.errors import ConfigError, InvalidInput
from embershard.rowwise import floats, quantised
from embershard.train.job import load_job
from embershard.types import FeatureBatch, updates_of


def int8(config: Config) -> Config:
    """The same with int8 tables."""
    return dataclasses.replace(config, tables=[dataclasses.replace(table, dtype="int8") for table in config.tables])


@pytest.mark.parametrize("ids", ID_KINDS)
def test_answers_are_those_of_the_rounded_rows_and_the_same_on_every_engine(
    implementation: Implementation, ids: str
) -> None:
    for pooling in POOLINGS if implementation.local else POOLINGS[len(ids) % len(POOLINGS) :][:1]:
        config = int8(everything("rowwise_adagrad", pooling, ids))
        implementation.build(config)
        reference, alone, random = Reference(config), local(config), np.random.default_rng(1)
        asked = [random_batches(random, config) for _ in range(implementation.size)]
        for of_rank, batches in zip(implementation.lookup(asked), asked, strict=True):
            expected = zip(batches, of_rank, reference.lookup(batches), alone.lookup(batches), strict=True)
            for batch, found, exact, other in expected:
                size = np.abs(reference.size(batch.feature)).max()
                np.testing.assert_allclose(found / size, exact / size, rtol=1e-5, atol=1e-5)
                np.testing.assert_array_equal(found, other, "bit for bit")


def test_rows_start_as_float32_ones_do_rounded_and_stay_when_the_table_grows(implementation: Implementation) -> None:
    tables = [{"name": "t", "rows": 30, "dim": 5, "dtype": "int8"}, {"name": "u", "rows": 7, "dim": 5, "dtype": "int8"}]
    implementation.build(collection(tables))
    as_float = [{**table, "dtype": "float32"} for table in tables]
    expected = local(collection(as_float)).state()
    before = implementation.state()
    np.testing.assert_array_equal(before["t.weight"], quantised(torch.from_numpy(expected["t.weight"])))
    assert "t.sum" not in before
    implementation.grow("t", 45)
    grown = local(collection([{**as_float[0], "rows": 45}, as_float[1]])).state()
    np.testing.assert_array_equal(implementation.state()["t.weight"], quantised(torch.from_numpy(grown["t.weight"])))
    np.testing.assert_array_equal(implementation.state()["u.weight"], before["u.weight"])
    (found,) = implementation.lookup(implementation.on_first([FeatureBatch.of("t", [44])]))[0]
    np.testing.assert_array_equal(found, floats(quantised(torch.from_numpy(grown["t.weight"][44:]))))


def test_snapshots_hold_the_bytes_whatever_ranks_write_and_read_them(
    implementation: Implementation, tmp_path: Path
) -> None:
    tables = [{"name": name, "rows": 31, "dim": 6, "dtype": "int8", **factor} for name, factor in FACTORS.items()]
    config = collection([*tables, {"name": "float", "rows": 9, "dim": 6}])
    implementation.build(config)
    path = implementation.save(tmp_path, 3)
    other = local(dataclasses.replace(config, collection=dataclasses.replace(config.collection, name="other")))
    for view in other.engine.tensors().values():
        view.zero_()
    assert other.load(path) == 3
    for name, found in other.state().items():
        np.testing.assert_array_equal(found, implementation.state()[name], name)


CONFIG = collection(
    [
        {"name": "still", "rows": 9, "dim": 2, "dtype": "int8"},
        {"name": "words", "rows": 9, "dim": 2, "dtype": "int8", "ids": {"kind": "vocabulary", "fallback_rows": 4}},
    ]
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gradients": {"still": np.ones((1, 2))}}, "gradients can't move them"),
        ({"values": {"still": np.ones((1, 2))}}, "they can't be replaced one by one"),
        ({"parents": {"still": [2]}}, "they can't be replaced one by one"),
    ],
)
def test_changes_are_refused_by_name(changes: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput, match=f"'still' stores int8 rows, which are for serving only: {told}"):
        Collection(CONFIG).change(updates_of({"still": [1]}, **changes))
    with pytest.raises(InvalidInput, match="'words' stores int8 rows, which are for serving only"):
        Collection(CONFIG).change(updates_of({"words": [1]}, gradients={"words": np.ones((1, 2))}))


def test_new_rows_as_a_mean_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'still' stores int8 rows, which are for serving only: new rows can't be"):
        local(CONFIG).grow(Growth(table="still", rows=12, mean=True))


def test_a_training_job_refuses_them_and_says_what_to_do(tmp_path: Path) -> None:
    path = jobs.write_job(tmp_path, jobs.DLRM, tables=jobs.collection(dtype='"int8"'))
    with pytest.raises(ConfigError, match="stores int8 rows, which are for serving only: train float32, and `embers"):
        load_job(path)


def test_a_row_takes_dim_and_eight_bytes_and_no_optimizer_state() -> None:
    (group,) = groups_of(collection([{"name": "t", "rows": 100, "dim": 63, "dtype": "int8"}]), 1)
    assert (group.bytes_per_row, group.state_shape) == (71, None)


def test_bytes_are_answered_as_they_are_where_nothing_is_done_with_them(implementation: Implementation) -> None:
    """And not rounded twice, whatever else is looked up."""
    config = collection(
        [
            {"name": "plain", "rows": 30, "dim": 5, "dtype": "int8", "ids": {"padding": 2}},
            {"name": "scaled", "rows": 30, "dim": 5, "dtype": "int8", "scale": "sqrt_dim"},
            {"name": "float", "rows": 30, "dim": 5},
        ]
    )
    implementation.build(config)
    asked = [[FeatureBatch.of(name, [7, 2, 7, 29]) for name in ("plain", "scaled", "float")]] * implementation.size
    expected = implementation.state()["plain.weight"][[7, 2, 7, 29]]
    expected[1] = 0
    exact = implementation.lookup(asked)
    for of_rank, floats_of_rank in zip(implementation.as_stored(asked), exact, strict=True):
        np.testing.assert_array_equal(of_rank[0], expected)
        np.testing.assert_array_equal(floats(torch.from_numpy(of_rank[0])).numpy(), floats_of_rank[0])
        for found, other in zip(of_rank[1:], floats_of_rank[1:], strict=True):
            np.testing.assert_array_equal(found, other)
