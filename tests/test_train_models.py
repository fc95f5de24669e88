"""Each model learns as a plain PyTorch version of it does, step by step; and what has been tied, moves once."""

from __future__ import annotations

import copy
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.jobs import MODELS, collection, losses, write_job
from support.plain_models import PLAIN

from embershard.engine.world import SoloWorld
from embershard.train.run import Run

TABLES = {"dlrm": ("user", "item", "tag"), "two_tower": ("user", "item", "tag"), "next_item": ("item",)}
EPS = 1e-4
"""Of Adagrad: with less, its first step is as long for a gradient of 1e-9 as for one of 1, so that rounding shows."""
ROWS = {"sgd": torch.optim.SGD, "adagrad": partial(torch.optim.Adagrad, eps=EPS)}


@pytest.mark.parametrize("steps", [20, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("model", "kind", "batch"), [("dlrm", "adagrad", 32), ("two_tower", "sgd", 32), ("next_item", "sgd", 8)]
)
def test_the_loss_is_that_of_plain_pytorch(tmp_path: Path, model: str, kind: str, batch: int, steps: int) -> None:
    rate = 0.05 if kind == "adagrad" else 1.0
    tables = collection(kind, rate).replace("learning_rate", f"eps = {EPS}\nlearning_rate")
    path = write_job(tmp_path, MODELS[model], tables=tables, batch=batch, epochs=20, steps=steps)
    with closing(Run(path, tmp_path / "run", SoloWorld())) as run:
        rows = {name: run.engine.tensors()[f"{name}.weight"].clone() for name in TABLES[model]}
        plain = PLAIN[model](rows, copy.deepcopy(run.model))
        batches = [batch for epoch in range(20) for batch in run.stream.epoch(epoch)][:steps]
        run.to_its_end()
    of_rows, of_layers = plain.tables.parameters(), [p for n, p in plain.named_parameters() if "tables." not in n]
    optimizers = [ROWS[kind](of_rows, lr=rate), torch.optim.SGD(of_layers, lr=0.1)]
    expected = []
    with torch.sparse.check_sparse_tensor_invariants(True):
        for one in batches:
            loss = plain(one)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            expected.append(loss.item())
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, atol=1e-4, rtol=0)
    assert expected[-1] < expected[0], "it hasn't learned anything that could differ"
    for name in rows:
        weight = run.engine.tensors()[f"{name}.weight"]
        torch.testing.assert_close(weight, plain.tables[name].weight.detach(), atol=1e-4, rtol=0)
        assert not torch.equal(weight, rows[name])
