"""Peers as oracles: the same weights and ids through PyTorch's and TorchRec's own modules give the same vectors, and
the same rows after a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchrec
from support.implementation import Array, Implementation
from support.scenario import collection, random_batch
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from embershard.config import Config
from embershard.types import FeatureBatch, FeatureUpdate

# TorchRec's unsharded modules script their splits.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.(script|interface). is deprecated:DeprecationWarning")

ROWS, DIM, RATE = 40, 10, 0.1
TORCH: dict[str, Any] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
PEERS = TORCH | {"rowwise_adagrad": RowWiseAdagrad}


def made(pooling: str, optimizer: str) -> Config:
    table = {"name": "t", "rows": ROWS, "dim": DIM, "pooling": pooling, "init": {"scale": 1.0}}
    return collection([table], kind=optimizer, learning_rate=RATE, eps=1e-10)


def bag(pooling: str, seed: int = 3) -> FeatureBatch:
    batch = random_batch(np.random.default_rng(seed), made(pooling, "sgd"), "t", examples=25)
    weights = batch.weights if pooling == "sum" else None  # PyTorch weighs sums only
    return FeatureBatch(feature="t", ids=batch.ids, lengths=batch.lengths, weights=weights)


def ours(implementation: Implementation, config: Config, batch: FeatureBatch, gradients: Array | None) -> Array:
    """Vectors of the batch if no gradients are given, else all rows after one step with them."""
    if gradients is None:
        return implementation.lookup(implementation.on_first([batch]))[0][0]
    implementation.update(implementation.on_first([FeatureUpdate(batch=batch, gradients=gradients)]))
    return implementation.state()["t.weight"]


@pytest.mark.parametrize("optimizer", TORCH)
@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_pytorch_embedding_bag_agrees(implementation: Implementation, pooling: str, optimizer: str) -> None:
    config, batch = made(pooling, optimizer), bag(pooling)
    implementation.build(config)
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode=pooling, include_last_offset=True)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(implementation.state()["t.weight"]))
    arguments = {"lr": RATE} | ({"eps": 1e-10} if optimizer == "adagrad" else {})
    step = TORCH[optimizer](theirs.parameters(), **arguments)
    for _ in range(5):
        assert batch.lengths is not None
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(batch.lengths)]))
        weights = None if batch.weights is None else torch.from_numpy(batch.weights)
        answer = theirs(torch.from_numpy(np.asarray(batch.ids)), offsets, per_sample_weights=weights)
        np.testing.assert_allclose(ours(implementation, config, batch, None), answer.detach(), rtol=1e-5, atol=1e-6)
        gradients = np.random.default_rng(9).normal(size=answer.shape).astype(np.float32)
        step.zero_grad()
        answer.backward(torch.from_numpy(gradients))
        step.step()
        rows = ours(implementation, config, batch, gradients)
        np.testing.assert_allclose(rows, theirs.weight.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", PEERS)
@pytest.mark.parametrize("pooling", ["none", "sum", "mean"])
def test_torchrecs_own_unsharded_collections_agree(
    implementation: Implementation, pooling: str, optimizer: str
) -> None:
    config, batch = made(pooling, optimizer), bag(pooling)
    implementation.build(config)
    theirs = unsharded(pooling)
    weight = next(iter(theirs.parameters()))
    with torch.no_grad():
        weight.copy_(torch.from_numpy(implementation.state()["t.weight"]))
    arguments = {"lr": RATE} | ({} if optimizer == "sgd" else {"eps": 1e-10})
    step = PEERS[optimizer](theirs.parameters(), **arguments)
    lengths = np.ones(len(batch.ids), np.int32) if batch.lengths is None else batch.lengths
    jagged = torchrec.KeyedJaggedTensor(
        keys=["t"],
        values=torch.from_numpy(np.asarray(batch.ids)),
        lengths=torch.from_numpy(lengths),
        weights=None if batch.weights is None else torch.from_numpy(batch.weights),
    )
    for _ in range(5):
        answer = theirs(jagged)
        answer = answer["t"].values() if pooling == "none" else answer.values()
        np.testing.assert_allclose(ours(implementation, config, batch, None), answer.detach(), rtol=1e-5, atol=1e-6)
        gradients = np.random.default_rng(9).normal(size=answer.shape).astype(np.float32)
        step.zero_grad()
        answer.backward(torch.from_numpy(gradients))
        step.step()
        rows = ours(implementation, config, batch, gradients)
        np.testing.assert_allclose(rows, weight.detach(), rtol=1e-5, atol=1e-5)


def unsharded(pooling: str) -> Any:
    shape = {"name": "t", "embedding_dim": DIM, "num_embeddings": ROWS, "feature_names": ["t"]}
    if pooling == "none":
        return torchrec.EmbeddingCollection(tables=[torchrec.EmbeddingConfig(**shape)])
    kind = torchrec.PoolingType.SUM if pooling == "sum" else torchrec.PoolingType.MEAN
    table = torchrec.EmbeddingBagConfig(**shape, pooling=kind)
    return torchrec.EmbeddingBagCollection(tables=[table], is_weighted=bag(pooling).weights is not None)
