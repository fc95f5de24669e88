"""How rows are read and summed, and what both engines ask of FBGEMM's optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor

from embershard.arrays import tensor_of
from embershard.sums import ONE_EACH, Sums

if TYPE_CHECKING:
    from embershard.engine.placement import Group


def taken(weight: Tensor, rows_M: Tensor) -> Tensor:
    """Rows [M, kernel_dim] of a tensor; numpy takes a tenth less time for it than a thread of torch."""
    if not weight.is_cpu or torch.get_num_threads() > 1:
        return weight.index_select(0, rows_M)
    return torch.from_numpy(weight.numpy().take(rows_M.numpy(), axis=0))


def pooled(kernel: Any, rows_M: Tensor, sums: Sums) -> Tensor:
    """Sums [B, kernel_dim] of rows of a kernel with one table, by FBGEMM's table-batched embedding."""
    device = rows_M.device
    if sums.offsets is None:
        offsets = torch.arange(len(rows_M) + 1, device=device)
    else:
        offsets = tensor_of(sums.offsets).to(device)
    weights_M = None if sums.coefficients_M is None else tensor_of(sums.coefficients_M).to(device)
    vectors: Tensor = kernel(rows_M, offsets, weights_M)
    return vectors


def step_by(kernel: Any, optimizer: str, rows_M: Tensor, gradients_MD: Tensor) -> None:
    """One step of a kernel's optimizer by gradients [M, kernel_dim] of its rows.

    Autograd wants rows to be gathered before; on CPUs its kernel for the way back is called without.
    """
    if rows_M.device.type != "cpu":
        with torch.enable_grad():
            pooled(kernel, rows_M, ONE_EACH).backward(gradients_MD)
        return
    state = (kernel.momentum1_host, kernel.momentum1_placements, kernel.momentum1_offsets)
    getattr(torch.ops.fbgemm, f"split_embedding_backward_codegen_{optimizer}_cpu")(
        gradients_MD.contiguous(),
        kernel.weights_host,
        kernel.weights_placements,
        kernel.weights_offsets,
        kernel.D_offsets,
        kernel.max_D,
        kernel.hash_size_cumsum,
        kernel.total_hash_size_bits,
        rows_M,
        torch.arange(len(rows_M) + 1),
        int(PoolingMode.SUM),
        gradients_MD.new_empty(0),  # no weights: each row counts once
        False,  # no stochastic rounding
        *(() if optimizer == "sgd" else state),
        kernel.learning_rate_tensor,
        *(() if optimizer == "sgd" else (kernel.optimizer_args.eps,)),
    )


_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def optimizer_arguments(group: Group) -> dict[str, Any]:
    """Arguments of a fused optimizer that moves the group's rows exactly as its configuration says.

    Row-wise Adagrad adds the mean of a row's squared gradient to its state, and the kernel divides by the padded dim.
    With p = dim / padded dim, its state is p times the true one; scaling learning rate and eps by √p cancels that in
    every step: √p·lr·g / (√(p·s) + √p·eps) = lr·g / (√s + eps).
    """
    spec = group.optimizer
    scale = (group.dim / group.kernel_dim) ** 0.5 if spec.kind == "rowwise_adagrad" else 1.0
    return {
        "optimizer": _OPTIMIZERS[spec.kind],
        "learning_rate": spec.learning_rate * scale,
        "eps": spec.eps * scale,
        "stochastic_rounding": False,
    }
