"""Snapshots without a server: exported to files, and told apart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import refused, shown, told
from support.implementation import Implementation
from support.ranks import Ranks
from support.scenario import collection, random_updates
from support.subject import Subject, local

from embershard import formats
from embershard.config import Config
from embershard.types import FeatureBatch, FeatureUpdate

PLAIN: dict[str, Any] = {"rows": 19, "dim": 6}
VOCABULARY = {"kind": "vocabulary", "fallback_rows": 5, "padding": "<pad>"}
TABLES: list[dict[str, Any]] = [
    {"name": "padded", **PLAIN, "ids": {"padding": 3}, "pooling": "sum"},
    {"name": "half", **PLAIN, "dtype": "float16"},
    {"name": "low", **PLAIN, "factor": {"kind": "low_rank", "rank": 2}, "scale": "sqrt_dim"},
    {"name": "product", **PLAIN, "factor": {"kind": "quotient_remainder"}, "normalise": "layer", "pooling": "mean"},
    {"name": "concat", **PLAIN, "factor": {"kind": "quotient_remainder", "combine": "concat"}, "normalise": "l2"},
    {"name": "query", **PLAIN, "ids": VOCABULARY, "pooling": "mean"},
    {"name": "mixed", **PLAIN, "ids": VOCABULARY},
    {"name": "both", **PLAIN, "ids": VOCABULARY},
    {"name": "nobody", **PLAIN, "ids": VOCABULARY},
    {"name": "hashed", **PLAIN, "ids": {"kind": "hashed", "hashes": 2}},
]

MANY = {"query", "mixed", "both", "nobody"}
"""Features whose ids the tests choose themselves."""


def batch(feature: str, ids: Any) -> FeatureBatch:
    return FeatureBatch.of(feature, ids)


def gradients(feature: str, ids: Sequence[Any], dim: int) -> FeatureUpdate:
    numbers = np.random.default_rng(1).normal(size=(len(ids), dim)).astype(np.float32)
    return FeatureUpdate(batch=batch(feature, ids), gradients=numbers)


def trained(config: Config) -> Subject:
    subject, random = local(config), np.random.default_rng(5)
    for _ in range(3):
        subject.update([update for update in random_updates(random, config) if update.batch.feature not in MANY])
    return subject


@pytest.fixture(scope="module")
def served() -> Subject:
    subject = trained(collection(TABLES))
    for feature, ids in (("query", [5, -7]), ("mixed", ["b", "c"]), ("mixed", [9]), ("both", ["9"]), ("both", [9])):
        subject.update([gradients(feature, ids, 6)])
    return subject


@pytest.fixture(scope="module")
def saved(served: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(served.save(str(tmp_path_factory.mktemp("state") / "snapshots"), 42))


def lookup(subject: Subject, feature: str, ids: Any) -> np.ndarray[Any, Any]:
    """One vector an id, as it is before pooling."""
    return subject.lookup([FeatureBatch.of(feature, (ids, [1] * len(ids)))])[0]


@pytest.mark.parametrize("table", ["padded", "half", "low", "product", "concat"])
def test_every_row_of_direct_ids_is_exported_as_it_is_served(
    served: Subject, saved: Path, tmp_path: Path, table: str
) -> None:
    document = told("export", saved, tmp_path / "rows.npy", "--table", table)
    assert document == {"version": 42, "table": table, "ids": 19, "dim": 6, "unnamed": 0, "integers_as_text": 0}
    expected = lookup(served, table, range(19))
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), expected, rtol=1e-6 if table == "low" else 0)


@pytest.mark.parametrize(("table", "ids"), [("query", [5, -7]), ("mixed", ["9", "b", "c"])])
def test_all_ids_that_own_a_row_of_a_vocabulary_are_exported(
    served: Subject, saved: Path, tmp_path: Path, table: str, ids: list[Any]
) -> None:
    lines = shown("export", saved, tmp_path / "rows.safetensors", "--table", table)
    found = formats.read(tmp_path / "rows.safetensors")
    assert sorted(map(str, found.ids)) == sorted(map(str, ids))
    asked = [[9] if key == "9" else [key] for key in (found.ids if table == "mixed" else found.ids.tolist())]  # type: ignore[union-attr]
    np.testing.assert_array_equal(found.vectors_ND, np.concatenate([lookup(served, table, one) for one in asked]))
    text = ["as text 1 integer ids, as the others are strings"] if table == "mixed" else []
    assert lines == ["version 42", f"ids {len(ids)}", "dim 6", *text]


@pytest.mark.parametrize("name", ["f.npy", "f.npz", "f.parquet", "f.txt", "f.tsv", "f.safetensors", "f.pt"])
def test_every_format_holds_the_same_bits(served: Subject, saved: Path, tmp_path: Path, name: str) -> None:
    told("export", saved, tmp_path / name, "--table", "half")
    found = formats.read(tmp_path / name)
    assert list(map(str, found.ids)) == list(map(str, range(19)))
    np.testing.assert_array_equal(found.vectors_ND, lookup(served, "half", range(19)))


@pytest.mark.parametrize(
    ("table", "flags", "part"),
    [
        ("hashed", (), "table 'hashed' has hashed ids: any id has a vector there"),
        ("none", (), "there is no table 'none'; it has padded, half"),
        ("nobody", (), "table 'nobody' has no id that owns a row yet"),
        ("both", (), "has both the integer 9 and the string '9' as ids"),
        ("query", ("--row-numbers",), "table 'query' has vocabulary ids, which are no row numbers"),
        ("query", (), "this format has no place for ids"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    saved: Path, tmp_path: Path, table: str, flags: tuple[str, ...], part: str
) -> None:
    assert part in refused("export", saved, tmp_path / "f.npy", "--table", table, *flags)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_replaced_only_if_asked(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "f.npy").write_text("mine")
    export = ("export", saved, tmp_path / "f.npy", "--table", "half")
    assert "is there already" in refused(*export)
    assert (tmp_path / "f.npy").read_text() == "mine"
    assert told(*export, "--overwrite")["ids"] == 19


def test_a_snapshot_is_named_by_its_folder_or_by_one_that_has_it(served: Subject, saved: Path, tmp_path: Path) -> None:
    older = Path(local(served.engine.config).save(str(saved.parent), 41, 9))
    for path, version in ((saved, 42), (saved.parent, 42), (saved.parents[1], 42), (older, 41)):
        assert told("export", path, tmp_path / f"{version}{path.name}.npy", "--table", "half")["version"] == version
    assert "there is no snapshot; give the folder of one" in refused("diff", tmp_path, saved)


def test_a_damaged_snapshot_is_refused(saved: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(saved, tmp_path / saved.name)
    next(copy.glob("shard-*")).write_bytes(b"")
    assert "it is truncated or changed; restore it" in refused("export", copy, tmp_path / "f.npy", "--table", "half")
    assert "it is truncated or changed; restore it" in refused("diff", saved, copy)


def test_a_snapshot_of_several_ranks_is_read_whole(world: Callable[[int], Ranks], tmp_path: Path) -> None:
    ranks, config = Implementation(world(2)), collection([TABLES[0], TABLES[2]])
    ranks.build(config)
    ranks.update([[gradients("padded", [1, 18], 6)], [gradients("low", [0, 10], 6)]])
    path = ranks.save(tmp_path / "snapshots", 1)
    alone = local(config)
    alone.load(path)
    told("export", path, tmp_path / "rows.npy", "--table", "padded")
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), lookup(alone, "padded", range(19)))
    assert shown("diff", path, alone.save(str(tmp_path / "alone"), 1))[4:] == [
        "layout: the same",
        "table padded: the same",
        "table low: the same",
    ]


def test_a_snapshot_does_not_differ_from_itself(saved: Path) -> None:
    document = told("diff", saved, saved.parents[1])
    assert document["a"] == document["b"]
    assert (document["layout"], document["only_in_a"], document["only_in_b"]) == ([], [], [])
    for table in document["tables"].values():
        assert all(rows["differing"] == rows["largest"] == 0 for rows in table["weights"].values())
    assert [line for line in shown("diff", saved, saved)[4:] if not line.endswith("the same")] == []


def test_layouts_are_told_apart_place_by_place(saved: Path, tmp_path: Path) -> None:
    tables = [dict(table) for table in TABLES if table["name"] not in ("hashed", "nobody")]
    tables[0] |= {"ids": {"kind": "hashed"}}
    tables[1] |= {"rows": 30, "optimizer": {"kind": "sgd"}}
    tables.append({"name": "fresh", **PLAIN})
    other = local(collection(tables, seed=8)).save(str(tmp_path), 3)
    document = told("diff", saved, other)
    for line in ("seed: 7 here, 8 there", "tables.padded.ids.kind: 'direct' here, 'hashed' there"):
        assert line in document["layout"]
    assert (document["only_in_a"], document["only_in_b"]) == (["nobody", "hashed"], ["fresh"])
    assert (document["tables"]["half"]["rows"], document["a"]["version"]) == ({"a": 19, "b": 30}, 42)
    assert document["tables"]["half"]["weights"]["half"]["compared"] == 19
    lines = shown("diff", saved, other)
    for line in (
        "layout: differs (here: A, there: B)",
        "  seed: 7 here, 8 there",
        "table hashed: only in A",
        "table fresh: only in B",
        "  rows: 19 in A, 30 in B",
        "  optimizers: rowwise_adagrad in A, sgd in B",
        "  ids gone: 2 (-7, 5)",
    ):
        assert line in lines


def test_ids_and_rows_of_the_same_table_are_told_apart(tmp_path: Path) -> None:
    config = collection([TABLES[5], TABLES[2]], kind="sgd", learning_rate=1.0)
    before, after = local(config), local(config)
    values = np.arange(18, dtype=np.float32).reshape(3, 6)
    for subject, ids in ((before, ["a", "b", "c"]), (after, ["b", "c", "d"])):
        for key, row_D in zip(ids, values[["abcd".index(key) % 3 for key in ids]], strict=True):
            subject.update([FeatureUpdate(batch=batch("query", [key]), values=row_D[None])])
    after.update([gradients("low", [4], 6)])
    a, b = before.save(str(tmp_path / "a"), 1), after.save(str(tmp_path / "b"), 2)
    query = told("diff", a, b)["tables"]["query"]
    assert query["ids"] == {
        "added": {"count": 1, "examples": ["d"]},
        "gone": {"count": 1, "examples": ["a"]},
        "moved": {"count": 2, "examples": [{"id": "b", "a": 6, "b": 5}, {"id": "c", "a": 7, "b": 6}]},
    }
    assert query["weights"]["query"]["differing"] == 0, "rows belong to ids, wherever they are"
    lines = shown("diff", a, b)
    assert '  ids moved: 2 ("b": row 6 → 5, "c": row 7 → 6)' in lines
    assert any(line.startswith("  weights of low: 1 of 19 rows differ, by ") for line in lines)
    assert any(line.startswith("  weights of low:projection: 2 of 2 rows differ, by ") for line in lines)


def test_of_many_ids_a_few_are_named(tmp_path: Path) -> None:
    config = collection([{"name": "query", "rows": 60, "dim": 1, "ids": VOCABULARY}])
    before, after = local(config), local(config)
    after.update([gradients("query", range(40), 1)])
    document = told("diff", before.save(str(tmp_path / "a"), 1), after.save(str(tmp_path / "b"), 2))
    added = document["tables"]["query"]["ids"]["added"]
    assert (added["count"], len(added["examples"])) == (40, 10)
    assert any(line.endswith(", … 30 more)") for line in shown("diff", tmp_path / "a", tmp_path / "b"))
