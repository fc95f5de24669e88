"""The collection that is fuzzed: a table of every kind, small enough that fuzzed ids meet."""

from __future__ import annotations

from pathlib import Path

CONFIG = """
[collection]
name = "fuzz"
[limits]
message_bytes = 131_072
ids_per_request = 4_096
queue_ms = 10_000
[durability]
log = "os"
[optimizer]
kind = "rowwise_adagrad"
[[tables]]
name = "user"
counts = true
rows = 50
dim = 3
features = ["user", "friend"]
ids = { kind = "direct", padding = 0 }
[[tables]]
name = "word"
counts = true
rows = 20
dim = 2
scale = "sqrt_dim"
ids = { kind = "direct", names = "words.txt" }
optimizer = { kind = "sgd", learning_rate = 0.1 }
[[tables]]
name = "half"
counts = true
rows = 30
dim = 4
dtype = "float16"
pooling = "mean"
optimizer = { kind = "adagrad" }
[[tables]]
name = "zip"
rows = 40
dim = 4
pooling = "mean"
ids = { kind = "hashed", hashes = 2, signed = true, padding = "<pad>" }
[[tables]]
name = "query"
counts = true
rows = 30
dim = 4
dtype = "float16"
ids = { kind = "vocabulary", fallback_rows = 8, admit_after = 2 }
[[tables]]
name = "late"
rows = 12
dim = 4
pooling = "sum"
ids = { kind = "vocabulary", fallback_rows = 4, evict = "ttl", ttl_s = 86_400 }
factor = { kind = "low_rank", rank = 2 }
[[tables]]
name = "low"
counts = true
rows = 30
dim = 6
factor = { kind = "low_rank", rank = 2 }
normalise = "l2"
[[tables]]
name = "pair"
counts = true
rows = 30
dim = 4
pooling = "sum"
factor = { kind = "quotient_remainder" }
[[tables]]
name = "join"
rows = 30
dim = 4
dtype = "float16"
ids = { kind = "hashed" }
factor = { kind = "quotient_remainder", combine = "concat" }
normalise = "layer"
[[tables]]
name = "still"
rows = 9
dim = 2
frozen = true
"""
DIMS = {
    "user": 3,
    "friend": 3,
    "word": 2,
    "half": 4,
    "zip": 4,
    "query": 4,
    "late": 4,
    "low": 6,
    "pair": 4,
    "join": 4,
    "still": 2,
}
NAMES = [f"w{number}" for number in range(12)]
"""What `word` may be asked by."""
WITH_STRINGS = ("word", "zip", "query", "late", "join")
OWNING = ("user", "word", "half", "query")
"""Features whose ids own whole rows, so that values fit."""
FROZEN_USER = 7
"""A row that is frozen before anything is fuzzed."""


def lay_out(folder: Path) -> str:
    """Writes what the collection reads beside its file; returns the file's text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "words.txt").write_text("\n".join([*NAMES, ""]))
    return CONFIG
