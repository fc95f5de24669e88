"""Modules whose rows a service keeps learn what PyTorch's own would, one update a backward pass."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.proxy import Proxy
from support.service import Service
from torch import Tensor, nn

import embershard
from embershard import Client
from embershard.torch import Remote, RemoteEmbedding, RemoteEmbeddingBag

ROWS, DIM = 40, 4
KINDS = {"id": "none", "sum": "sum", "mean": "mean"}
"""How the features of a table are named, and what it pools by."""


def tables(optimizer: str) -> str:
    return "".join(
        f"""
[[tables]]
name = "{optimizer}_{kind}"
rows = {ROWS}
dim = {DIM}
pooling = "{pooling}"
optimizer = {{ kind = "{optimizer}", learning_rate = 0.1 }}
features = ["{optimizer}_{kind}", "{optimizer}_{kind}_too"]
"""
        for kind, pooling in KINDS.items()
    )


CONFIG = f"""
[collection]
name = "remote"
[limits]
ids_per_request = 600
numbers_per_request = 2000
message_bytes = 16384
{tables("sgd")}
{tables("adagrad")}
[[tables]]
name = "zip"
rows = 100
dim = 2
ids = {{ kind = "hashed", hashes = 4, signed = true }}
[[tables]]
name = "still"
rows = 3
dim = 2
frozen = true
[[tables]]
name = "count"
rows = 1000
dim = 1
init = {{ kind = "zeros" }}
optimizer = {{ kind = "sgd", learning_rate = 1.0 }}
"""
COUNT_ROWS = itertools.count()
"""Rows of `count` that no test has used yet."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Service(CONFIG, tmp_path_factory.mktemp("remote")) as service:
        yield service.target


@pytest.fixture
def remote(target: str) -> Iterator[Remote]:
    with Remote(target) as connected:
        yield connected


@pytest.fixture
def proxy(target: str) -> Iterator[Proxy]:
    with Proxy(target) as relay:
        yield relay


def module(remote: Remote, feature: str) -> Any:
    pooled = not feature.removesuffix("_too").endswith("_id")
    return RemoteEmbeddingBag(remote, feature) if pooled else RemoteEmbedding(remote, feature)


def peer(client: Client, feature: str) -> Any:
    """The module of PyTorch, and rows of the service that start like its own, without optimizer state."""
    mode, ids = KINDS[feature.rpartition("_")[2]], np.arange(ROWS)
    options: dict[str, Any] = {"sparse": True} if mode == "none" else {"sparse": True, "mode": mode}
    theirs = (nn.Embedding if mode == "none" else nn.EmbeddingBag)(ROWS, DIM, **options)
    client.start({feature: ids}, parents={feature: ids})
    client.assign({feature: ids}, values={feature: theirs.weight.detach().numpy()})
    return theirs


def rows(client: Client, feature: str) -> Tensor:
    """All rows of the feature's table."""
    return torch.from_numpy(client.lookup({feature: np.arange(ROWS)})[feature].copy())


def near(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "peers"),
    [
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.1)),
        ("adagrad", lambda weights: torch.optim.Adagrad(weights, lr=0.1, eps=1e-8)),
    ],
)
@pytest.mark.parametrize("staleness", [0, 1])
def test_training_is_that_of_torch(target: str, optimizer: str, peers: Any, staleness: int) -> None:
    torch.manual_seed(1)
    names = [f"{optimizer}_{kind}" for kind in KINDS]
    with Client(target) as client, Remote(client, staleness=staleness) as remote:
        theirs = nn.ModuleDict({name: peer(client, name) for name in names})
        ours = nn.ModuleDict({name: module(remote, name) for name in names})
        step = peers(theirs.parameters())
        for _ in range(5):
            ids, words = torch.randint(ROWS, (5, 3)), torch.randint(ROWS, (20,), dtype=torch.int32)
            offsets, goal = torch.tensor([0, 4, 4, 9, 19]), torch.randn(5, DIM)
            losses = []
            for modules in (ours, theirs):
                found = [
                    modules[names[0]](ids).mean(1) + modules[names[0]](ids[:, 0]),  # twice in one pass
                    modules[names[1]](words.long(), offsets, torch.linspace(-1, 2, 20)),
                    modules[names[2]](words, offsets.int()),
                ]
                losses.append(((torch.stack(found).prod(0) - goal) ** 2).sum())
                losses[-1].backward()
            remote.flush()
            near(losses[0], losses[1])
            with torch.sparse.check_sparse_tensor_invariants():  # torch warns unless told whether to
                step.step()
            step.zero_grad()
        for name in names:
            near(rows(client, name), theirs[name].weight)


def test_one_backward_pass_is_one_update_whatever_it_uses(proxy: Proxy) -> None:
    with Client(proxy.target) as client, Remote(client) as remote:
        theirs = peer(client, "sgd_sum")
        client.update({"sgd_sum": [0]}, gradients={"sgd_sum": np.zeros((1, DIM))})
        proxy.calls.clear()
        ours, too, other = (module(remote, name) for name in ("sgd_sum", "sgd_sum_too", "adagrad_id"))
        ids, weights = torch.tensor([[1, 2], [3, 3]]), torch.tensor([[1.0, 0.5], [2.0, 0.0]])
        found = ours(ids) + ours(ids.flip(0), per_sample_weights=weights) + too(ids[:, :1])
        (found.tanh().sum() + other(ids).sum()).backward()
        assert proxy.calls["Update"] == 1
        loss = (theirs(ids) + theirs(ids.flip(0), per_sample_weights=weights) + theirs(ids[:, :1])).tanh().sum()
        loss.backward()
        torch.optim.SGD(theirs.parameters(), lr=0.1).step()
        near(rows(client, "sgd_sum"), theirs.weight)


BAGS = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), max_size=5)


@settings(max_examples=40, deadline=None)
@given(bags=BAGS, mode=st.sampled_from(["sum", "mean"]), last=st.booleans(), weighted=st.booleans())
def test_bags_are_those_of_torch(target: str, bags: list[list[int]], mode: str, last: bool, weighted: bool) -> None:
    ids = torch.tensor([id_ for bag in bags for id_ in bag], dtype=torch.long)
    bounds = torch.tensor([0, *itertools.accumulate(map(len, bags))])
    weights = torch.linspace(0.5, 2, len(ids)) if weighted and mode == "sum" else None
    offsets = bounds if last else bounds[:-1]
    with Remote(target) as remote:
        ours = RemoteEmbeddingBag(remote, f"sgd_{mode}", mode=mode, include_last_offset=last)
        weight = ours(torch.arange(ROWS)[:, None]).detach()
        theirs = nn.EmbeddingBag(ROWS, DIM, mode=mode, include_last_offset=last, _weight=weight)
        found = ours(ids, offsets, weights)
        assert found.shape == (len(bags), DIM)
        near(found.detach(), theirs(ids, offsets, per_sample_weights=weights))


def test_a_weighted_mean_is_divided_by_the_sum_of_its_weights(remote: Remote) -> None:
    bag, ids = module(remote, "sgd_mean"), torch.tensor([[3, 4]])
    apart = bag(ids.T).detach()
    near(bag(ids, per_sample_weights=torch.tensor([[1.0, 3.0]])).detach(), (apart[:1] + 3 * apart[1:]) / 4)


def test_strings_are_ids_too_and_any_shape_is_kept(remote: Remote) -> None:
    code = RemoteEmbedding(remote, "zip")
    assert code(["90210", "10001", "90210"]).shape == (3, 2)
    assert code(torch.tensor(-(2**63))).shape == (2,)
    assert code(torch.zeros(2, 0, 3, dtype=torch.long)).shape == (2, 0, 3, 2)
    before = code(["a"]).detach()
    (code(["a"]) + code(["b", "a"])).sum().backward()
    assert not before.equal(code(["a"]))
    assert (code.embedding_dim, code.num_embeddings) == (2, 100)
    assert str(code) == "RemoteEmbedding('zip', 100, 2, ids=hashed, optimizer=rowwise_adagrad, learning_rate=0.05)"
    assert "mode=mean" in str(module(remote, "sgd_mean"))
    assert [*code.parameters()] == []
    assert copy.deepcopy(code)(["a"]).equal(code(["a"]))


def test_nothing_is_sent_without_gradients(proxy: Proxy) -> None:
    with Remote(proxy.target) as remote:
        embedding, ids = module(remote, "sgd_id"), torch.tensor([1, 2])
        with torch.no_grad():
            assert not embedding(ids).requires_grad
        with torch.inference_mode():
            assert embedding(ids).is_inference()
        assert not RemoteEmbedding(remote, "still")(ids).requires_grad
        assert embedding(ids).requires_grad
        assert not embedding.eval()(ids).requires_grad
        scale = torch.ones((), requires_grad=True)
        (slope,) = torch.autograd.grad((embedding.train()(ids) * scale).sum(), scale)
        assert slope
        assert proxy.calls["Update"] == 0


def test_vectors_may_be_changed_in_place_and_ids_refilled_before_backward(remote: Remote) -> None:
    embedding, ids = RemoteEmbedding(remote, "count"), torch.tensor([[next(COUNT_ROWS)], [next(COUNT_ROWS)]])
    kept = ids.clone()
    vectors = embedding(ids)
    vectors.add_(1).relu_()
    ids.zero_()
    vectors.sum().backward()
    assert embedding(kept).flatten().tolist() == [-1, -1]


def test_a_backward_pass_that_fails_sends_nothing_and_leaves_nothing_to_the_next(remote: Remote) -> None:
    def fail(gradients: Tensor) -> None:
        raise ArithmeticError

    embedding, one, two = RemoteEmbedding(remote, "count"), *torch.tensor([[next(COUNT_ROWS)], [next(COUNT_ROWS)]])
    first = embedding(one)
    first.register_hook(fail)
    with pytest.raises(ArithmeticError):
        (first + embedding(two)).sum().backward()  # backwards, the second is first
    embedding(one).sum().backward()
    assert embedding(torch.cat([one, two])).flatten().tolist() == [-1, 0]


def test_the_same_pass_twice_is_two_updates(remote: Remote) -> None:
    embedding, ids = RemoteEmbedding(remote, "count"), torch.tensor([next(COUNT_ROWS)])
    loss = embedding(ids).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert embedding(ids).item() == -2


def test_what_is_too_much_for_one_lookup_is_several(proxy: Proxy) -> None:
    with Remote(proxy.target) as remote, torch.no_grad():
        ids, offsets = torch.randint(ROWS, (900,)), torch.arange(0, 900, 3)
        for name, arguments, most in (("sgd_id", (ids,), 600), ("sgd_sum", (ids, offsets), 600), ("zip", (ids,), 250)):
            proxy.calls.clear()
            of_feature = RemoteEmbedding(remote, name) if name == "zip" else module(remote, name)
            found = of_feature(*arguments)
            assert proxy.calls["Lookup"] >= 900 / most
            some = of_feature(*(part[90:120] if part is ids else part[:10] for part in arguments))
            near(found[90:120] if len(found) == 900 else found[30:40], some)


def test_what_is_too_much_for_one_update_is_refused(remote: Remote) -> None:
    embedding = module(remote, "sgd_id")
    loss = embedding(torch.arange(700) % ROWS).sum()
    with pytest.raises(embershard.InvalidInput, match=r"'sgd_id', are one update.* limits.ids_per_request = 600; take"):
        loss.backward()
