"""Silences, by name and nothing broader, what the libraries below print and no operator can act on."""

from __future__ import annotations

import logging
import warnings


def quieten() -> None:
    """To be called before torch, FBGEMM or TorchRec is imported."""
    for message in _MESSAGES:
        warnings.filterwarnings("ignore", message=message)
    # What gRPC says, with a traceback, of an answer whose caller has just gone.
    logging.getLogger("grpc._cython.cygrpc").addFilter(
        lambda record: not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")
    )
    logging.getLogger("torch.fx._symbolic_trace").addFilter(lambda record: "is_fx_tracing" not in record.getMessage())


_MESSAGES = [
    r"`broadcast_buffers` is deprecated",  # TorchRec says it to torch
    r"distutils Version classes are deprecated",  # torchmetrics, of the version that belongs to TorchRec
    r"(?s).*Failed to import: fbgemm_gpu\.split_embedding_codegen_lookup_invokers",  # kernels of SSD tables, not here
    r"(?s).*fbgemm_gpu\.split_table_batched_embeddings_ops is now DEPRECATED",  # TorchRec imports it
]
