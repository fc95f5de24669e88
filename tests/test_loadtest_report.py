"""What a load test counts adds up, and what it tells of it can be read, by people and by machines."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_service import DESCRIPTION

from embershard.errors import InvalidInput
from embershard.loadtest import comparison
from embershard.loadtest.fleet import Measured
from embershard.loadtest.page import page
from embershard.loadtest.plan import LOOKUP, Load, Plan, features_of
from embershard.loadtest.ramp import CLOSE, search, within
from embershard.loadtest.report import document, lines, ramp_document
from embershard.loadtest.tally import DEADLINE_PASSED, NEVER_SENT, OUTCOMES, REFUSED, Tally, decoded

Calls = list[tuple[float, float, float, str]]
"""(when it was due, by how much it was sent late, how long it took then, its outcome if it wasn't answered)."""

calls = st.tuples(
    st.floats(0, 2.999), st.floats(0, 2), st.floats(0, 2), st.sampled_from(["", *OUTCOMES[1:], "INTERNAL"])
)


def fill(tally: Tally, made: Calls) -> Tally:
    for due, late, took, outcome in made:
        tally.ask(due)
        if outcome:
            tally.end(outcome, due, due + late + took)
        else:
            tally.answer(due, due + late, due + late + took, 3, 100)
    return tally


@settings(max_examples=30)
@given(made=st.lists(calls, max_size=50), parts=st.integers(1, 4))
def test_the_tallies_of_processes_add_up_to_that_of_all(made: Calls, parts: int) -> None:
    whole = fill(Tally(3.0), made)
    told = [json.loads(json.dumps(fill(Tally(3.0), made[number::parts]).document())) for number in range(parts)]
    merged = Tally.merged(told)
    assert merged.document() == whole.document()
    assert merged.timeline() == whole.timeline()
    assert merged.asked == len(made) == merged.outcomes.total()
    assert merged.unanswered == sum(bool(outcome) for *_, outcome in made)


def test_what_was_given_up_counts_as_long_as_it_had_waited_and_what_was_refused_does_not() -> None:
    given_up = fill(
        Tally(3.0), [(0.0, 1.0, 1.0, NEVER_SENT), (0.0, 0.0, 2.0, DEADLINE_PASSED), (0.0, 0.0, 0.1, REFUSED)]
    )
    assert given_up.latency.get_total_count() == 2
    assert given_up.latency.get_min_value() >= 1_990_000
    assert given_up.service.get_total_count() == 0


def measured(load: Load, made: Calls) -> Measured:
    tally = fill(Tally(load.seconds), made)
    return Measured(load=load, seconds=load.seconds, tallies={LOOKUP: tally}, cpus=[0.5], interrupted=False)


# The search.


@given(limit=st.floats(1, 100_000), first=st.floats(1, 100_000))
def test_the_search_finds_a_limit_closely_in_few_steps(limit: float, first: float) -> None:
    asked = []

    def passes(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    found = search(passes, first, 1e6)
    assert found is not None
    assert found <= limit <= found * CLOSE
    assert len(asked) <= 1 + abs(np.log2(limit / first)) + 7


def test_the_search_ends_where_nothing_passes_or_everything_does() -> None:
    assert search(lambda _: False, 1_000, 1e6) is None
    assert search(lambda _: True, 1_000, 1e6) == 1e6


def test_a_step_passes_by_its_p99_and_by_what_is_answered() -> None:
    load = Load(seconds=3, warmup_s=0, rate=10)
    quick = [(0.1, 0.0, 0.01, "")] * 1_000
    assert within(measured(load, quick), 20)
    assert not within(measured(load, quick), 5)
    assert not within(measured(load, quick[20:] + [(0.1, 0.0, 1.0, "")] * 20), 20)
    assert within(measured(load, [*quick, (0.1, 0.0, 0.0, REFUSED)]), 20)
    assert not within(measured(load, [*quick, *[(0.1, 0.0, 0.0, REFUSED)] * 5]), 20)


# What is told.


def told(made: Calls, **keys: Any) -> dict[str, Any]:
    load = Load(seconds=3, warmup_s=1, rate=10)
    steps = [(measured(load, made), True), (measured(Load(seconds=3, warmup_s=1, rate=20), made), False)]
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(
            document(
                Plan(**{"target": "127.0.0.1:1", "features": features_of(DESCRIPTION, None, None), "ids": 25, **keys}),
                DESCRIPTION,
                measured(load, made),
                began="2026-01-01T00:00:00+00:00",
                ramp=ramp_document(steps, 10.0, 20.0),
            ),
            allow_nan=False,
        )
    )


MADE = [(0.5, 0.0, 0.01, ""), (1.5, 0.0, 0.02, ""), (2.5, 0.0, 0.04, ""), (2.6, 0.0, 0.04, REFUSED)]


def test_the_document_has_everything() -> None:
    whole = told(MADE)["result"]
    assert (whole["asked_per_s"], whole["answered_per_s"], whole["rows_per_s"], whole["bytes_per_s"]) == (
        4 / 3,
        1,
        3,
        100,
    )
    lookup = whole["calls"]["lookup"]
    assert (lookup["asked"], lookup["answered"], lookup["refused"], lookup["failed"]) == (4, 3, 1, {})
    assert lookup["latency_ms"]["p50"] == pytest.approx(20, rel=0.01)
    assert decoded(lookup["histograms"]["latency_us"]).get_total_count() == 3
    assert sum(span["asked_per_s"] for span in lookup["timeline"]) * 0.5 == pytest.approx(4)
    said = "\n".join(lines(told(MADE)))
    assert "lookups  4 asked: 3 answered, 1 refused" in said
    assert "highest rate with p99 within 20 ms: 10 requests/s" in said


def test_a_test_of_nothing_is_told_too() -> None:
    empty = told([])
    assert empty["result"]["calls"]["lookup"]["latency_ms"]["p99"] is None
    assert "nothing was due" in empty["warnings"][0]
    assert list(lines(empty))
    assert "<svg" in page(empty)


def test_a_comparison_tells_ratios_and_in_what_the_tests_differed(tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(told(MADE)))
    earlier = comparison.read(path)
    same = comparison.compare(told(MADE), earlier)
    assert {pair["ratio"] for pair in same["latency_ms"]["lookup"].values()} == {1.0}
    assert same["differences"] == []
    slower = comparison.compare(told([(due, late, 2 * took, end) for due, late, took, end in MADE], ids=30), earlier)
    assert slower["latency_ms"]["lookup"]["p50"]["ratio"] == pytest.approx(2, rel=0.01)
    assert slower["differences"] == ["ids: 25 then, 30 now"]
    assert "warning: it differed in ids: 25 then, 30 now" in list(comparison.lines(slower))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"loadtest": 1}', '{"loadtest": 9}', "\x00", "[" * 100_000])
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"earlier\.json: is no document"):
        comparison.read(path)


class Links(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img"):
            self.found.append(tag)
        self.found += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]


def test_the_page_needs_no_other_file_and_has_all_plots() -> None:
    now = told(MADE, target="<b>:1")
    now["comparison"] = comparison.compare(now, told(MADE))
    text = page(now, told(MADE))
    links = Links()
    links.feed(text)
    assert all(link.startswith("#") for link in links.found)
    assert text.count("<svg") == 4
    assert "<b>:1" not in text
    assert "lookup, earlier" in text
