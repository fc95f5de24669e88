"""Snapshots' worth of rows that drift, and what a plain loop over them finds, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from embershard.types import FeatureBatch, FeatureUpdate
from support.scenario import collection
from support.subject import Subject, local

SHAPE: dict[str, Any] = {"rows": 13, "dim": 2, "counts": True}
VOCABULARY = {"kind": "vocabulary", "fallback_rows": 3}
TABLES: list[dict[str, Any]] = [
    {"name": "plain", **SHAPE},
    {"name": "bare", **SHAPE, "counts": False},
    {"name": "half", **SHAPE, "dtype": "float16"},
    {"name": "low", **SHAPE, "factor": {"kind": "low_rank", "rank": 1}},
    {"name": "pair", **SHAPE, "factor": {"kind": "quotient_remainder"}},
    {"name": "query", **SHAPE, "ids": VOCABULARY},
    {"name": "pairs", **SHAPE, "ids": VOCABULARY, "factor": {"kind": "quotient_remainder"}},
]
EVERYTHING = collection(TABLES)
WORDS = ["a", "b", "c", 7, -1, "d"]


def train(subject: Subject, feature: str, ids: Sequence[Any], gradient: Sequence[float] | None = None) -> None:
    """One update of these ids, each by the same gradient; if none is given, by one that leaves rows where they are."""
    dim = subject.engine.config.table(feature).dim
    gradients = np.tile(np.float32(gradient or [0.0] * dim), (len(ids), 1))
    subject.update([FeatureUpdate(batch=FeatureBatch.of(feature, ids), gradients=gradients)])


def assign(subject: Subject, feature: str, ids: Sequence[Any], rows: Sequence[Sequence[float]]) -> None:
    values = np.array(rows, np.float32)
    subject.update([FeatureUpdate(batch=FeatureBatch.of(feature, ids), values=values)])


def owners(subject: Subject, table: str) -> dict[Any, int]:
    """{id: its row} of a vocabulary."""
    state, first = subject.vocabularies()[table], VOCABULARY["fallback_rows"]
    pairs = zip(state["keys"].tolist(), state["names"], state["slots"].tolist(), strict=True)
    return {key if name is None else name: first + slot for key, name, slot in pairs}


def scrambled(random: np.random.Generator) -> Subject:
    """Any ids in any order, small numbers that are often the same or 0, now and then one that isn't finite."""
    subject = local(EVERYTHING)
    for table in ("query", "pairs"):
        for at in random.permutation(len(WORDS))[: random.integers(0, len(WORDS) + 1)]:
            train(subject, table, [WORDS[at]])
    for shard in subject.engine.shards.values():
        if random.random() < 0.8:
            shard.books.expect_frozen()
    for name, view in subject.engine.tensors().items():
        low, high = {"weight": (-1, 2), "frozen": (0, 2)}.get(name.rpartition(".")[2], (0, 6))
        view.copy_(torch.from_numpy(random.integers(low, high, view.shape)))
        if name.endswith(".weight") and random.random() < 0.2:
            view[random.integers(len(view))] = float(random.choice([math.inf, math.nan]))
    return subject


def length(row: Sequence[float]) -> float:
    return math.sqrt(sum(number * number for number in row))


def moved(a: Sequence[float], b: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Move, relative move and cosine of one row."""
    move = length([y - x for x, y in zip(a, b, strict=True)])
    if not (math.isfinite(move) and length(a)):
        return move, None, None
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return move, move / length(a), dot / (length(a) * length(b)) if length(b) else None


def quantile(values: list[float], share: float) -> float:
    place = share * (len(values) - 1)
    low, high = values[math.floor(place)], values[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def spread(values: list[float | None], wanted: dict[str, float]) -> Any:
    defined = sorted(value for value in values if value is not None)
    return pytest.approx({name: quantile(defined, share) for name, share in wanted.items()}) if defined else None


def effective(counts: list[int]) -> float:
    shares = [count / sum(counts) for count in counts if count]
    return math.exp(-sum(share * math.log(share) for share in shares)) if shares else 0.0


def farness(move: float) -> float:
    return math.inf if math.isnan(move) else move


def expected(
    matrix: str, was: dict[str, Any], now: dict[str, Any], ids: tuple[dict[Any, int], dict[Any, int]]
) -> tuple[dict[str, Any], dict[int, tuple[Any, ...]]]:
    """The document of one matrix, but for single rows and whether data is narrow; and {row: …} of what moved: its
    number, id, move, relative move, cosine, updates before and since.

    `was` and `now` are {kind: a list of rows}, `ids` {id: row} of both. Without sightings, counts aren't known.
    """
    counted = "sightings" in was
    nothing = {kind: [0] * len(was["weight"]) for kind in ("sightings", "frozen")}
    was, now = nothing | was, nothing | now
    owned = [{row: key for key, row in of.items()} for of in ids]
    pairs = [(row, ids[1][key]) for key, row in ids[0].items() if key in ids[1]]
    pairs += [(n, n) for n in range(len(was["weight"])) if n not in owned[0] and n not in owned[1]]
    sightings, since = was["sightings"], list(now["sightings"])
    moves, trained, frozen = {}, 0, set()
    for a, b in pairs:
        x, y = was["weight"][a], now["weight"][b]
        updates = now["updates"][b] - was["updates"][a] * (now["updates"][b] >= was["updates"][a])
        since[b] -= sightings[a] * (since[b] >= sightings[a])
        trained += updates > 0
        frozen |= {b} if was["frozen"][a] and now["frozen"][b] else set()
        if any(p != q and not (math.isnan(p) and math.isnan(q)) for p, q in zip(x, y, strict=True)):
            key = b if matrix in ("plain", "bare", "half", "low") else owned[1].get(b)
            moves[a] = (b, key, *moved(x, y), *((was["updates"][a], updates) if counted else (None, None)))
    head, order = set(), sorted((-count, row) for row, count in enumerate(sightings) if count)
    while 2 * sum(sightings[row] for row in head) < sum(sightings):
        head.add(order[len(head)][1])
    far = [a for a, (_, _, _, relative, cosine, *_) in moves.items() if not ((cosine or -1) >= 0.9 and relative <= 0.5)]
    spreads = effective(sightings), effective(since)
    return {
        "compared": len(pairs),
        "moved": len(moves),
        "trained": trained if counted else None,
        "relative": spread([told[3] for told in moves.values()], {"p50": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1}),
        "cosine": spread([told[4] for told in moves.values()], {"p50": 0.5, "p10": 0.1, "p1": 0.01, "smallest": 0}),
        "frozen": len(frozen),
        "frozen_moved": len(frozen & {told[0] for told in moves.values()}),
        "head": {
            "rows": len(head),
            "moved": len(head & moves.keys()),
            "far": len(head & set(far)),
            "effective_rows": pytest.approx(dict(zip(("before", "since"), spreads, strict=True))),
        }
        if counted
        else None,
    }, {told[0]: told for told in moves.values()}
