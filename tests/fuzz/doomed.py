"""Requests that can't change anything: each has a fault that is found, some at the first look, others in the tick.

Whatever else is wrong with one is found first or never, so that what a refusal leaves behind is seen at every depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from embershard.v1 import embershard_pb2 as pb
from fuzz.collection import DIMS, FROZEN_USER
from fuzz.requests import Request, parsed, request

FAR = 2**40
"""No version, and no id of a table whose ids are rows."""


def doomed(random: np.random.Generator) -> Request:
    """As `request`, but nothing may come of it."""
    made = request(random)
    if not made.changes:
        return made
    faults = FAULTS[made.kind]
    return Request(made.method, tuple(_with_fault(random, made, data, faults) for data in made.messages))


def _with_fault(random: np.random.Generator, made: Request, data: bytes, faults: list[Callable[[Any], None]]) -> bytes:
    if (message := parsed(made.kind, data)) is None:
        return data
    faults[int(random.integers(len(faults)))](message)
    return bytes(message.SerializeToString())


def _elsewhere(message: Any) -> None:
    message.fingerprint = "of another collection"


def _half_known(message: Any) -> None:
    message.client_id, message.sequence = "doomed", 0


def _too_early(message: Any) -> None:
    message.client_id, message.sequence = "doomed", 10


def _one_more(feature: str, number: int, **change: Any) -> Callable[[Any], None]:
    """A last feature that is refused, and whatever was said of it before isn't."""

    def add(message: Any) -> None:
        others = [update for update in message.updates if update.batch.feature != feature]
        del message.updates[:]
        message.updates.extend(others)
        message.updates.add(batch=pb.FeatureIds(feature=feature, ids=np.array([number], "<i8").tobytes()), **change)

    return add


def _floats(feature: str, number: float) -> bytes:
    return np.full(DIMS[feature], number, "<f4").tobytes()


def _of(**fields: Any) -> Callable[[Any], None]:
    """Other fields."""

    def set_fields(message: Any) -> None:
        for name, value in fields.items():
            message.ClearField(name)
            if isinstance(value, pb.FeatureIds):
                getattr(message, name).CopyFrom(value)
            else:
                setattr(message, name, value)

    return set_fields


def _ids(feature: str, number: int) -> pb.FeatureIds:
    return pb.FeatureIds(feature=feature, ids=np.array([1, number], "<i8").tobytes())


FAULTS: dict[Any, list[Callable[[Any], None]]] = {
    pb.UpdateRequest: [
        _elsewhere,
        _half_known,
        _too_early,
        _one_more("nope", 1, gradients=b""),
        _one_more("user", FAR, gradients=_floats("user", 1)),
        _one_more("half", 1, gradients=_floats("half", np.nan)),
        _one_more("half", 1, gradients=_floats("half", 1)[:-1]),
        _one_more("pair", 1, values=_floats("pair", 1)),
        _one_more("still", 1, values=_floats("still", 1)),
        _one_more("query", 1, values=_floats("query", 7e4)),
        _one_more("user", FROZEN_USER, values=_floats("user", 1)),
        _one_more("query", 1, parents=_ids("query", FAR)),
        _one_more("low", 1, gradients=_floats("low", 3e38)),
    ],
    pb.GrowRequest: [
        _elsewhere,
        _of(table="user", rows=1),
        _of(table="user", rows=2**63),
        _of(table="user", capacity=2**64 - 1),
        _of(table="zip", rows=100),
        _of(table="nope"),
        _of(table="user", rows=60, mean_of=_ids("user", FAR)),
        _of(table="user", rows=60, mean_of=_ids("half", 1)),
    ],
    pb.FreezeRequest: [
        _elsewhere,
        _of(batch=_ids("user", FAR)),
        _of(batch=_ids("zip", 1)),
        _of(batch=_ids("late", FAR)),
        _of(batch=_ids("nope", 1)),
        _of(batch=pb.FeatureIds(feature="user", ids=_ids("user", 2).ids, lengths=b"\2\0\0\0")),
    ],
    pb.LoadRequest: [_of(version=FAR), _of(version=FAR, unload=True), _of(version=2**64 - 1)],
    pb.ActivateRequest: [_elsewhere, _of(version=FAR), _of(version=0), _of(version=2**64 - 1)],
    pb.RollbackRequest: [_elsewhere, _of(fingerprint="")],
    pb.PublishRequest: [
        _of(publisher="fuzz", number=1, layout="{}"),
        _of(publisher="../fuzz", number=1),
        _of(number=0),
    ],
}
"""What is wrong with a message of each kind, before anything was activated, grown or admitted."""
