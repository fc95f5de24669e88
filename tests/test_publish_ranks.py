"""What some ranks have trained is served by any number of ranks, bit for bit: every kind of ids, every factor."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.implementation import Implementation
from support.ranks import Ranks
from support.service import Service

from embershard import Client
from embershard.config import Config, parse_config
from embershard.types import FeatureBatch, FeatureUpdate

KINDS = {
    "direct": '{ kind = "direct", padding = 3 }',
    "hashed": '{ kind = "hashed", hashes = 2, signed = true }',
    "words": '{ kind = "vocabulary", fallback_rows = 8, admit_after = 2, evict = "lfu" }',
    "timed": '{ kind = "vocabulary", fallback_rows = 8, evict = "ttl", ttl_s = 3 }',
}
FACTORS = {
    "plain": 'optimizer = { kind = "adagrad" }\ncounts = true',
    "half": 'dtype = "float16"',
    "low": 'factor = { kind = "low_rank", rank = 2 }\ncounts = true',
    "product": 'factor = { kind = "quotient_remainder" }\noptimizer = { kind = "sgd" }\ncounts = true',
    "concat": 'factor = { kind = "quotient_remainder", combine = "concat" }',
}
TABLE = "[[tables]]\nname = '{kind}_{factor}'\nrows = 30\ndim = 6\nids = {ids}\n{more}\n"
TEXT = "[collection]\nname = 'all'\n[limits]\ngroup_timeout_s = 20\n" + "".join(
    TABLE.format(kind=kind, factor=factor, ids=ids, more=more)
    for kind, ids in KINDS.items()
    for factor, more in FACTORS.items()
)
ROUNDS, STEPS = 4, 3


def config_of(text: str) -> Config:
    return parse_config(tomllib.loads(text))


def ids_of(table: str, numbers: Any) -> Any:
    """A vocabulary of words has strings and integers."""
    if not table.startswith("words"):
        return numbers
    return [f"word {number}" for number in numbers.tolist()]


def updates(config: Config, random: np.random.Generator) -> list[FeatureUpdate]:
    """Of all tables; ids that come again, and others that don't."""
    found = []
    for table in config.tables:
        numbers = random.integers(0, 30, 12) if table.name.startswith("direct") else random.zipf(1.2, 12) % 70
        batch = FeatureBatch.of(table.name, ids_of(table.name, numbers))
        gradients = random.normal(size=(12, table.dim)).astype(np.float32)
        found.append(FeatureUpdate(batch=batch, gradients=gradients))
    return found


def every(config: Config) -> dict[str, Any]:
    """All ids that there may be."""
    return {
        table.name: ids_of(table.name, np.arange(30 if table.name.startswith("direct") else 70))
        for table in config.tables
    }


def compare(client: Client, trainer: Implementation, config: Config, now_s: int) -> None:
    features = every(config)
    batches = [FeatureBatch.of(feature, ids) for feature, ids in features.items()]
    served = client.lookup(features, with_provenance=True)
    told = client.lookup(
        {table.name: features[table.name] for table in config.tables if table.counts}, with_counts=True
    )
    vectors = trainer.lookup(trainer.on_first(batches), now_s=now_s)[0]
    counts = trainer.counts(trainer.on_first(batches))[0]
    for feature, mine, (moved, sighted) in zip(features, vectors, counts, strict=True):
        np.testing.assert_array_equal(served[feature], mine, err_msg=feature)
        if config.table(feature).counts:
            np.testing.assert_array_equal(told.updates[feature], moved, err_msg=feature)
            np.testing.assert_array_equal(told.sightings[feature], sighted, err_msg=feature)


def compare_owners(client: Client, trainer: Implementation) -> None:
    told = {table.name: table.vocabulary for table in client.describe().tables if table.HasField("vocabulary")}
    theirs = trainer.vocabularies()[0]
    assert {name: one.ids for name, one in told.items()} == {name: len(one["keys"]) for name, one in theirs.items()}
    assert any(one["totals"][2] for one in theirs.values()), "ids were evicted"
    assert any(one["totals"][3] for one in theirs.values()), "and others have expired"


def kill(service: Service) -> None:
    for pid in service.rank_pids():
        os.kill(pid, signal.SIGKILL)
    service.ended()


@pytest.mark.parametrize(
    ("trained_on", "served_on"),
    [(0, 0), *(pytest.param(*worlds, marks=pytest.mark.slow) for worlds in ((2, 0), (0, 2), (2, 2)))],
)
def test_a_service_follows_a_job_bit_for_bit_and_comes_back_so(
    tmp_path: Path, world: Callable[[int], Ranks], trained_on: int, served_on: int
) -> None:
    config, random = config_of(TEXT), np.random.default_rng(3)
    trainer = Implementation(world(trained_on) if trained_on else None)
    trainer.build(config)
    clock = 1_000

    def step() -> None:
        nonlocal clock
        clock += 1
        trainer.update([updates(config, random) for _ in range(trainer.size)], now_s=clock)

    step()
    path = trainer.save(tmp_path / "run", 1)
    service = Service(TEXT, tmp_path / "data", ranks=served_on).wait()
    with Client(target := service.target) as client:
        done = trainer.full(target, path)
        assert (done.version, done.duplicate) == (1, False)
        compare(client, trainer, config, clock)
        for number in range(2, 2 + ROUNDS):
            for _ in range(STEPS):
                step()
            done = trainer.delta()
            assert (done.version, done.frozen) == (number, 0)
            assert 0 < done.rows < 30 * len(config.tables)
            compare(client, trainer, config, clock)
        compare_owners(client, trainer)
        assert trainer.delta().rows == 0
    kill(service)
    ranks = 2 if trained_on and not served_on else 0
    with Service(TEXT, tmp_path / "data", ranks=ranks, listen=target) as again, Client(again.target) as client:
        compare(client, trainer, config, clock)
        compare_owners(client, trainer)
        step()
        assert trainer.delta().version == 3 + ROUNDS
        compare(client, trainer, config, clock)
