"""Load tests as they might have gone, and the documents of these."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from embershard.loadtest.document import document
from embershard.loadtest.fleet import Measured
from embershard.loadtest.plan import LOOKUP, Demand, Plan, features_of
from embershard.loadtest.ramp import Ramp, climb
from embershard.loadtest.tally import REFUSED, Tally
from support.fake_service import DESCRIPTION

Calls = list[tuple[float, float, float, str]]
"""(when it was due, by how much it was sent late, how long it took then, its outcome if it wasn't answered)."""

MADE = [(0.5, 0.0, 0.01, ""), (1.5, 0.0, 0.02, ""), (2.5, 0.0, 0.04, ""), (2.6, 0.0, 0.04, REFUSED)]
ONE = [(0.5, 0.0, 0.02, "")]
FIRST = Demand(seconds=3, warmup_s=1, rate=10)


def fill(tally: Tally, made: Calls) -> Tally:
    for due, late, took, outcome in made:
        tally.ask(due)
        if outcome:
            tally.end(outcome, due, due + late + took)
        else:
            tally.answer(due, due + late, due + late + took, 3, 100)
    return tally


def lost(count: int, outcome: str = "CANCELLED") -> Calls:
    return [(0.5, 0.0, 0.02, "")] * (1_000 - count) + [(0.5, 0.0, 0.01, outcome)] * count


def measured(demand: Demand, made: Calls) -> Measured:
    tally = fill(Tally(demand.seconds), made)
    return Measured(demand=demand, seconds=demand.seconds, tallies={LOOKUP: tally}, cpus=[0.5], interrupted=False)


def stepping(limit: float, made: Calls, ended_early_at: float = 0) -> Ramp:
    """A search where what is asked beyond a limit is refused, and Ctrl-C comes at some rate."""

    def run(demand: Demand) -> Measured:
        passes = demand.rate is not None and demand.rate <= limit
        found = measured(demand, made if passes else [(0.1, 0.0, 0.0, REFUSED)])
        return replace(found, interrupted=demand.rate == ended_early_at)

    return climb(run, FIRST, 60.0)


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
