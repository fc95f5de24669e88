"""Requests, serialised before anything is measured; each process has some hundreds of its own, and sends them in turn.

Shapes: N ids of one feature, D dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from google.protobuf.message import DecodeError

from embershard import codec
from embershard.client.wire import lookup_request, update_request
from embershard.errors import InternalError, InvalidInput
from embershard.loadtest.plan import LOOKUP, UPDATE, Ready, dealt
from embershard.types import FeatureBatch, check_mapping
from embershard.v1 import embershard_pb2 as pb
from embershard.zipf import scattered, zipf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from embershard.client.wire import Features
    from embershard.loadtest.plan import Feature, Plan

MOST: Final = 256
"""Requests of one kind in a process."""
LEAST: Final = 8
BYTES: Final = 64 * 2**20
"""Large requests are fewer, so that they fit into this."""
MOST_REPLAYED: Final = 100_000
GRADIENT: Final = 1e-6
"""Standard deviation of the numbers of a gradient."""

Pools = dict[str, list[Ready]]
"""{lookup or update: requests}."""


def pools(plan: Plan, number: int) -> Pools:
    """The requests of process `number`, the same for the same seed."""
    generator = np.random.default_rng([plan.seed, 4, number])
    made: Pools = {}
    if plan.updates < 1:
        begin = number * len(plan.replay) // plan.processes
        replayed = [*plan.replay[begin:], *plan.replay[:begin]]
        made[LOOKUP] = replayed or _filled(lambda: _lookup(plan, generator))
    if plan.updates > 0:
        made[UPDATE] = _filled(lambda: _update(plan, generator))
    return made


def replayed(lookups: Iterable[Features], features: Iterable[Feature], dtype: str, source: str) -> tuple[Ready, ...]:
    """Lookups as bytes; `source` is what errors call the file, of which each is a line.

    Raises:
        InvalidInput: there is none, there are too many, or one that the service would refuse; with its line.
    """
    known = {feature.name: feature for feature in features}
    made = []
    for line, asked in enumerate(lookups, 1):
        try:
            made.append(_replayed(asked, known, dtype))
        except InvalidInput as error:
            raise InvalidInput(f"{source}: line {line}: {error}") from error
        if line > MOST_REPLAYED:
            raise InvalidInput(f"{source}: has more than {MOST_REPLAYED:,} requests; give fewer, they are sent in turn")
    if not made:
        raise InvalidInput(f"{source}: is empty; give a request a line, as `embershard lookup --request` takes it")
    return tuple(made)


def check_answer(kind: str, request: bytes, answer: bytes, features: Iterable[Feature]) -> None:
    """Raises InternalError unless an answer is what was asked for, as far as its shape tells."""
    try:
        if kind == UPDATE:
            if not pb.UpdateResponse.FromString(answer).version:
                raise InternalError("an update was answered without a version")
            return
        asked = pb.LookupRequest.FromString(request)
        rows = codec.decode_answer(answer, asked.dtype)
    except (DecodeError, ValueError) as error:
        raise InternalError(f"what answers there is no embershard service: {error}") from error
    known = {feature.name: feature for feature in features}
    batches = [codec.decode_batch(part) for part in asked.features]
    expected = {batch.feature: (_rows(known[batch.feature], batch), known[batch.feature].dim) for batch in batches}
    got = {feature: vectors_ND.shape for feature, vectors_ND in rows.items()}
    if got != expected:
        raise InternalError(f"vectors of the shapes {expected} were asked for, and the answer has {got}")


def drawn_ids(feature: Feature, count: int, plan: Plan, generator: np.random.Generator) -> NDArray[np.int64]:
    """int64 [N]: by Zipf's law; which ids are frequent is the same in every process."""
    ranks_N = zipf(generator, feature.space, plan.zipf, count) - 1
    # A seed of its own for each feature, whichever others are asked for.
    mixing = np.random.default_rng([plan.seed, 3, *feature.name.encode()])
    return scattered(ranks_N, feature.space, mixing)


def _filled(make: Callable[[], Ready]) -> list[Ready]:
    first = make()
    count = min(max(BYTES // max(len(first.data), 1), LEAST), MOST)
    return [first, *(make() for _ in range(count - 1))]


def _drawn(plan: Plan, generator: np.random.Generator) -> Iterator[tuple[Feature, NDArray[np.int64], list[int] | None]]:
    """(feature, ids, lengths) of a request."""
    for feature, count in zip(plan.features, dealt(plan.ids, len(plan.features)), strict=True):
        bags = [*([plan.bag] * (count // plan.bag)), *([count % plan.bag] if count % plan.bag else [])]
        yield feature, drawn_ids(feature, count, plan, generator), bags if feature.pooled else None


def _lookup(plan: Plan, generator: np.random.Generator) -> Ready:
    parts = list(_drawn(plan, generator))
    request = lookup_request({feature.name: (ids_N, bags) for feature, ids_N, bags in parts}, dtype=plan.dtype)
    return Ready(request.SerializeToString(), sum(_count(ids_N, bags) for _, ids_N, bags in parts))


def _update(plan: Plan, generator: np.random.Generator) -> Ready:
    parts = list(_drawn(plan, generator))
    gradients = {
        feature.name: generator.normal(0, GRADIENT, (_count(ids_N, bags), feature.dim)).astype(np.float32)
        for feature, ids_N, bags in parts
    }
    request = update_request({feature.name: (ids_N, bags) for feature, ids_N, bags in parts}, gradients=gradients)
    return Ready(request.SerializeToString(), sum(map(len, gradients.values())))


def _count(ids_N: NDArray[np.int64], bags: list[int] | None) -> int:
    return len(ids_N) if bags is None else len(bags)


def _replayed(asked: Features, known: Mapping[str, Feature], dtype: str) -> Ready:
    check_mapping(asked, "a request")
    rows = 0
    for name, value in asked.items():
        if name not in known:
            raise InvalidInput(f"unknown feature {name!r}; the collection has {', '.join(known)}")
        feature, batch = known[name], FeatureBatch.of(name, value)
        if feature.direct and isinstance(batch.ids, np.ndarray):
            wrong_N = (batch.ids < 0) | (batch.ids >= feature.space)
            if wrong_N.any():
                at = int(wrong_N.argmax())
                raise InvalidInput(
                    f"feature {name!r}: ids[{at}] = {batch.ids[at]} is not a row of the table, which has "
                    f"{feature.space:,}"
                )
        rows += _rows(feature, batch)
    return Ready(lookup_request(asked, dtype=dtype).SerializeToString(), rows)


def _rows(feature: Feature, batch: FeatureBatch) -> int:
    return batch.examples if feature.pooled else len(batch.ids)
