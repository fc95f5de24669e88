"""What trained models are compared with learns of the same files, and is measured by the same code.

It needs requirements/bench.lock, which not everybody has who runs the tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("implicit", reason="requirements/bench.lock isn't installed")

import click_baselines
import ranking_baselines
import training_quality
from method import Method
from rankings import Ranking, read_ranking
from training_quality import Task


def ranking(folder: Path, *, learned: dict[str, Any], asked: dict[str, Any]) -> Ranking:
    """Of items a to d."""
    tables = {"items": {"item_id": ["a", "b", "c", "d"]}, "learned": learned, "asked": asked}
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return read_ranking(*(folder / f"{name}.parquet" for name in ("learned", "asked", "items")))


def found(split: Ranking, method: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The items as each query has them, the best first."""
    told: list[str] = []

    def kept(_: Ranking, scores: Any) -> dict[str, float]:
        scores_BI = scores(np.arange(len(split.users_B)))
        told.extend("".join("abcd"[item] for item in np.argsort(-scores_I, kind="stable")) for scores_I in scores_BI)
        return {}

    monkeypatch.setattr(Ranking, "measured", kept)
    method(split)
    return told


def test_counts_rank_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = {
        "user_id": [1, 1, 2, 2, 2, 3],
        "history": [[], ["a"], [], ["d"], ["d", "b"], []],
        "item_id": ["a", "c", "d", "b", "d", "d"],
    }
    asked = {"user_id": [1, 4], "history": [["b", "c", "b", "a"], []], "targets": [["d"], ["a"]]}
    split = ranking(tmp_path, learned=events, asked=asked)
    assert found(split, ranking_baselines.popularity, monkeypatch) == ["dabc", "dabc"]
    assert found(split, ranking_baselines.markov_chain, monkeypatch) == ["cdab", "dabc"]
    assert found(split, ranking_baselines.had_most, monkeypatch) == ["bacd", "dabc"]
    assert found(split, ranking_baselines.had_last, monkeypatch) == ["abcd", "dabc"]


def test_sequences_are_as_many_events(tmp_path: Path) -> None:
    asked = {"user_id": [1], "history": [["b"]], "seen": [["a", "b"]], "targets": [["d"]]}
    split = ranking(tmp_path, learned={"user_id": [1, 2], "history": [["a", "b", "c"], ["d", "a"]]}, asked=asked)
    assert split.learned_UI.toarray().tolist() == [[1, 1, 1, 0], [1, 0, 0, 1]]
    assert [*zip(split.before_E.tolist(), split.after_E.tolist(), strict=True)] == [(0, 1), (1, 2), (3, 0)]
    assert split.counts_BI.toarray().tolist() == [[1, 1, 0, 0]]  # all that was seen, not the history alone


def test_what_was_seen_is_not_found(tmp_path: Path) -> None:
    asked = {"user_id": [1], "seen": [["a", "b"]], "targets": [["d"]]}
    split = ranking(tmp_path, learned={"user_id": [1], "history": [["a", "b"]]}, asked=asked)
    scores_BI = np.array([[4, 3, 1, 2]], np.float32)
    assert split.measured(lambda _: scores_BI, k=1) == {"recall@1": 1, "ndcg@1": 1}


@pytest.mark.parametrize("factors", [0, 4])
def test_a_logistic_model_tells_who_likes_what(factors: int) -> None:
    draw = np.random.default_rng(0)
    user_id, item_id = draw.integers(0, 20, 2_000), draw.integers(0, 20, 2_000)
    # Who likes what: by kinds of people and films alone, which no sum of biases tells; or by films alone.
    likes = (user_id + item_id) % 2 == 0 if factors else item_id % 2 == 0
    table = pa.table({"user_id": user_id, "item_id": item_id, "label": likes.astype(np.float32)})
    clicks = click_baselines.Clicks(table.slice(0, 1_500), table.slice(1_500))
    told = click_baselines.logistic(clicks, 0, person=["user_id"], film=["item_id"], factors=factors, decay=0.1)
    assert told["auc"] is not None
    assert told["auc"] > 0.95
    assert click_baselines.base_rate(clicks)["auc"] == 0.5


def test_settings_are_chosen_on_validation_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(split: tuple[str, str], seed: int, *, rate: float) -> dict[str, float | None]:
        return {"auc": rate + seed} if split == ("tune", "validate") else {"auc": -rate - seed}

    def read(train: Path, evaluate: Path, _: Path) -> tuple[str, str]:
        return train.stem, evaluate.stem

    task = Task({"it": Method(learn, {"rate": [1.0, 3.0, 2.0]})}, read, "auc")
    monkeypatch.setitem(training_quality.TASKS, "movielens_ctr", task)
    found, tried = training_quality.theirs("movielens_ctr", seeds=2)
    assert [(one["settings"]["rate"], one["metrics"]["auc"]) for one in tried] == [(1, 1), (3, 3), (2, 2)]
    assert [(one["settings"]["rate"], one["metrics"]["auc"]) for one in found] == [(3, -3), (3, -4)]
