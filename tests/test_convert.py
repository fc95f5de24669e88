"""Snapshots in fewer bits: what `embershard convert` keeps, what it rounds, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import refused, shown, told
from support.subject import Subject, local

from embershard import FingerprintMismatch
from embershard.config import load_config
from embershard.rowwise import floats, quantised
from embershard.store.manifest import open_snapshot
from embershard.types import FeatureBatch, FeatureUpdate

TABLES = """
collection = {{ name = "shop", seed = 7 }}
optimizer = {{ kind = "adagrad" }}
[[tables]]
name = "item"
rows = 50
dim = 6
dtype = "{0}"
[[tables]]
name = "word"
rows = 40
dim = 6
dtype = "{0}"
ids = {{ kind = "vocabulary", fallback_rows = 10 }}
[[tables]]
name = "low"
rows = 40
dim = 6
dtype = "{0}"
factor = {{ kind = "low_rank", rank = 3 }}
[[tables]]
name = "pair"
rows = 40
dim = 6
dtype = "{0}"
factor = {{ kind = "quotient_remainder" }}
[[tables]]
name = "float"
rows = 9
dim = 3
"""
IDS: dict[str, list[Any]] = {
    "item": [*range(50)],
    "word": [f"w{n}" for n in range(25)],
    "low": [*range(40)],
    "pair": [*range(40)],
    "float": [*range(9)],
}
BATCHES = [FeatureBatch.of(name, ids) for name, ids in IDS.items()]


class Folder:
    """A trained snapshot, `state`, and configurations beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.subject = local(load_config(self.config("float32")))
        random = np.random.default_rng(0)
        for _ in range(3):
            dims = {table.name: table.dim for table in self.subject.engine.config.tables}
            gradients = [random.normal(size=(len(ids), dims[name])).astype(np.float32) for name, ids in IDS.items()]
            updates = zip(BATCHES, gradients, strict=True)
            self.subject.update([FeatureUpdate(batch=batch, gradients=numbers) for batch, numbers in updates])
        self.subject.freeze(FeatureBatch.of("item", [3]), frozen=True)
        self.subject.save(str(path / "state" / "snapshots"), 9)

    def config(self, dtype: str) -> Path:
        path = self.path / f"{dtype}.toml"
        path.write_text(TABLES.format(dtype))
        return path

    def converted(self, dtype: str, source: str = "state") -> tuple[Subject, Any]:
        document = told("convert", self.path / source, "--config", self.config(dtype), "--output", self.path / dtype)
        other = local(load_config(self.config(dtype)))
        assert other.load(document["path"]) == 9
        return other, document


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_int8_rows_are_the_trained_ones_rounded_and_all_else_stays_but_optimizer_state(folder: Folder) -> None:
    found, document = folder.converted("int8")
    assert document["tables"]["item"] == {"before": "float32", "after": "int8"}
    assert sorted(document["tables"]) == ["item", "low", "pair", "word"]
    assert document["bytes"] < document["bytes_before"]
    before, after = folder.subject.state(), found.state()
    rounded = {f"{name}.weight" for name in ("item", "word", "low", "pair:quotient", "pair:remainder")}
    for name, tensor in after.items():
        expected = quantised(torch.from_numpy(before[name])).numpy() if name in rounded else before[name]
        np.testing.assert_array_equal(tensor, expected, name)
    lost = {name.replace(".weight", ".sum") for name in rounded} | {"low:projection.frozen"}  # which isn't frozen
    assert before.keys() - after.keys() == lost
    vocabularies = folder.subject.vocabularies(), found.vocabularies()
    for key, value in vocabularies[0]["word"].items():
        np.testing.assert_array_equal(vocabularies[1]["word"][key], value)
    for vectors, exact in zip(found.lookup(BATCHES), folder.subject.lookup(BATCHES), strict=True):
        assert np.abs(vectors - exact).max() < 0.05 * np.abs(exact).max()


def test_float16_rows_can_still_be_trained_and_become_int8_rows(folder: Folder) -> None:
    found, _ = folder.converted("float16")
    before, after = folder.subject.state(), found.state()
    np.testing.assert_array_equal(after["item.weight"], before["item.weight"].astype(np.float16))
    np.testing.assert_array_equal(after["item.sum"], before["item.sum"])
    found.update([FeatureUpdate(batch=BATCHES[0], gradients=np.ones((50, 6), np.float32))])
    narrow, document = folder.converted("int8", "float16")
    assert document["tables"]["word"] == {"before": "float16", "after": "int8"}
    np.testing.assert_array_equal(
        narrow.state()["item.weight"], quantised(torch.from_numpy(after["item.weight"]).float()).numpy()
    )


def test_the_command_tells_what_it_did_and_others_read_what_it_made(folder: Folder) -> None:
    lines = shown("convert", folder.path / "state", "--config", folder.config("int8"), "--output", folder.path / "int8")
    assert lines[0] == "version 9"
    assert "table item: float32 before, int8 after" in lines
    told("export", folder.path / "int8", folder.path / "item.npy", "--table", "item")
    rows = torch.from_numpy(folder.subject.state()["item.weight"])
    np.testing.assert_array_equal(np.load(folder.path / "item.npy"), floats(quantised(rows)).numpy())
    difference = told("diff", folder.path / "state", folder.path / "int8")["tables"]["item"]["weights"]["item"]
    assert difference["largest"] == pytest.approx(float((floats(quantised(rows)) - rows).abs().max()))
    drifted = told("drift", folder.path / "int8", folder.path / "int8")
    assert drifted["tables"]["item"]["matrices"]["item"]["moved"] == 0
    assert told("snapshot", "--verify", folder.path / "int8")["version"] == 9


def test_what_else_differs_is_refused(folder: Folder) -> None:
    folder.converted("int8")
    state, made = folder.path / "state", folder.path / "int8"

    def refusal(source: Path, config: Path, output: str = "out") -> str:
        return refused("convert", source, "--config", config, "--output", folder.path / output)

    assert "has the dtypes of the configuration: there is nothing" in refusal(state, folder.config("float32"))
    assert "dtype: 'float32' here, 'int8' there" in refusal(made, folder.config("float32"))
    assert "is there already, and isn't overwritten" in refusal(state, folder.config("int8"), "int8")
    other = folder.path / "other.toml"
    other.write_text(folder.config("int8").read_text().replace("dim = 6", "dim = 5", 1))
    assert "tables.item.dim: 5 here, 6 there" in refusal(state, other)
    other.write_text(folder.config("int8").read_text().replace("adagrad", "sgd"))
    assert "has the optimizer state of adagrad" in refusal(state, other)


def test_a_snapshot_is_never_rounded_by_loading_it(folder: Folder) -> None:
    other = local(load_config(folder.config("int8")))
    path = folder.path / "state/snapshots/000000000009"
    with pytest.raises(FingerprintMismatch, match=r"'int8' here, 'float32' there.*`embershard convert` stores rows in"):
        other.load(str(path))
    assert open_snapshot(path).tensors["item.weight"]["dtype"] == "float32"
