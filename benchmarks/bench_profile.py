"""Where the time of a lookup goes, stage by stage, for three sizes and for 26 features.

    python benchmarks/bench_profile.py [--quick]

Stages are timed alone, in this process, on what the one before has made; a call as a whole is timed by a client against
the service, and the same bytes against an echo: what gRPC, asyncio, both kernels' sockets and the client cost. What is
left are the gate, the way through Python's event loop, and what stages cost each other (caches, fresh memory).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from bench_alone import alone
from bench_tables import Direct, config_in, engine_of, use_one_thread
from clocks import WALL, Turns, interleaved
from embershard_server.answers import encoded as answer_of
from our_clients import Ids, encoded, raw_stream, raw_unary
from outcome import Outcome, Spread, Table
from peers import echo_server
from serving import served

from embershard import codec
from embershard.engine.jobs import Answer
from embershard.v1 import embershard_pb2 as pb

ROWS: Final = 1_000_000
DIM: Final = 64
SHAPES: Final = ((1, 26), (1, 512), (1, 13_312), (26, 1), (26, 512))
"""Features, and ids of each."""
STAGES: Final = ("parse the request", "ids to arrays", "checks, row numbers", "read the rows", "write the answer")
WAYS: Final = {"unary": raw_unary, "stream": raw_stream}
DIFFERENT: Final = 32
"""Requests, one after the other."""


def measure(*, quick: bool) -> Outcome:
    """All shapes."""
    use_one_thread()
    rounds, shapes = (2, SHAPES[1:2]) if quick else (15, SHAPES)
    stages = {shape: _stages(*shape, rounds) for shape in shapes}
    calls = {shape: _calls(*shape, rounds) for shape in shapes}
    return Outcome(
        section="profile",
        configuration={"rows": ROWS, "dim": DIM, "shapes": shapes, "rounds": rounds, "threads": 1},
        tables=[_stage_table(stages), _call_table(stages, calls)],
        raw={f"{features} × {ids}": {**stages[features, ids], **calls[features, ids]} for features, ids in shapes},
    )


def _config(features: int) -> str:
    tables = "".join(f'[[tables]]\nname = "t{at}"\nrows = {ROWS // features}\ndim = {DIM}\n' for at in range(features))
    return f"""
[collection]
name = "bench"
[optimizer]
kind = "rowwise_adagrad"
learning_rate = 0.05
[durability]
log = "none"
{tables}"""


def _names(features: int) -> list[str]:
    return [f"t{at}" for at in range(features)]


def _requests(features: int, ids: int) -> list[Ids]:
    return list(np.random.default_rng(7).integers(0, ROWS // features, (DIFFERENT, features, ids)))


def _stages(features: int, ids: int, rounds: int) -> dict[str, list[float]]:
    """{stage: seconds, one a round}."""
    direct = Direct(engine_of(config_in(_config(features))))
    data = [encoded(_names(features), request) for request in _requests(features, ids)]
    requests = [pb.LookupRequest.FromString(one) for one in data]
    batches = [[codec.decode_batch(feature) for feature in request.features] for request in requests]
    reads = [direct.read(of_request) for of_request in batches]
    answers = [Answer(vectors=direct.at_hand(read), counts=[], version=1) for read in reads]
    turns = Turns(range(DIFFERENT), WALL)

    def turn(work: Callable[[int], object]) -> Callable[[], float]:
        return partial(turns.seconds, work, least_s=0.03)

    return interleaved(
        {
            STAGES[0]: turn(lambda at: pb.LookupRequest.FromString(data[at])),
            STAGES[1]: turn(lambda at: [codec.decode_batch(feature) for feature in requests[at].features]),
            STAGES[2]: turn(lambda at: direct.read(batches[at])),
            STAGES[3]: turn(lambda at: direct.at_hand(reads[at])),
            STAGES[4]: turn(lambda at: answer_of(reads[at], answers[at], requests[at])),
        },
        rounds,
    )


def _calls(features: int, ids: int, rounds: int) -> dict[str, list[float]]:
    """{server, way: seconds of a call, one a round}."""
    names, requests = _names(features), _requests(features, ids)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        targets = {"service": stack.enter_context(served(_config(features), Path(folder))).target}
        if features == 1:
            targets["echo"] = stack.enter_context(echo_server("asyncio", [ids], DIM)).target
        contestants = {}
        for name, target in targets.items():
            for way, connect in WAYS.items():
                # Echoes know requests by their length, and the feature's name by heart.
                ask = stack.enter_context(connect(target, names if name == "service" else ["item"]))
                contestants[f"{name}, {way}"] = partial(Turns(requests, WALL).seconds, ask, least_s=0.2)
        return interleaved(contestants, rounds)


def _microseconds(seconds: list[float]) -> float:
    return round(Spread.of(seconds).median * 1e6, 1)


def _sum(stages: dict[str, list[float]]) -> float:
    return round(sum(_microseconds(one) for one in stages.values()), 1)


def _stage_table(stages: dict[tuple[int, int], dict[str, list[float]]]) -> Table:
    columns = ["stage, µs", *(f"{features} × {ids:,}" for features, ids in stages)]
    rows: list[list[str | float | int]] = [
        [stage, *(_microseconds(of_shape[stage]) for of_shape in stages.values())] for stage in STAGES
    ]
    rows.append(
        ["all", *(round(sum(_microseconds(one) for one in of_shape.values()), 1) for of_shape in stages.values())]
    )
    return Table(
        title="Stages of a lookup in the server, features × ids of each, by the wall's clock",
        columns=columns,
        rows=rows,
    )


def _call_table(
    stages: dict[tuple[int, int], dict[str, list[float]]], calls: dict[tuple[int, int], dict[str, list[float]]]
) -> Table:
    rows: list[list[str | float | int]] = []
    for (features, ids), of_shape in calls.items():
        own = _sum(stages[features, ids])
        for way in WAYS:
            call = _microseconds(of_shape[f"service, {way}"])
            echo = _microseconds(of_shape[f"echo, {way}"]) if features == 1 else float("nan")
            left = round(call - echo - own, 1)
            rows.append(
                [
                    f"{features} × {ids:,}",
                    way,
                    call,
                    echo if features == 1 else "",
                    round(own, 1),
                    left if features == 1 else "",
                ]
            )
    columns = ["features × ids", "way", "call, µs", "echo of the same bytes, µs", "stages, µs", "what is left, µs"]
    return Table(title="A call of one caller, by the wall's clock", columns=columns, rows=rows)


if __name__ == "__main__":
    alone(measure, __doc__)
