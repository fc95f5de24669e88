"""What makes no sense is refused, and changes nothing; `make fuzz` sends a hundred thousand."""

from __future__ import annotations

from pathlib import Path

from fuzz.run import fuzz


def test_fuzzed_requests_end_as_they_should_and_leave_no_trace(tmp_path: Path) -> None:
    statuses = fuzz(2_000, seed=3, ranks=0, folder=tmp_path)
    seen = {status for _, status in statuses}
    assert {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"} <= seen
