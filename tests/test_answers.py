"""Clients take no answer but that to their question."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from embershard.client.answers import Asked, read_answer
from embershard.errors import InternalError
from embershard.v1 import embershard_pb2 as pb

ASKED = pb.LookupRequest(
    features=[pb.FeatureIds(feature="item", ids=bytes(24)), pb.FeatureIds(feature="tags", keys=["a", "b"])],
    min_version=5,
    with_provenance=True,
    with_counts=True,
)


def told(feature: str, ids: int) -> pb.FeatureRows:
    return pb.FeatureRows(
        feature=feature,
        rows=ids,
        dim=2,
        values=bytes(8 * ids),
        provenance=bytes(ids),
        updates=bytes(4 * ids),
        sightings=bytes(4 * ids),
    )


def answer() -> pb.LookupResponse:
    return pb.LookupResponse(features=[told("item", 3), told("tags", 2)], version=5)


def changed(change: Callable[[pb.LookupResponse], object]) -> bytes:
    made = answer()
    change(made)
    return made.SerializeToString()


def test_what_was_asked_for_is_taken() -> None:
    rows = read_answer(ASKED, answer().SerializeToString())
    assert {feature: vectors.shape for feature, vectors in rows.items()} == {"item": (3, 2), "tags": (2, 2)}


def test_a_bag_may_be_one_vector_or_many() -> None:
    asked = pb.LookupRequest(features=[pb.FeatureIds(feature="item", ids=bytes(24), lengths=bytes(8))])
    for rows in (2, 3):
        read_answer(asked, pb.LookupResponse(features=[told("item", rows)]).SerializeToString())
    with pytest.raises(InternalError, match="has 1 vectors for 3 ids"):
        read_answer(asked, pb.LookupResponse(features=[told("item", 1)]).SerializeToString())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.Clear(), r"the features \[\], and not \['item', 'tags'\]"),
        (lambda made: made.features.reverse(), r"the features \['tags', 'item'\]"),
        (lambda made: made.features.append(told("item", 3)), "a feature twice"),
        (lambda made: made.features.append(told("other", 3)), "'other'"),
        (lambda made: made.features[0].CopyFrom(told("item", 2)), "feature 'item' has 2 vectors for 3 ids"),
        (lambda made: setattr(made, "version", 4), "of version 4, and 5 or later was asked for"),
        (lambda made: made.features[1].ClearField("provenance"), "feature 'tags' has provenance of 0 ids"),
        (lambda made: setattr(made.features[1], "sightings", bytes(4)), "feature 'tags' has sightings of 1 ids"),
        (lambda made: setattr(made.features[1], "dim", 3), "no LookupResponse"),
    ],
)
def test_anything_else_is_refused(change: Callable[[pb.LookupResponse], object], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        read_answer(ASKED, changed(change))


def test_another_snapshot_is_refused() -> None:
    asked = pb.LookupRequest(pinned_version=7)
    with pytest.raises(InternalError, match="of version 8, and 7 was asked for"):
        read_answer(asked, pb.LookupResponse(version=8).SerializeToString())


def test_answers_of_a_stream_belong_to_its_requests_in_order() -> None:
    asked = Asked()
    for feature in ("a", "b"):
        asked.note(pb.LookupRequest(features=[pb.FeatureIds(feature=feature, ids=bytes(8))]))
    first, second = (pb.LookupResponse(features=[told(name, 1)]).SerializeToString() for name in "ab")
    assert [*asked.read(first)] == ["a"]
    assert [*asked.read(second)] == ["b"]
    with pytest.raises(InternalError, match="more answers than requests"):
        asked.read(second)
