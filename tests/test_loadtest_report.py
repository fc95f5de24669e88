"""What a load test counts adds up, and what it tells of it can be read, by people and by machines."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loadtest import FIRST, MADE, ONE, Calls, fill, lost, measured, stepping, told

from embershard.loadtest.document import failed
from embershard.loadtest.page import page
from embershard.loadtest.plan import LOOKUP, UPDATE
from embershard.loadtest.report import lines
from embershard.loadtest.tally import (
    DEADLINE_PASSED,
    NEVER_SENT,
    OUTCOMES,
    PERCENTILES,
    REFUSED,
    Tally,
    decoded,
    summary,
)

calls = st.tuples(
    st.floats(0, 2.999), st.floats(0, 2), st.floats(0, 2), st.sampled_from(["", *OUTCOMES[1:], "INTERNAL"])
)


@settings(max_examples=30, deadline=None)
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
    said = list(lines(told(MADE)))
    assert "answered  1.0 requests/s of 1.3 asked" in said
    assert "lookups  4 asked: 3 answered, 1 refused" in said


def test_latencies_say_of_how_many_requests_they_are_and_what_is_left_out_is_told() -> None:
    whole = told(lost(825))
    said = list(lines(whole))
    (due,) = [line for line in said if "from when due" in line]
    assert due.endswith("175 of 1,000")
    assert any("what was refused or has failed has no latency" in line for line in said)
    assert "825 of 1,000 lookups (82.5%) weren't answered: 825 CANCELLED (the server cuts calls off" in "\n".join(said)
    assert "175 of 1,000" in page(whole)
    everything = "\n".join(lines(told(lost(0))))
    assert "1,000 of 1,000" in everything
    assert "has no latency" not in everything
    assert "weren't answered" not in everything


@pytest.mark.parametrize(("count", "warned", "fails"), [(1, False, False), (2, True, False), (11, True, True)])
@pytest.mark.parametrize("outcome", ["UNAVAILABLE", REFUSED, NEVER_SENT])
def test_more_than_one_in_a_thousand_is_warned_of_and_more_than_one_in_a_hundred_fails(
    outcome: str, count: int, warned: bool, fails: bool
) -> None:
    assert any("weren't answered" in warning for warning in told(lost(count, outcome))["warnings"]) is warned
    assert failed(measured(FIRST, lost(count, outcome))) is fails


def test_a_percentile_needs_enough_requests() -> None:
    has = {
        count: [name for name, value in summary(fill(Tally(3.0), ONE * count).latency).items() if value is not None]
        for count in (0, 1, 9, 99, 100, 999, 1_000)
    }
    assert has == {
        0: [],
        1: ["max"],
        9: ["p50", "max"],
        99: ["p50", "p90", "max"],
        100: ["p50", "p90", "p99", "max"],
        999: ["p50", "p90", "p99", "max"],
        1_000: [*PERCENTILES],
    }


def test_rows_and_bytes_are_those_of_lookups_and_answers_after_the_end_are_told() -> None:
    late = [*ONE, (2.9, 0.0, 0.5, "")]
    found = replace(measured(FIRST, late), tallies={LOOKUP: fill(Tally(3.0), late), UPDATE: fill(Tally(3.0), ONE)})
    whole = told(ONE, found=found)
    result = whole["result"]
    assert (result["answered_per_s"], result["rows_per_s"], result["bytes_per_s"]) == (2 / 3, 1, 100 / 3)
    said = "\n".join(lines(whole))
    assert "(answers that came after the end, and aren't in these rates: 1)" in said
    assert "1 rows/s (vectors that lookups answered), 0.0 kB/s" in said


@pytest.mark.parametrize(
    ("late_ms", "took_ms", "warned"),
    [(0.2, 1.0, False), (0.9, 5.0, True), (0.9, 20.0, False), (89.0, 300.0, True)],
)
def test_a_client_that_sends_late_is_told_of_by_its_share(late_ms: float, took_ms: float, warned: bool) -> None:
    found = measured(FIRST, [(0.5, late_ms / 1e3, took_ms / 1e3, "")] * 100)
    for _ in range(100):
        found.tallies[LOOKUP].send(late_ms / 1e3, held=False)
    warnings = told([], found=found)["warnings"]
    assert any("the client itself sent late" in warning for warning in warnings) is warned
    assert not any("trust" in warning for warning in warnings)


def test_a_document_has_the_same_keys_whatever_was_asked_for() -> None:
    bare = told(MADE)
    assert (bare["ramp"], bare["comparison"]) == (None, None)
    assert told(MADE, ramp=stepping(10, ONE), earlier=bare).keys() == bare.keys()


def test_a_test_of_nothing_is_told_too() -> None:
    empty = told([])
    assert empty["result"]["calls"]["lookup"]["latency_ms"]["p99"] is None
    assert "nothing was due" in empty["warnings"][0]
    assert list(lines(empty))
    assert "<svg" in page(empty)


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
    now = told(MADE, target="<b>:1", ramp=stepping(10, ONE), earlier=told(MADE))
    text = page(now, told(MADE))
    links = Links()
    links.feed(text)
    assert all(link.startswith("#") for link in links.found)
    assert text.count("<svg") == 4
    assert "<b>:1" not in text
    assert "lookup, earlier" in text
