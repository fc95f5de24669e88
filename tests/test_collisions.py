"""Strings that were made to have one hash: anybody who knows the seed can find some."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from support.scenario import collection
from support.subject import local

from embershard.errors import InvalidInput
from embershard.types import FeatureBatch, updates_of


def test_two_strings_of_one_batch_with_one_hash_are_refused_and_the_engine_goes_on() -> None:
    ids = {"kind": "vocabulary", "fallback_rows": 3}
    subject = local(collection([{"name": "t", "rows": 9, "dim": 2, "ids": ids}]))
    with mock.patch("embershard.ids.uint64_of", lambda *given: np.full(len(given[2]), 7, np.uint64)):
        with pytest.raises(InvalidInput, match="the same 64-bit key"):
            subject.update(updates_of({"t": ["one", "other"]}, values={"t": np.ones((2, 2))}))
        subject.update(updates_of({"t": ["one", "one"]}, values={"t": np.ones((2, 2))}))
        found = subject.lookup([FeatureBatch.of("t", ["one", "other"])])[0]
    np.testing.assert_array_equal(found[0], [1, 1])
    assert (found[1] != 1).all()
