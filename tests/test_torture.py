"""A short run of what `make torture` does at length: kills at random moments, and a comparison with a model."""

from __future__ import annotations

import pytest
from torture.run import torture


@pytest.mark.parametrize(
    ("kills", "ranks"),
    [pytest.param(3, 0, id="local"), pytest.param(2, 2, id="torchrec-2", marks=pytest.mark.slow)],
)
def test_what_was_acknowledged_is_there_once_and_what_was_read_was_so(kills: int, ranks: int) -> None:
    counts = torture(kills=kills, seed=20 + ranks, ranks=ranks, quiet=True)
    assert counts["kills"] == kills
    assert counts["acknowledged"]
    assert counts["versions"] >= counts["acknowledged"]
    assert counts["lookups compared"] == counts["lookups"]
    assert counts["snapshots compared"]
