"""Fuzzes a real service in three phases, and sees that it is still what it was.

    doomed   each has a fault: the service's state must be, bit for bit, what it was before
    open     whatever comes; some of it makes sense, and is applied
    again    what was refused then, until no more of it makes sense: that must change nothing, either

Then it leaves as it should, and starts again as what it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from support.service import Service

from embershard import Client
from embershard.store.id_files import read_clients, read_id_file
from embershard.store.manifest import find_snapshot
from embershard.store.snapshot import read_tensors
from fuzz.collection import FROZEN_USER, lay_out
from fuzz.doomed import doomed
from fuzz.requests import Request, request
from fuzz.sending import Ending, Log, send

PASSES = 40
"""What is refused at first and makes sense later is gone after some; a client's updates may follow each other one a
pass."""


class Found(AssertionError):
    """Something that must not be, and how to see it again."""


def fuzz(count: int, seed: int, ranks: int, folder: Path) -> Counter[tuple[str, str]]:
    """Returns how many requests of each method ended how; a fifth of them are sent again."""
    random, log = np.random.default_rng(seed), Log()
    about_half, again = (count - count // 5) // 2, count // 5
    with Service(lay_out(folder), folder, ranks=ranks) as service:
        with Client(service.target) as client:
            client.freeze({"user": [FROZEN_USER]})
        _doomed(service, folder, log, [doomed(random) for _ in range(about_half)], seed)
        told = asyncio.run(send(service, [request(random) for _ in range(about_half)], log, f"seed {seed}, open"))
        refused = [ending.request for ending in told if ending.refused and ending.request.changes]
        _again(service, folder, log, refused[:again], seed)
        after = _state(service, folder)
        _check_output(service, log)
        for pid in service.rank_pids():
            os.kill(pid, signal.SIGTERM)
        if status := service.ended():
            raise Found(f"seed {seed}: it left with status {status}:\n{service.output}")
    with Service(folder / "collection.toml", folder, ranks=ranks) as service:
        _same(after, _state(service, folder), log, f"seed {seed}, started again", grown=False)
    if log.findings:
        raise Found("\n".join(log.findings.values()))
    return log.statuses


def _doomed(service: Service, folder: Path, log: Log, requests: list[Request], seed: int) -> None:
    before, where = _state(service, folder), f"seed {seed}, doomed"
    for ending in asyncio.run(send(service, requests, log, where)):
        if ending.request.changes and ending.answers:
            log.found(where, ending, "it was accepted")
    _same(before, _state(service, folder), log, where, grown=True)


def _again(service: Service, folder: Path, log: Log, requests: list[Request], seed: int) -> None:
    where, accepted = f"seed {seed}, again", list[Ending]()
    for _ in range(PASSES):
        before = _state(service, folder)
        endings: list[Ending] = asyncio.run(send(service, requests, log, where))
        refused = [ending.request for ending in endings if ending.refused]
        if len(refused) == len(requests):
            _same(before, _state(service, folder), log, where, grown=True)
            return
        accepted = [ending for ending in endings if not ending.refused]
        requests = refused
    log.findings[where] = f"{where}: some of what was refused is still accepted: {len(accepted):,}, {accepted[:1]}"


def _state(service: Service, folder: Path) -> dict[str, Any]:
    """Everything that is known of rows, ids and clients, and the version."""
    with Client(service.target, timeout_s=60) as client:
        made, tables = client.snapshot(), client.describe().tables
    found = find_snapshot(folder / "snapshots" / f"{made.version:012d}")
    state: dict[str, Any] = {name: tensor.numpy() for name, tensor in read_tensors(found, found.tensors).items()}
    for table in tables:
        if table.id_kind == "vocabulary":
            known = read_id_file(found.path, table.name)
            state |= {f"{table.name}/{what}": value for what, value in known.items()}
    return (
        state
        | {f"clients/{what}": known for what, known in read_clients(found.path).items()}
        | {"version": made.version}
    )


def _same(before: dict[str, Any], after: dict[str, Any], log: Log, where: str, *, grown: bool) -> None:
    """Only the version may have `grown`, as a refused update may take a number."""
    first, then = before.pop("version"), after.pop("version")
    differ = [name for name in before.keys() | after.keys() if not _equal(before.get(name), after.get(name))]
    if differ or then < first or (then > first and not grown):
        log.findings[where] = f"{where}: versions {first} and {then} differ in {sorted(differ)}"


def _equal(one: Any, other: Any) -> bool:
    """Bit for bit, so that a zero has its sign and what is no number is itself."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return type(one) is type(other) and bool(one == other)


def _check_output(service: Service, log: Log) -> None:
    """Before it leaves: torchrun has a traceback of its own then."""
    for word in ("Traceback", "defect"):
        if word in service.output:
            log.findings["output"] = service.output[-4000:]
