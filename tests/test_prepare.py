"""Real data as jobs read it: what trains comes before what evaluates, and histories end before their targets."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import movielens
import movielens_jobs
import numpy as np
import online_retail
import online_retail_jobs
import prepare
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import firsts, lasts, runs
from hypothesis import given
from hypothesis import strategies as st

from embershard.name_list import read_name_list
from embershard.train.batches import Stream
from embershard.train.schema import DataSpec, FeatureSpec
from embershard.train.sources import open_data

PEOPLE, FILMS, RATINGS = 30, 40, 600


@pytest.fixture(scope="module")
def ratings() -> movielens.MovieLens:
    """Nobody rates a film twice, as in the data set, and many ratings are of one second."""
    draw = np.random.default_rng(1)
    pairs = draw.permutation(PEOPLE * FILMS)[:RATINGS]
    return movielens.MovieLens(
        users=pairs // FILMS + 1,
        items=pairs % FILMS + 1,
        stars=draw.integers(1, 6, RATINGS).astype(np.float32),
        times=draw.integers(0, 200, RATINGS),
        age_groups=draw.integers(0, 7, PEOPLE + 1),
        occupations=draw.integers(0, 21, PEOPLE + 1),
        genders=draw.integers(0, 2, PEOPLE + 1),
        zip_codes=np.array([f"{number:05}" for number in range(PEOPLE + 1)]),
        titles=np.array([f"film {number}" for number in range(FILMS + 1)]),
        genres=draw.random((FILMS + 1, 19)) < 0.2,
    )


@pytest.fixture
def files(ratings: movielens.MovieLens, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    monkeypatch.setattr(movielens, "load", lambda: ratings)
    return {name: table.to_pylist() for name, table in movielens_jobs.files()}


@given(keys=st.lists(st.integers(0, 3), min_size=1, max_size=30), longest=st.integers(1, 5))
def test_runs_are_slices(keys: list[int], longest: int) -> None:
    keys_N = np.sort(keys)
    places = np.arange(len(keys))
    begins, ends = firsts(keys_N), lasts(keys_N)
    for place in places:
        same = np.flatnonzero(keys_N == keys_N[place])
        assert (begins[place], ends[place]) == (same[0], same[-1])
    found = runs(begins, places, places * 10, longest).to_pylist()
    assert found == [(places[begin:place] * 10)[-longest:].tolist() for place, begin in enumerate(begins)]


def test_the_last_ratings_evaluate_who_clicks(files: dict[str, Any], ratings: movielens.MovieLens) -> None:
    train, evaluate = files["ctr/train"], files["ctr/evaluate"]
    assert max(row["at"] for row in train) < min(row["at"] for row in evaluate)
    assert RATINGS * 0.1 <= len(evaluate) <= RATINGS * 0.1 + 20  # whole seconds are on one side
    found = sorted((row["user_id"], row["item_id"], row["label"]) for row in train + evaluate)
    assert found == sorted(zip(ratings.users, ratings.items, ratings.stars >= 4, strict=True))
    tune, validate = files["ctr/tune"], files["ctr/validate"]
    assert tune + validate == train
    assert tune[-1]["at"] < validate[0]["at"]
    for row in train:
        assert row["zip_code"] == f"{row['user_id']:05}"
        assert row["genres"] == np.flatnonzero(ratings.genres[row["item_id"]]).tolist()


@pytest.mark.parametrize(("train", "evaluate"), [("train", "evaluate"), ("tune", "validate")])
def test_everybodys_last_films_are_the_targets_of_retrieval(
    files: dict[str, Any], ratings: movielens.MovieLens, train: str, evaluate: str
) -> None:
    trained = {(row["user_id"], row["item_id"]) for row in files[f"retrieval/{train}"]}
    times = {(u, i): at for u, i, at in zip(ratings.users, ratings.items, ratings.times, strict=True)}
    targets = set()
    for row in files[f"retrieval/{evaluate}"]:
        user = row["user_id"]
        targets |= {(user, item) for item in row["targets"]}
        assert {(user, item) for item in row["seen"]} == {pair for pair in trained if pair[0] == user}
        assert len(row["targets"]) == (len(row["targets"]) + len(row["seen"])) // 5 > 0
        assert max(times[user, item] for item in row["seen"]) <= min(times[user, item] for item in row["targets"])
        assert row["history"] == row["seen"][-50:]
    liked = ratings.stars >= 4
    everything = set(zip(ratings.users[liked], ratings.items[liked], strict=True))
    if train == "tune":
        everything = {(row["user_id"], row["item_id"]) for row in files["retrieval/train"]}
    assert not trained & targets
    assert trained | targets == everything


def test_who_likes_a_film_has_liked_those_of_the_history_before(files: dict[str, Any]) -> None:
    liked: dict[int, list[int]] = {}
    for row in files["retrieval/train"]:
        before = liked.setdefault(row["user_id"], [])
        assert row["history"] == before[-50:]
        before.append(row["item_id"])
    assert max(map(len, liked.values())) > 3


def test_the_next_film_follows_its_history(files: dict[str, Any], ratings: movielens.MovieLens) -> None:
    order = np.lexsort((ratings.times, ratings.users))
    sequences: dict[int, list[int]] = {}
    for user, item in zip(ratings.users[order].tolist(), ratings.items[order].tolist(), strict=True):
        sequences.setdefault(user, []).append(item)
    foreseen: dict[int, list[int]] = {user: [] for user in sequences}
    for row in files["next_item/train"]:
        sequence, history = sequences[row["user_id"]], row["history"]
        place = sequence.index(history[0])
        assert 2 <= len(history) <= 51
        assert history == sequence[place : place + len(history)]
        foreseen[row["user_id"]] += history[1:]
    assert {user: sorted(items) for user, items in foreseen.items()} == {
        user: sorted(sequence[1:-2]) for user, sequence in sequences.items()
    }
    for name, left in (("validate", 2), ("evaluate", 1)):
        for row in files[f"next_item/{name}"]:
            sequence = sequences[row["user_id"]]
            place = len(sequence) - left
            assert row["history"] == sequence[max(0, place - 50) : place]
            assert (row["targets"], row["seen"]) == ([sequence[place]], sequence[:place])


def test_items_are_all_films(files: dict[str, Any]) -> None:
    assert [(row["item_id"], row["title"]) for row in files["items"]] == [(i, f"film {i}") for i in range(1, FILMS + 1)]


def purchases(*lines: tuple[int | None, int, str, str, int]) -> pa.Table:
    """(customer, day of November, invoice, stock code, quantity)"""
    customers, days, invoices, codes, quantities = zip(*lines, strict=True)
    return pa.table(
        {
            "CustomerID": pa.array(customers, pa.int64()),
            "InvoiceDate": pa.array([datetime(2011, 11, day) for day in days], pa.timestamp("us")),
            "InvoiceNo": pa.array(invoices, pa.large_string()),
            "StockCode": pa.array(codes, pa.large_string()),
            "Quantity": pa.array(quantities, pa.int32()),
            "Description": pa.array([f"a {code}" for code in codes], pa.large_string()),
        }
    )


def test_what_customers_buy_next_is_foreseen_from_earlier_invoices(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = purchases(
        (7, 3, "2", "20002", 1),
        (7, 3, "2", "20003a", 1),
        (7, 1, "1", "10001", 6),
        (7, 1, "1", "10001", 2),  # once an invoice
        (7, 2, "C1", "10001", -6),  # a return
        (7, 2, "3", "POST", 1),
        (7, 12, "4", "20003A", 1),
        (8, 12, "5", "10001", 1),
        (8, 13, "6", "10002", 1),
        (None, 2, "7", "10001", 1),
    )
    monkeypatch.setattr(online_retail, "read", lambda _: lines)
    monkeypatch.setattr(online_retail_jobs, "VALIDATE_FROM", np.datetime64("2011-11-03"))
    files = dict(online_retail_jobs.files())
    names = files.pop("item_names")
    files = {name: table.to_pylist() for name, table in files.items()}
    told = {
        name: [(row["user_id"], row["history"], row["item_id"], row["at"].day) for row in files[f"next_item/{name}"]]
        for name in ("train", "evaluate", "tune", "validate")
    }
    assert told == {
        "tune": [],
        "validate": [(7, ["10001"], "20002", 3), (7, ["10001"], "20003A", 3)],
        "train": [(7, ["10001"], "20002", 3), (7, ["10001"], "20003A", 3)],
        "evaluate": [(7, ["10001", "20002", "20003A"], "20003A", 12), (8, ["10001"], "10002", 13)],
    }
    assert [row["targets"] for row in files["next_item/evaluate"]] == [["20003A"], ["10002"]]
    assert [(row["item_id"], row["description"]) for row in files["items"]] == [
        ("10001", "a 10001"),
        ("10002", "a 10002"),
        ("20002", "a 20002"),
        ("20003A", "a 20003A"),
    ]
    assert names == [row["item_id"] for row in files["items"]]


def test_names_are_written_as_tables_of_direct_ids_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prepare.DATASETS, "named", lambda: [("names", ["10001", "20003A"])])
    prepare.prepare("named", tmp_path)
    assert list(read_name_list(tmp_path / "names.txt").names) == ["10001", "20003A"]


def test_a_job_reads_what_was_prepared(
    ratings: movielens.MovieLens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movielens, "load", lambda: ratings)
    prepare.prepare("movielens", tmp_path)
    prepare.prepare("movielens", tmp_path)  # again, in place of what is there
    features = {name: FeatureSpec() for name in ("user_id", "zip_code", "item_id", "genres")}
    data = DataSpec(train=["ctr/train.parquet"], evaluate=["ctr/evaluate.parquet"], label="label", features=features)
    train, evaluate = open_data(data, folder=tmp_path, seed=0)
    assert evaluate is not None
    assert (train.examples or 0) + (evaluate.examples or 0) == RATINGS
    (batch,) = Stream(evaluate, batch=RATINGS).epoch(0)
    at = pq.read_table(tmp_path / "ctr/evaluate.parquet")["zip_code"].to_pylist()
    assert list(batch.features["zip_code"].ids) == at
    assert not list(tmp_path.rglob("*.partial"))


def test_data_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(online_retail, "PATH", tmp_path / "none.parquet")
    monkeypatch.setattr("sys.argv", ["prepare.py", "online_retail", "--into", str(tmp_path / "jobs")])
    assert prepare.main() == 1
    assert capsys.readouterr().err.endswith(
        "prepare: Online Retail isn't here: ../shared/data/online_retail is absent\n"
    )
