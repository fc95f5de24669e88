"""What is known of rows beside what they have learned: one byte of each, counts only where a table wants them; and
counts that are turned on and off between a job, a snapshot and a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import refused, shown, told
from support.drift import assign
from support.follow import follow
from support.implementation import Implementation
from support.scenario import collection, everything, random_batch, random_updates
from support.service import Service
from support.subject import Subject, local

from embershard import Client, InvalidInput, Provenance
from embershard.collection import Collection
from embershard.config import Config
from embershard.engine.books import Books
from embershard.engine.growth import Growing
from embershard.engine.touched import Touched
from embershard.store.manifest import open_snapshot
from embershard.store.snapshot_changes import changes_between
from embershard.types import FeatureBatch, FeatureUpdate, updates_of

SERVED = """
collection = { name = "shop" }
tables = [{ name = "user", rows = 9, dim = 2 }, { name = "item", rows = 9, dim = 2, counts = true }]
"""
TABLES: list[dict[str, Any]] = [
    {"name": "user", "rows": 30, "dim": 3},
    {"name": "zip", "rows": 11, "dim": 3, "ids": {"kind": "hashed", "hashes": 2}},
    {"name": "word", "rows": 16, "dim": 3, "ids": {"kind": "vocabulary", "fallback_rows": 4, "admit_after": 1}},
    {"name": "half", "rows": 12, "dim": 4, "dtype": "float16"},
    {"name": "low", "rows": 20, "dim": 6, "factor": {"kind": "low_rank", "rank": 3}},
]


def shop(*, counts: bool) -> Config:
    return collection([{**table, "counts": counts} for table in TABLES], kind="adagrad", learning_rate=0.1)


def trained(*, counts: bool, seed: int = 0, steps: int = 4) -> Subject:
    """Many rows were updated, some several times, and a few never."""
    subject, random = local(shop(counts=counts)), np.random.default_rng(seed)
    for step in range(steps):
        subject.update(random_updates(random, subject.engine.config), step)
    return subject


def book_bytes(subject: Subject) -> list[int]:
    """Of a row, of each stack."""
    shards = subject.engine.shards.values()
    return [sum(tensor.itemsize for tensor in shard.books.kinds.values()) for shard in shards]


def assert_reached(found: Subject, like: Subject) -> None:
    """What was learned is the same, and whether an update has reached a row; how often isn't known in `found`."""
    expected, state = like.state(), found.state()
    for name, tensor in state.items():
        match name.rpartition(".")[2]:
            case "updates":
                np.testing.assert_array_equal(tensor, expected[name] > 0, err_msg=name)
            case "sightings":
                assert not tensor.any()
            case "weight" | "sum" | "frozen":
                np.testing.assert_array_equal(tensor, expected[name], err_msg=name, strict=True)


# What they take.


def test_a_row_has_one_byte_beside_what_it_has_learned_and_nine_where_all_is_kept() -> None:
    for counts, plain in ((False, 1), (True, 8)):
        subject = trained(counts=counts)
        assert set(book_bytes(subject)) == {plain}
        for group in subject.engine.groups:
            assert group.book_bytes_per_row == plain
        subject.freeze(FeatureBatch.of("user", [1]), False)
        assert set(book_bytes(subject)) == {plain}, "to thaw what was never frozen takes nothing"
        subject.freeze(FeatureBatch.of("user", [1]), True)
        assert sorted(set(book_bytes(subject))) == [plain, plain + 1], "only the stack that has a frozen row"


def test_tables_that_count_and_tables_that_do_not_are_stacked_apart() -> None:
    subject = local(everything("rowwise_adagrad", "none", "direct"))
    for group in subject.engine.groups:
        assert {slot.matrix.table.counts for slot in group.slots.values()} == {group.counts}


def test_counts_stop_at_the_largest() -> None:
    books = Books(3, torch.device("cpu"), counts=True)
    assert books.sightings is not None
    most = torch.iinfo(torch.int32).max
    books.updates[1] = most
    books.sightings[1] = most - 1
    for _ in range(3):
        books.count(torch.tensor([1, 2, 1]))
    assert books.read(torch.tensor([0, 1, 2])).tolist() == [[0, 0, 0], [most, most, 0], [3, 3, 0]]


# What they tell.


@pytest.mark.parametrize("counts", [False, True])
def test_provenance_is_told_with_counts_or_without(implementation: Implementation, counts: bool) -> None:
    implementation.build(shop(counts=counts))
    change = {"user": np.ones((2, 3)), "word": np.ones((1, 3)), "low": np.ones((1, 6)), "half": np.ones((1, 4))}
    ids = {"user": [1, 1], "word": [7], "low": [2], "half": [1]}
    implementation.update(implementation.on_first(updates_of(ids, gradients=change)))
    asked = [FeatureBatch.of("user", [1, 2]), FeatureBatch.of("word", [7, 8]), FeatureBatch.of("low", [2, 3])]
    user, word, low = implementation.provenance(implementation.on_first(asked))[0]
    own, untrained = Provenance.OWN_ROW, Provenance.UNTRAINED
    assert [user.tolist(), low.tolist(), word[0]] == [[own, untrained], [own, untrained], own]
    state = implementation.state()
    assert state["user.updates"].dtype == (np.int32 if counts else np.uint8)
    assert ("user.sightings" in state) == counts
    assert "user.frozen" not in state


def test_a_step_beyond_half_precision_ends_at_its_largest_number(implementation: Implementation) -> None:
    implementation.build(collection([TABLES[3]], kind="sgd", learning_rate=1e5))
    for _ in range(2):
        update = updates_of({"half": [1, 2]}, gradients={"half": np.array([[-1.0] * 4, [1e-5] * 4])})
        implementation.update(implementation.on_first(update))
    (vectors,) = implementation.lookup(implementation.on_first([FeatureBatch.of("half", [1, 2])]))[0]
    assert (vectors[0] == np.finfo(np.float16).max).all()
    assert (abs(vectors[1]) < 3).all()


def test_counts_that_are_not_kept_are_refused_by_feature_and_table() -> None:
    user, friend = FeatureBatch.of("user", [1]), FeatureBatch.of("friend", [1])
    tables = [{**TABLES[0], "counts": True}, {**TABLES[1], "features": ["friend"]}]
    collected = Collection(collection(tables))
    assert collected.read([user], with_counts=True).parts
    with pytest.raises(InvalidInput, match=r"feature 'friend': table 'zip' doesn't keep how often .* `counts = true`"):
        collected.read([user, friend], with_counts=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with Service(SERVED, folder) as service:
        yield service


def test_a_service_tells_which_tables_count_and_refuses_counts_of_others(service: Service) -> None:
    with Client(service.target) as client:
        version = client.update({"user": [1]}, gradients={"user": np.ones((1, 2))})
        assert [table.counts for table in client.describe().tables] == [False, True]
        with pytest.raises(InvalidInput, match="feature 'user': table 'user' doesn't keep how often its rows"):
            client.lookup({"item": [1], "user": [1]}, with_counts=True)
        rows = client.lookup({"user": [1, 2]}, with_provenance=True, min_version=version)
        assert rows.provenance["user"].tolist() == [Provenance.OWN_ROW, Provenance.UNTRAINED]
        assert client.lookup({"item": [1]}, with_counts=True).updates["item"].tolist() == [0]
    message = refused("lookup", "--target", service.target, "--ids", "user=1", "--counts")
    assert "leave with_counts out, or write `counts = true` in the configuration of the table" in message


# Rows that are frozen, of which nobody knew before.


@pytest.mark.parametrize("counts", [False, True])
def test_a_row_that_is_frozen_stays_so_when_its_table_grows(implementation: Implementation, counts: bool) -> None:
    implementation.build(shop(counts=counts))
    ids = [3, 29]
    implementation.freeze(FeatureBatch.of("user", ids), frozen=True)
    implementation.grow("user", 80)
    before = implementation.state()
    update = updates_of({"user": [3, 29, 30]}, gradients={"user": np.ones((3, 3))})
    implementation.update(implementation.on_first(update))
    after = implementation.state()
    assert np.flatnonzero(after["user.frozen"]).tolist() == ids
    assert np.flatnonzero((after["user.weight"] != before["user.weight"]).any(axis=1)).tolist() == [30]
    assert np.flatnonzero(after["user.updates"]).tolist() == [30]


def test_and_when_it_was_frozen_after_it_was_copied() -> None:
    subject = trained(counts=False)
    growing = Growing(subject.engine, {"user": 50})
    growing.make()
    growing.seed()
    while growing.copy():
        pass
    subject.freeze(FeatureBatch.of("user", [5]), True)
    growing.finish()
    assert np.flatnonzero(subject.state()["user.frozen"]).tolist() == [5]


def test_once_all_are_thawed_a_restart_takes_no_byte_for_it(tmp_path: Path) -> None:
    subject, again = trained(counts=False), local(shop(counts=False))
    subject.freeze(FeatureBatch.of("user", [5]), True)
    again.load(subject.save(str(tmp_path), 1))
    np.testing.assert_array_equal(again.state()["user.frozen"], subject.state()["user.frozen"])
    subject.freeze(FeatureBatch.of("user", [5]), False)
    again = local(shop(counts=False))
    again.load(subject.save(str(tmp_path), 2))
    assert set(book_bytes(again)) == {1}


# Counts that are turned on and off.


def test_to_count_or_not_is_no_matter_of_identity() -> None:
    counting, other = shop(counts=True), shop(counts=False)
    assert counting.fingerprint() == other.fingerprint()
    assert counting.layout() == other.layout()
    assert counting.settings() == other.settings(), "so that a log that is left over is applied"


def test_a_snapshot_without_counts_begins_them_with_what_is_known(tmp_path: Path) -> None:
    before, after = trained(counts=False), local(shop(counts=True))
    before.freeze(FeatureBatch.of("user", [5]), True)
    after.load(before.save(str(tmp_path), 1))
    assert after.state()["user.updates"].dtype == np.int32
    assert_reached(after, before)
    after.update([FeatureUpdate(batch=FeatureBatch.of("user", [0, 0]), gradients=np.ones((2, 3), np.float32))])
    first = before.state()["user.updates"][0]
    ((updates_N, sightings_N),) = after.counts([FeatureBatch.of("user", [0])])
    assert (updates_N.tolist(), sightings_N.tolist()) == ([first + 1], [2])


def test_a_snapshot_with_counts_leaves_them_and_keeps_whether_a_row_was_reached(tmp_path: Path) -> None:
    before, after = trained(counts=True, steps=12), local(shop(counts=False))
    assert before.state()["user.updates"].max() > 1
    after.load(before.save(str(tmp_path), 1))
    assert not [name for name in after.state() if name.endswith("sightings")]
    assert_reached(after, before)
    again = local(shop(counts=True))
    again.load(after.save(str(tmp_path / "after"), 1))
    assert_reached(again, before)


@pytest.mark.parametrize("counts", [False, True], ids=["the service counts", "the job counts"])
def test_a_job_and_a_service_may_differ_and_deltas_are_what_a_whole_snapshot_is(tmp_path: Path, counts: bool) -> None:
    job, random = trained(counts=counts, steps=2), np.random.default_rng(9)
    follower, whole = local(shop(counts=not counts)), local(shop(counts=not counts))
    touched = Touched(job.engine)
    follower.load(job.save(str(tmp_path), 1))
    for step in range(2, 6):
        job.update(random_updates(random, job.engine.config), step)
        assert follow(follower, touched.take(), tmp_path).rows > 0
    whole.load(job.save(str(tmp_path), 2))
    for name in whole.state():
        if not name.startswith("word."):
            np.testing.assert_array_equal(follower.state()[name], whole.state()[name], err_msg=name)
    batch = random_batch(random, job.engine.config, "word", 50)
    for mine, theirs in zip(follower.counts([batch])[0], whole.counts([batch])[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("counts", [False, True])
def test_what_changed_between_snapshots_of_which_one_counts_is_told(tmp_path: Path, counts: bool) -> None:
    since, now = trained(counts=not counts), local(shop(counts=counts))
    paths = [since.save(str(tmp_path / "since"), 1)]
    now.load(paths[0])
    now.update([FeatureUpdate(batch=FeatureBatch.of("user", [4]), gradients=np.ones((1, 3), np.float32))])
    paths.append(now.save(str(tmp_path / "now"), 2))
    follower, whole = local(shop(counts=True)), local(shop(counts=True))
    follower.load(paths[0])
    whole.load(paths[1])
    follow(follower, changes_between(*map(open_snapshot, map(Path, paths))), tmp_path)
    for name, tensor in whole.state().items():
        np.testing.assert_array_equal(follower.state()[name], tensor, err_msg=name)


@pytest.mark.parametrize("counted", ["neither", "before", "after"])
def test_drift_tells_no_counts_that_were_not_kept_in_both_and_all_else(tmp_path: Path, counted: str) -> None:
    def users(*, counts: bool) -> Config:
        return collection([{"name": "user", "rows": 9, "dim": 2, "counts": counts}])

    before, after = local(users(counts=counted == "before")), local(users(counts=counted == "after"))
    assign(before, "user", [1, 2], [[1, 0], [3, 4]])
    path = before.save(str(tmp_path), 1)
    after.load(path)
    assign(after, "user", [2], [[4, 3]])
    pair = path, after.save(str(tmp_path), 2)
    of = told("drift", *pair)["tables"]["user"]["matrices"]["user"]
    (row,) = of["most_moved"]
    assert (of["moved"], of["trained"], of["head"]) == (1, None, None)
    assert (row["id"], row["cosine"], row["updates"], row["updates_since"]) == (2, pytest.approx(0.96), None, None)
    assert shown("drift", *pair)[5:] == [
        "  user: 1 of 9 rows moved (11.1%)",
        "    relative move: p50 0.2828, p90 0.2828, p99 0.2828, largest 0.2828",
        "    cosine: p50 0.96, p10 0.96, p1 0.96, smallest 0.96",
        "    head: not known, nor what was trained, as rows aren't counted in both (`counts = true` of the table)",
        "    id 2: move 1.414, relative 0.2828, cosine 0.96",
    ]
