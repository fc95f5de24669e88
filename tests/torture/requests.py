"""A small collection with a bit of everything, and random requests to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from embershard import codec
from embershard.types import FeatureBatch, FeatureUpdate
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "torture"
seed = {seed}
[limits]
queue_ms = 10_000
group_timeout_s = 20
snapshots_kept = 8
[durability]
log = "{log}"
[optimizer]
kind = "rowwise_adagrad"
learning_rate = 0.1
[[tables]]
name = "user"
counts = true
rows = 12
dim = 4
features = ["user", "friend"]
ids = {{ kind = "direct", padding = 0 }}
optimizer = {{ kind = "adagrad", learning_rate = 0.2 }}
[[tables]]
name = "zip"
rows = 16
dim = 3
pooling = "mean"
ids = {{ kind = "hashed", hashes = 2, signed = true }}
[[tables]]
name = "word"
counts = true
rows = 14
dim = 4
pooling = "sum"
ids = {{ kind = "vocabulary", fallback_rows = 4, admit_after = 2, count_lookups = true, candidates = 8 }}
optimizer = {{ kind = "sgd", learning_rate = 0.1 }}
[[tables]]
name = "fresh"
rows = 12
dim = 2
ids = {{ kind = "vocabulary", fallback_rows = 3, evict = "ttl", ttl_s = 2 }}
[[tables]]
name = "low"
counts = true
rows = 15
dim = 6
normalise = "l2"
factor = {{ kind = "low_rank", rank = 2 }}
init = {{ scale = 0.5 }}
[[tables]]
name = "pair"
rows = 20
dim = 4
dtype = "float16"
ids = {{ kind = "vocabulary", fallback_rows = 6 }}
factor = {{ kind = "quotient_remainder" }}
[[tables]]
name = "still"
rows = 5
dim = 2
frozen = true
"""

DIMS = {"user": 4, "friend": 4, "zip": 3, "word": 4, "fresh": 2, "low": 6, "pair": 4, "still": 2}
PROJECTED = "low"
"""The table with a projection."""
POOLED = ("zip", "word")
OWNING = ("user", "friend", "word", "fresh")
"""Features whose ids own plain rows, which can be overwritten and frozen."""
COUNTED = {"user", "friend", "word", "low"}
"""Features whose tables keep counts."""
STARTABLE = (*OWNING, "low")
GROWING = {"user": 12, "word": 14, "fresh": 12, "low": 15, "pair": 20}
"""Tables that may grow, and the rows with which they begin."""
WORDS = [f"{stem}{number}" for stem in ("ü", "word", "") for number in range(9)]


def config(random: np.random.Generator) -> str:
    """The collection's file."""
    return CONFIG.format(seed=int(random.integers(2**31)), log=random.choice(["fsync", "os"]))


def update(random: np.random.Generator, client: str, sequence: int) -> bytes:
    """Gradients, values and parents of some features."""
    features = random.choice(list(DIMS), size=random.integers(1, 4), replace=False)
    updates = [codec.encode_update(_change(random, str(feature))) for feature in features]
    return pb.UpdateRequest(updates=updates, client_id=client, sequence=sequence).SerializeToString()


def lookup(random: np.random.Generator, *, min_version: int = 0, pinned: int = 0) -> bytes:
    """Ids of some features."""
    features = random.choice(list(DIMS), size=random.integers(1, 5), replace=False)
    batches = [codec.encode_batch(_batch(random, str(feature), pooled=str(feature) in POOLED)) for feature in features]
    told = bool(random.random() < 0.3)
    request = pb.LookupRequest(
        features=batches,
        min_version=min_version,
        pinned_version=pinned,
        with_counts=told and COUNTED.issuperset(map(str, features)),
        with_provenance=told,
    )
    return request.SerializeToString()


def growth(random: np.random.Generator) -> bytes:
    """A few more rows for a table than it began with: often fewer than it has, which is refused."""
    table = str(random.choice(list(GROWING)))
    mean = bool(table == "user" and random.random() < 0.5)
    rows = GROWING[table] + int(random.integers(1, 12))
    return pb.GrowRequest(table=table, rows=rows, mean=mean).SerializeToString()


def freeze(random: np.random.Generator) -> bytes:
    """Few ids are frozen, and more are let go: else all would be still in the end."""
    thaw = bool(random.random() < 0.5)
    count = 8 if thaw else 1
    batch = FeatureBatch.of(str(random.choice(OWNING)), _ids(random, str(random.choice(["user", "word"])), count))
    return pb.FreezeRequest(batch=codec.encode_batch(batch), thaw=thaw).SerializeToString()


def _change(random: np.random.Generator, feature: str) -> FeatureUpdate:
    chance, pooled = random.random(), feature in POOLED
    if chance < 0.12 and feature in OWNING:
        batch = _batch(random, feature, pooled=False)
        return FeatureUpdate(batch=batch, values=_numbers(random, len(batch.ids), DIMS[feature]))
    if chance < 0.2 and feature in STARTABLE:
        batch = FeatureBatch.of(feature, _ids(random, feature, 1))
        return FeatureUpdate(batch=batch, parents=FeatureBatch.of(feature, (_ids(random, feature, 2), [2])))
    batch = _batch(random, feature, pooled=pooled)
    outputs = batch.examples if pooled else len(batch.ids)
    return FeatureUpdate(batch=batch, gradients=_numbers(random, outputs, DIMS[feature]))


def _batch(random: np.random.Generator, feature: str, *, pooled: bool) -> FeatureBatch:
    if not pooled:
        return FeatureBatch.of(feature, _ids(random, feature, int(random.integers(1, 5))))
    lengths = random.integers(0, 4, 3)
    weights = random.uniform(0.1, 2, lengths.sum()) if random.random() < 0.5 else None
    return FeatureBatch.of(feature, (_ids(random, feature, int(lengths.sum())), lengths, weights))


def _ids(random: np.random.Generator, feature: str, count: int) -> Any:
    """Some ids far more often than others; now and then one that a table has only once it has grown."""
    skewed = np.minimum(random.geometric(0.12, count) - 1, 26)
    if feature == "word":
        return [WORDS[number] for number in skewed]
    if feature in ("user", "friend", "low", "still"):
        rows = {"low": 15, "still": 5}.get(feature, 12)
        return skewed % rows + (rows * (random.random(count) < 0.01)).astype(int)
    return skewed - 9


def _numbers(random: np.random.Generator, rows: int, dim: int) -> Any:
    return random.normal(size=(rows, dim)).astype(np.float32)
