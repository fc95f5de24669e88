"""A ramp finds the highest rate within a budget, and tells how."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loadtest import FIRST, ONE, measured, stepping, told

from embershard.errors import InvalidInput
from embershard.loadtest.document import failed
from embershard.loadtest.fleet import Measured
from embershard.loadtest.page import page
from embershard.loadtest.plan import Demand
from embershard.loadtest.ramp import CLOSE, climb, search, within
from embershard.loadtest.report import lines
from embershard.loadtest.tally import REFUSED


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
    assert not within(measured(demand, []), 20)
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
    after_failures = stepping(3, ONE, ended_early_at=2.5)
    assert (after_failures.highest, after_failures.best.demand.rate, after_failures.interrupted) == (None, 5, True)
    said = "\n".join(lines(told(ONE, ramp=at_once)))
    assert "none, as far as it got: it was ended early" in said


def test_a_ramp_is_for_open_loops() -> None:
    with pytest.raises(InvalidInput, match="a ramp is for open loops"):
        climb(lambda demand: measured(demand, []), Demand(seconds=3, warmup_s=0, callers=2), 20)


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
