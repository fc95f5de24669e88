"""A short run of what `make torture` does at length: kills at random moments, and a comparison with a model."""

from __future__ import annotations

import pytest
from torture.run import torture


@pytest.mark.parametrize(("kills", "ranks"), [(5, 0), (2, 2)], ids=["local", "torchrec-2"])
def test_what_was_acknowledged_is_there_once_and_what_was_read_was_so(kills: int, ranks: int) -> None:
    counts = torture(kills=kills, seed=20 + ranks, ranks=ranks, quiet=True)
    assert counts["kills"] == kills
    assert counts["acknowledged"]
    assert counts["versions"] >= counts["acknowledged"]
    assert counts["lookups compared"] == counts["lookups"]
    assert counts["snapshots compared"]
