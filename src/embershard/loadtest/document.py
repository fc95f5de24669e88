"""What is told of a load test, as one document: `report` and `page` show it, and `comparison` compares two."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from embershard.loadtest import comparison
from embershard.loadtest.plan import LOOKUP
from embershard.loadtest.ramp import worst_p99_ms
from embershard.loadtest.tally import ANSWERED, OUTCOMES, encoded, milliseconds, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from embershard.loadtest.fleet import Measured
    from embershard.loadtest.plan import Demand, Plan
    from embershard.loadtest.ramp import Ramp
    from embershard.loadtest.tally import Tally
    from embershard.v1 import embershard_pb2 as pb

FAILING: Final = 0.01
"""A test has failed if a larger share of its requests wasn't answered."""
UNTOLD: Final = 0.001
"""A warning tells of a larger one."""
BUSY: Final = 0.9
"""A client process that uses so much of a core is a limit itself."""
LATE_SHARES: Final = {50: 0.1, 99: 0.2}
"""{percentile: the share of how long answers take from when sent, by which requests may be sent late}."""
LATE_MS: Final = 0.5
"""Less than this is no delay, but how soon a machine comes to what is due."""
_LONGEST: Final = 200
"""Characters of a message."""
_MEANS: Final = {"CANCELLED": "the server cuts calls off when too many wait: its limits.calls"}
"""{gRPC status: what it tells, where the service doesn't}."""


def document(
    plan: Plan,
    description: pb.DescribeResponse,
    measured: Measured,
    *,
    began: str,
    ramp: Ramp | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything about one test; `began` is when, `measured` the best step of a `ramp`, and `earlier` another test's
    document, to be compared with."""
    searched = _ramp(ramp) if ramp else None
    told = {
        "loadtest": comparison.FORMAT,
        "began": began,
        "configuration": configuration(plan, measured.demand),
        "served": served(description),
        "client": {
            "python": platform.python_version(),
            "grpcio": metadata.version("grpcio"),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
        "result": result(measured),
        "ramp": searched,
        "warnings": [*warnings(measured, plan), *(searched["warnings"] if searched else ())],
    }
    return told | {"comparison": comparison.compare(told, earlier) if earlier else None}


def configuration(plan: Plan, demand: Demand) -> dict[str, Any]:
    """What was asked for."""
    drawn = {"ids": plan.ids, "bag": plan.bag, "zipf": plan.zipf}
    return {
        "target": plan.target,
        "loop": demand.loop,
        "rate": demand.rate,
        "callers": demand.callers,
        "seconds": demand.seconds,
        "warmup_s": demand.warmup_s,
        "stream": plan.stream,
        "dtype": plan.dtype,
        "features": {feature.name: feature.space for feature in plan.features},
        **(dict.fromkeys(drawn) if plan.replay and not plan.updates else drawn),
        "replay": plan.replay_file or None,
        "updates": plan.updates,
        "processes": plan.processes,
        "connections": plan.connections,
        "in_flight": plan.in_flight,
        "timeout_s": plan.timeout_s,
        "seed": plan.seed,
    }


def served(description: pb.DescribeResponse) -> dict[str, Any]:
    """What Describe tells of the service."""
    return {
        "name": description.name,
        "fingerprint": description.fingerprint,
        "version": description.version,
        "engine": description.engine,
        "world_size": description.world_size,
        "server_version": description.server_version,
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "dim": table.dim,
                "ids": table.id_kind,
                "dtype": table.dtype,
                "features": list(table.features),
            }
            for table in description.tables
        ],
    }


def result(measured: Measured) -> dict[str, Any]:
    """What was measured."""
    tallies, seconds = measured.tallies, measured.seconds or float("inf")
    lookups = tallies.get(LOOKUP)
    return {
        "seconds": measured.seconds,
        "interrupted": measured.interrupted,
        "asked_per_s": None if measured.demand.rate is None else sum(one.asked for one in tallies.values()) / seconds,
        "answered_per_s": sum(one.in_time for one in tallies.values()) / seconds,
        "rows_per_s": lookups.rows / seconds if lookups else None,
        "bytes_per_s": lookups.bytes / seconds if lookups else None,
        "calls": {kind: _calls(tally) for kind, tally in tallies.items()},
        "client": {
            "cpus": [round(cpu, 3) for cpu in measured.cpus],
            "late_ms": {kind: summary(tally.late) for kind, tally in tallies.items()},
            "held": sum(tally.held for tally in tallies.values()),
        },
    }


def failed(measured: Measured, ramp: Ramp | None = None) -> bool:
    """Whether too little was answered, or no step of a `ramp` has passed."""
    asked, unanswered = (
        sum(getattr(one, name) for one in measured.tallies.values()) for name in ("asked", "unanswered")
    )
    return not asked or unanswered > FAILING * asked or (ramp is not None and ramp.highest is None)


def client_was_late(measured: Measured) -> bool:
    """Whether requests were sent late by the client's own doing."""
    for tally in measured.tallies.values():
        for percentile, share in LATE_SHARES.items():
            late, took = milliseconds(tally.late, percentile), milliseconds(tally.service, percentile)
            if late and took and late > max(share * took, LATE_MS):
                return True
    return False


def warnings(measured: Measured, plan: Plan) -> list[str]:
    """What makes the numbers worth less than they seem."""
    told = []
    if not any(tally.asked for tally in measured.tallies.values()):
        told.append(
            "no caller was answered before the end, and so none asked anew while it was measured"
            if measured.demand.rate is None
            else "nothing was due while it was measured: ask for more, or longer"
        )
    told += [
        unanswered(kind, tally) for kind, tally in measured.tallies.items() if tally.unanswered > UNTOLD * tally.asked
    ]
    for number, cpu in enumerate(measured.cpus):
        if cpu > BUSY:
            told.append(f"client process {number} used {cpu:.0%} of a core, and may be the limit: use more --processes")
    if client_was_late(measured):
        told.append(
            "the client itself sent late, and latency from when due has that in it: use more --processes, or give it a "
            "machine of its own"
        )
    if held := sum(tally.held for tally in measured.tallies.values()):
        told.append(f"requests waited in the client, as {plan.in_flight:,} were in flight (--in-flight): {held:,}")
    return told


def unanswered(kind: str, tally: Tally) -> str:
    """How many requests came to other ends than an answer, and to which."""
    told = []
    for name, count in tally.outcomes.most_common():
        if name == ANSWERED:
            continue
        message = tally.messages.get(name, "")
        message = _MEANS.get(name, "") if message in ("", name) else message
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
        told.append(
            f"{count:,} {name.replace('_', ' ') if name in OUTCOMES else name}" + (f" ({message})" if message else "")
        )
    share = tally.unanswered / tally.asked
    return f"{tally.unanswered:,} of {tally.asked:,} {kind}s ({share:.1%}) weren't answered: {', '.join(told)}"


def _ramp(ramp: Ramp) -> dict[str, Any]:
    told = []
    for step in ramp.steps:
        whole = result(step.measured)
        told.append(
            {
                "rate": step.measured.demand.rate,
                "passed": step.passed,
                "asked_per_s": whole["asked_per_s"],
                "answered_per_s": whole["answered_per_s"],
                "unanswered": sum(tally.unanswered for tally in step.measured.tallies.values()),
                "p99_ms": worst_p99_ms(step.measured),
                "latency_ms": {kind: calls["latency_ms"] for kind, calls in whole["calls"].items()},
                "client_late": client_was_late(step.measured) or max(step.measured.cpus) > BUSY,
            }
        )
    late = [step["rate"] for step in told if step["client_late"] and not step["passed"]]
    warned = [f"at {min(late):,.0f}/s the client itself was late: the service may do more"] if late else []
    if any(tally.asked < 100 for step in ramp.steps for tally in step.measured.tallies.values()):
        warned.append("of fewer than 100 requests the slowest stands for p99: have steps last longer (--seconds)")
    return {
        "p99_ms": ramp.p99_ms,
        "highest_per_s": ramp.highest,
        "interrupted": ramp.interrupted,
        "steps": told,
        "warnings": warned,
    }


def _calls(tally: Tally) -> dict[str, Any]:
    return {
        "asked": tally.asked,
        **{name: tally.outcomes[name] for name in OUTCOMES},
        "answered_in_time": tally.in_time,
        "failed": {name: count for name, count in sorted(tally.outcomes.items()) if name not in OUTCOMES},
        "messages": tally.messages,
        "latency_ms": summary(tally.latency),
        "service_ms": summary(tally.service),
        "timeline": tally.timeline(),
        "histograms": {"latency_us": encoded(tally.latency), "service_us": encoded(tally.service)},
    }
