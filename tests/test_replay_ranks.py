"""A log that some ranks have written is applied by others."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.service import Service

from embershard import Client

CONFIG = """
[collection]
name = "several"
[limits]
group_timeout_s = 20
[[tables]]
counts = true
name = "item"
rows = 500
dim = 8
optimizer = { kind = "adagrad" }
[[tables]]
counts = true
name = "query"
rows = 64
dim = 4
pooling = "mean"
ids = { kind = "vocabulary", fallback_rows = 16, admit_after = 2 }
[[tables]]
counts = true
name = "context"
rows = 300
dim = 8
factor = { kind = "low_rank", rank = 2 }
optimizer = { kind = "sgd", learning_rate = 0.1 }
"""
EVERY = {"item": np.arange(500), "query": (np.arange(100), np.ones(100, np.int64)), "context": np.arange(300)}


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "then"), [(0, 2), (2, 0), (2, 3)])
def test_a_log_is_applied_by_another_number_of_ranks_alike_but_for_the_order_of_sums(
    tmp_path: Path, ranks: int, then: int
) -> None:
    random = np.random.default_rng(5)
    with Service(CONFIG, tmp_path, ranks=ranks) as service:
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(Client(at)) for at in service.addresses.values()]
            for number in range(60):
                ids = {name: random.zipf(1.3, 40) % 90 for name in ("item", "context")}
                features = {**ids, "query": (random.zipf(1.3, 40) % 90, np.full(8, 5))}
                shapes = {"item": (40, 8), "context": (40, 8), "query": (8, 4)}
                gradients = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
                version = clients[number % len(clients)].update(features, gradients=gradients)
                if number == 20:
                    clients[0].snapshot()
            before = clients[0].lookup(EVERY, min_version=version, with_counts=True)
        for pid in service.rank_pids():
            os.kill(pid, signal.SIGKILL)
        service.ended()
    with Service(CONFIG, tmp_path, ranks=then) as again, Client(again.target) as client:
        after = client.lookup(EVERY, with_counts=True)
    assert after.version == before.version == version
    for name in EVERY:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(after.updates[name], before.updates[name])
        np.testing.assert_array_equal(after.sightings[name], before.sightings[name])
