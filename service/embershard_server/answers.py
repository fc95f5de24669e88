"""What an engine has found, as a LookupResponse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embershard import codec
from embershard.rowwise import quantised
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from embershard.collection import IdCounts, Read
    from embershard.engine.jobs import Answer


def encoded(read: Read, answer: Answer, request: pb.LookupRequest) -> bytes:
    """The answer to a request, serialised."""
    return codec.encode_answer(
        [part.batch.feature for part in read.parts],
        [_array(vectors, request.dtype) for vectors in answer.vectors],
        [_known(counts, request) for counts in answer.counts],
        answer.version,
    )


def answer_bytes(read: Read, request: pb.LookupRequest) -> int:
    """Bytes of vectors and of what is told of ids."""
    size = codec.vector_bytes([(part.outputs, part.table.dim) for part in read.parts], request.dtype)
    if told := 1 * request.with_provenance + 8 * request.with_counts:
        size += told * sum(len(part.batch.ids) for part in read.parts)
    return size


def _known(counts: IdCounts, request: pb.LookupRequest) -> dict[str, Any]:
    """What the caller wants to know of ids, by the field that tells it."""
    provenance = {"provenance": counts.provenance_N} if request.with_provenance else {}
    return provenance | ({"updates": counts.updates_N, "sightings": counts.sightings_N} if request.with_counts else {})


def _array(vectors: Tensor | NDArray[np.float32], dtype: int) -> NDArray[Any]:
    """Vectors [N, D] as they are asked for; int8 rows may be so already."""
    if isinstance(vectors, np.ndarray):
        if dtype in (pb.D_TYPE_UNSPECIFIED, pb.D_TYPE_FLOAT32):
            return vectors
        vectors = torch.from_numpy(vectors)
    match dtype:
        case pb.D_TYPE_INT8:
            vectors = vectors if vectors.dtype == torch.uint8 else quantised(vectors)
        case pb.D_TYPE_FLOAT16:
            # There is no number above 65,504: larger ones become infinite, as IEEE 754 says.
            vectors = vectors.half()
    return vectors.cpu().numpy()
