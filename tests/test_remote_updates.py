"""What trainers send is applied once, whoever dies; and what they read lacks no more of it than they allow.

Every update adds 1 to a row, so that the row tells how often updates were applied.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.proxy import Gate, Lost, Proxy
from support.service import Service
from torch import nn

import embershard
from embershard import Client
from embershard.torch import Remote, RemoteEmbedding, RemoteEmbeddingBag
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "counts"
[optimizer]
kind = "sgd"
learning_rate = 1.0
[[tables]]
name = "count"
rows = 1000
dim = 1
init = { kind = "zeros" }
[[tables]]
name = "other"
rows = 1000
dim = 2
[[tables]]
name = "bag"
rows = 10
dim = 2
pooling = "sum"
[[tables]]
name = "learned"
rows = 20
dim = 3
optimizer = { kind = "adagrad", learning_rate = 0.1 }
"""
ROWS = itertools.count()
"""Rows of `count` that no test has used yet."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Service(CONFIG, tmp_path_factory.mktemp("counts")) as service:
        yield service.target


@pytest.fixture
def proxy(target: str) -> Iterator[Proxy]:
    with Proxy(target) as relay:
        yield relay


def new_ids() -> torch.Tensor:
    return torch.tensor([next(ROWS)])


def step(counter: RemoteEmbedding, ids: torch.Tensor) -> int:
    """Adds 1 to a row, and returns what it was read to be."""
    seen = counter(ids)
    (-seen.sum()).backward()
    return int(seen.item())


def count(target: str, ids: torch.Tensor) -> int:
    with Client(target) as client:
        return int(client.lookup({"count": ids.numpy()})["count"][0, 0])


@pytest.mark.parametrize(("staleness", "ahead"), [(0, False), (1, False), (1, True), (3, False), (3, True)])
def test_a_forward_waits_for_all_own_updates_but_the_last_few(proxy: Proxy, staleness: int, ahead: bool) -> None:
    ids, gate, steps = new_ids(), Gate(proxy, staleness), 7
    with Remote(proxy.target, staleness=staleness) as remote:
        counter = RemoteEmbedding(remote, "count")
        if ahead:
            remote.prefetch({"count": ids})
        for made in range(steps):
            if ahead and made + 1 < steps:
                remote.prefetch({"count": ids})
            seen = step(counter, ids)
            assert made - staleness <= seen <= max(made - staleness + 1, 0)
        gate.open()
        assert remote.flush()
    assert gate.wrong == []
    assert proxy.calls["Lookup"] == steps, "every prefetch was used"
    assert count(proxy.target, ids) == steps


def test_a_forward_asks_for_the_version_that_has_its_updates_as_another_front_end_may_answer(proxy: Proxy) -> None:
    ids = new_ids()
    with Remote(proxy.target, staleness=1) as remote:
        counter = RemoteEmbedding(remote, "count")
        step(counter, ids)
        version = remote.flush()
        counter(ids)
    assert version
    assert pb.LookupRequest.FromString(proxy.last["Lookup"]).min_version == version


ACTIONS = st.lists(st.sampled_from(["prefetch", "forward", "step", "step", "flush"]), max_size=25)


@settings(max_examples=40, deadline=None)
@given(actions=ACTIONS, staleness=st.integers(0, 3))
def test_the_bound_holds_whatever_is_prefetched_when(target: str, actions: list[str], staleness: int) -> None:
    ids, made = new_ids() % 1000, 0
    with Remote(target, staleness=staleness) as remote:
        counter, start = RemoteEmbedding(remote, "count"), count(target, ids)
        for action in actions:
            if action == "prefetch":
                remote.prefetch({"count": ids})
            elif action == "flush":
                remote.flush()
            else:
                seen = int(counter(ids).item()) if action == "forward" else step(counter, ids)
                assert made - staleness <= seen - start <= made
                made += action == "step"
    assert count(target, ids) - start == made


def test_a_prefetch_is_one_lookup_which_forwards_with_the_same_ids_take(proxy: Proxy) -> None:
    with Remote(proxy.target) as remote:
        counter, other, bag = (
            RemoteEmbedding(remote, "count"),
            RemoteEmbedding(remote, "other"),
            RemoteEmbeddingBag(remote, "bag"),
        )
        ids, offsets = torch.tensor([[5, 6]]), torch.tensor([0, 1])
        expected = counter(ids), other(ids), bag(ids[0], offsets), bag(ids), other(ids + 1)
        proxy.calls.clear()
        for of_bag in ((ids[0], offsets), ids, (ids[0], offsets, torch.ones(2))):
            remote.prefetch({"count": ids, "other": ids, "bag": of_bag})
        remote.prefetch({"count": ids, "other": ids, "bag": (ids[0], offsets)})
        remote.prefetch({"bag": ids})
        found = counter(ids.clone()), other(ids), bag(ids[0], offsets), bag(ids)
        assert proxy.calls["Lookup"] == 5
        assert other(ids + 1).equal(expected[-1]), "others are looked up"
        assert proxy.calls["Lookup"] == 6
        assert all(one.equal(two) for one, two in zip(found, expected, strict=False))


def test_without_staleness_a_prefetch_is_used_unless_an_update_came_after_it(proxy: Proxy) -> None:
    ids = new_ids()
    with Remote(proxy.target) as remote:
        counter = RemoteEmbedding(remote, "count")
        remote.prefetch({"count": ids})
        assert [step(counter, ids), proxy.calls["Lookup"]] == [0, 1]
        remote.prefetch({"count": ids})
        assert [step(counter, ids), proxy.calls["Lookup"]] == [1, 2]
        remote.prefetch({"count": ids})
        RemoteEmbedding(remote, "other")(ids).sum().backward()
        assert [step(counter, ids), proxy.calls["Lookup"]] == [2, 5]


def test_trainers_at_once_lose_nothing(target: str) -> None:
    ids = new_ids()

    def train(trainer: int) -> None:
        with Remote(target, staleness=trainer) as remote:
            counter = RemoteEmbedding(remote, "count")
            for _ in range(30):
                step(counter, ids)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(train, range(3)))
    assert count(target, ids) == 90


TRAINER = """
import sys, torch
from embershard.torch import Remote, RemoteEmbedding
with Remote(sys.argv[1], staleness=2) as remote:
    counter = RemoteEmbedding(remote, "count")
    for _ in range(50):
        (-counter(torch.tensor([int(sys.argv[2])])).sum()).backward()
"""


def test_processes_at_once_lose_nothing(target: str) -> None:
    ids = new_ids()
    command = [sys.executable, "-c", TRAINER, target, str(ids.item())]
    trainers = [subprocess.Popen(command) for _ in range(2)]
    assert [trainer.wait(60) for trainer in trainers] == [0, 0]
    assert count(target, ids) == 100


@pytest.mark.parametrize("staleness", [0, 2])
def test_an_answer_that_is_lost_makes_no_second_update(proxy: Proxy, staleness: int) -> None:
    def lose(number: int) -> None:
        if number % 2:
            raise Lost

    ids, proxy.after = new_ids(), {"Update": lose}
    with Remote(proxy.target, staleness=staleness) as remote:
        counter = RemoteEmbedding(remote, "count")
        for _ in range(5):
            step(counter, ids)
    assert proxy.calls["Update"] == 10
    assert count(proxy.target, ids) == 5


def test_a_service_that_is_killed_while_a_trainer_learns_is_as_one_that_never_was(tmp_path: Path) -> None:
    services = [Service(CONFIG, tmp_path).wait()]

    def kill(number: int, when: int) -> None:
        if number == when:
            services[-1].stop(signal.SIGKILL)
            services.append(Service(CONFIG, tmp_path).wait())
            proxy.behind = services[-1].target
            raise Lost

    torch.manual_seed(1)
    with Proxy(services[-1].target) as proxy, Client(proxy.target) as client, Remote(client) as remote:
        proxy.before = {"Lookup": lambda number: kill(number, 4)}
        proxy.after = {"Update": lambda number: kill(number, 6)}  # it is applied, and nobody knows
        theirs, ours = nn.Embedding(20, 3), RemoteEmbedding(remote, "learned")
        client.assign({"learned": np.arange(20)}, values={"learned": theirs.weight.detach().numpy()})
        optimizer = torch.optim.Adagrad(theirs.parameters(), lr=0.1, eps=1e-8)
        proxy.calls.clear()
        for _ in range(8):
            ids = torch.randint(20, (6,))
            for embedding in (ours, theirs):
                embedding(ids).tanh().prod(1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(services) == 3
        torch.testing.assert_close(ours(torch.arange(20)), theirs.weight, atol=1e-6, rtol=1e-6)
    services[-1].stop()


def test_an_update_that_fails_is_told_with_what_was_lost_and_nothing_follows_it_in_silence(proxy: Proxy) -> None:
    failing, counting = threading.Event(), new_ids()

    def refuse(number: int) -> None:
        if number == 2:
            assert failing.wait(20)
            raise Lost(grpc.StatusCode.INVALID_ARGUMENT)

    with Remote(proxy.target, staleness=3) as remote:
        counter = RemoteEmbedding(remote, "count")
        proxy.before = {"Update": refuse}
        losses = [-counter(counting).sum() for _ in range(5)]
        for loss in losses[:4]:
            loss.backward()
        failing.set()
        with pytest.raises(embershard.InvalidInput, match=r"an update of 'count' has failed; 2 that .*: .*lost"):
            remote.flush()
        losses[4].backward()
        assert remote.flush()
        assert step(counter, counting) == 2
    assert proxy.calls["Update"] == 4
