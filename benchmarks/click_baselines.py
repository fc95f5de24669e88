"""What a model of clicks can be compared with: logistic regression, without and with factors.

    logit = bias + Σ biases of what is known of a rating + (Σ factors of the person) · (Σ factors of the film)

Of user_id and item_id alone with factors, this is biased matrix factorisation (Koren et al. 2009) under log loss; of
all columns without factors, logistic regression.

Shapes: B ratings, F values of columns, K factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from method import Method
from scipy.sparse import csr_matrix, hstack
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from embershard.engine.world import SoloWorld
from embershard.train.metrics import ClickMetrics
from embershard.train.peers import Peers

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from method import Metrics

STEPS: Final = 150
RATE: Final = 0.05
"""Of Adam, on all ratings at once."""


class Clicks(NamedTuple):
    """A split."""

    train: pa.Table
    """What is learned of."""
    evaluate: pa.Table
    """What evaluates."""


def read_clicks(train: Path, evaluate: Path, _: Path) -> Clicks:
    """Reads the files of a job."""
    return Clicks(pq.read_table(train), pq.read_table(evaluate))


def base_rate(clicks: Clicks) -> Metrics:
    """The share of clicks, for every rating alike."""
    share = clicks.train["label"].to_numpy().mean()
    return _measured(torch.full((clicks.evaluate.num_rows,), float(np.log(share / (1 - share)))), clicks.evaluate)


def logistic(
    clicks: Clicks, seed: int, *, person: Sequence[str], film: Sequence[str], factors: int, decay: float
) -> Metrics:
    """`decay` is that of squares, in ratings."""
    train, evaluate = clicks
    sides = [(_one_hot(train, train, names), _one_hot(train, evaluate, names)) for names in (person, film)]
    draw = torch.Generator().manual_seed(seed)
    bias = torch.zeros((), requires_grad=True)
    biases = [torch.zeros(side[0].shape[1], 1, requires_grad=True) for side in sides]
    rows = [torch.randn(side[0].shape[1], factors, generator=draw).mul_(0.1).requires_grad_() for side in sides]

    def logits(place: int) -> Tensor:
        made = bias + sum((side[place] @ of_side)[:, 0] for side, of_side in zip(sides, biases, strict=True))
        if factors:
            person_BK, film_BK = (side[place] @ of_side for side, of_side in zip(sides, rows, strict=True))
            made = made + (person_BK * film_BK).sum(dim=1)
        return made

    labels_B = torch.from_numpy(train["label"].to_numpy().copy())
    optimizer = torch.optim.Adam([bias, *biases, *(rows if factors else [])], lr=RATE)
    for _ in range(STEPS):
        squares = sum(matrix.square().sum() for matrix in [*biases, *rows])
        loss = binary_cross_entropy_with_logits(logits(0), labels_B) + decay / len(labels_B) * squares
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return _measured(logits(1), evaluate)


def _measured(logits_B: Tensor, evaluate: pa.Table) -> Metrics:
    metrics = ClickMetrics(Peers(SoloWorld()))
    metrics.update(logits_B, torch.from_numpy(evaluate["label"].to_numpy().copy()))
    return metrics.compute()


def _one_hot(known: pa.Table, table: pa.Table, names: Sequence[str]) -> Tensor:
    """[B, F]: which values of these columns a rating has; those of a list share one. What isn't in `known` has none."""
    blocks = []
    for name in names:
        rating_N, value_N, share_N = _values(table[name])
        values_F = np.unique(_values(known[name])[1])
        place_N = np.minimum(np.searchsorted(values_F, value_N), len(values_F) - 1)
        here_N = values_F[place_N] == value_N
        shape = (table.num_rows, len(values_F))
        blocks.append(csr_matrix((share_N[here_N], (rating_N[here_N], place_N[here_N])), shape=shape))
    matrix = hstack(blocks, format="coo", dtype=np.float32)
    places, values = torch.from_numpy(np.stack([matrix.row, matrix.col])), torch.from_numpy(matrix.data)
    return torch.sparse_coo_tensor(places, values, matrix.shape, check_invariants=True).coalesce()


def _values(column: pa.ChunkedArray) -> tuple[Any, Any, Any]:
    """The rating of each value, the value, and its share of the rating."""
    array = column.combine_chunks()
    if not hasattr(array, "value_lengths"):
        return np.arange(len(array)), array.to_numpy(zero_copy_only=False), np.ones(len(array))
    lengths_B = array.value_lengths().to_numpy()
    rating_N = np.repeat(np.arange(len(lengths_B)), lengths_B)
    return rating_N, array.flatten().to_numpy(), 1 / lengths_B[rating_N]


PERSON: Final = ("user_id", "age_group", "occupation", "gender", "zip_code")
FILM: Final = ("item_id", "genres")
CLICKS: Final = {
    "base rate": Method(base_rate),
    "biased matrix factorisation": Method(
        logistic, {"person": [PERSON[:1]], "film": [FILM[:1]], "factors": [4, 16], "decay": [1.0, 3.0]}
    ),
    "logistic regression, all columns": Method(
        logistic, {"person": [PERSON], "film": [FILM], "factors": [0], "decay": [0.3, 1.0, 3.0]}
    ),
    "factorisation of all columns": Method(
        logistic, {"person": [PERSON], "film": [FILM], "factors": [8], "decay": [1.0, 3.0]}
    ),
}
"""What clicks are compared with."""
