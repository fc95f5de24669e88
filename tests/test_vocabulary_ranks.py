"""Vocabularies of whole engines against the model in plain Python: random histories of updates, evictions, growth and
restarts, on one to three ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.implementation import Implementation
from support.scenario import collection
from support.vocabulary_model import Id, Model

from embershard.config import Config, VocabularyIds
from embershard.errors import EmbershardError, InvalidInput
from embershard.ids import hashed_rows, rows_of
from embershard.types import FeatureBatch, FeatureUpdate, Provenance, updates_of

pytestmark = pytest.mark.parametrize("implementation", ["local", "torchrec-2", "torchrec-3"], indirect=True)

IDS: list[Id] = [*range(-4, 12), 2**63 - 1, -(2**63), "", "ü", "blue shoes", "90210", *"abcdefg"]
POLICIES: list[dict[str, Any]] = [
    {"admit_after": 2},
    {"admit_after": 1, "candidates": 4, "hashes": 1, "signed": False},
    {"admit_after": 2, "ttl_s": 3, "count_lookups": True},
    {"admit_after": 1, "ttl_s": 2, "evict": "ttl"},
]
FALLBACK = 5


class History:
    """One life of an engine and of the model."""

    def __init__(self, implementation: Implementation, policy: dict[str, Any], seed: int, folder: Path) -> None:
        self.random = np.random.default_rng(seed)
        self.engine, self.policy, self.folder = implementation, policy, folder
        self.capacity, self.now_s, self.version = 4, 100, 0
        ids = VocabularyIds(fallback_rows=FALLBACK, **policy)
        self.model = Model(ids, self.capacity, self.key_of)
        self.engine.build(self.config)

    @property
    def config(self) -> Config:
        ids = {"kind": "vocabulary", "fallback_rows": FALLBACK, **self.policy}
        return collection([{"name": "t", "rows": FALLBACK + self.capacity, "dim": 3, "ids": ids}], kind="sgd")

    def key_of(self, of: Id) -> int:
        keys = rows_of(self.config.tables[0], 7, FeatureBatch.of("t", [of])).keys
        assert keys is not None
        return int(keys.keys_n[0])

    def some(self, most: int) -> list[Id]:
        """Ids of one kind, as a batch has them, the first ones more often."""
        kind = int if self.random.random() < 0.6 else str
        ids = [of for of in IDS if isinstance(of, kind)]
        places = (len(ids) * self.random.random(int(self.random.integers(0, most))) ** 2).astype(int)
        return [ids[place] for place in places]

    def update(self) -> None:
        """Every rank sends gradients, now and then values in their place."""
        mentions: list[tuple[Id, bool]] = []
        updates: list[list[FeatureUpdate]] = []
        for _ in range(self.engine.size):
            ids, demands = self.some(6), self.random.random() < 0.1
            rows = self.random.normal(size=(len(ids), 3))
            changes = {"values": {"t": rows}} if demands else {"gradients": {"t": rows}}
            updates.append(updates_of({"t": ids}, **changes))  # type: ignore[arg-type]  # one of the two
            mentions += [(of, demands) for of in ids]
        if self.model.fits(mentions, self.now_s):
            self.engine.update(updates, self.now_s)
        else:  # whoever demanded is refused, as if nothing had been sent
            with pytest.raises(EmbershardError, match="no room for all ids"):
                self.engine.update(updates, self.now_s)
            mentions = [(of, demanded) for of, demanded in mentions if not demanded]
        if mentions:
            self.model.step(mentions, self.now_s, admit=True)

    def look_up(self) -> None:
        asked = [self.some(5) for _ in range(self.engine.size)]
        self.engine.lookup([[FeatureBatch.of("t", ids)] for ids in asked], self.now_s)
        if self.policy.get("count_lookups"):
            self.model.step([(of, False) for ids in asked for of in ids], self.now_s, admit=False)

    def grow(self) -> None:
        self.capacity += int(self.random.integers(1, 3))
        self.model.capacity = self.capacity
        self.engine.grow("t", FALLBACK + self.capacity)

    def restart(self) -> None:
        self.version += 1
        path = self.engine.save(self.folder, self.version)
        self.engine.build(self.config)
        self.engine.load(path)

    def check(self) -> None:
        """Every rank knows the owners that the model knows, each on a row of its own; lookups say so, too."""
        owners = {(slot, owner.id, owner.count) for slot, owner in self.model.rows.items()}
        for of_rank in self.engine.vocabularies():
            state = of_rank["t"]
            ids = [
                key if name is None else name for key, name in zip(state["keys"].tolist(), state["names"], strict=True)
            ]
            assert set(zip(state["slots"].tolist(), ids, state["counts"].tolist(), strict=True)) == owners
            counts = self.model.counts
            assert state["totals"][1:].tolist() == [counts.admitted, counts.evicted, counts.expired, counts.rejected]
        weights = self.engine.state()["t.weight"]
        for kind in (int, str):
            ids = [of for of in IDS if isinstance(of, kind)]
            batch = FeatureBatch.of("t", ids)
            (found,) = self.engine.lookup(self.engine.on_first([batch]), self.now_s)[0]
            (kinds,) = self.engine.provenance(self.engine.on_first([batch]), self.now_s)[0]
            if self.policy.get("count_lookups"):
                for _ in range(2):
                    self.model.step([(of, False) for of in ids], self.now_s, admit=False)
            for number, of in enumerate(ids):
                slot = self.model.slot(of)
                if slot >= 0:
                    assert kinds[number] in (Provenance.OWN_ROW, Provenance.UNTRAINED)
                    np.testing.assert_array_equal(found[number], weights[FALLBACK + slot])
                else:
                    assert kinds[number] in (Provenance.FALLBACK, Provenance.UNTRAINED)
                    np.testing.assert_allclose(found[number], self.fallback(of, weights), rtol=1e-5, atol=1e-6)

    def fallback(self, of: Id, weights: Any) -> Any:
        table = self.config.tables[0]
        keys = rows_of(table, 7, FeatureBatch.of("t", [of])).keys
        assert keys is not None
        ids = hashed_rows(table, 7, keys)
        signs_M = np.ones(len(ids.rows_M)) if ids.signs_M is None else ids.signs_M
        return (signs_M[:, None] * weights[ids.rows_M]).sum(axis=0)


@pytest.mark.parametrize("policy", POLICIES, ids=["lfu", "few candidates", "lfu and ttl", "ttl"])
def test_any_history_is_what_the_model_says(
    implementation: Implementation, policy: dict[str, Any], tmp_path: Path
) -> None:
    history = History(implementation, policy, seed=11, folder=tmp_path)
    steps = ["update"] * 6 + ["look_up"] * 2 + ["grow", "restart"]
    for number in range(60):
        getattr(history, str(history.random.choice(steps)))() if history.capacity < 9 else history.update()
        history.now_s += int(history.random.integers(0, 2))
        if number % 6 == 5:
            history.check()
    assert history.model.counts.admitted > history.capacity


def test_two_ids_with_one_key_never_share_a_row(implementation: Implementation) -> None:
    """Anybody can send the integer that a string's hash is; both demand a row, and only one can have it."""
    ids = {"kind": "vocabulary", "fallback_rows": FALLBACK}
    config = collection([{"name": "t", "rows": 20, "dim": 3, "ids": ids, "features": ["t", "u"]}])
    implementation.build(config)
    keys = rows_of(config.tables[0], 7, FeatureBatch.of("t", ["string"])).keys
    assert keys is not None
    both = updates_of({"t": ["string"], "u": keys.keys_n}, values={"t": np.full((1, 3), 5), "u": np.full((1, 3), 6)})
    before = implementation.state()
    with pytest.raises(InvalidInput, match="the same 64-bit key"):
        implementation.update(implementation.on_first(both))
    after = implementation.state()
    np.testing.assert_array_equal(after["t.weight"][:FALLBACK], before["t.weight"][:FALLBACK])
    asked = [FeatureBatch.of("t", ["string"]), FeatureBatch.of("u", keys.keys_n)]
    kinds = [int(kind[0]) for kind in implementation.provenance(implementation.on_first(asked))[0]]
    assert kinds.count(Provenance.UNTRAINED) == 2
    implementation.update(implementation.on_first(both[1:]))
    first, second = implementation.lookup(implementation.on_first(asked))[0]
    np.testing.assert_array_equal(second, [[6, 6, 6]])
    assert (first != second).all()


def test_a_refused_update_takes_nobody_s_row(implementation: Implementation) -> None:
    """What is too large once it is pulled back through a normalisation is found before anybody is admitted."""
    table = {"name": "t", "rows": 6, "dim": 3, "normalise": "l2", "init": {"kind": "zeros"}}
    implementation.build(collection([table | {"ids": {"kind": "vocabulary", "fallback_rows": FALLBACK}}], kind="sgd"))
    implementation.update(implementation.on_first(updates_of({"t": [1]}, gradients={"t": np.ones((1, 3))})))
    before, known = implementation.state(), implementation.vocabularies()
    huge = updates_of({"t": [2, 2]}, gradients={"t": np.full((2, 3), 1e9)})
    with pytest.raises(InvalidInput, match="is larger than 1e"):
        implementation.update(implementation.on_first(huge))
    for name, array in implementation.state().items():
        np.testing.assert_array_equal(array, before[name])
    assert [of_rank["t"]["keys"].tolist() for of_rank in implementation.vocabularies()] == [[1]] * len(known)


def test_a_row_of_half_precision_starts_finite(implementation: Implementation) -> None:
    ids = {"kind": "vocabulary", "fallback_rows": 2, "hashes": 2, "signed": False, "admit_after": 2}
    table = {"name": "t", "rows": 6, "dim": 3, "dtype": "float16", "ids": ids}
    implementation.build(collection([table], kind="sgd", learning_rate=1.0))
    for gradient in (-1e6, -1e6, 1e6):
        for of in ([1], [2], [3]):
            change = {"t": np.full((1, 3), gradient)}
            implementation.update(implementation.on_first(updates_of({"t": of}, gradients=change)))
            assert np.isfinite(implementation.state()["t.weight"]).all()
