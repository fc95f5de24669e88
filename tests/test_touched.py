"""A follower that is given what a job has touched, and nothing else, has what the job has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.follow import follow
from support.scenario import ID_KINDS, OPTIMIZERS, collection, everything, random_batch, random_updates
from support.subject import Subject, local

from embershard.config import Config
from embershard.engine.delta import Written
from embershard.engine.growth import Growth
from embershard.engine.publication import Publication
from embershard.engine.touched import Touched
from embershard.errors import InvalidInput
from embershard.store.delta_files import write_delta_file
from embershard.store.delta_reading import read_delta
from embershard.store.manifest import open_snapshot
from embershard.store.snapshot_changes import changes_between
from embershard.types import FeatureBatch, FeatureUpdate


def compare(job: Subject, follower: Subject, config: Config, now_s: int) -> None:
    """Every vector and count; and all that is stored, where no vocabulary says which row is whose."""
    random = np.random.default_rng(1)
    for table in config.tables:
        batch = random_batch(random, config, table.features[0], 40)
        for mine, theirs in zip(job.lookup([batch], now_s), follower.lookup([batch], now_s), strict=True):
            np.testing.assert_array_equal(theirs, mine, err_msg=table.name)
        for mine, theirs in zip(job.counts([batch])[0], follower.counts([batch])[0], strict=True):
            np.testing.assert_array_equal(theirs, mine, err_msg=table.name)
    for name, tensor in job.state().items():
        if not any(name.startswith(f"{table}.") for table in job.engine.vocabularies):
            np.testing.assert_array_equal(follower.state()[name], tensor, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ids", ID_KINDS)
def test_a_follower_has_what_the_job_has(tmp_path: Path, optimizer: str, ids: str) -> None:
    config, random = everything(optimizer, "sum", ids), np.random.default_rng(len(ids))
    job, follower = local(config), local(config)
    touched, now_s = Touched(job.engine), 0
    for _ in range(4):
        for _ in range(3):
            now_s += 1
            job.update(random_updates(random, config), now_s)
        written = follow(follower, touched.take(), tmp_path)
        assert written.rows > 0
        assert written.frozen == 0
        compare(job, follower, config, now_s)
    assert follow(follower, touched.take(), tmp_path).rows == 0


def test_a_snapshot_that_is_being_written_has_none_of_it(tmp_path: Path) -> None:
    config, random = everything("adagrad", "sum", "vocabulary"), np.random.default_rng(4)
    job, follower, before = local(config), local(config), local(config)
    touched = Touched(job.engine)
    job.update(random_updates(random, config), 1)
    follow(follower, touched.take(), tmp_path)
    follower.begin(str(tmp_path / "snapshots"), 1)
    state = follower.state()
    job.update(random_updates(random, config), 2)
    follow(follower, touched.take(), tmp_path)
    before.load(follower.saved())
    for name, tensor in before.state().items():
        np.testing.assert_array_equal(tensor, state[name], err_msg=name)
    compare(job, follower, config, 2)


TABLES: list[dict[str, Any]] = [
    {"name": "user", "rows": 30, "dim": 3},
    {"name": "word", "rows": 12, "dim": 3, "ids": {"kind": "vocabulary", "fallback_rows": 4}},
]


def move(job: Subject, *ids: int) -> None:
    """A step of both tables."""
    gradients = np.ones((len(ids), 3), np.float32)
    job.update([FeatureUpdate(batch=FeatureBatch.of(name, [*ids]), gradients=gradients) for name in ("user", "word")])


def test_what_is_put_back_comes_again_with_the_ids_that_have_left_since(tmp_path: Path) -> None:
    config = collection(TABLES)
    job, follower = local(config), local(config)
    touched = Touched(job.engine)
    move(job, *range(8))
    follow(follower, touched.take(), tmp_path)
    for number in range(10, 13):  # each more often than all who are there
        for _ in range(number):
            move(job, number)
    first = touched.take()
    move(job, 1)
    second = touched.take()
    assert sorted(first.gone["word"]["keys"].tolist()) == [0, 1, 2]
    for changes in (second, first):
        touched.put_back(changes)
    again = touched.take()
    assert sorted(again.rows["user"]["rows"].tolist()) == [1, 10, 11, 12]
    assert sorted(again.gone["word"]["keys"].tolist()) == [0, 2, 3], "1 has come back, in place of 3"
    follow(follower, again, tmp_path)
    compare(job, follower, config, 0)
    assert len(follower.engine.vocabularies["word"]) == len(job.engine.vocabularies["word"]) == 8


def test_a_table_that_grows_is_taken_whole_and_fits_where_it_has_grown_too(tmp_path: Path) -> None:
    config = collection(TABLES)
    job, follower = local(config), local(config)
    touched = Touched(job.engine)
    move(job, 1)
    job.grow(Growth(table="user", rows=40, mean=True))
    job.grow(Growth(table="word", rows=20))
    move(job, *range(25, 40))
    changes = touched.take()
    assert len(changes.rows["user"]["rows"]) == 40
    publication = Publication(publisher="job", number=1, delta=True, files=[], layout=_layout(job))
    with pytest.raises(InvalidInput, match="table 'user' has grown to 40 rows there, and has 30 here"):
        publication.check_rows(follower.engine.config)
    file = write_delta_file(tmp_path, "job", 1, Touched(follower.engine).take())
    old = Publication(publisher="job", number=1, delta=True, files=[file], layout="")
    cut = read_delta(tmp_path, old, follower.engine, follower.engine.world.gather)
    follower.grow(Growth(table="user", rows=40))
    assert not cut.fits(follower.engine), "and must be cut anew"
    follower.grow(Growth(table="word", rows=20))
    follow(follower, changes, tmp_path)
    compare(job, follower, job.engine.config, 0)
    move(job, 39)
    assert touched.take().rows["user"]["rows"].tolist() == [39]


def _layout(job: Subject) -> str:
    return json.dumps(job.engine.config.layout())


def test_tables_that_are_frozen_here_stay_as_they_are(tmp_path: Path) -> None:
    job, follower = local(collection(TABLES)), local(collection([{**table, "frozen": True} for table in TABLES]))
    before = follower.state()
    touched = Touched(job.engine)
    move(job, 1, 2, 3)
    assert follow(follower, touched.take(), tmp_path) == Written(rows=0, frozen=6)
    for name, tensor in follower.state().items():
        np.testing.assert_array_equal(tensor, before[name], err_msg=name)
    assert len(follower.engine.vocabularies["word"]) == 0


def test_nobody_watches_any_more_once_it_is_closed() -> None:
    job = local(collection(TABLES))
    touched = Touched(job.engine)
    assert job.watched()
    touched.close()
    assert not job.watched()


@pytest.mark.parametrize("ids", ["direct", "words"])
def test_what_differs_between_two_snapshots_is_what_was_touched(tmp_path: Path, ids: str) -> None:
    config, random = everything("adagrad", "none", ids), np.random.default_rng(2)
    job, follower = local(config), local(config)
    touched = Touched(job.engine)
    for _ in range(3):
        job.update(random_updates(random, config), 1)
    follow(follower, touched.take(), tmp_path)
    since = open_snapshot(Path(job.save(str(tmp_path / "snapshots"), 1)))
    for _ in range(3):
        job.update(random_updates(random, config), 2)
    now = open_snapshot(Path(job.save(str(tmp_path / "snapshots"), 2)))
    written = follow(follower, changes_between(since, now), tmp_path)
    assert 0 < written.rows <= sum(len(columns["rows"]) for columns in touched.take().rows.values()) + 200
    compare(job, follower, config, 2)
