"""Tables that grow, freeze, admit ids and are made of factors, as the command line shows and changes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command import call, refused, shown, told
from support.service import Service

from embershard import Client

CONFIG = """
collection = { name = "shop" }
optimizer = { kind = "sgd", learning_rate = 1.0 }
tables = [
    { name = "item", rows = 20, dim = 4, features = ["item", "seen_with"], counts = true },
    { name = "more", rows = 20, dim = 4 },
    { name = "word", rows = 4, dim = 4, ids = { names = "words.txt" } },
    { name = "zip", rows = 16, dim = 4, ids = { kind = "hashed" } },
    { name = "query", rows = 20, dim = 4, pooling = "sum", counts = true, \
      ids = { kind = "vocabulary", fallback_rows = 8 } },
    { name = "low", rows = 20, dim = 8, factor = { kind = "low_rank", rank = 2 }, scale = "sqrt_dim" },
    { name = "still", rows = 9, dim = 4, factor = { kind = "quotient_remainder" }, normalise = "l2", frozen = true },
]
"""
ONE, TWO = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
REFUSED = {
    "grow --table nope --rows 7": "there is no table 'nope'",
    "grow --table item --rows 7": "table 'item' has 20 rows",
    "grow --table low --capacity 1": "table 'low' has 20 rows",
    "grow --table zip --rows 70": "table 'zip' can't grow: its ids are hashed",
    "grow --table query --rows 90 --mean": "table 'query' has vocabulary ids",
    "grow --table item --rows 90 --mean-of item=20": "ids[0] = 20 is out of range",
    "grow --table item --rows 90 --mean-of low=1": "can be the mean of ids of its own features",
    "grow --table word --rows 90 --mean-of-keys word=a,nope": "ids[1] = 'nope' isn't in the list",
    "freeze --ids item=1,20": "ids[1] = 20 is out of range",
    "freeze --keys query=nope": "ids[0] = 'nope' owns no row in table 'query'",
    "freeze --keys zip=90210": "ids of table 'zip' can't be frozen one by one",
    "freeze --ids low=1 --thaw": "ids of table 'low' can't be frozen one by one",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("state")
    (folder / "words.txt").write_text("a\nb\nc\n")
    with Service(CONFIG, folder) as service:
        yield service


@pytest.fixture
def client(server: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the server that commands find in their environment."""
    monkeypatch.setenv("EMBERSHARD_TARGET", server.target)
    with Client(server.target) as client:
        yield client


def update(request: object) -> int:
    """The version that an update in JSON makes."""
    status, output, errors = call("update", "--request", "-", "--json", given=json.dumps(request))
    assert (status, errors) == (0, "")
    return int(json.loads(output)["version"])


def test_describe_tells_what_rows_are_made_of(client: Client) -> None:
    tables = {table["name"]: table for table in told("describe")["tables"]}
    made = ("factor", "scale", "normalise", "frozen", "counts")
    assert [tables["item"][name] for name in made] == ["none", "none", "none", False, True]
    assert [tables["low"][name] for name in made] == ["low_rank", "sqrt_dim", "none", False, False]
    assert [tables["still"][name] for name in made] == ["quotient_remainder", "none", "l2", True, False]
    assert tables["low"]["parameters"] == 20 * 2 + 2 * 8
    lines = {line.split()[0]: line for line in shown("describe") if line.startswith("  ")}
    assert "  low_rank, sqrt_dim " in lines["low"]
    assert "  quotient_remainder, l2, frozen " in lines["still"]


def test_describe_tells_who_owns_the_rows_of_a_vocabulary(client: Client) -> None:
    client.assign({"query": ["jazz", "folk"]}, values={"query": [ONE, TWO]})
    client.lookup({"query": ["jazz", "nobody"]})
    table = next(table for table in told("describe")["tables"] if table["name"] == "query")
    of_server = next(table.vocabulary for table in client.describe().tables if table.name == "query")
    assert table["vocabulary"] == {name: getattr(of_server, name) for name in table["vocabulary"]}
    assert table["vocabulary"]["ids"] >= 2
    line = next(line for line in shown("describe") if line.startswith("vocabulary of query: "))
    assert f"{of_server.ids} of {of_server.capacity} rows are owned; admitted {of_server.admitted}, evicted 0" in line
    assert f"looked up here: own {of_server.own}, fallback {of_server.fallback}; " in line


def test_lookup_tells_how_often_an_id_was_moved_and_named(client: Client) -> None:
    for ids in ([11], [11, 11], [12]):
        client.update({"item": ids}, gradients={"item": [ONE] * len(ids)})
    flags = ("lookup", "--ids", "item=11,12,13", "--counts")
    features = told(*flags)["features"]["item"]
    assert (features["updates"], features["sightings"]) == ([2, 1, 0], [3, 1, 0])
    assert "provenance" not in features
    _, head, *rows = shown(*flags, "--provenance")
    assert head == "item: 3 ids, 4 × float32 (id, provenance, updates, sightings, vector)"
    assert [line.split()[:4] for line in rows] == [
        ["11", "own_row", "2", "3"],
        ["12", "own_row", "1", "1"],
        ["13", "untrained", "0", "0"],
    ]
    bag = shown("lookup", "--keys", "query=x,y", "--lengths", "query=2", "--counts")[-1]
    assert bag.startswith('  "x", "y"  0, 0  0, 0  ')


def test_an_update_in_json_starts_rows_from_parents(client: Client) -> None:
    client.assign({"item": [1, 2], "query": ["p"]}, values={"item": [ONE, TWO], "query": [TWO]})
    version = update(
        {
            "item": {"ids": [9, 8], "parents": {"ids": [1, 2, 2], "lengths": [2, 1]}},
            "query": {"ids": ["new"], "parents": ["p"]},
        }
    )
    rows = client.lookup({"item": [9, 8], "query": ["new"]}, min_version=version)
    np.testing.assert_array_equal(rows["item"], [[3, 4, 5, 6], TWO])
    np.testing.assert_array_equal(rows["query"], [TWO])


def test_parents_are_ids_and_lengths_and_nothing_else(client: Client) -> None:
    for parents, part in (
        ({"ids": [1], "weights": [1]}, "unknown key 'weights'; allowed here: ids, lengths"),
        ([[1, 2]], "parents: 'ids' must be a flat list"),
        ("1,2", 'parents: give a list of ids, or an object with "ids"'),
        ([1, 2], "2 bags of parents for 1 ids"),
        ([20], "ids[0] = 20 is out of range"),
    ):
        given = json.dumps({"item": {"ids": [9], "parents": parents}})
        status, _, errors = call("update", "--request", "-", given=given)
        assert status == 1
        assert part in errors


def test_a_table_grows_and_its_old_rows_stay_bit_for_bit(client: Client) -> None:
    before = client.lookup({"more": range(20)})
    grown = told("grow", "--table", "more", "--rows", 30)
    assert (grown["version"], grown["rows"]) == (before.version + 1, 30)
    assert grown["pause_ms"] > 0
    after = client.lookup({"more": range(30)}, min_version=grown["version"])
    np.testing.assert_array_equal(after["more"][:20], before["more"])
    lines = shown("grow", "--table", "more", "--rows", 31)
    assert lines[:2] == [f"version {grown['version'] + 1}", "rows 31"]
    assert lines[2].startswith("calls waited ")


def test_new_rows_start_as_the_mean_of_all_rows_or_of_some(client: Client) -> None:
    client.assign({"word": range(4)}, values={"word": [ONE, TWO, TWO, ONE]})
    told("grow", "--table", "word", "--rows", 5, "--mean")
    told("grow", "--table", "word", "--rows", 6, "--mean-of", "word=0")
    told("grow", "--table", "word", "--rows", 7, "--mean-of-keys", "word=b,c")
    np.testing.assert_array_equal(client.lookup({"word": [4, 5, 6]})["word"], [[3, 4, 5, 6], ONE, TWO])


def test_a_vocabulary_grows_by_its_capacity(client: Client) -> None:
    assert told("grow", "--table", "query", "--capacity", 40)["rows"] == 48
    assert next(table.vocabulary.capacity for table in client.describe().tables if table.name == "query") == 40


def test_frozen_rows_stay_until_they_thaw(client: Client) -> None:
    client.assign({"item": [5, 6], "query": ["z"]}, values={"item": [ONE, TWO], "query": [ONE]})
    assert told("freeze", "--ids", "item=5", "--ids", "item=6,6")["rows"] == 2
    assert shown("freeze", "--keys", "query=z")[1] == "rows 1"
    gradients = {"item": [ONE, ONE], "query": [TWO]}
    client.update({"item": [5, 6], "query": ["z"]}, gradients=gradients)
    assert told("freeze", "--ids", "item=6", "--thaw")["rows"] == 1
    version = client.update({"item": [5, 6], "query": ["z"]}, gradients=gradients)
    rows = client.lookup({"item": [5, 6], "query": ["z"]}, min_version=version)
    np.testing.assert_array_equal(rows["item"], [ONE, [4, 4, 4, 4]])
    np.testing.assert_array_equal(rows["query"], [ONE])


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_done_is_refused_and_changes_nothing(client: Client, command: str) -> None:
    before = client.describe()
    assert REFUSED[command] in refused(*command.split())
    after = client.describe()
    assert [table.rows for table in after.tables] == [table.rows for table in before.tables]
    assert after.version == before.version


def test_a_snapshot_has_all_of_it(client: Client, tmp_path: Path) -> None:
    path = told("snapshot")["path"]
    document = told("export", path, tmp_path / "query.npz", "--table", "query")
    assert document["version"] == client.describe().version
    with np.load(tmp_path / "query.npz") as file:
        ids, vectors = file["ids"].tolist(), file["vectors"]
    assert len(ids) == document["ids"]
    np.testing.assert_array_equal(client.lookup({"query": ids})["query"], vectors)
