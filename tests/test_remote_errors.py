"""What a trainer is told when something is wrong: what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.proxy import Proxy
from support.service import Service

import embershard
from embershard import Client
from embershard.torch import Remote, RemoteEmbedding, RemoteEmbeddingBag

CONFIG = """
[collection]
name = "errors"
[[tables]]
name = "plain"
rows = 5
dim = 2
[[tables]]
name = "pooled"
rows = 5
dim = 2
pooling = "mean"
[[tables]]
name = "words"
rows = 5
dim = 2
ids = { kind = "hashed" }
"""
IDS = torch.tensor([1, 2, 3])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Service(CONFIG, tmp_path_factory.mktemp("errors")) as service:
        yield service.target


@pytest.fixture(scope="module")
def remote(target: str) -> Iterator[Remote]:
    with Remote(target) as connected:
        yield connected


def bag(ids: Any = IDS, *arguments: Any, last: bool = False) -> Callable[[Remote], object]:
    return lambda remote: RemoteEmbeddingBag(remote, "pooled", include_last_offset=last)(ids, *arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    {
        "unknown feature": (
            lambda remote: RemoteEmbedding(remote, "plian"),
            "unknown feature 'plian'.* has plain, poo",
        ),
        "pooled": (lambda remote: RemoteEmbedding(remote, "pooled"), "pools by mean; use RemoteEmbeddingBag"),
        "not pooled": (lambda remote: RemoteEmbeddingBag(remote, "plain"), "doesn't pool; use RemoteEmbedding"),
        "mode": (lambda remote: RemoteEmbeddingBag(remote, "pooled", mode="max"), "pools by mean, not by max"),
        "range": (lambda remote: RemoteEmbedding(remote, "plain")(IDS * 2), r"'plain': ids\[2\] = 6 is out of range"),
        "floats": (lambda remote: RemoteEmbedding(remote, "plain")(IDS / 2), "'plain': ids must be .* integers"),
        "prefetched": (lambda remote: remote.prefetch({"plian": IDS}), "unknown feature 'plian'"),
        "no offsets": (bag(), r"give ids \[B, L\] alone, or .* not ids \[3\] with no offsets"),
        "offsets twice": (bag(IDS[None], IDS), r"not ids \[1, 3\] with offsets \[3\]"),
        "float offsets": (bag(IDS, IDS / 2), "with offsets .* of torch.float32"),
        "first offset": (bag(IDS, IDS), "offsets must begin with 0"),
        "no first offset": (bag(IDS, IDS[:0]), "offsets must begin with 0"),
        "descending": (bag(IDS, torch.tensor([0, 2, 1])), "not descend"),
        "far offset": (bag(IDS, torch.tensor([0, 4])), "not pass the number of ids, 3"),
        "last offset": (bag(IDS, torch.tensor([0, 2]), last=True), "end with the number of ids, 3"),
        "weights": (bag(IDS[None], None, torch.ones(3)), r"have the shape \[3\], and the ids \[1, 3\]"),
        "learned weights": (bag(IDS[None], None, torch.ones(1, 3, requires_grad=True)), r"doesn't give; detach\(\)"),
    }.values(),
)
def test_what_is_wrong_with_a_call_is_told(remote: Remote, call: Callable[[Remote], object], message: str) -> None:
    with pytest.raises(embershard.InvalidInput, match=message):
        call(remote)


def test_gradients_that_are_no_numbers_or_are_differentiated_again_change_nothing(remote: Remote) -> None:
    embedding = RemoteEmbedding(remote, "plain")
    before = embedding(IDS)
    with pytest.raises(embershard.InvalidInput, match=r"'plain'.* call backward without create_graph"):
        before.pow(2).sum().backward(create_graph=True)
    with pytest.raises(embershard.InvalidInput, match=r"'plain': gradients\[0, 0\] is nan"):
        (before * torch.nan).sum().backward()
    assert before.equal(embedding(IDS))


def test_strings_and_integers_of_one_feature_are_two_passes(remote: Remote) -> None:
    words = RemoteEmbedding(remote, "words")
    loss = words(["1"]).sum() + words(torch.tensor([1])).sum()
    with pytest.raises(embershard.InvalidInput, match="all strings or all integers"):
        loss.backward()


def test_a_staleness_below_zero_is_refused(target: str) -> None:
    with pytest.raises(embershard.InvalidInput, match="staleness -1"):
        Remote(target, staleness=-1)


def test_another_collection_is_refused_when_a_trainer_connects_and_ever_after(
    target: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Remote(target) as first:
        same = first.description.fingerprint
    with pytest.raises(embershard.FingerprintMismatch, match="the trainer expects 'abc'"):
        Remote(target, fingerprint="abc")
    other = Service(CONFIG.replace("dim = 2", "dim = 3"), tmp_path_factory.mktemp("other"))
    with Proxy(target) as proxy, Remote(proxy.target, fingerprint=same) as remote, other:
        embedding = RemoteEmbedding(remote, "plain")
        loss, proxy.behind = embedding(IDS).sum(), other.target
        for call in (lambda: embedding(IDS), loss.backward):
            with pytest.raises(embershard.FingerprintMismatch, match="this is collection 'errors'"):
                call()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_service_that_is_gone_is_told_by_whoever_calls_next(target: str, staleness: int) -> None:
    with Proxy(target) as proxy:
        remote = Remote(proxy.target, staleness=staleness, timeout_s=0.2)
        embedding = RemoteEmbedding(remote, "plain")
        loss = embedding(IDS).sum()
    with pytest.raises((embershard.Unavailable, embershard.DeadlineExceeded)):
        embedding(IDS)
    doubt = pytest.raises(
        (embershard.Unavailable, embershard.DeadlineExceeded),
        match="an update of 'plain' has failed, and may have been",
    )
    with doubt:
        loss.backward()
        remote.flush()
    remote.close()


def test_a_service_that_never_was_there_is_told_at_once() -> None:
    with pytest.raises(embershard.Unavailable, match="start `embershard serve`"):
        Remote("127.0.0.1:1")


def test_a_remote_that_is_closed_does_nothing_and_leaves_a_client_open_that_is_the_callers(target: str) -> None:
    with Client(target) as client:
        with Remote(client) as remote:
            embedding = RemoteEmbedding(remote, "plain")
            loss = embedding(IDS).sum()
        for call in (lambda: embedding(IDS), loss.backward, lambda: remote.prefetch({"plain": IDS})):
            with pytest.raises(embershard.Unavailable, match="is closed"):
                call()
        remote.close()
        assert client.describe().name == "errors"
