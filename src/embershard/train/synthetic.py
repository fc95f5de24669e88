"""Examples that are made up, as many as one likes: chunk c is a function of the schema, the seed and c alone.

Ids follow Zipf's law, and a hidden logistic model labels them, which knows an effect of every id and of every dense
number: there is something to learn, and a model that has learned it all still errs.

Shapes: B examples of a chunk, N ids of one feature, F dense numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from embershard.train.schema import SyntheticSpec
from embershard.train.source import DENSE, FEATURES, LABEL, Piece
from embershard.zipf import scattered, zipf

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ROWS: Final = 2**16
CHUNK_IDS: Final = 2**22
"""Examples of a chunk, at most, and about how many ids of one feature."""
SHARPNESS: Final = 2.0
"""Standard deviation of the hidden model's logits, about."""

_EXAMPLES, _PLACES, _EFFECTS = 0, 1, 2
"""What a generator of random numbers is for."""


class Synthetic:
    """Examples to train on, or others of the same hidden model to evaluate on; see `embershard.train.source`."""

    title = "synthetic data"

    def __init__(self, spec: SyntheticSpec, *, seed: int, evaluate: bool = False) -> None:
        self._spec, self._seed, self._evaluate = spec, seed, evaluate
        self._examples = spec.evaluate_examples if evaluate else spec.examples
        self._chunk_rows = max(1, min(CHUNK_ROWS, CHUNK_IDS // max([1, *spec.lengths.values()])))
        self.chunks = -(-self._examples // self._chunk_rows)
        self.max_lengths: Mapping[str, int] = {}

    @property
    def examples(self) -> int | None:
        """All examples."""
        return self._examples

    def pieces(self, chunk: int) -> Iterator[Piece]:
        """One, not made yet."""
        rows = min(self._chunk_rows, self._examples - chunk * self._chunk_rows)
        yield Piece(rows=rows, read=partial(self._made, chunk, rows))

    def _made(self, chunk: int, rows: int) -> pa.Table:
        generator = np.random.default_rng([self._seed, _EXAMPLES, self._evaluate, chunk])
        terms: list[NDArray[np.float64]] = []
        made: dict[str, Any] = {}
        for feature in self._spec.ids:
            made[FEATURES + feature], effects_B = self._bags(generator, feature, rows)
            terms.append(effects_B)
        if self._spec.dense:
            dense_BF = generator.standard_normal((rows, self._spec.dense), np.float32)
            made[DENSE] = pa.FixedSizeListArray.from_arrays(pa.array(dense_BF.reshape(-1)), self._spec.dense)
            weights_F = self._fixed(_EFFECTS, "").standard_normal(self._spec.dense)
            terms.append(dense_BF @ weights_F / np.sqrt(self._spec.dense))
        logits_B = SHARPNESS / math.sqrt(len(terms)) * np.sum(terms, axis=0)
        labels_B = generator.random(rows) < 1 / (1 + np.exp(-logits_B))
        return pa.table(made | {LABEL: pa.array(labels_B.astype(np.float32))})

    def _bags(self, generator: np.random.Generator, feature: str, rows: int) -> tuple[Any, NDArray[np.float64]]:
        """The ids of one feature, and the effect [B] that they have on the logit."""
        count, mean = self._spec.ids[feature], self._spec.lengths.get(feature)
        lengths_B = np.ones(rows, np.int64) if mean is None else generator.integers(1, 2 * mean, rows)
        ranks_N = zipf(generator, count, self._spec.exponent, int(lengths_B.sum())) - 1
        ids_N = scattered(ranks_N, count, self._fixed(_PLACES, feature))
        effects_N = _effects(ids_N, self._fixed(_EFFECTS, feature))
        offsets = np.concatenate(([0], np.cumsum(lengths_B)))
        effects_B = np.add.reduceat(effects_N, offsets[:-1]) / np.sqrt(lengths_B)
        ids = pa.array(ids_N)
        return ids if mean is None else pa.LargeListArray.from_arrays(pa.array(offsets), ids), effects_B

    def _fixed(self, purpose: int, feature: str) -> np.random.Generator:
        """The same in every chunk."""
        return np.random.default_rng([self._seed, purpose, *feature.encode()])


def _effects(ids_N: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.float64]:
    """Each id's own effect, of mean 0 and variance 1, which is kept nowhere: a hash (SplitMix64) of the id."""
    hashed_N = ids_N.astype(np.uint64) + generator.integers(0, 2**63, 1, np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        hashed_N = (hashed_N ^ (hashed_N >> np.uint64(shift))) * np.uint64(factor)
    effects_N: NDArray[np.float64] = (hashed_N / 2**63 - 1) * math.sqrt(3)
    return effects_N
