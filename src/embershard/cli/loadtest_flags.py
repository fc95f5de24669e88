"""`embershard loadtest`: its flags, and what its help says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embershard.cli.flags import Command, add_connection, count, file, names, version
from embershard.cli.loadtest import loadtest
from embershard.codec import DTYPE_BY_NAME
from embershard.loadtest import plan

if TYPE_CHECKING:
    from argparse import ArgumentParser

LOADTEST = """\
examples:
  embershard loadtest --rate 500 --seconds 30 --report report.html
  embershard loadtest --callers 4 --stream --ids 26
  embershard loadtest --ramp --p99-ms 20 --processes 2 --output today.json
  embershard loadtest --rate 500 --compare yesterday.json --json
  embershard loadtest --rate 200 --replay requests.jsonl --updates 0.05

Open loop (--rate): R times S requests are due at random times (a Poisson process) that are fixed beforehand, and
latency counts from when a request was due, so that a stalled service can't hide its stall, nor a late client. Closed
loop (--callers): each caller asks again once it was answered, and so leaves a stalled service alone: that tells what it
can do, not how long others would have waited.

Nothing is held back and nothing sent twice; every request that was asked for is told as answered, refused
(RESOURCE_EXHAUSTED), deadline passed, never sent, cut off (by Ctrl-C, which ends a test early and has it told), or by
the status that it ended with. What was given up counts in the latency with the time it had waited; what was refused or
failed has none, so that each row of latencies says of how many requests it is. Rates count answers before the end.

Exit status: 1 if more than 1 % of the requests weren't answered, no step of --ramp passed, or a file couldn't be
written (the result is printed all the same); 2 for wrong flags; 130 after Ctrl-C. With --ramp "result" is of the
highest step that passed, or of the last one if none did; a step that fails is tried once more.

A client process can send some 3,500 small requests a second, or 5,000 by --stream, and takes a core for that. Give the
client a machine of its own, or the two slow each other; the report warns where the client was the limit.

With --json: {"loadtest": 1, "began": …, "configuration": {…}, "served": {…}, "client": {…}, "result":
{"answered_per_s": 499.2, "rows_per_s": …, "bytes_per_s": …, "calls": {"lookup": {"asked": 5000, "answered": 4998,
"refused": 0, …, "latency_ms": {"p50": 1.2, …, "max": 9.8}, "service_ms": {…}, "timeline": […]}}, …}, "ramp": null or
{"highest_per_s": …, "steps": […]}, "warnings": […], "comparison": null or {…}}; a percentile of too few requests (p99
of fewer than 100) is null. --output adds the histograms, in the format of HdrHistogram.
"""


def add_loadtest(command: Command) -> None:
    """Adds the command."""
    one = command("loadtest", loadtest, "Asks a running service for so much, and tells how it bears it.", LOADTEST)
    add_connection(one, timeout_s=plan.TIMEOUT_S)
    _add_amount(one)
    _add_requests(one)
    _add_client(one)
    _add_reports(one)


def _add_amount(one: ArgumentParser) -> None:
    how = one.add_mutually_exclusive_group()
    how.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help=f"open loop: requests a second; with --ramp of the first step ({plan.FIRST_RATE:g})",
    )
    how.add_argument("--callers", type=count, metavar="C", help="closed loop: callers who ask one after the other")
    one.add_argument(
        "--ramp",
        action="store_true",
        help="seek the highest rate whose p99 stays within --p99-ms while all but one in a thousand are answered, and "
        "no queue grows",
    )
    one.add_argument("--p99-ms", type=float, metavar="BUDGET", help="the budget of --ramp, in milliseconds")
    one.add_argument(
        "--seconds",
        type=float,
        default=plan.SECONDS,
        metavar="S",
        help="measured; of --ramp each step (default %(default)g)",
    )
    one.add_argument(
        "--warmup",
        type=float,
        default=plan.WARMUP_S,
        metavar="S",
        help="before that, and not counted (default %(default)g)",
    )


def _add_requests(one: ArgumentParser) -> None:
    one.add_argument("--features", type=names, metavar="A,B", help="features to ask for (default: all that are served)")
    # No defaults of argparse's, as these flags don't go with --replay.
    one.add_argument(
        "--ids", type=count, metavar="N", help=f"ids a request, over all its features (default {plan.IDS})"
    )
    one.add_argument("--bag", type=count, metavar="N", help=f"ids a bag of pooled features (default {plan.BAG})")
    one.add_argument(
        "--zipf",
        type=float,
        metavar="S",
        help=f"how skewed ids are, the exponent of Zipf's law; 0: not (default {plan.ZIPF:g})",
    )
    one.add_argument(
        "--id-space",
        type=count,
        metavar="N",
        help="ids of hashed and vocabulary tables are from 0 to N - 1 "
        f"(default: {plan.SPACE_ROWS} times the table's rows)",
    )
    one.add_argument(
        "--replay",
        type=file,
        metavar="FILE",
        help="lookups to send in turn, a line each, as `embershard lookup --request` takes them; --updates are drawn",
    )
    one.add_argument(
        "--updates",
        type=float,
        default=plan.UPDATES,
        metavar="SHARE",
        help="share of the requests that are updates by small gradients, without client_id: THIS CHANGES THE TABLES, "
        "and adagrad makes its steps as long as for large ones (default %(default)g)",
    )
    one.add_argument("--stream", action="store_true", help="send by LookupStream and UpdateStream")
    one.add_argument(
        "--dtype", choices=[*DTYPE_BY_NAME], default=plan.DTYPE, help="of the vectors (default %(default)s)"
    )
    one.add_argument(
        "--seed", type=version, default=plan.SEED, metavar="N", help="of all that is drawn (default %(default)s)"
    )


def _add_client(one: ArgumentParser) -> None:
    one.add_argument(
        "--processes", type=count, default=plan.PROCESSES, metavar="P", help="client processes (default %(default)s)"
    )
    one.add_argument(
        "--connections", type=count, default=plan.CONNECTIONS, metavar="N", help="of each process (default %(default)s)"
    )
    one.add_argument(
        "--in-flight",
        type=count,
        metavar="N",
        help="requests under way at once, of all processes; others wait for their turn "
        f"(default {plan.IN_FLIGHT}, or {plan.STREAMS} by --stream, where each has a stream of its own; "
        "or as many as callers)",
    )


def _add_reports(one: ArgumentParser) -> None:
    one.add_argument("--report", type=file, metavar="FILE.html", help="write a page with plots, which needs no other")
    one.add_argument("--output", type=file, metavar="FILE.json", help="write all, with the histograms")
    one.add_argument(
        "--compare",
        type=file,
        metavar="EARLIER.json",
        help="show an earlier --output, of the same kind of loop, beside it",
    )
