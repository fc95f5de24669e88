"""The same job on one, two and three ranks learns the same; and goes on at any other number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.jobs import MODELS, VOCABULARY, collection, losses, run_job, write_job
from support.ranks import Ranks

from embershard.engine.world import SoloWorld

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


@pytest.mark.parametrize("job", JOBS)
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
