"""What `embershard loadtest` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final

from embershard.cli.answer import INTERRUPTED, Answer, need_packages
from embershard.cli.flags import connected, security_of
from embershard.cli.request import read_requests
from embershard.errors import InvalidInput
from embershard.formats.files import about, check_writable, writing
from embershard.loadtest import plan as defaults
from embershard.loadtest.plan import (
    CONNECTING_S,
    LARGEST_SPACE,
    Demand,
    Plan,
    check_callers,
    check_limits,
    features_of,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from embershard.loadtest.fleet import Fleet, Measured
    from embershard.loadtest.generator import Progress
    from embershard.v1 import embershard_pb2 as pb

PACKAGES: Final = {"hdrhistogram": "hdrh", "matplotlib": "matplotlib", "tqdm": "tqdm"}
"""{distribution: module} that load tests need beyond the client."""
_OF_DRAWN: Final = ("features", "ids", "bag", "zipf", "id_space")


def loadtest(options: Namespace) -> Answer:
    """A demand, or several in search of the highest rate, and what the service made of it."""
    _check(options)
    try:
        demand, draft = _demand(options), _draft(options)
        check_callers(draft, demand)
    except InvalidInput as error:
        options.usage_error(str(error))
    try:
        return _tested(options, demand, draft)
    except KeyboardInterrupt:
        print("embershard: ended by Ctrl-C, and nothing was measured", file=sys.stderr)
        raise


def _tested(options: Namespace, demand: Demand, draft: Plan) -> Answer:
    need_packages("embershard loadtest", PACKAGES, "loadtest", server=False)
    from embershard.loadtest import comparison, report
    from embershard.loadtest.document import document, failed
    from embershard.loadtest.fleet import Fleet
    from embershard.loadtest.ramp import climb

    for path in filter(None, (options.report, options.output)):
        check_writable(path)
    earlier = comparison.read(options.compare, demand.loop) if options.compare else None
    with connected(options) as client:
        description = client.describe(timeout_s=max(options.timeout, CONNECTING_S))
    plan = _plan(options, draft, description)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    with Fleet(plan) as fleet:
        ramp = climb(partial(_run, fleet), demand, options.p99_ms) if options.ramp else None
        measured = ramp.best if ramp else _run(fleet, demand)
    if measured.interrupted and not measured.seconds:
        raise KeyboardInterrupt  # while it warmed up
    told = document(plan, description, measured, began=began, ramp=ramp, earlier=earlier)
    unwritten = _write(options, told, earlier)
    told["warnings"] += unwritten
    interrupted = measured.interrupted or (ramp is not None and ramp.interrupted)
    return Answer(
        document=_without_histograms(told),
        lines=report.lines(told),
        status=INTERRUPTED if interrupted else int(bool(unwritten) or failed(measured, ramp)),
    )


def _check(options: Namespace) -> None:
    """What flags can't be together."""
    if options.ramp and options.p99_ms is None:
        options.usage_error("--ramp needs a budget: give --p99-ms")
    if options.p99_ms is not None and not options.ramp:
        options.usage_error("--p99-ms is the budget of a search: give --ramp, too")
    if options.ramp and options.callers:
        options.usage_error("--ramp is for open loops: give --rate, of the first step, or leave both out")
    if not (options.rate is not None or options.callers or options.ramp):
        options.usage_error("say how much: --rate (open loop), --callers (closed loop), or --ramp")
    if options.replay:
        for name in _OF_DRAWN:
            if getattr(options, name) is not None:
                options.usage_error(f"--replay has the ids: leave out --{name.replace('_', '-')}")
        if options.updates == 1:
            options.usage_error("--replay has lookups: leave room for them among --updates")
    if options.ramp and not 0 < options.p99_ms < inf:
        options.usage_error(f"--p99-ms {options.p99_ms:g}: give a time of more than 0")
    if options.id_space is not None and options.id_space > LARGEST_SPACE:
        options.usage_error(f"--id-space {options.id_space:,} is too large: give up to {LARGEST_SPACE:,}")
    files = [path.resolve() for path in (options.report, options.output, options.replay) if path]
    if len({*files}) < len(files):
        options.usage_error("--report, --output and --replay are different files")


def _demand(options: Namespace) -> Demand:
    rate = defaults.FIRST_RATE if options.ramp and options.rate is None else options.rate
    return Demand(seconds=options.seconds, warmup_s=options.warmup, rate=rate, callers=options.callers)


def _draft(options: Namespace) -> Plan:
    """What is known before the service was asked which features there are."""
    most = max(defaults.STREAMS if options.stream else defaults.IN_FLIGHT, options.callers or 0)
    return Plan(
        target=options.target,
        features=(),
        ids=options.ids or defaults.IDS,
        bag=options.bag or defaults.BAG,
        zipf=defaults.ZIPF if options.zipf is None else options.zipf,
        replay_file=str(options.replay or ""),
        updates=options.updates,
        stream=options.stream,
        dtype=options.dtype,
        processes=options.processes,
        connections=options.connections,
        in_flight=options.in_flight or most,
        timeout_s=options.timeout,
        seed=options.seed,
    )


def _plan(options: Namespace, draft: Plan, description: pb.DescribeResponse) -> Plan:
    from embershard.loadtest.pool import replayed

    features = features_of(description, options.features, options.id_space)
    replay = replayed(read_requests(options.replay), features, options.dtype, options.replay) if options.replay else ()
    ids = options.ids or max(defaults.IDS, len(features))
    plan = replace(draft, security=security_of(options), features=features, replay=replay, ids=ids)
    check_limits(plan, description.limits)
    return plan


def _run(fleet: Fleet, demand: Demand) -> Measured:
    with live(demand) as told:
        return fleet.run(demand, told)


@contextmanager
def live(demand: Demand) -> Iterator[Callable[[Sequence[Progress]], None]]:
    """A line on a terminal, renewed each second."""
    from tqdm import tqdm

    from embershard.loadtest.tally import milliseconds, new_histogram

    what = f"callers: {demand.callers:,}" if demand.rate is None else f"{demand.rate:,.6g}/s"
    form = "{desc} {bar:20} {n:.0f}/{total:.0f} s{postfix}"
    with tqdm(desc=what, total=demand.whole_s, bar_format=form, disable=None, leave=False, file=sys.stderr) as bar:

        def told(parts: Sequence[Progress]) -> None:
            if bar.disable:
                return
            measured_s, latency = parts[0].seconds, new_histogram()
            bar.n = min(demand.warmup_s + measured_s, demand.whole_s)
            if measured_s < 0.1:
                bar.set_postfix_str("warm-up")
                return
            for text in chain.from_iterable(part.latency for part in parts):
                latency.decode_and_add(text)
            asked, answered = (sum(getattr(part, name) for part in parts) for name in ("asked", "answered"))
            p50, p99 = milliseconds(latency, 50) or 0, milliseconds(latency, 99) or 0
            bar.set_postfix_str(
                f"asked {asked / measured_s:,.0f}/s, answered {answered / measured_s:,.0f}/s, p50 {p50:,.1f} ms, p99 "
                f"{p99:,.1f} ms, not answered {sum(part.ended for part in parts):,}"
            )

        yield told


def _write(options: Namespace, told: dict[str, Any], earlier: dict[str, Any] | None) -> list[str]:
    """Returns what couldn't be written, as what was measured is still to be printed."""
    from embershard.loadtest.page import page

    texts: tuple[tuple[Path | None, Callable[[], str]], ...] = (
        (options.output, lambda: json.dumps(told, allow_nan=False) + "\n"),
        (options.report, lambda: page(told, earlier)),
    )
    unwritten = []
    for path, text in texts:
        if path:
            try:
                with about(path, "written"), writing(path, overwrite=True) as file:
                    file.write(text().encode())
            except InvalidInput as error:
                unwritten.append(str(error))
    return unwritten


def _without_histograms(told: dict[str, Any]) -> dict[str, Any]:
    calls = told["result"]["calls"]
    fewer = {kind: {key: value for key, value in one.items() if key != "histograms"} for kind, one in calls.items()}
    return told | {"result": told["result"] | {"calls": fewer}}
