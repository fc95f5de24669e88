"""Autograd's side: what it gives a lookup for gradients, gathered until the end of the backward pass.

Shape suffixes: N ids or bags of one use of a module, D numbers in a vector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function, Variable

from embershard.errors import InvalidInput
from embershard.torch.batches import Batches, joined
from embershard.types import FeatureBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Send = Callable[[Batches, Mapping[str, "NDArray[np.float32]"]], None]
"""Sends batches and their gradients, both by feature, as one update."""


class Pass:
    """What one backward pass has to send."""

    def __init__(self, send: Send) -> None:
        self._send, self._lock = send, threading.Lock()
        self._uses: dict[str, list[tuple[FeatureBatch, NDArray[np.float32]]]] = {}

    def add(self, batch: FeatureBatch, gradients_ND: NDArray[np.float32]) -> None:
        """Has the gradients of one use of a feature; from any of autograd's threads."""
        with self._lock:
            self._uses.setdefault(batch.feature, []).append((batch, gradients_ND))

    def end(self) -> None:
        """Sends all of it: a feature may be named once in an update, so its uses become one batch."""
        batches, gradients = {}, {}
        for feature, uses in self._uses.items():
            batches[feature] = joined([batch for batch, _ in uses])
            gradients[feature] = np.concatenate([gradients_ND for _, gradients_ND in uses])
        self._send(batches, gradients)


class Passes:
    """The backward passes that are under way, by autograd's own number of each."""

    def __init__(self, send: Send) -> None:
        self._send, self._lock = send, threading.Lock()
        # Autograd holds a pass until it has ended, or failed: then nobody does, and nothing of it is sent.
        self._under_way: WeakValueDictionary[int, Pass] = WeakValueDictionary()

    def add(self, batch: FeatureBatch, gradients_ND: NDArray[np.float32]) -> None:
        """Has gradients sent when the present pass ends."""
        number = torch._C._current_graph_task_id()
        with self._lock:
            if (present := self._under_way.get(number)) is None:
                present = self._under_way[number] = Pass(self._send)
                Variable._execution_engine.queue_callback(present.end)
        present.add(batch, gradients_ND)


class Use(Function):
    """One use of a feature: forward gives vectors that were looked up, backward has their gradients sent."""

    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, look_up: Callable[[], Tensor], batch: FeatureBatch, passes: Passes
    ) -> Tensor:
        """The vectors [N, D]; the anchor requires a gradient, as nothing else does here, so that they do."""
        ctx.batch, ctx.passes = batch, passes
        return look_up()

    @staticmethod
    def backward(ctx: Any, gradients_ND: Tensor) -> tuple[None, None, None, None]:
        """No gradient for anybody here.

        Raises:
            InvalidInput: the pass is to be differentiated itself.
        """
        if torch.is_grad_enabled():
            raise InvalidInput(
                f"feature {ctx.batch.feature!r}: gradients leave for the service, and can't be differentiated again; "
                "call backward without create_graph"
            )
        # A copy: what autograd gives may be a view of what others change before it is sent.
        ctx.passes.add(ctx.batch, gradients_ND.to("cpu", torch.float32, copy=True).numpy())
        return None, None, None, None


def looked_up(look_up: Callable[[], Tensor], batch: FeatureBatch, passes: Passes) -> Tensor:
    """Vectors [N, D] whose gradients are sent."""
    vectors_ND: Tensor = Use.apply(torch.empty(0, requires_grad=True), look_up, batch, passes)  # type: ignore[no-untyped-call]
    return vectors_ND
