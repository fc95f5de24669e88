"""What a ranking can be compared with: counts, and the matrix factorisations of the library `implicit`.

Each takes a split, and says how good it is at its queries. Shapes are those of `rankings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from implicit.cpu.als import AlternatingLeastSquares
from implicit.cpu.bpr import BayesianPersonalizedRanking
from method import Method

if TYPE_CHECKING:
    from method import Metrics
    from numpy.typing import NDArray
    from rankings import Ranking


def _popularity(ranking: Ranking) -> NDArray[np.float32]:
    """[I]: how often an item comes in what is learned of, at most 1."""
    counts_I = np.asarray(ranking.learned_UI.sum(axis=0), np.float32).ravel()
    shares_I: NDArray[np.float32] = counts_I / counts_I.max()
    return shares_I


def popularity(ranking: Ranking) -> Metrics:
    """The most frequent items, for everybody alike."""
    counts_I = _popularity(ranking)
    return ranking.measured(lambda asked_b: np.tile(counts_I, (len(asked_b), 1)))


def markov_chain(ranking: Ranking) -> Metrics:
    """What came most often right after the last item; what never did, by popularity."""
    others_I = _popularity(ranking) * BELOW
    counts_II = np.zeros((len(others_I) + 1, len(others_I)), np.float32)  # the last row is of those who had nothing
    np.add.at(counts_II, (ranking.before_E, ranking.after_E), 1)
    return ranking.measured(lambda asked_b: counts_II[ranking.last_B[asked_b]] + others_I)


def had_most(ranking: Ranking) -> Metrics:
    """What somebody has had most often in their history; what they haven't, by popularity."""
    others_I = _popularity(ranking) * BELOW
    return ranking.measured(lambda asked_b: ranking.counts_BI[asked_b].toarray() + others_I)


def had_last(ranking: Ranking) -> Metrics:
    """What somebody has had last; what they haven't, by popularity."""
    others_I = _popularity(ranking) * BELOW
    return ranking.measured(lambda asked_b: ranking.places_BI[asked_b].toarray() + others_I)


def als(ranking: Ranking, seed: int, *, factors: int, regularization: float, iterations: int, alpha: float) -> Metrics:
    """Alternating least squares (Hu et al. 2008); who asks is factorised by all that they had before."""
    model = AlternatingLeastSquares(
        factors=factors,
        regularization=regularization,
        iterations=iterations,
        alpha=alpha,
        num_threads=1,
        random_state=seed,
    )
    model.fit(ranking.learned_UI, show_progress=False)
    people_BF = model.recalculate_user(np.arange(len(ranking.users_B)), ranking.counts_BI)
    return ranking.measured(lambda asked_b: people_BF[asked_b] @ model.item_factors.T)


def bpr(
    ranking: Ranking, seed: int, *, factors: int, regularization: float, iterations: int, learning_rate: float
) -> Metrics:
    """Bayesian personalised ranking (Rendle et al. 2009); who asks is known by what was learned of alone."""
    model = BayesianPersonalizedRanking(
        factors=factors,
        regularization=regularization,
        iterations=iterations,
        learning_rate=learning_rate,
        num_threads=1,
        random_state=seed,
    )
    model.fit(ranking.learned_UI, show_progress=False)
    return ranking.measured(lambda asked_b: model.user_factors[ranking.users_B[asked_b]] @ model.item_factors.T)


BELOW: Final = 1e-3
"""Of popularity, beside counts: it only decides between items that are otherwise alike."""
COUNTS: Final = {"popularity": Method(popularity), "Markov chain": Method(markov_chain)}
HAD: Final = COUNTS | {"bought most often": Method(had_most), "bought last": Method(had_last)}
"""What a ranking is compared with where items are had again."""
FACTORS: Final = COUNTS | {
    "implicit ALS": Method(
        als,
        {
            "factors": [32, 64],
            "regularization": [1.0, 10.0, 30.0, 100.0],
            "iterations": [15, 30],
            "alpha": [1.0, 3.0],
        },
    ),
    "implicit BPR": Method(
        bpr,
        {
            "factors": [32, 64],
            "regularization": [0.01, 0.1],
            "iterations": [30, 100],
            "learning_rate": [0.003, 0.01],
        },
    ),
}
"""And where they aren't: by what is alike."""
