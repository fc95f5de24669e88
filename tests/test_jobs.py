"""The queue in front of the tick: bounded, in order, and never stuck on a caller that has gone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.scenario import collection

from embershard.collection import Collection
from embershard.config import LimitSpec
from embershard.engine.entries import Entry, Kind
from embershard.engine.jobs import ActionJob, EntryJob, Job, JobQueue, LookupJob
from embershard.engine.pipeline import _Pace
from embershard.errors import DeadlineExceeded, Overloaded, Unavailable
from embershard.types import FeatureBatch

READ = Collection(collection([{"name": "t", "rows": 9, "dim": 4}])).read([FeatureBatch.of("t", [1, 2, 3])])


def lookup(**others: Any) -> LookupJob:
    return LookupJob(read=READ, numbers=READ.numbers, **others)


def update(**others: Any) -> EntryJob:
    return EntryJob(entry=Entry(kind=Kind.UPDATE, request=b"", body=None), **others)


def queue(merged: int = 2, **limits: int) -> JobQueue:
    return JobQueue(LimitSpec(**limits), merged_lookups=merged)


def filled(jobs: list[Job], **settings: int) -> JobQueue:
    made = queue(**settings)
    for job in jobs:
        made.put(job)
    return made


def test_a_tick_takes_lookups_in_order_and_every_action_and_a_batch_all_updates() -> None:
    lookups, updates = [lookup() for _ in range(3)], [update() for _ in range(2)]
    actions = [ActionJob(action="snapshot") for _ in range(2)]
    waiting = filled([*updates, *actions, *lookups])
    first = waiting.take(version=0)
    assert (first.lookups, first.actions, first.more) == (lookups[:2], actions, True)
    assert waiting.has_entries
    assert waiting.take_entries() == updates
    second = waiting.take(version=0)
    assert (second.lookups, second.more, waiting.has_entries) == (lookups[2:], False, False)


def test_merged_lookups_stay_within_the_numbers_of_one_request() -> None:
    waiting = filled([lookup(), lookup()], merged=10, numbers_per_request=20)
    assert len(waiting.take(version=0).lookups) == 1
    assert len(waiting.take(version=0).lookups) == 1


def test_a_lookup_waits_for_its_version_and_lets_others_pass() -> None:
    early, late = lookup(min_version=2), lookup()
    waiting = filled([early, late])
    load = waiting.take(version=1)
    assert (load.lookups, load.more) == ([late], False)
    assert waiting.take(version=2).lookups == [early]


def test_what_comes_too_late_is_refused_and_not_done() -> None:
    dead = [lookup(deadline=time.monotonic() - 1), update(deadline=0.0), lookup(deadline=0.0, min_version=9)]
    waiting = filled([*dead, alive := update()], merged=5)
    assert waiting.take(version=0).lookups == []
    assert waiting.take_entries() == [alive]
    for job in dead:
        assert isinstance(job.done.exception(), DeadlineExceeded)


def test_what_its_caller_has_cancelled_is_not_done() -> None:
    gone, alive = lookup(), lookup()
    waiting = filled([gone, alive])
    gone.done.cancel()
    assert waiting.take(version=0).lookups == [alive]


def test_each_kind_of_job_is_bounded_by_requests() -> None:
    waiting = filled([lookup(), lookup()], queued_requests=2)
    with pytest.raises(Overloaded, match=r"2 lookups that touch 24 numbers wait already.*queued_requests = 2"):
        waiting.put(lookup())
    waiting.take(version=0)
    waiting.put(lookup())


def test_the_queue_is_bounded_by_numbers_but_takes_one_large_request() -> None:
    waiting = queue(queued_numbers=20)
    waiting.put(lookup())
    with pytest.raises(Overloaded, match="queued_numbers = 20"):
        waiting.put(lookup())
    waiting.take(version=0)
    waiting.put(LookupJob(read=READ, numbers=1000))


def test_lookups_that_wait_for_a_version_keep_nothing_else_out() -> None:
    waiting = filled([lookup(min_version=1), lookup(min_version=1)], queued_requests=2)
    waiting.put(lookup())
    waiting.put(update())
    with pytest.raises(Overloaded):
        waiting.put(lookup(min_version=1))


@pytest.mark.parametrize("min_version", [0, 9])
def test_jobs_whose_callers_have_gone_make_room(min_version: int) -> None:
    jobs = [lookup(min_version=min_version) for _ in range(2)]
    waiting = filled(list(jobs), queued_requests=2)
    jobs[0].done.cancel()
    waiting.put(lookup(min_version=min_version))


def test_a_closed_queue_refuses_what_waits_and_what_comes() -> None:
    waits = lookup()
    waiting = filled([waits])
    assert waiting.close(Unavailable("stopping"))
    assert isinstance(waits.done.exception(), Unavailable)
    with pytest.raises(Unavailable, match="stopping"):
        waiting.put(lookup())
    assert not waiting.close(Unavailable("again"))


def test_lookups_that_wait_for_a_version_are_refused_once_no_version_comes() -> None:
    early = lookup(min_version=1)
    waiting = filled([early])
    waiting.refuse_early(Unavailable("stopping"))
    assert isinstance(early.done.exception(), Unavailable)
    with pytest.raises(Unavailable, match="stopping"):
        waiting.put(lookup(min_version=1))
    waiting.put(lookup())


def taken(waiting: JobQueue) -> list[Job]:
    found: list[Job] = []
    while load := waiting.take(version=0).lookups:
        found += load
    return found


def test_callers_take_turns_and_each_ones_jobs_come_in_order() -> None:
    greedy, modest = [lookup(caller="greedy") for _ in range(6)], [lookup(caller="modest") for _ in range(2)]
    order = taken(filled([*greedy, *modest], merged=1))
    assert [job.caller for job in order[:4]] in (["greedy", "modest"] * 2, ["greedy", "greedy", "modest", "modest"])
    assert [job for job in order if job.caller == "greedy"] == greedy
    assert [job for job in order if job.caller == "modest"] == modest


def test_a_turn_costs_what_a_job_touches() -> None:
    large = [LookupJob(read=READ, numbers=100_000, caller="large") for _ in range(3)]
    small = [lookup(caller="small") for _ in range(20)]
    order = taken(filled([*large, *small], merged=1))
    assert order[-2:] == large[1:]


def test_who_has_had_a_turn_gains_nothing_by_coming_back() -> None:
    waiting = filled([LookupJob(read=READ, numbers=100_000, caller="large"), lookup(caller="small")], merged=1)
    assert waiting.take(version=0).lookups[0].caller == "large"
    waiting.put(LookupJob(read=READ, numbers=100_000, caller="large"))
    for _ in range(5):
        waiting.put(lookup(caller="small"))
    assert [waiting.take(version=0).lookups[0].caller for _ in range(6)] == ["small"] * 6


def test_in_a_full_queue_a_newcomer_takes_the_place_of_the_greediest_callers_newest_job() -> None:
    greedy = [lookup(caller="greedy") for _ in range(4)]
    waiting = filled([*greedy, other := lookup(caller="other")], queued_requests=5, merged=9)
    waiting.check_lookup("modest")
    waiting.put(modest := lookup(caller="modest"))
    refusal = greedy[-1].done.exception()
    assert isinstance(refusal, Overloaded)
    assert refusal.retry_after_s == pytest.approx(0.03)
    with pytest.raises(Overloaded):
        waiting.check_lookup("greedy")
    with pytest.raises(Overloaded):
        waiting.put(lookup(caller="greedy"))
    assert set(waiting.take(version=0).lookups) == {*greedy[:3], other, modest}


def test_room_by_numbers_is_shared_as_well() -> None:
    greedy = [LookupJob(read=READ, numbers=40, caller="greedy") for _ in range(3)]
    waiting = filled([*greedy], queued_numbers=120, merged=9)
    waiting.put(LookupJob(read=READ, numbers=50, caller="modest"))
    assert [job.done.done() for job in greedy] == [False, True, True]
    with pytest.raises(Overloaded):
        waiting.put(LookupJob(read=READ, numbers=100, caller="third"))


def test_while_lookups_wait_too_long_new_ones_are_refused_until_they_do_not() -> None:
    jobs = [lookup() for _ in range(3)]
    waiting = filled(jobs, merged=1, queue_ms=50)
    waiting.put(lookup())
    for job in jobs[:2]:
        job.queued_s -= 1
    waiting.take(version=0)
    for refused in (lambda: waiting.put(lookup()), lambda: waiting.check_lookup("")):
        with pytest.raises(Overloaded, match=r"begun for 1,0\d\d ms.*queue_ms = 50"):
            refused()
    waiting.put(update())
    waiting.take(version=0)
    waiting.take(version=0)
    waiting.put(lookup())


def test_updates_get_their_share_of_the_time_while_lookups_wait() -> None:
    pace, lookups_s, entries_s = _Pace(0.25), 0.0, 0.0
    for _ in range(1000):
        pace.earn(0.003)
        lookups_s += 0.003
        quota = pace.quota(lookups=True)
        pace.spend(quota * 0.002, quota)
        entries_s += quota * 0.002
    assert entries_s / (entries_s + lookups_s) == pytest.approx(0.25, abs=0.01)


def test_updates_without_lookups_get_a_tick_at_a_time_and_save_up_little() -> None:
    pace = _Pace(0.5)
    for _ in range(50):
        pace.spend(0.001, 1)
    assert pace.quota(lookups=False) in (4, 5)
    for _ in range(100):
        pace.earn(1.0)
    assert pace.quota(lookups=True) <= 51
    pace.spend(1.0, 10)
    assert pace.quota(lookups=True) == 0
    assert pace.quota(lookups=False) > 0
    pace.earn(0.1)
    assert pace.quota(lookups=True) > 0


def test_an_action_of_the_ranks_own_has_room_whatever_callers_have_waiting() -> None:
    asked, own = [ActionJob(action="grow") for _ in range(2)], ActionJob(action="snapshot")
    waiting = filled(asked, queued_requests=2)
    with pytest.raises(Overloaded):
        waiting.put(ActionJob(action="load"))
    waiting.put_own(own)
    assert waiting.take(version=0).actions == [*asked, own]
