"""int8 through the wire, of every dtype of table; and float32 jobs that publish to services that store fewer bits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import told
from support.job import CONFIG, DIMS, EVERY, Job
from support.service import Service

from embershard import AsyncClient, Client, FingerprintMismatch, InvalidInput
from embershard.rowwise import error_bound, floats, quantised
from embershard.types import FeatureBatch, updates_of

RANKS = [0, pytest.param(2, marks=pytest.mark.slow)]
DTYPES = ("float32", "float16", "int8")
KINDS = {
    "plain": "ids = { padding = 0 }",
    "summed": 'pooling = "sum"',
    "mean": 'pooling = "mean"\nnormalise = "l2"',
    "scaled": 'scale = "sqrt_dim"\nids = { kind = "hashed", hashes = 2, signed = true }',
    "words": 'ids = { kind = "vocabulary", fallback_rows = 8 }',
    "low": 'factor = { kind = "low_rank", rank = 3 }',
    "pair": 'factor = { kind = "quotient_remainder" }\nnormalise = "layer"',
}
SHOP = '[collection]\nname = "shop"\n[limits]\nmessage_bytes = 65536\n' + "".join(
    f'[[tables]]\nname = "{kind}_{dtype}"\nrows = 40\ndim = 6\ncounts = true\n'
    f'dtype = "{dtype}"\ninit = {{ scale = 0.5 }}\n{more}\n'
    for dtype in DTYPES
    for kind, more in KINDS.items()
)
BAGS = ([1, 5, 9, 5, 0], [2, 0, 3], [0.5, 1.5, 2.0, 1.0, 0.25])
ASKED: dict[str, Any] = {
    f"{kind}_{dtype}": BAGS if kind in ("summed", "mean") else [3, 0, 39, 3] for kind in KINDS for dtype in DTYPES
}


@pytest.fixture(scope="module", params=RANKS, ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(SHOP, tmp_path_factory.mktemp("shop"), ranks=request.param) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as connected:
        yield connected


def test_an_int8_answer_is_within_the_bound_of_the_float32_one(client: Client) -> None:
    exact, found = client.lookup(ASKED), client.lookup(ASKED, dtype="int8")
    for feature, vectors in found.items():
        assert (vectors.dtype, vectors.shape) == (np.float32, exact[feature].shape)
        errors_N = np.abs(vectors.astype(np.float64) - exact[feature]).max(axis=1)
        assert (errors_N <= error_bound(torch.from_numpy(exact[feature].copy())).numpy()).all(), feature
    np.testing.assert_array_equal(found["plain_int8"], exact["plain_int8"], "sent as they are, and not rounded again")


def test_every_way_to_ask_answers_the_same(service: Service, client: Client) -> None:
    expected = client.lookup(ASKED, dtype="int8")
    (streamed,) = client.lookup_stream([ASKED], dtype="int8")

    async def asked() -> list[Any]:
        async with AsyncClient(service.addresses[service.size - 1]) as other:
            one = await other.lookup(ASKED, dtype="int8", with_counts=True)

            async def requests() -> Any:
                yield ASKED

            return [one, *[rows async for rows in other.lookup_stream(requests(), dtype="int8")]]

    for rows in (streamed, *asyncio.run(asked())):
        for feature, vectors in expected.items():
            np.testing.assert_array_equal(rows[feature], vectors)
    document = told("lookup", "--target", service.target, "--ids", "plain_int8=3,0,39,3", "--dtype", "int8")
    shown = document["features"]["plain_int8"]
    assert shown["dtype"] == "int8"  # as it was asked for; the numbers are floats
    np.testing.assert_array_equal(np.float32(shown["vectors"]), expected["plain_int8"])
    assert client.lookup({"plain_int8": []}, dtype="int8")["plain_int8"].shape == (0, 6)


def test_messages_are_bounded_by_the_bytes_that_they_would_have(client: Client) -> None:
    ids = np.zeros(3000, np.int64)
    assert client.lookup({"plain_float32": ids}, dtype="int8")["plain_float32"].shape == (3000, 6)
    with pytest.raises(InvalidInput, match="the answer would have 72,000 bytes"):
        client.lookup({"plain_float32": ids})
    with pytest.raises(InvalidInput, match="the answer would have 84,000 bytes"):
        client.lookup({"plain_float32": np.zeros(6000, np.int64)}, dtype="int8")


def test_int8_tables_are_described_and_refuse_changes(service: Service, client: Client) -> None:
    (table,) = (table for table in client.describe().tables if table.name == "plain_int8")
    assert (table.dtype, table.frozen) == ("int8", True)
    assert table.bytes == 40 * (6 + 8)
    for change in ({"gradients": np.ones((1, 6))}, {"values": np.ones((1, 6))}):
        call = client.update if "gradients" in change else client.assign
        with pytest.raises(InvalidInput, match="'plain_int8' stores int8 rows, which are for serving only"):
            call({"plain_int8": [1]}, **{name: {"plain_int8": numbers} for name, numbers in change.items()})
    assert client.grow("plain_int8", rows=50, timeout_s=60).rows == 50
    assert client.lookup({"plain_int8": [49]})["plain_int8"].any()


@pytest.mark.parametrize("ranks", RANKS, ids=["local", "torchrec-2"])
def test_what_a_float32_job_publishes_is_rounded_as_it_arrives_and_comes_back_so(tmp_path: Path, ranks: int) -> None:
    serving = CONFIG
    for dim, dtype in ((3, "int8"), (5, "float16"), (4, "int8")):
        serving = serving.replace(f"dim = {dim}\n", f'dim = {dim}\ndtype = "{dtype}"\n')
    with Service(serving, tmp_path / "state", ranks=ranks) as service, Client(service.target) as client:
        job = Job(client, tmp_path, "run")
        random = np.random.default_rng(0)

        def learn(features: dict[str, Any]) -> None:
            values = {feature: random.normal(size=(len(ids), DIMS[feature])) for feature, ids in features.items()}
            job.subject.update(updates_of(features, values=values))

        def check(**options: Any) -> None:
            found = client.lookup(EVERY, **options)
            exact = job.subject.lookup([FeatureBatch.of(feature, ids) for feature, ids in EVERY.items()])
            for (feature, vectors), rows in zip(found.items(), exact, strict=True):
                trained = torch.from_numpy(rows)
                expected = trained.half() if feature == "right" else floats(quantised(trained))
                np.testing.assert_array_equal(vectors, expected.numpy(), feature)

        learn(EVERY)
        check(min_version=job.full().version)
        learn({"left": [1, 7], "right": [2], "word": ["w3", "new"]})
        answer = job.delta()
        assert (answer.rows, answer.frozen) == (5, 0)
        check(min_version=answer.version)
        service.stop(9)
    with Service(serving, tmp_path / "state", ranks=0) as service, Client(service.target) as client:
        check(min_version=answer.version)  # by the log, from the files


def test_more_bits_than_were_trained_are_refused(tmp_path: Path) -> None:
    narrow = CONFIG.replace("dim = 5\n", 'dim = 5\ndtype = "float16"\n')
    with Service(CONFIG, tmp_path / "state") as service, Client(service.target) as client:
        job = Job(client, tmp_path, "run", narrow)
        with pytest.raises(FingerprintMismatch, match="dtype: 'float32' here, 'float16' there"):
            job.full()
