"""What training did to rows between two snapshots: the numbers of a plain loop in float64, and a watch on the head."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import call, document, refused, shown, told
from support.drift import VOCABULARY, assign, effective, expected, farness, owners, scrambled, train
from support.scenario import collection
from support.subject import local

from embershard.config import Config
from embershard.engine.growth import Growth
from embershard.store.drift import drift
from embershard.store.drift_report import document as document_of
from embershard.store.drift_report import lines as lines_of
from embershard.store.head import effective_rows
from embershard.store.offline import find_snapshot
from embershard.types import FeatureBatch, FeatureUpdate

USERS = collection([{"name": "user", "rows": 40, "dim": 4, "counts": True}], kind="sgd", learning_rate=0.5)


def report(before: str, after: str, top: int = 10) -> dict[str, Any]:
    return document_of(drift(find_snapshot(Path(before)), find_snapshot(Path(after)), top=top))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([1, 8, 2**18]))
def test_all_numbers_are_those_of_a_plain_loop(seed: int, top: int, block: int) -> None:
    random = np.random.default_rng(seed)
    before, after = scrambled(random), scrambled(random)
    with tempfile.TemporaryDirectory() as folder, mock.patch("embershard.store.pairing._NUMBERS", block):
        found = report(before.save(f"{folder}/a", 1), after.save(f"{folder}/b", 2), top)
    states = [{name: array.astype(float).tolist() for name, array in of.state().items()} for of in (before, after)]
    for name, table in found["tables"].items():
        of_ids = [owners(of, name) if name in before.engine.vocabularies else {} for of in (before, after)]
        for matrix, of in table["matrices"].items():
            kinds = ("weight", "updates", "sightings", "frozen")
            was, now = (
                {kind: state[f"{matrix}.{kind}"] for kind in kinds if f"{matrix}.{kind}" in state} for state in states
            )
            wanted, moves = expected(matrix, was, now, tuple(of_ids) if matrix == name else ({}, {}))  # type: ignore[arg-type]
            most, frozen_most = of.pop("most_moved"), of.pop("frozen_most_moved")
            if of["head"]:
                spreads = of["head"]["effective_rows"]
                assert of["head"].pop("narrow") == (spreads["since"] < spreads["before"] / 2)
            assert of == wanted
            farthest = sorted((farness(told[2]) for told in moves.values()), reverse=True)[:top]
            assert [farness(moves[row["row"]][2]) for row in most] == farthest
            assert len(frozen_most) == min(top, of["frozen_moved"])
            for row in most + frozen_most:
                _, key, move, relative, cosine, *updates = moves[row["row"]]
                assert [row["id"], row["updates"], row["updates_since"]] == [key, *updates]
                finite = move if math.isfinite(move) else None
                assert [row[what] for what in ("move", "relative", "cosine")] == [
                    value if value is None else pytest.approx(value) for value in (finite, relative, cosine)
                ]


@pytest.mark.parametrize("count", [1, 7, 40])
def test_rows_that_are_sighted_alike_count_as_many_as_they_are(count: int) -> None:
    sightings = torch.zeros(50, dtype=torch.int32)
    sightings[:count] = 3
    assert effective_rows(sightings) == pytest.approx(count)


# Whose rows they are.


def test_rows_of_a_vocabulary_belong_to_ids_wherever_they_are(tmp_path: Path) -> None:
    config = collection([{"name": "query", "rows": 13, "dim": 2, "ids": VOCABULARY, "counts": True}])
    before, after = local(config), local(config)
    for subject, ids in ((before, ["a", "b", "c"]), (after, ["c", "b", "d"])):
        for key in ids:
            assign(subject, "query", [key], [[1, ord(key)]])
    assign(after, "query", ["c"], [[3, 99]])
    found = report(before.save(str(tmp_path / "a"), 1), after.save(str(tmp_path / "b"), 2))["tables"]["query"]
    assert found["ids"] == {"added": 1, "gone": 1}
    (row,) = found["matrices"]["query"]["most_moved"]
    assert (row["id"], row["row"], row["move"], row["updates"], row["updates_since"]) == ("c", 3, 2.0, 1, 1)
    assert "table query: ids added: 1, ids gone: 1" in shown("drift", tmp_path / "a", tmp_path / "b")


def test_rows_with_names_are_told_by_them_and_new_rows_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("alpha\nbeta\ngamma\n")
    ids = {"kind": "direct", "names": str(tmp_path / "words.txt")}
    subject = local(collection([{"name": "word", "rows": 4, "dim": 1, "ids": ids}], kind="sgd", learning_rate=1.0))
    before = subject.save(str(tmp_path / "state"), 1)
    subject.grow(Growth(table="word", rows=6))
    for row, gradient in enumerate([3.0, 2.0, 1.0, 4.0, 5.0]):
        train(subject, "word", [row], [gradient])
    found = report(before, subject.save(str(tmp_path / "state"), 2), top=3)["tables"]["word"]
    assert found["rows"] == {"before": 4, "after": 6}
    assert found["matrices"]["word"]["compared"] == found["matrices"]["word"]["moved"] == 4
    assert [row["id"] for row in found["matrices"]["word"]["most_moved"]] == [3, "alpha", "beta"]
    assert "table word: 4 rows, then 6" in shown("drift", before, tmp_path / "state")


def test_a_row_that_started_anew_counts_from_there(tmp_path: Path) -> None:
    subject = local(USERS)
    for _ in range(5):
        train(subject, "user", [1])
    before = subject.save(str(tmp_path), 1)
    parents = FeatureBatch.of("user", ([2, 3], [2]))
    subject.update([FeatureUpdate(batch=FeatureBatch.of("user", [1]), parents=parents)])
    train(subject, "user", [1])
    (row,) = report(before, subject.save(str(tmp_path), 2))["tables"]["user"]["matrices"]["user"]["most_moved"]
    assert (row["id"], row["updates"], row["updates_since"]) == (1, 5, 2)


# Frozen rows.


def test_a_frozen_row_that_training_names_is_no_finding(tmp_path: Path) -> None:
    subject = local(USERS)
    subject.freeze(FeatureBatch.of("user", [1, 2]), True)
    before = subject.save(str(tmp_path), 1)
    train(subject, "user", [1, 3], [1.0] * 4)
    found = told("drift", before, subject.save(str(tmp_path), 2))
    assert [row["id"] for row in found["tables"]["user"]["matrices"]["user"]["most_moved"]] == [3]
    assert (found["tables"]["user"]["matrices"]["user"]["frozen"], found["problems"]) == (2, [])


def test_a_row_that_was_thawed_may_move(tmp_path: Path) -> None:
    subject = local(USERS)
    subject.freeze(FeatureBatch.of("user", [1]), True)
    before = subject.save(str(tmp_path), 1)
    subject.freeze(FeatureBatch.of("user", [1]), False)
    train(subject, "user", [1], [1.0] * 4)
    assert told("drift", before, subject.save(str(tmp_path), 2))["problems"] == []


def test_a_frozen_row_that_moved_is_a_problem_and_status_1(tmp_path: Path) -> None:
    subject = local(USERS)
    subject.freeze(FeatureBatch.of("user", [1, 2]), True)
    before = subject.save(str(tmp_path), 1)
    train(subject, "user", [7], [5.0] * 4)
    subject.engine.tensors()["user.weight"][2, 3] += 1e-6
    after = subject.save(str(tmp_path), 2)
    status, output, errors = call("drift", before, after, "--top", 1, "--json")
    found = document(output)
    assert (status, errors) == (1, "")
    assert [row["id"] for row in found["tables"]["user"]["matrices"]["user"]["most_moved"]] == [7]
    assert [row["id"] for row in found["tables"]["user"]["matrices"]["user"]["frozen_most_moved"]] == [2]
    (problem,) = found["problems"]
    assert problem.startswith("table 'user': 1 of 2 frozen rows moved (farthest: id 2); frozen rows stay bit for bit")
    status, output, errors = call("drift", before, after)
    assert (status, output.splitlines()[-1], errors) == (1, f"problem: {problem}", "")


# The head.


def head_of(tmp_path: Path, fine_tuning: Sequence[Sequence[int]], gradient: Sequence[float]) -> dict[str, Any]:
    """Users 0 to 9 are sighted ten times, all others once, and all are [1, 0, 0, 0]; then comes the fine-tuning."""
    subject = local(USERS)
    assign(subject, "user", range(40), [[1, 0, 0, 0]] * 40)
    for _ in range(9):
        train(subject, "user", range(10))
    before = subject.save(str(tmp_path), 1)
    for ids in fine_tuning:
        train(subject, "user", ids, gradient)
    return report(before, subject.save(str(tmp_path), 2))


TURNED, LONGER, NEAR = [0.0, -1.0, 0.0, 0.0], [-1.2, 0.0, 0.0, 0.0], [0.0, -0.4, 0.0, 0.0]
"""A gradient that turns a row by 27° or more, one that makes it over half longer, and one that does neither."""


@pytest.mark.parametrize("gradient", [TURNED, LONGER])
def test_head_rows_that_move_far_on_narrow_data_are_warned_of(tmp_path: Path, gradient: list[float]) -> None:
    found = head_of(tmp_path, [[0, 1, 20]], gradient)
    head = found["tables"]["user"]["matrices"]["user"]["head"]
    assert head == {
        "rows": 7,
        "moved": 2,
        "far": 2,
        "effective_rows": {"before": pytest.approx(effective([10] * 10 + [1] * 30)), "since": pytest.approx(3)},
        "narrow": True,
    }
    (warning,) = found["warnings"]
    assert warning.startswith(
        "table 'user': 2 of 7 head rows, which had half of all sightings, moved far (cosine under"
    )
    assert "on narrow data: it is spread as over 3.0 rows, and what came before as over" in warning
    assert warning.endswith("freeze ids or tables, lower the learning rate, or mix in older data")
    assert list(lines_of(found))[-1] == f"warning: {warning}"


@pytest.mark.parametrize(
    ("fine_tuning", "gradient"),
    [
        pytest.param([range(40)], TURNED, id="wide data"),
        pytest.param([[0, 1, 20]], NEAR, id="near"),
        pytest.param([[20, 21]], TURNED, id="not of the head"),
        pytest.param([], TURNED, id="no data"),
    ],
)
def test_and_of_nothing_else(tmp_path: Path, fine_tuning: list[Sequence[int]], gradient: list[float]) -> None:
    assert head_of(tmp_path, fine_tuning, gradient)["warnings"] == []


def test_new_ids_are_data_too(tmp_path: Path) -> None:
    table = {"name": "query", "rows": 60, "dim": 4, "ids": VOCABULARY, "counts": True}
    config = collection([table], kind="sgd", learning_rate=0.5)
    narrow, wide = local(config), local(config)
    for subject, ids in ((narrow, [0]), (wide, [0, *range(20, 40)])):
        assign(subject, "query", range(10), [[1, 0, 0, 0]] * 10)
        subject.save(str(tmp_path / f"{len(ids)}"), 1)
        train(subject, "query", ids, TURNED)
        subject.save(str(tmp_path / f"{len(ids)}"), 2)
    for ids, warnings in ((1, 1), (21, 0)):
        snapshots = tmp_path / f"{ids}"
        assert len(told("drift", snapshots / f"{1:012d}", snapshots)["warnings"]) == warnings


# The command.


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Row 1 is 0 and then isn't, row 2 turns, row 3 is reached and doesn't move."""
    folder, subject = (
        str(tmp_path_factory.mktemp("snapshots")),
        local(collection([{"name": "user", "rows": 9, "dim": 2, "counts": True}])),
    )
    assign(subject, "user", [1, 2, 3], [[0, 0], [3, 4], [1, 1]])
    before = subject.save(folder, 1)
    assign(subject, "user", [1, 2, 3], [[1, 0], [4, 3], [1, 1]])
    return before, subject.save(folder, 2)


def test_people_get_a_line_per_finding(pair: tuple[str, str]) -> None:
    lines = shown("drift", *pair)
    assert lines[0] == f"before: {pair[0]}"
    assert lines[2] == f"after: {pair[1]}"
    assert lines[4:] == [
        "table user:",
        "  user: 2 of 9 rows moved (22.2%), 3 trained",
        "    relative move: p50 0.2828, p90 0.2828, p99 0.2828, largest 0.2828",
        "    cosine: p50 0.96, p10 0.96, p1 0.96, smallest 0.96",
        "    head: 2 of 2 rows moved, 1 far; sightings spread as over 3.0 rows before, 3.0 since",
        "    id 2: move 1.414, relative 0.2828, cosine 0.96, updates 1 + 1",
        "    id 1: move 1, relative undefined, cosine undefined, updates 1 + 1",
    ]


def test_machines_get_one_document_and_as_many_rows_as_they_ask_for(pair: tuple[str, str]) -> None:
    found = told("drift", *pair, "--top", "1")
    assert (found["before"]["version"], found["after"]["version"]) == (1, 2)
    assert found["before"]["fingerprint"] == found["after"]["fingerprint"]
    (row,) = found["tables"]["user"]["matrices"]["user"]["most_moved"]
    assert (row["id"], row["cosine"]) == (2, pytest.approx(0.96))
    last = told("drift", *pair)["tables"]["user"]["matrices"]["user"]["most_moved"][1]
    assert (last["id"], last["move"], last["relative"], last["cosine"]) == (1, 1.0, None, None)


def test_a_snapshot_has_not_moved_from_itself(pair: tuple[str, str]) -> None:
    assert shown("drift", pair[0], pair[0])[4:] == ["table user:", "  user: 0 of 9 rows moved (0.0%), 0 trained"]


def test_snapshots_of_different_collections_are_refused(pair: tuple[str, str], tmp_path: Path) -> None:
    def other(**changed: Any) -> Config:
        return collection([{"name": "user", "rows": 9, "dim": 2, **changed}])

    message = refused("drift", pair[0], local(other(pooling="sum")).save(str(tmp_path), 3))
    assert "is of another collection than" in message
    assert "tables.user.pooling: 'none' here, 'sum' there (here: before, there: after); give two snapshots" in message
    assert "there is no snapshot; give the folder of one" in refused("drift", pair[0], tmp_path / "nowhere")
