"""Training jobs in a folder: data of a few columns, a collection, and a job file."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from embershard.engine.world import World

USERS, ITEMS, TAGS, DIM = 60, 40, 12, 8


def write_data(folder: Path, examples: int = 640, seed: int = 0) -> None:
    """Clicks, with a bag of tags and three numbers each; and sequences of items."""
    random = np.random.default_rng(seed)
    taste = random.normal(size=(USERS, 3)), random.normal(size=(ITEMS, 3))
    user_id, item_id = random.integers(0, USERS, examples), random.integers(1, ITEMS, examples)
    clicked = (taste[0][user_id] * taste[1][item_id]).sum(1) + random.normal(size=examples) > 0
    tags = [random.integers(0, TAGS, random.integers(0, 4)).tolist() for _ in range(examples)]
    numbers = {f"number{n}": random.normal(size=examples).astype(np.float32) for n in range(3)}
    histories = [random.integers(1, ITEMS, random.integers(2, 9)).tolist() for _ in range(examples)]
    table = pa.table(
        {
            "user_id": user_id,
            "zip": [f"z{number}" for number in random.zipf(1.5, examples) % 40],
            "item_id": item_id,
            "tags": tags,
            "clicked": clicked.astype(np.float32),
            "history": histories,
            "at": np.arange(examples),
            "targets": [[int(item)] for item in item_id],
            **numbers,
        }
    )
    parquet.write_table(table, folder / "data.parquet", row_group_size=100)
    parquet.write_table(pa.table({"item_id": np.arange(1, ITEMS)}), folder / "items.parquet")


def collection(optimizer: str = "sgd", rate: float = 0.1, **of_user: Any) -> str:
    """The tables of a collection, as TOML."""
    return f"""
[collection]
name = "jobs"
seed = 5
[optimizer]
kind = "{optimizer}"
learning_rate = {rate}
[[tables]]
name = "user"
rows = {USERS}
dim = {DIM}
features = ["user_id"]
init = {{ kind = "normal", scale = 0.3 }}
{"".join(f"{key} = {value}" for key, value in of_user.items())}
[[tables]]
name = "item"
rows = {ITEMS}
counts = true
dim = {DIM}
features = ["item_id", "history"]
ids = {{ kind = "direct", padding = 0 }}
scale = "sqrt_dim"
init = {{ kind = "normal", scale = 0.3 }}
[[tables]]
name = "tag"
rows = {TAGS}
dim = {DIM}
features = ["tags"]
pooling = "mean"
init = {{ kind = "normal", scale = 0.3 }}
"""


VOCABULARY = """
[[tables]]
name = "zip"
rows = 30
dim = 8
ids = { kind = "vocabulary", fallback_rows = 10, admit_after = 2 }
factor = { kind = "low_rank", rank = 4 }
"""
"""A table whose ids come and go, and whose rows share a projection."""

DLRM = """
model = "dlrm"
[model_options]
bottom = [8]
top = [16]
[data]
train = ["data.parquet"]
evaluate_from = 512
time = "at"
label = "clicked"
dense = ["number0", "number1", "number2"]
features = { user_id = {}, item_id = {}, tags = {} }
"""
TWO_TOWER = """
model = "two_tower"
[model_options]
user = ["user_id", "tags"]
item = ["item_id"]
widths = [16, 8]
[data]
train = ["data.parquet"]
evaluate_from = 512
time = "at"
features = { user_id = {}, item_id = {}, tags = {} }
[evaluate]
items = "items.parquet"
"""
NEXT_ITEM = """
model = "next_item"
[model_options]
sequence = "history"
item = "item_id"
dropout = 0.0
[data]
train = ["data.parquet"]
evaluate_from = 512
time = "at"
features = { history = {} }
[evaluate]
items = "items.parquet"
"""
MODELS = {"dlrm": DLRM, "two_tower": TWO_TOWER, "next_item": NEXT_ITEM}
SGD = '[optimizer]\nkind = "SGD"\noptions = { lr = 0.1 }\n'


def write_job(
    folder: Path, job: str, *, tables: str | None = None, batch: int = 64, more: str = SGD, **top: Any
) -> Path:
    """A job file, with its collection and data beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data.parquet").exists():
        write_data(folder)
    (folder / "tables.toml").write_text(collection() if tables is None else tables)
    head = {"collection": "tables.toml", "batch": batch, **top}
    lines = [f"{key} = {json.dumps(value)}" for key, value in head.items()]
    path = folder / "job.toml"
    path.write_text("\n".join(lines) + job + more)
    return path


def losses(folder: Path) -> list[float]:
    """Of every step, from the history of a run that tells each."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def run_job(path: Path, folder: Path, world: World) -> dict[str, np.ndarray[Any, Any]]:
    """Joint: trains to the end in this process; returns the tables, whole, and the layers."""
    from embershard.train.run import Run

    with closing(Run(path, folder, world)) as run:
        run.to_its_end()
        mine = {name: view.cpu().numpy().copy() for name, view in run.engine.tensors().items()}
        parts = world.gather(mine)
        layers = {name: parameter.detach().cpu().numpy() for name, parameter in run.model.named_parameters()}
    return {name: np.concatenate([part[name] for part in parts]) for name in mine} | layers
