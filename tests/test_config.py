"""The configuration: an error names file, table, key, the value and what is allowed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from embershard.config import layout_difference, load_config, parse_config
from embershard.errors import ConfigError

GOOD: dict[str, Any] = {
    "collection": {"name": "shop", "seed": 7},
    "optimizer": {"kind": "sgd", "learning_rate": 1},
    "tables": [
        {"name": "user", "rows": 10, "dim": 4},
        {"name": "zip", "rows": 9, "dim": 3, "ids": {"kind": "hashed", "hashes": 2, "padding": "x"}},
    ],
}

BAD: list[tuple[list[Any], Any, str]] = [
    (["tables"], [], "tables: list should have at least 1 item"),
    (["tables"], 3, "tables = 3: input should be a valid list"),
    (["tables", 1, "rows"], -3, "tables[1] 'zip' rows = -3: input should be greater than or equal to 1"),
    (["tables", 1, "rows"], 0, "tables[1] 'zip' rows = 0"),
    (["tables", 1, "rows"], "3", "tables[1] 'zip' rows = '3': input should be a valid integer"),
    (["tables", 1, "rows"], True, "tables[1] 'zip' rows = True: input should be a valid integer"),
    (["tables", 1, "rows"], 2**41, "rows = 2199023255552: input should be less than or equal to"),
    (["tables", 1, "dim"], 0, "tables[1] 'zip' dim = 0"),
    (["tables", 1, "rowz"], 3, "tables[1] 'zip' rowz: unknown key; allowed here: name, rows, dim, features"),
    (["tables", 1, "pooling"], "max", "pooling = 'max': input should be 'none', 'sum' or 'mean'"),
    (["tables", 1, "dtype"], "bfloat16", "dtype = 'bfloat16': input should be 'float32', 'float16' or 'int8'"),
    (["tables", 1, "name"], "a b", "tables[1] 'a b' name = 'a b': string should match pattern"),
    (["tables", 1, "name"], "user", "table 'user' is there more than once"),
    (["tables", 1, "features"], ["user"], "feature 'user' is there more than once"),
    (
        ["tables", 1, "ids", "kind"],
        "magic",
        "tables[1] 'zip' ids kind = 'magic': allowed: 'direct', 'hashed', 'vocabulary'",
    ),
    (["tables", 1, "ids", "bits"], 1, "tables[1] 'zip' ids bits: unknown key; allowed here: kind, hashes"),
    (["tables", 1, "ids", "hashes"], 10, "ids.hashes = 10 is more than rows = 9"),
    (["tables", 0, "ids"], {"padding": "x"}, "tables[0] 'user' ids padding = 'x': input should be a valid integer"),
    (["tables", 0, "ids"], {"padding": 2**63}, "ids padding = 9223372036854775808: input should be less than"),
    (["tables", 0, "optimizer"], {"kind": "adam"}, "kind = 'adam': is not an optimizer that every engine honours"),
    (["tables", 0, "optimizer"], {"weight_decay": 0.1}, "weight_decay: unknown key; allowed here: kind"),
    (["optimizer", "kind"], "lamb", "(FBGEMM has no exact CPU kernel for it); allowed: sgd, adagrad, rowwise_adagrad"),
    (["optimizer", "learning_rate"], "1", "optimizer learning_rate = '1': input should be a valid number"),
    (["optimizer", "learning_rate"], float("nan"), "optimizer learning_rate = nan"),
    (["optimizer", "learning_rate"], -1, "optimizer learning_rate = -1"),
    (["collection", "seed"], -1, "collection seed = -1"),
    (["limits"], {"message_bytes": 0}, "limits message_bytes = 0"),
    (["server"], {}, "server: unknown key; allowed here: collection, tables, optimizer, limits"),
]


def with_value(path: list[Any], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(("path", "value", "message"), BAD)
def test_a_wrong_value_is_named_with_its_place_and_what_is_allowed(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(with_value(path, value), source="shop.toml")
    assert str(caught.value).startswith("shop.toml: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["collection", "tables"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"shop.toml: {key}: this key is required"):
        parse_config({name: value for name, value in GOOD.items() if name != key}, source="shop.toml")


def test_all_problems_are_told_at_once() -> None:
    data = with_value(["tables", 0, "rows"], 0)
    data["tables"][1]["dim"] = 0
    with pytest.raises(ConfigError, match=r"(?s)'user' rows = 0.*'zip' dim = 0"):
        parse_config(data)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: can't be read: No such file"):
        load_config(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml: is not UTF-8"):
        load_config(tmp_path / "binary.toml")


def test_what_is_not_given_has_its_default() -> None:
    config = parse_config(GOOD)
    user, zipped = config.tables
    assert (user.features, user.ids.kind, user.pooling) == (["user"], "direct", "none")
    assert config.optimizer_of(zipped).learning_rate == 1


@pytest.mark.parametrize(
    ("path", "value", "changes"),
    [
        (["collection", "seed"], 8, True),
        (["tables", 0, "rows"], 11, False),  # a table of direct ids may grow
        (["tables", 1, "rows"], 11, True),  # one of hashed ids may not
        (["tables", 0, "factor"], {"kind": "low_rank", "rank": 2}, True),
        (["tables", 0, "normalise"], "l2", True),
        (["tables", 0, "scale"], "sqrt_dim", True),
        (["tables", 0, "frozen"], True, False),
        (["tables", 1, "ids", "hashes"], 1, True),
        (["tables", 0, "features"], ["other"], True),
        (["tables", 0, "pooling"], "sum", True),
        (["optimizer", "learning_rate"], 0.5, False),
        (["limits"], {"wait_ms": 1}, False),
    ],
)
def test_the_fingerprint_covers_what_decides_an_ids_vector(path: list[Any], value: Any, changes: bool) -> None:
    before, after = parse_config(GOOD), parse_config(with_value(path, value))
    assert (before.fingerprint() != after.fingerprint()) == changes
    assert bool(layout_difference(before.layout(), after.layout())) == changes


def test_a_fingerprint_is_the_same_on_every_machine_for_ever() -> None:
    assert parse_config(GOOD).fingerprint() == "10afe334673128a2"


def test_a_table_that_has_grown_keeps_its_pairs_whatever_the_file_says_of_rows() -> None:
    pairs = {"kind": "quotient_remainder"}
    began = parse_config(with_value(["tables", 0, "factor"], pairs))
    grown = began.grown({"user": 1000})
    assert (grown.tables[0].remainders, grown.fingerprint()) == (began.tables[0].remainders, began.fingerprint())
    for rows in (10, 1000, 5000):
        data = with_value(["tables", 0, "factor"], pairs)
        data["tables"][0]["rows"] = rows
        fitted = parse_config(data).fitted(grown.layout())
        assert (fitted.fingerprint(), fitted.tables[0].rows) == (grown.fingerprint(), 1000)
    other = parse_config(with_value(["tables", 0, "factor"], pairs | {"remainders": 7}))
    assert other.fitted(grown.layout()) is other


def test_a_rank_that_saves_nothing_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"table 'user': factor.rank = 4 isn't less than dim = 4"):
        parse_config(with_value(["tables", 0, "factor"], {"kind": "low_rank", "rank": 4}))


VOCABULARY = {"kind": "vocabulary", "fallback_rows": 4}
BAD_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"factor": {"kind": "low_rank", "rank": 0}}, "factor rank = 0: input should be greater"),
    ({"factor": {"kind": "low_rank", "rank": -1}}, "factor rank = -1"),
    ({"factor": {"kind": "cube"}}, "factor kind = 'cube': allowed: 'low_rank', 'quotient_remainder'"),
    ({"factor": {"kind": "quotient_remainder", "remainders": 0}}, "remainders = 0"),
    ({"factor": {"kind": "quotient_remainder", "remainders": 11}}, "factor.remainders = 11 is more than rows = 10"),
    ({"factor": {"kind": "quotient_remainder", "combine": "concat"}, "dim": 5}, "so dim = 5 must be even"),
    ({"ids": VOCABULARY | {"fallback_rows": 0}}, "fallback_rows = 0"),
    ({"ids": VOCABULARY | {"fallback_rows": 10}}, "leaves no row for ids of their own: rows = 10 counts both"),
    ({"ids": VOCABULARY | {"hashes": 5}}, "hashes = 5 is more than fallback_rows = 4"),
    ({"ids": VOCABULARY | {"admit_after": 0}}, "admit_after = 0"),
    ({"ids": VOCABULARY | {"evict": "ttl"}}, "evict = 'ttl' needs ttl_s"),
    ({"ids": VOCABULARY | {"ttl_s": 0}}, "ttl_s = 0"),
    ({"ids": {"names": "missing.txt"}}, "can't read the list of names: No such file"),
    ({"scale": "sqrt_dim", "normalise": "l2"}, "is undone by normalise = 'l2'"),
    ({"normalise": "batch"}, "normalise = 'batch'"),
]


@pytest.mark.parametrize(("table", "message"), BAD_TABLES)
def test_a_compact_table_that_can_not_be_is_explained(table: dict[str, Any], message: str) -> None:
    data = copy.deepcopy(GOOD)
    data["tables"][0] |= table
    with pytest.raises(ConfigError) as caught:
        parse_config(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\na\n", "line 3 is 'a', and so is line 1"),
        ("a\n\nb\n", "line 2 is empty"),
        ("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n", "lists 11 ids, more than rows = 10"),
    ],
)
def test_a_bad_list_of_names_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "names.txt").write_text(text)
    data = copy.deepcopy(GOOD)
    data["tables"][0]["ids"] = {"names": "names.txt"}
    with pytest.raises(ConfigError, match=message):
        parse_config(data, folder=tmp_path)
