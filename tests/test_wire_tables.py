"""Vocabularies, starts, freezing, growth through the wire, on both engines, and over a restart at another world."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.service import Service

from embershard import Client, InvalidInput, Overloaded, Provenance
from embershard.errors import EmbershardError

SHOP = """
[collection]
name = "shop"
seed = 7

[[tables]]
name = "user"
rows = 100
counts = true
dim = 6
ids = { padding = 0 }

[[tables]]
name = "query"
rows = 12
counts = true
dim = 4
ids = { kind = "vocabulary", fallback_rows = 8, admit_after = 2 }

[[tables]]
name = "zip"
rows = 64
counts = true
dim = 4
ids = { kind = "hashed" }
factor = { kind = "low_rank", rank = 2 }
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(f"ranks-{request.param}")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    with Service(SHOP, folder, ranks=int(folder.name.split("-")[1][0])) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as connected:
        yield connected


def test_ids_are_admitted_and_counted_over_all_front_ends(service: Service, client: Client) -> None:
    with Client(service.addresses[service.size - 1]) as other:
        client.update({"query": ["blue shoes"]}, gradients={"query": np.ones((1, 4))})
        version = other.update({"query": ["blue shoes", "rare"]}, gradients={"query": np.ones((2, 4))})
    rows = client.lookup({"query": ["blue shoes", "rare"]}, min_version=version, with_provenance=True, with_counts=True)
    assert rows.provenance["query"].tolist() == [Provenance.OWN_ROW, Provenance.FALLBACK]
    assert rows.updates["query"][0] == 1
    assert rows.sightings["query"][0] == 1
    (table,) = (table for table in client.describe().tables if table.name == "query")
    assert (table.vocabulary.capacity, table.vocabulary.ids, table.vocabulary.admitted) == (4, 1, 1)
    assert (table.vocabulary.own, table.vocabulary.fallback) == (1, 1)


def test_a_cold_id_starts_as_the_mean_of_its_parents(client: Client) -> None:
    parents = client.lookup({"user": [1, 2]})["user"]
    version = client.start({"user": [50]}, parents={"user": ([1, 2], [2])})
    found = client.lookup({"user": [50]}, min_version=version)["user"]
    np.testing.assert_allclose(found[0], parents.mean(axis=0), rtol=1e-6)


def test_frozen_ids_stay_and_thawed_ones_move(client: Client) -> None:
    gradients = {"user": np.ones((2, 6))}
    frozen = client.freeze({"user": [3]})
    assert frozen.rows == 1
    before = client.lookup({"user": [3, 4]}, min_version=frozen.version)["user"]
    version = client.update({"user": [3, 4]}, gradients=gradients)
    after = client.lookup({"user": [3, 4]}, min_version=version)["user"]
    assert (after[0] == before[0]).all()
    assert (after[1] != before[1]).all()
    with pytest.raises(InvalidInput, match="is frozen, as 1 of its ids are; thaw them first"):
        client.assign({"user": [3]}, values={"user": np.ones((1, 6))})
    client.freeze({"user": [3]}, thaw=True)
    version = client.update({"user": [3, 4]}, gradients=gradients)
    assert (client.lookup({"user": [3]}, min_version=version)["user"] != before[0]).all()


def test_a_table_grows_while_others_ask_and_no_answer_changes(service: Service, client: Client) -> None:
    ids = np.arange(1, 100)
    expected = client.lookup({"user": ids})["user"].copy()
    ended, wrong = threading.Event(), []

    def ask(target: str) -> None:
        with Client(target) as mine:
            while not ended.is_set():
                try:
                    if not (mine.lookup({"user": ids})["user"] == expected).all():
                        wrong.append("another answer")
                except EmbershardError as error:
                    wrong.append(error)

    threads = [threading.Thread(target=ask, args=(target,)) for target in service.addresses.values()]
    for thread in threads:
        thread.start()
    grown = client.grow("user", rows=250)
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (grown.rows, grown.pause_ms > 0) == (250, True)
    with Client(service.addresses[service.size - 1]) as other:  # which may not have heard of it yet
        assert other.lookup({"user": [249]}, min_version=grown.version)["user"].any()
    assert client.grow("user", rows=250).rows == 250  # trying again does no harm
    before = client.describe().fingerprint
    assert client.grow("query", capacity=9).rows == 17
    assert client.describe().fingerprint == before
    client.grow("user", rows=251, mean_of={"user": [1]})
    np.testing.assert_array_equal(client.lookup({"user": [250]})["user"], client.lookup({"user": [1]})["user"])


BAD = [
    (lambda client: client.grow("user", rows=10), InvalidInput, "can't shrink to 10"),
    (lambda client: client.grow("user", rows=2**63), InvalidInput, "can grow to at most"),
    (lambda client: client.grow("nowhere", rows=10), InvalidInput, "there is no table 'nowhere'"),
    (lambda client: client.grow("zip", rows=100), InvalidInput, "its ids are hashed by the number of rows"),
    (lambda client: client.grow("user"), InvalidInput, "say how many rows"),
    (lambda client: client.grow("user", rows=-1), InvalidInput, "can't be sent"),
    (lambda client: client.grow("user", rows=900, mean_of={"user": [900]}), InvalidInput, "out of range"),
    (lambda client: client.grow("user", rows=900, mean_of={"user": []}), InvalidInput, "of one at least"),
    (lambda client: client.grow("user", rows=900, mean_of={"zip": [1]}), InvalidInput, "of its own features"),
    (lambda client: client.grow("user", rows=10**12), Overloaded, "room for its old rows and the new at once"),
    (lambda client: client.freeze({"user": [0]}), InvalidInput, "padding id, which never moves"),
    (lambda client: client.freeze({"user": [10**6]}), InvalidInput, "out of range"),
    (lambda client: client.freeze({"zip": [1]}), InvalidInput, "can't be frozen one by one"),
    (lambda client: client.freeze({"query": ["never seen"]}), InvalidInput, r"ids\[0\] = 'never seen' owns no row"),
    (lambda client: client.start({"query": ["x"]}, parents={"query": ["never seen"]}), InvalidInput, "owns no row"),
    (lambda client: client.start({"zip": [1]}, parents={"zip": [2]}), InvalidInput, "hashed ids, which share rows"),
    (lambda client: client.start({"user": [1]}, parents={"user": [0]}), InvalidInput, "padding id, which has no row"),
    (lambda client: client.start({"user": [1]}, parents={"user": ([1], [1], [2.0])}), InvalidInput, "count alike"),
    (lambda client: client.freeze({"user": ([1, 2], [2])}), InvalidInput, "single ids; leave out lengths"),
    (lambda client: client.grow("user", rows=900, mean=True, mean_of={"user": [1]}), InvalidInput, "not both"),
    (lambda client: client.start({"user": [1]}, parents={"user": [1, 2]}), InvalidInput, "2 bags of parents for 1"),
    (lambda client: client.start({"user": [1, 2]}, parents={"user": ([1], [1, 0])}), InvalidInput, "has no parents"),
    (
        lambda client: client.assign({"query": [*range(99)]}, values={"query": np.ones((99, 4))}),
        Overloaded,
        "no room for all ids",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_what_can_not_be_is_refused_and_changes_nothing(
    client: Client, call: object, kind: type[Exception], message: str
) -> None:
    def everything() -> list[bytes]:
        rows = client.lookup({"user": np.arange(1, 100), "query": ["blue shoes", "x", *"abc"], "zip": [1, 2]})
        tables = [table.SerializeToString() for table in client.describe().tables if table.name != "query"]
        return [rows[feature].tobytes() for feature in rows] + tables

    before = everything()
    with pytest.raises(kind, match=message):
        call(client)  # type: ignore[operator]  # one of the above
    assert everything() == before


def test_all_of_it_outlives_a_restart_at_another_world_size(folder: Path, service: Service) -> None:
    """The last test of the module: it stops the service."""
    asked = {"user": np.arange(1, 251), "query": ["blue shoes", "rare", "new"], "zip": ["90210"]}
    with Client(service.target) as client:
        client.freeze({"user": [7]})
        client.assign({"query": ["new"]}, values={"query": np.ones((1, 4))})
        expected = client.lookup(asked, with_provenance=True, with_counts=True)
        tables = client.describe().tables
    service.stop()
    with Service(SHOP, folder, ranks=2 if service.size == 1 else 0) as again, Client(again.target) as client:
        found = client.lookup(asked, with_provenance=True, with_counts=True)
        for feature, rows in expected.items():
            np.testing.assert_array_equal(found[feature], rows)
            for told in ("provenance", "updates", "sightings"):
                np.testing.assert_array_equal(getattr(found, told)[feature], getattr(expected, told)[feature])
        for before, after in zip(tables, client.describe().tables, strict=True):
            assert (after.rows, after.vocabulary.ids) == (before.rows, before.vocabulary.ids)
            assert after.vocabulary.admitted == before.vocabulary.admitted
        version = client.update({"user": [7]}, gradients={"user": np.ones((1, 6))})
        np.testing.assert_array_equal(client.lookup({"user": [7]}, min_version=version)["user"], rows_of(expected, 7))


def rows_of(rows: object, user: int) -> object:
    return rows["user"][user - 1 : user]  # type: ignore[index]  # the ids are 1, 2, …
