"""Lookups that are answered between two ticks, on the thread that brings them: as in a tick, and never torn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.scenario import FACTORS, ID_KINDS, collection

from embershard import codec
from embershard.collection import Collection, Read
from embershard.config import Config
from embershard.engine.clients import Clients
from embershard.engine.entries import growth_entry, update_entry
from embershard.engine.jobs import ActionJob, EntryJob, LookupJob
from embershard.engine.making import make_engine
from embershard.engine.replica import Replica
from embershard.engine.tick import Action, Ticker
from embershard.engine.world import SoloWorld
from embershard.errors import InvalidInput, Unavailable
from embershard.types import FeatureBatch, updates_of
from embershard.v1 import embershard_pb2 as pb

PAIR = collection([{"name": name, "rows": 50, "dim": 16} for name in ("left", "right")], kind="sgd", learning_rate=1.0)


def nothing(*_: object) -> Any:
    raise AssertionError("nothing is loaded here")


def replica_of(config: Config) -> Replica:
    replica = Replica(make_engine(config, SoloWorld()), version=0, clients=Clients(9), load=nothing, fetch=nothing)
    replica.serve()
    return replica


def ticker_of(replica: Replica, **actions: Action) -> Ticker:
    return Ticker(
        replica,
        None,
        actions=actions,
        chore=lambda: False,
        farewell=lambda: None,
        asked_to_leave=lambda: None,
        lost=lambda _: None,
    )


@contextmanager
def ticking(ticker: Ticker) -> Iterator[Ticker]:
    ticker.start()
    try:
        yield ticker
    finally:
        ticker.leave(ready=True)
        ticker.join()


def unlogged(config: Config) -> Config:
    """The same without a log: entries are applied at once."""
    return replace(config, durability=replace(config.durability, log="none"))


def read_of(collection: Collection, **ids: Any) -> Read:
    return collection.read([FeatureBatch.of(feature, value) for feature, value in ids.items()])


def moved(replica: Replica, **gradients: Any) -> EntryJob:
    """An update of the first rows of tables."""
    ids = {feature: np.arange(len(rows)) for feature, rows in gradients.items()}
    updates = [codec.encode_update(update) for update in updates_of(ids, gradients=gradients)]
    return EntryJob(entry=update_entry(replica.collection, pb.UpdateRequest(updates=updates)))


@pytest.mark.parametrize("kind", ID_KINDS)
def test_it_is_what_a_tick_answers(kind: str) -> None:
    ids = ID_KINDS[kind] | ({"fallback_rows": 9} if ID_KINDS[kind]["kind"] == "vocabulary" else {})
    factors = {name: factor for name, factor in FACTORS.items() if kind != "direct" or name != "product"}
    tables = [{"name": name, "rows": 30, "dim": 6, "ids": dict(ids), **factor} for name, factor in factors.items()]
    replica = replica_of(unlogged(collection([*tables, {"name": "plain", "rows": 30, "dim": 5, "ids": dict(ids)}])))
    named = [str(number) for number in range(9)] if kind in ("strings", "words") else np.arange(9)
    with ticking(ticker_of(replica)) as ticker:
        read = read_of(replica.collection, **{table["name"]: named for table in tables}, plain=named)
        for with_counts in (False, True):
            # The engine may be about to count what the last one has sighted.
            while (at_once := ticker.answer(read, min_version=0, with_counts=with_counts)) is None:
                pass
            in_a_tick = ticker.submit(LookupJob(read=read, with_counts=with_counts)).result()
            for mine, theirs in zip(at_once.vectors, in_a_tick.vectors, strict=True):
                np.testing.assert_array_equal(mine, theirs)
            for mine, theirs in zip(at_once.counts, in_a_tick.counts, strict=True):
                np.testing.assert_array_equal(mine.provenance_N, theirs.provenance_N)
            assert len(at_once.counts) == len(in_a_tick.counts)


def test_it_gives_way_to_what_waits_and_to_versions_to_come() -> None:
    replica = replica_of(unlogged(PAIR))
    ticker = ticker_of(replica)
    read = read_of(replica.collection, left=[1])
    assert ticker.answer(read, min_version=1, with_counts=False) is None
    assert ticker.answer(read, min_version=0, with_counts=False) is not None
    waiting = ticker.submit(LookupJob(read=read))
    assert ticker.answer(read, min_version=0, with_counts=False) is None
    with ticking(ticker):
        waiting.result()
        assert ticker.answer(read, min_version=0, with_counts=False) is not None


def test_it_gives_way_to_a_tick() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def act(_: object) -> None:
        begun.set()
        may_end.wait(30)

    replica = replica_of(unlogged(PAIR))
    with ticking(ticker_of(replica, wait=act)) as ticker:
        acting = ticker.ask(ActionJob(action="wait"))
        begun.wait(30)
        read = read_of(replica.collection, left=[1])
        assert ticker.answer(read, min_version=0, with_counts=False) is None
        may_end.set()
        acting.result()
        assert ticker.submit(LookupJob(read=read)).result().version == 0


def test_what_was_prepared_for_other_tables_is_prepared_again() -> None:
    config = collection([{"name": "left", "rows": 50, "dim": 4}])
    replica = replica_of(unlogged(config))
    before = read_of(replica.collection, left=[1, 2])
    with ticking(ticker_of(replica)) as ticker:
        expected = ticker.answer(before, min_version=0, with_counts=False)
        ticker.submit(EntryJob(entry=growth_entry(replica.collection, pb.GrowRequest(table="left", rows=70)))).result()
        assert replica.collection.generation != before.generation
        found = ticker.answer(before, min_version=0, with_counts=False)
        assert found is not None
        assert expected is not None
        np.testing.assert_array_equal(found.vectors[0], expected.vectors[0])
        late = read_of(replica.collection, left=[69])
        assert ticker.answer(late, min_version=0, with_counts=False) is not None
    smaller = replica_of(unlogged(config))
    with ticking(ticker_of(smaller)) as ticker, pytest.raises(InvalidInput, match=r"ids\[0\] = 69 is out of range"):
        ticker.answer(late, min_version=0, with_counts=False)


def test_there_is_no_answer_once_the_engine_has_failed() -> None:
    """A tick that fails may have done half of an update."""
    replica = replica_of(unlogged(PAIR))

    def fail(_: object) -> None:
        raise RuntimeError("half done")

    ticker = ticker_of(replica, fail=fail)
    read = read_of(replica.collection, left=[1])
    with ticking(ticker):
        with pytest.raises(Unavailable, match="must start again"):
            ticker.ask(ActionJob(action="fail")).result()
        assert ticker.answer(read, min_version=0, with_counts=False) is None
        ticker.join()
        with pytest.raises(Unavailable, match="must start again"):
            ticker.submit(LookupJob(read=read))


def test_no_lookup_sees_a_part_of_an_update_and_versions_only_grow() -> None:
    """Two tables get the same gradients in one update after the other, while a thread looks both up without a pause."""
    replica = replica_of(unlogged(PAIR))
    zeros = np.zeros((50, 16), np.float32)
    engine = replica.engine
    for name in ("left", "right"):
        engine.tensors()[f"{name}.weight"].zero_()
    read = read_of(replica.collection, left=np.arange(50), right=np.arange(50))
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            answer = ticker.answer(read, min_version=0, with_counts=False)
            if answer is None:
                answer = ticker.submit(LookupJob(read=read)).result()
            left, right = (np.asarray(vectors) for vectors in answer.vectors)
            assert (left == -answer.version).all(), answer.version
            assert (right == left).all()
            seen.append(answer.version)

    with ticking(ticker_of(replica)) as ticker:
        failures: list[BaseException] = []

        def looks() -> None:
            try:
                look()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=looks)
        thread.start()
        for _ in range(150):
            ticker.submit(moved(replica, left=zeros + 1, right=zeros + 1)).result()
        done.set()
        thread.join()
    assert not failures
    assert seen == sorted(seen)
    assert len({*seen}) > 10
