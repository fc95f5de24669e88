"""A capture is what rows were when it began, whatever becomes of them while it is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scenario import collection
from support.subject import Subject, local

from embershard.engine.capture import Capture
from embershard.engine.growth import Growth
from embershard.types import FeatureBatch, FeatureUpdate

Array = np.ndarray[Any, Any]

ROWS = 40
CONFIG = collection(
    [
        {"name": "odd", "rows": ROWS, "dim": 3, "optimizer": {"kind": "adagrad"}, "counts": True},
        {"name": "half", "rows": ROWS, "dim": 4, "dtype": "float16"},
        {"name": "too", "rows": ROWS, "dim": 4, "dtype": "float16"},
        {"name": "plain", "rows": ROWS, "dim": 4, "optimizer": {"kind": "sgd"}},
    ]
)
TABLES = ["odd", "half", "too", "plain"]
SLICE_BYTES = 80
"""Ten rows of a book, or six of odd.weight."""


def begun(subject: Subject) -> Capture:
    return Capture(subject.engine.shards.values(), slice_bytes=SLICE_BYTES)


def rest_of(capture: Capture) -> list[tuple[str, int, Array]]:
    return [(piece.name, piece.first, piece.rows.numpy()) for piece in iter(capture.take, None)]


def whole(slices: list[tuple[str, int, Array]]) -> dict[str, Array]:
    """Every tensor, from slices that come in order and leave nothing out."""
    found: dict[str, list[Array]] = {}
    for name, first, rows in slices:
        assert first == sum(map(len, found.setdefault(name, [])))
        found[name].append(rows)
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True, err_msg=name)


def happen(subject: Subject, event: str, seed: int) -> None:
    """Something that changes some rows of a table, some of them named twice."""
    random = np.random.default_rng(seed)
    table = CONFIG.table(random.choice(TABLES))
    ids = random.integers(0, ROWS, random.integers(1, 12))
    batch = FeatureBatch(feature=table.name, ids=ids)
    vectors = random.normal(size=(len(ids), table.dim)).astype(np.float32)
    frozen_R = subject.state().get(f"{table.name}.frozen", np.zeros(ROWS))
    match event:
        case "gradients":
            subject.update([FeatureUpdate(batch=batch, gradients=vectors)])
        case "values":
            free = FeatureBatch(feature=table.name, ids=np.setdiff1d(ids, np.flatnonzero(frozen_R)))
            subject.update([FeatureUpdate(batch=free, values=vectors[: len(free.ids)])])
        case "freeze":
            subject.freeze(batch, bool(random.integers(0, 2)))


EVENTS = st.lists(
    st.tuples(st.sampled_from(["take", "take", "gradients", "values", "freeze"]), st.integers(0, 2**32)), max_size=40
)


@settings(max_examples=30, deadline=None)
@given(before=EVENTS, meanwhile=EVENTS)
def test_a_capture_is_what_rows_were_when_it_began(
    before: list[tuple[str, int]], meanwhile: list[tuple[str, int]]
) -> None:
    subject = local(CONFIG)
    for event, seed in before:
        happen(subject, event, seed)
    expected, capture, taken = subject.state(), begun(subject), []
    for event, seed in meanwhile:
        if event == "take" and (piece := capture.take()):
            taken.append((piece.name, piece.first, piece.rows.numpy()))
        happen(subject, event, seed)
    assert_same(whole(taken + rest_of(capture)), expected)


def test_a_capture_goes_on_with_the_rows_that_a_table_had_before_it_grew() -> None:
    subject = local(CONFIG)
    happen(subject, "gradients", 1)
    expected, capture = subject.state(), begun(subject)
    first = capture.take()
    assert first is not None
    subject.grow(Growth(table="odd", rows=2 * ROWS))
    happen(subject, "gradients", 2)
    taken = [(first.name, first.first, first.rows.numpy()), *rest_of(capture)]
    assert_same(whole(taken), expected)


def test_captures_that_overlap_do_not_disturb_each_other() -> None:
    subject = local(CONFIG)
    captures, states, taken = [], [], []
    for seed in range(3):
        states.append(subject.state())
        captures.append(begun(subject))
        taken.append([captures[-1].take() for _ in range(seed)])
        happen(subject, "gradients", seed)
    for capture, state, pieces in zip(captures, states, taken, strict=True):
        earlier = [(piece.name, piece.first, piece.rows.numpy()) for piece in pieces if piece]
        assert_same(whole(earlier + rest_of(capture)), state)


@pytest.mark.parametrize("whole_of_it", [True, False])
def test_nobody_watches_after_a_capture(whole_of_it: bool) -> None:
    subject = local(CONFIG)
    capture = begun(subject)
    if whole_of_it:
        rest_of(capture)
    capture.close()
    assert not any(shard.watchers for shard in subject.engine.shards.values())
    assert capture.take() is None
