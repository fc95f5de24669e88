"""The queue in front of the tick: bounded, in order, and never stuck on a caller that has gone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.scenario import collection

from embershard.collection import Change, Collection
from embershard.config import LimitSpec
from embershard.engine.jobs import ActionJob, Job, JobQueue, LookupJob, UpdateJob
from embershard.errors import DeadlineExceeded, Overloaded, Unavailable
from embershard.types import FeatureBatch

READ = Collection(collection([{"name": "t", "rows": 9, "dim": 4}])).read([FeatureBatch.of("t", [1, 2, 3])])


def lookup(**others: Any) -> LookupJob:
    return LookupJob(read=READ, numbers=READ.numbers, **others)


def update(**others: Any) -> UpdateJob:
    return UpdateJob(change=Change.nothing(), **others)


def queue(merged: int = 2, **limits: int) -> JobQueue:
    return JobQueue(LimitSpec(**limits), merged_lookups=merged)


def filled(jobs: list[Job], **settings: int) -> JobQueue:
    made = queue(**settings)
    for job in jobs:
        made.put(job)
    return made


def test_a_tick_takes_lookups_in_order_one_update_and_every_action() -> None:
    lookups, updates = [lookup() for _ in range(3)], [update() for _ in range(2)]
    actions = [ActionJob(action="snapshot") for _ in range(2)]
    waiting = filled([*updates, *actions, *lookups])
    first = waiting.take(version=0)
    assert first.lookups == lookups[:2]
    assert first.update is updates[0]
    assert first.actions == actions
    assert first.more
    second = waiting.take(version=0)
    assert (second.lookups, second.update, second.more) == (lookups[2:], updates[1], False)


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
    load = waiting.take(version=0)
    assert (load.lookups, load.update) == ([], alive)
    for job in dead:
        assert isinstance(job.done.exception(), DeadlineExceeded)


def test_what_its_caller_has_cancelled_is_not_done() -> None:
    gone, alive = lookup(), lookup()
    waiting = filled([gone, alive])
    gone.done.cancel()
    assert waiting.take(version=0).lookups == [alive]


def test_each_kind_of_job_is_bounded_by_requests() -> None:
    waiting = filled([lookup(), lookup()], queued_requests=2)
    with pytest.raises(Overloaded, match=r"2 requests that touch 24 numbers wait already.*queued_requests = 2"):
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
