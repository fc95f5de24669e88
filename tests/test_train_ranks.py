"""The same job on one, two and three ranks learns the same; and goes on at any other number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from support.jobs import MODELS, VOCABULARY, collection, losses, run_job, write_job
from support.ranks import Ranks

from embershard.engine.world import SoloWorld
from embershard.errors import InvalidInput

State = dict[str, np.ndarray[Any, Any]]


def on(ranks: Ranks | None, path: Path, folder: Path) -> State:
    """Trains in one process, or on ranks."""
    if ranks is None:
        return run_job(path, folder, SoloWorld())
    state: State = ranks.each("job", [[path, folder]] * ranks.size)[0]
    return state


def assert_alike(state: State, expected: State, tolerance: float, apart: Sequence[str] = ()) -> None:
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        if name in apart:
            continue
        np.testing.assert_allclose(state[name], array, atol=tolerance, rtol=0, err_msg=name)


JOBS = MODELS | {
    "with a vocabulary": MODELS["dlrm"].replace("tags = {} }", "tags = {}, zip = {} }"),
    "sampled items": MODELS["next_item"].replace("dropout = 0.0", "dropout = 0.0\nnegatives = 8"),
}


@pytest.mark.parametrize(
    "job",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("two_tower", "next_item"))) for name in JOBS],
)
def test_a_job_learns_the_same_at_any_world_size(tmp_path: Path, world: Callable[[int], Ranks], job: str) -> None:
    path = write_job(tmp_path, JOBS[job], tables=collection() + VOCABULARY, batch=50, epochs=10, steps=50)
    expected = on(None, path, tmp_path / "alone")
    for size in (1, 2, 3):
        state = on(world(size), path, tmp_path / f"ranks{size}")
        # Of negatives that several ranks have drawn or seen, each rank names its own.
        assert_alike(state, expected, 1e-5, ["item.sightings"] if job == "sampled items" else [])
        np.testing.assert_allclose(losses(tmp_path / f"ranks{size}"), losses(tmp_path / "alone"), atol=1e-5)


def test_a_job_goes_on_where_it_was_at_another_world_size(tmp_path: Path, world: Callable[[int], Ranks]) -> None:
    tables = collection("adagrad", 0.05)
    whole = write_job(tmp_path, MODELS["dlrm"], tables=tables, batch=50, epochs=3, steps=24, more="")
    expected = on(None, whole, tmp_path / "whole")
    for steps, size in ((5, 2), (13, 0), (19, 3), (24, 1)):
        part = write_job(tmp_path, MODELS["dlrm"], tables=tables, batch=50, epochs=3, steps=steps, more="")
        state = on(world(size) if size else None, part, tmp_path / "parts")
    assert_alike(state, expected, 2e-4)
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(tmp_path / "whole"), atol=1e-4)


def test_a_model_may_leave_out_layers_now_and_then_and_on_one_rank_alone(
    tmp_path: Path, world: Callable[[int], Ranks]
) -> None:
    job = MODELS["dlrm"].replace('"dlrm"', '"support.odd_models:Skips"').replace("bottom = [8]\ntop = [16]", "")
    state = on(world(2), write_job(tmp_path, job, batch=50, epochs=1), tmp_path / "run")
    assert np.isfinite(state["late.weight"]).all()


def test_what_is_wrong_with_one_ranks_evaluation_data_is_told_by_all(
    tmp_path: Path, world: Callable[[int], Ranks]
) -> None:
    path = write_job(tmp_path, MODELS["dlrm"], batch=50)
    table = parquet.read_table(tmp_path / "data.parquet")
    users = table["user_id"].to_pylist()
    spoilt = table.set_column(0, "user_id", pa.array([*users[:-1], 1000]))  # which the last rank has
    parquet.write_table(spoilt, tmp_path / "data.parquet")
    with pytest.raises(InvalidInput, match=r"feature 'user_id': ids.* = 1000 is out of range"):
        on(world(2), path, tmp_path / "run")
