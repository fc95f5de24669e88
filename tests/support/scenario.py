"""Collections and random requests that reach into every corner of the behaviour."""

from __future__ import annotations

from typing import Any

import numpy as np

from embershard.config import Config, parse_config
from embershard.types import FeatureBatch, FeatureUpdate

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")
POOLINGS = ("none", "sum", "mean")
ID_KINDS: dict[str, dict[str, Any]] = {
    "direct": {"kind": "direct", "padding": 3},
    "hashed": {"kind": "hashed"},
    "hashed_signed_twice": {"kind": "hashed", "hashes": 2, "signed": True, "padding": -1},
    "strings": {"kind": "hashed", "hashes": 3, "signed": True, "padding": "<pad>"},
    "vocabulary": {"kind": "vocabulary", "admit_after": 2, "padding": -1},
    "words": {"kind": "vocabulary", "hashes": 1, "signed": False, "count_lookups": True, "padding": "<pad>"},
}
FACTORS: dict[str, dict[str, Any]] = {
    "low_rank": {"factor": {"kind": "low_rank", "rank": 2}},
    "product": {"factor": {"kind": "quotient_remainder"}, "scale": "sqrt_dim"},
    "sum": {"factor": {"kind": "quotient_remainder", "combine": "sum", "remainders": 4}, "normalise": "l2"},
    "concat": {"factor": {"kind": "quotient_remainder", "combine": "concat"}, "normalise": "layer"},
    "layer": {"normalise": "layer"},
    "low_rank_l2": {"factor": {"kind": "low_rank", "rank": 3}, "normalise": "l2"},
}
"""What a row may be made of, and what may become of it."""


def collection(tables: list[dict[str, Any]], *, seed: int = 7, **optimizer: Any) -> Config:
    """A configuration of these tables."""
    data: dict[str, Any] = {"collection": {"name": "test", "seed": seed}, "tables": tables}
    if optimizer:
        data["optimizer"] = optimizer
    return parse_config(data)


def everything(optimizer: str, pooling: str, ids: str) -> Config:
    """Several dims in several groups, one row, fewer rows than ranks, a shared table, every factor: of one optimizer,
    pooling and kind of ids."""
    shapes = {"wide": (37, 8), "odd": (23, 3), "thin": (50, 1), "odder": (11, 3), "pair": (5, 50)}
    tables: list[dict[str, Any]] = [{"name": name, "rows": rows, "dim": dim} for name, (rows, dim) in shapes.items()]
    tables[0]["features"] = ["wide", "wide_too"]
    tables.append({"name": "own", "rows": 9, "dim": 8, "optimizer": {"kind": "sgd"}})
    # Rows start large enough that the direction of a normalised one is no matter of rounding.
    tables += [
        {"name": name, "rows": 19, "dim": 6, "init": {"scale": 0.5}, **factor} for name, factor in FACTORS.items()
    ]
    for table in tables:
        table |= {"pooling": pooling, "ids": dict(ID_KINDS[ids])}
        if table.get("normalise") and ids != "direct":
            table["ids"]["hashes"] = 1  # rows that nearly cancel have a direction that is nothing but rounding
        if table["ids"]["kind"] == "vocabulary":
            table["ids"]["fallback_rows"] = 2 + table["rows"] // 4
    tables.append({"name": "single", "rows": 1, "dim": 4, "pooling": pooling})
    for table in tables[::2]:
        table["counts"] = True
    return collection(tables, kind=optimizer, learning_rate=0.1)


def random_batch(random: np.random.Generator, config: Config, feature: str, examples: int) -> FeatureBatch:
    """Bags with duplicates, empty ones, padding ids, weights: whatever the feature's table allows."""
    table = next(table for table in config.tables if feature in table.features)
    pooled = table.pooling != "none"
    lengths = random.integers(0, 5, examples).astype(np.int32) if pooled or random.random() < 0.3 else None
    count = examples if lengths is None else int(lengths.sum())
    numbers = random.integers(0, table.rows, count)
    if table.ids.kind != "direct":
        numbers = numbers + random.choice(np.array([-1, -(2**63), 2**62]), count)
    ids: Any = numbers
    if table.ids.padding is not None and isinstance(table.ids.padding, str):
        ids = tuple(random.choice(["<pad>", "", "ü", "word"]) + str(number % 5) * (number % 3) for number in numbers)
    weights = random.uniform(0.1, 2, count).astype(np.float32) if pooled and random.random() < 0.5 else None
    return FeatureBatch(feature=feature, ids=ids, lengths=lengths, weights=weights)


def random_batches(random: np.random.Generator, config: Config, *, examples: int = 6) -> list[FeatureBatch]:
    """Batches of most features, in any order; now and then of none."""
    features = [feature for table in config.tables for feature in table.features if random.random() < 0.8]
    random.shuffle(features)
    return [random_batch(random, config, feature, int(random.integers(0, examples))) for feature in features]


def random_updates(random: np.random.Generator, config: Config) -> list[FeatureUpdate]:
    """Gradients for random batches."""
    updates = []
    for batch in random_batches(random, config):
        table = next(table for table in config.tables if batch.feature in table.features)
        outputs = len(batch.ids) if table.pooling == "none" else batch.examples
        gradients = random.normal(size=(outputs, table.dim)).astype(np.float32)
        updates.append(FeatureUpdate(batch=batch, gradients=gradients))
    return updates
