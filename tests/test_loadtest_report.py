"""What a load test counts adds up, and what it tells of it can be read, by people and by machines."""

from __future__ import annotations

import json
from dataclasses import replace
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
from embershard.loadtest.document import document, failed
from embershard.loadtest.fleet import Measured
from embershard.loadtest.page import page
from embershard.loadtest.plan import LOOKUP, UPDATE, Demand, Plan, features_of
from embershard.loadtest.ramp import CLOSE, Ramp, climb, search, within
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

Calls = list[tuple[float, float, float, str]]
"""(when it was due, by how much it was sent late, how long it took then, its outcome if it wasn't answered)."""

MADE = [(0.5, 0.0, 0.01, ""), (1.5, 0.0, 0.02, ""), (2.5, 0.0, 0.04, ""), (2.6, 0.0, 0.04, REFUSED)]
ONE = [(0.5, 0.0, 0.02, "")]

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


def measured(demand: Demand, made: Calls) -> Measured:
    tally = fill(Tally(demand.seconds), made)
    return Measured(demand=demand, seconds=demand.seconds, tallies={LOOKUP: tally}, cpus=[0.5], interrupted=False)


# The search.


@settings(deadline=None)
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
    demand = Demand(seconds=3, warmup_s=0, rate=10)
    quick = [(0.1, 0.0, 0.01, "")] * 1_000
    assert within(measured(demand, quick), 20)
    assert not within(measured(demand, quick), 5)
    assert not within(measured(demand, quick[20:] + [(0.1, 0.0, 1.0, "")] * 20), 20)
    assert within(measured(demand, [*quick, (0.1, 0.0, 0.0, REFUSED)]), 20)
    assert not within(measured(demand, [*quick, *[(0.1, 0.0, 0.0, REFUSED)] * 5]), 20)


@pytest.mark.parametrize("rate", [10, 1_000])
def test_a_step_whose_queue_grows_does_not_pass_and_one_of_steady_latency_does(rate: int) -> None:
    demand = Demand(seconds=3, warmup_s=0, rate=rate)
    dues = [number / rate for number in range(3 * rate)]
    assert not within(measured(demand, [(due, 0.0, due / 2, "") for due in dues]), 2_000)
    assert within(measured(demand, [(due, 0.0, 0.5, "") for due in dues]), 2_000)


def test_a_step_that_fails_counts_once_it_has_failed_twice() -> None:
    tries: dict[float, int] = {}

    def run(demand: Demand) -> Measured:
        rate = demand.rate or 0
        tries[rate] = tries.get(rate, 0) + 1
        passes = rate <= 20 and (rate != 20 or tries[rate] == 2)
        return measured(demand, ONE if passes else [(0.1, 0.0, 0.0, REFUSED)])

    ramp = climb(run, FIRST, 60.0)
    assert ramp.highest == 20
    assert [(step.measured.demand.rate, step.passed) for step in ramp.steps[:5]] == [
        (10, True),
        (20, False),
        (20, True),
        (40, False),
        (40, False),
    ]


FIRST = Demand(seconds=3, warmup_s=1, rate=10)


def stepping(limit: float, made: Calls, ended_early_at: float = 0) -> Ramp:
    """A search where what is asked beyond a limit is refused, and Ctrl-C comes at some rate."""

    def run(demand: Demand) -> Measured:
        passes = demand.rate is not None and demand.rate <= limit
        found = measured(demand, made if passes else [(0.1, 0.0, 0.0, REFUSED)])
        return replace(found, interrupted=demand.rate == ended_early_at)

    return climb(run, FIRST, 60.0)


def test_a_ramp_tells_the_highest_step_that_passed_or_else_the_last() -> None:
    ramp = stepping(25, ONE)
    assert ramp.highest == ramp.best.demand.rate == max(s.measured.demand.rate or 0 for s in ramp.steps if s.passed)
    assert 25 / CLOSE <= ramp.highest <= 25
    assert [step.measured.demand.rate for step in ramp.steps][:3] == [10, 20, 40]
    none = stepping(0, ONE)
    assert (none.highest, none.best) == (None, none.steps[-1].measured)


def test_a_ramp_that_is_ended_early_tells_what_it_found_by_then() -> None:
    ramp = stepping(25, ONE, ended_early_at=40)
    assert (ramp.interrupted, ramp.highest, [step.passed for step in ramp.steps]) == (True, 20, [True, True])
    at_once = stepping(25, ONE, ended_early_at=10)
    assert (at_once.interrupted, at_once.highest, at_once.steps) == (True, None, ())
    assert at_once.best.interrupted
    said = "\n".join(lines(told(ONE, ramp=at_once)))
    assert "none, as far as it got: it was ended early" in said


def test_a_ramp_is_for_open_loops() -> None:
    with pytest.raises(InvalidInput, match="a ramp is for open loops"):
        climb(lambda demand: measured(demand, []), Demand(seconds=3, warmup_s=0, callers=2), 20)


# What is told.


def told(
    made: Calls,
    *,
    ramp: Ramp | None = None,
    found: Measured | None = None,
    earlier: dict[str, Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(
            document(
                Plan(**{"target": "127.0.0.1:1", "features": features_of(DESCRIPTION, None, None), "ids": 25, **keys}),
                DESCRIPTION,
                ramp.best if ramp else found or measured(FIRST, made),
                began="2026-01-01T00:00:00+00:00",
                ramp=ramp,
                earlier=earlier,
            ),
            allow_nan=False,
        )
    )


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


def lost(count: int, outcome: str = "CANCELLED") -> Calls:
    return [(0.5, 0.0, 0.02, "")] * (1_000 - count) + [(0.5, 0.0, 0.01, outcome)] * count


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


def test_a_ramp_is_told_step_by_step() -> None:
    whole = told(ONE, ramp=stepping(10, ONE))
    steps = whole["ramp"]["steps"]
    assert [(step["rate"], step["passed"], step["unanswered"]) for step in steps[:2]] == [(10, True, 0), (20, False, 1)]
    assert steps[0]["p99_ms"] == steps[0]["latency_ms"]["lookup"]["max"] == pytest.approx(20, rel=0.01)
    assert steps[1]["p99_ms"] is None
    assert "the slowest stands for p99" in whole["warnings"][-1]
    said = list(lines(whole))
    assert f"{'20.0':<14}{'0.0':>12}{'–':>10}{'1':>12}  too high" in said
    assert "highest rate with p99 within 60 ms: 10 requests/s" in said[0]
    assert said[1] == "the highest step that passed: 10 requests/s"
    assert "Steps: highest rate with p99 within 60 ms: 10 requests/s" in page(whole)


def test_a_ramp_without_a_step_that_passes_has_failed_and_its_headline_is_none_of_theirs() -> None:
    ramp = stepping(0, ONE)
    assert failed(ramp.best, ramp)
    whole = told(ONE, ramp=ramp)
    said = list(lines(whole))
    assert "highest rate with p99 within 60 ms: none" in said[0]
    assert said[1] == "no step has passed; the last one: 1 requests/s"
    assert said[1] in page(whole)


def test_a_test_of_nothing_is_told_too() -> None:
    empty = told([])
    assert empty["result"]["calls"]["lookup"]["latency_ms"]["p99"] is None
    assert "nothing was due" in empty["warnings"][0]
    assert list(lines(empty))
    assert "<svg" in page(empty)


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
