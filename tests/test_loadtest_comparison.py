"""Two load tests side by side: what may be compared, and in what they differed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.loadtest import MADE, told

from embershard.errors import InvalidInput
from embershard.loadtest import comparison
from embershard.loadtest.report import lines


def test_a_comparison_tells_ratios_and_in_what_the_tests_differed(tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(told(MADE)))
    earlier = comparison.read(path, "open")
    same = told(MADE, earlier=earlier)["comparison"]
    found = same["latency_ms"]["lookup"]
    assert {name: pair["ratio"] for name, pair in found.items()} == {
        "p50": 1.0,
        "p90": None,
        "p99": None,
        "p99.9": None,
        "max": 1.0,
    }
    assert same["shares"]["lookup"] == {
        name: {"earlier": share, "now": share, "ratio": 1.0 if share else None}
        for name, share in {"answered": 0.75, "refused": 0.25, "failed": 0.0}.items()
    }
    assert same["differences"] == []
    whole = told([(due, late, 2 * took, end) for due, late, took, end in MADE], ids=30, earlier=earlier)
    slower = whole["comparison"]
    assert slower["latency_ms"]["lookup"]["p50"]["ratio"] == pytest.approx(2, rel=0.01)
    assert slower["differences"] == ["ids: 25 then, 30 now"]
    said = list(lines(whole))
    assert "warning: the other test differed in ids: 25 then, 30 now" in said
    assert any(line.split() == ["lookup", "answered", "%", "75.00", "75.00", "1.00"] for line in said)


def test_tests_of_other_rates_are_compared_with_a_warning_and_other_loops_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(told(MADE)))
    with pytest.raises(InvalidInput, match="is of a test in open loop, and this one is in closed loop"):
        comparison.read(path, "closed")
    earlier = told(MADE)
    earlier["configuration"]["rate"] = 20.0
    assert told(MADE, earlier=earlier)["comparison"]["differences"] == ["rate: 20.0 then, 10 now"]


def test_what_json_printed_cannot_be_compared_and_what_a_damaged_file_lacks_is_told(tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    printed = told(MADE)
    del printed["result"]["calls"]["lookup"]["histograms"]
    path.write_text(json.dumps(printed))
    with pytest.raises(InvalidInput, match="was printed by --json, without histograms"):
        comparison.read(path, "open")
    path.write_text('{"loadtest": 1}')
    with pytest.raises(InvalidInput, match="or is damaged: it lacks 'result'"):
        comparison.read(path, "open")


NO_DOCUMENTS = ["", "[]", "{}", '{"loadtest": 1}', '{"loadtest": 9}', "\x00", "[" * 100_000]
NO_DOCUMENTS += ['{"loadtest": 1, "result": {"calls": {}}}']


@pytest.mark.parametrize("text", NO_DOCUMENTS)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"earlier\.json: is no document"):
        comparison.read(path, "open")
