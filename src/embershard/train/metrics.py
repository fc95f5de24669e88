"""How good a model is: AUC, log loss and normalised entropy of clicks; Recall@k and NDCG@k of ranked items.

By torchmetrics, of what all ranks have seen: ranks bring it together here, as torchmetrics itself waits for ever for a
rank that has seen nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics.functional.classification import binary_auroc
from torchmetrics.retrieval import RetrievalNormalizedDCG, RetrievalRecall

from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.train.peers import Peers

_LOWEST = float(torch.finfo(torch.float32).min)


class _Seen:
    """Rows of numbers that all ranks have seen."""

    def __init__(self, peers: Peers, *dtypes: torch.dtype) -> None:
        self._peers, self._dtypes, self._columns = peers, dtypes, [[torch.empty(0, dtype=dtype)] for dtype in dtypes]

    def add(self, *columns: Tensor) -> None:
        for seen, more, dtype in zip(self._columns, columns, self._dtypes, strict=True):
            seen.append(more.detach().cpu().to(dtype))

    def everyones(self) -> list[Tensor]:
        """Joint."""
        return [torch.from_numpy(self._peers.everyones_array(torch.cat(seen).numpy())) for seen in self._columns]


def check_clicks(labels_B: NDArray[np.float32]) -> None:
    """Raises InvalidInput unless labels are those of clicks."""
    wrong_B = (labels_B != 0) & (labels_B != 1)
    if wrong_B.any():
        raise InvalidInput(
            f"data.label: {labels_B[wrong_B][0]:g} is no label of a click, which is 0 or 1; make such a column"
        )


class ClickMetrics:
    """Of logits of clicks."""

    def __init__(self, peers: Peers) -> None:
        self._seen = _Seen(peers, torch.float32, torch.float32)

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Sees some more examples; labels are 0 or 1."""
        self._seen.add(logits_B, labels_B)

    def compute(self) -> dict[str, float | None]:
        """Joint: `auc`, `log_loss`, and `normalised_entropy`: the log loss, divided by that of always telling the share
        of clicks (He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook"); None where all
        labels are alike, which leaves those without a meaning.

        Raises:
            InvalidInput: on every rank: labels aren't 0 or 1.
        """
        logits_N, labels_N = self._seen.everyones()
        check_clicks(labels_N.numpy())
        loss, share = float(binary_cross_entropy_with_logits(logits_N, labels_N)), float(labels_N.double().mean())
        if not 0 < share < 1:
            return {"auc": None, "log_loss": loss, "normalised_entropy": None}
        entropy = float(-(share * np.log(share) + (1 - share) * np.log1p(-share)))
        auc = float(binary_auroc(logits_N, labels_N.long()))
        return {"auc": auc, "log_loss": loss, "normalised_entropy": loss / entropy}


class RankMetrics:
    """Of items that were ranked for queries."""

    def __init__(self, peers: Peers, k: Sequence[int]) -> None:
        self._k, self._seen = tuple(k), _Seen(peers, torch.int64, torch.float32, torch.bool)

    def update(self, scores_BI: Tensor, wanted_BI: Tensor, missing_B: Tensor, first: int) -> None:
        """Sees some more queries, the first of which has this number among all ranks' queries.

        `wanted_BI` tells the items that a query should find, and `missing_B` how many there are that aren't ranked.
        Only the items at the top, and those that should be found, matter.
        """
        top_BK = scores_BI.topk(min(max(self._k), scores_BI.shape[1]), dim=1).indices
        query_n, item_n = wanted_BI.scatter(1, top_BK, value=True).nonzero(as_tuple=True)
        self._seen.add(query_n + first, scores_BI[query_n, item_n].clamp(min=_LOWEST), wanted_BI[query_n, item_n])
        lost_n = torch.repeat_interleave(torch.arange(len(missing_B)), missing_B)
        self._seen.add(lost_n + first, torch.full((len(lost_n),), _LOWEST), torch.ones(len(lost_n)))

    def compute(self) -> dict[str, float]:
        """Joint: each at each k, the mean over queries that should find something."""
        queries_n, scores_n, wanted_n = self._seen.everyones()
        told = {}
        for name, kind in (("recall", RetrievalRecall), ("ndcg", RetrievalNormalizedDCG)):
            for k in self._k:
                metric = kind(top_k=k, empty_target_action="skip", sync_on_compute=False)
                metric.update(scores_n, wanted_n, indexes=queries_n)
                told[f"{name}@{k}"] = float(metric.compute())
        return told
