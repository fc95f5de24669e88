"""Lists of names: a snapshot is refused under another list than its own, and moved to it by `embershard remap`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import refused, shown, told
from support.subject import Subject, local

from embershard import FingerprintMismatch
from embershard.config import Config, load_config
from embershard.engine.initial import initial_rows
from embershard.store.manifest import open_snapshot
from embershard.types import FeatureBatch, FeatureUpdate

OLD, NEW = ["a", "b", "c", "d"], ["d", "x", "a", "b"]
"""Of the old list c is gone, a and b and d move; x is new."""
TABLES = """
[[tables]]
name = "word"
rows = {rows}
dim = 4
counts = true
ids = {{ {names} }}
{factor}
[[tables]]
name = "query"
rows = 10
dim = 4
ids = {{ kind = "vocabulary", fallback_rows = 4 }}
"""


class Folder:
    """Where configurations, lists and data directories are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self, names: list[str] | None, *, rows: int = 6, factor: str = "", seed: int = 7) -> Path:
        number = len(list(self.path.glob("*.toml")))
        if names is not None:
            (self.path / f"list{number}.txt").write_text("\n".join(names) + "\n")
        head = f'collection = {{ name = "shop", seed = {seed} }}\noptimizer = {{ kind = "adagrad" }}\n'
        listed = "" if names is None else f'names = "list{number}.txt"'
        path = self.path / f"config{number}.toml"
        path.write_text(head + TABLES.format(rows=rows, names=listed, factor=factor))
        return path

    def saved(self, config: Path) -> Subject:
        """A trained subject, whose snapshot is in `state`."""
        subject = local(load_config(config))
        for ids in ([0, 1, 2, 3], [0, 3, 3], [1, 5]):
            subject.update([gradients("word", ids)])
        subject.update([gradients("query", [-1, 7])])
        subject.freeze(FeatureBatch.of("word", [3]), frozen=True) if "factor" not in config.read_text() else None
        subject.save(str(self.path / "state" / "snapshots"), 9)
        return subject

    def remap(self, config: Path, *flags: object) -> tuple[object, ...]:
        """The command."""
        return "remap", self.path / "state", "--config", config, "--output", self.path / "moved", *flags


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def gradients(feature: str, ids: list[int]) -> FeatureUpdate:
    numbers = np.random.default_rng(len(ids)).normal(size=(len(ids), 4)).astype(np.float32)
    return FeatureUpdate(batch=FeatureBatch.of(feature, ids), gradients=numbers)


def loaded(config: Path, snapshot: str) -> Subject:
    """What a server makes of it."""
    subject = local(load_config(config).grown(open_snapshot(Path(snapshot)).rows))
    subject.load(snapshot)
    return subject


def lookup(subject: Subject, ids: Any) -> np.ndarray[Any, Any]:
    return subject.lookup([FeatureBatch.of("word", ids)])[0]


def first_rows(config: Config) -> np.ndarray[Any, Any]:
    matrix = local(config).engine.matrices["word"]
    return initial_rows(matrix, config.collection.seed, 0).numpy()


@pytest.mark.parametrize("names", [NEW, [*OLD[::-1]], OLD[:3], None], ids=["moved", "reversed", "shorter", "none"])
def test_a_snapshot_is_refused_under_another_list(folder: Folder, names: list[str] | None) -> None:
    folder.saved(folder.config(OLD))
    with pytest.raises(FingerprintMismatch, match=r"tables\.word\.ids\.names: .* here, .* there; .*embershard remap"):
        loaded(folder.config(names), str(folder.path / "state" / "snapshots" / f"{9:012d}"))


@pytest.mark.parametrize("factor", ["", 'factor = { kind = "low_rank", rank = 2 }'], ids=["plain", "low_rank"])
def test_every_id_keeps_its_vector_and_all_else_that_is_known_of_it(folder: Folder, factor: str) -> None:
    old, new = folder.config(OLD, factor=factor), folder.config(NEW, factor=factor)
    before = folder.saved(old)
    document = told(*folder.remap(new))
    assert (document["version"], Path(document["path"]).parents[1]) == (9, folder.path / "moved")
    assert document["tables"] == {"word": {"moved": 3, "stayed": 0, "added": 1, "gone": 1, "unnamed": 0}}
    after = loaded(new, document["path"])
    kept = ["a", "b", "d"]
    np.testing.assert_array_equal(lookup(after, kept), lookup(before, kept))
    for name, array in before.state().items():
        if name.startswith("word."):
            expected = [OLD.index(key) for key in kept] + [4, 5]
            found = after.state()[name][[NEW.index(key) for key in kept] + [4, 5]]
            np.testing.assert_array_equal(found, array[expected], err_msg=name, strict=True)
        else:
            np.testing.assert_array_equal(after.state()[name], array, err_msg=name, strict=True)
    query = [FeatureBatch.of("query", [-1, 7, 3])]
    np.testing.assert_array_equal(after.lookup(query)[0], before.lookup(query)[0])
    assert str(after.vocabularies()) == str(before.vocabularies())


def test_an_id_that_is_new_starts_like_no_other_and_was_never_seen(folder: Folder) -> None:
    folder.saved(folder.config(OLD))
    new = folder.config(NEW)
    after = loaded(new, told(*folder.remap(new))["path"])
    started = lookup(after, ["x"])[0]
    assert started.any()
    assert not (first_rows(load_config(new)) == started).all(axis=1).any()  # nor as whoever had its row before
    for name in ("sum", "updates", "sightings", "frozen"):
        assert not after.state()[f"word.{name}"][1].any()


def test_training_goes_on_as_if_nothing_had_been_moved(folder: Folder) -> None:
    before = folder.saved(folder.config(OLD))
    new = folder.config(NEW)
    after = loaded(new, told(*folder.remap(new))["path"])
    numbers = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    for subject in (before, after):
        subject.update([FeatureUpdate(batch=FeatureBatch.of("word", ["a", "d", "b"]), gradients=numbers)])
    np.testing.assert_array_equal(lookup(after, ["a", "b", "d"]), lookup(before, ["a", "b", "d"]))


def test_a_list_that_is_longer_than_the_table_makes_it_grow(folder: Folder) -> None:
    before = folder.saved(folder.config(OLD))
    new = folder.config([*"zyxw", *OLD, "v"], rows=12)
    document = told(*folder.remap(new))
    assert document["tables"]["word"] == {"moved": 4, "stayed": 0, "added": 5, "gone": 0, "unnamed": 1}
    after = loaded(new, document["path"])
    np.testing.assert_array_equal(lookup(after, OLD), lookup(before, OLD))
    others = lookup(after, [0, 1, 8, 9, 11])
    assert len(np.unique(others, axis=0)) == 5


def test_a_snapshot_without_a_list_is_told_it(folder: Folder) -> None:
    before = folder.saved(folder.config(None))
    (folder.path / "old.txt").write_text("a\nb\nc\nd\n")
    new = folder.config(NEW)
    assert "has no list of names for table 'word'; give the one" in refused(*folder.remap(new))
    lines = shown(*folder.remap(new, "--from", f"word={folder.path / 'old.txt'}"))
    assert lines[0] == "version 9"
    assert lines[2] == "table word: moved 3, stayed 0, added 1, gone 1, unnamed 0"
    after = loaded(new, lines[1].removeprefix("path "))
    np.testing.assert_array_equal(lookup(after, ["a", "b", "d"]), lookup(before, [0, 1, 3]))


def test_a_list_given_by_hand_must_be_one_of_the_table(folder: Folder) -> None:
    folder.saved(folder.config(None))
    new = folder.config(NEW)
    for text, part in (
        ("a\nb\na\n", "old.txt: line 3 is 'a', and so is line 1; a name has one row"),
        ("a\n\nb\n", "old.txt: line 2 is empty"),
        ("a\nb\nc\nd\ne\nf\ng\n", "old.txt: has 7 ids, and table 'word' of"),
    ):
        (folder.path / "old.txt").write_text(text)
        assert part in refused(*folder.remap(new, "--from", f"word={folder.path / 'old.txt'}"))
    assert not (folder.path / "moved").exists()


def test_what_is_no_move_from_one_list_to_another_is_refused(folder: Folder) -> None:
    old = folder.config(OLD)
    folder.saved(old)
    new = folder.config(NEW)
    (folder.path / "b.txt").write_text("a\nb\n")
    for config, flags, part in (
        (old, (), "has the same lists of names as the configuration: there is nothing to move"),
        (folder.config(None), (), "has a list of names in"),
        (folder.config(NEW, seed=8), (), "seed: 8 here, 7 there"),
        (folder.config(NEW, factor='normalise = "l2"'), (), "tables.word.normalise: 'l2' here, absent there"),
        (new, ("--from", f"word={folder.path / 'b.txt'}"), "has the list itself; leave it out"),
        (new, ("--from", f"query={folder.path / 'b.txt'}"), "--from query: no list of names of such a table differs"),
    ):
        assert part in refused(*folder.remap(config, *flags))
    twice = folder.config(["a", "b", "a"])
    assert "line 3 is 'a', and so is line 1" in refused(*folder.remap(twice))
    assert not (folder.path / "moved").exists()


def test_rows_that_are_made_of_factors_cannot_be_moved(folder: Folder) -> None:
    factor = 'factor = { kind = "quotient_remainder" }'
    folder.saved(folder.config(OLD, factor=factor))
    assert "its rows are made of factors (quotient_remainder)" in refused(
        *folder.remap(folder.config(NEW, factor=factor))
    )


def test_snapshots_that_are_there_are_not_overwritten(folder: Folder) -> None:
    folder.saved(folder.config(OLD))
    new = folder.config(NEW)
    path = Path(told(*folder.remap(new))["path"])
    whole = {file.name: file.read_bytes() for file in path.iterdir()}
    assert f"{path}: is there already, and isn't overwritten" in refused(*folder.remap(new))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == whole
