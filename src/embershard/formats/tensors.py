"""Files of named tensors.

safetensors  `vectors` [N, D], and `ids` int64 [N], or strings: `keys` uint8, their UTF-8 end to end, and `key_offsets`
             int64 [N + 1], where each begins and the last ends
pt           PyTorch's state of an nn.Embedding or nn.EmbeddingBag, {"weight": [N, D]}, or a module's that has such
             tables; ids are row numbers. Only tensors are read: whatever else a pickle asks for is never run
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.errors import InvalidInput
from embershard.formats.files import needed, writing
from embershard.formats.vectors import Vectors, check_row_numbers, row_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_LISTED = 20
"""Tensors that a message lists; more would bury it."""


def read_safetensors(path: Path) -> Vectors:
    """Other tensors are not looked at."""
    safetensors = needed("safetensors")
    with path.open("rb"):  # an error of the file system is told better here
        pass
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = sorted(file.keys())
            wanted = {"vectors", "ids"} if "ids" in names else {"vectors", "keys", "key_offsets"}
            if missing := wanted - set(names):
                raise InvalidInput(
                    f"has no tensor {min(missing)!r}; it has {_listed(names)}, and must have 'vectors' with 'ids', or "
                    "with 'keys' and 'key_offsets'"
                )
            found = {name: file.get_tensor(name) for name in wanted}
    except (safetensors.SafetensorError, TypeError, KeyError, AttributeError) as error:
        # The latter three: of a tensor whose type numpy doesn't have.
        raise InvalidInput(f"is no safetensors file of types that numpy has, or is damaged: {error}") from error
    ids = found["ids"] if "ids" in found else _unpacked(found["keys"], found["key_offsets"])
    return Vectors.of(ids, found["vectors"])


def write_safetensors(path: Path, vectors: Vectors, *, overwrite: bool) -> None:
    """Holds every id there is."""
    save = needed("safetensors.numpy").save
    ids = vectors.ids
    named = _packed(ids) if isinstance(ids, tuple) else {"ids": np.ascontiguousarray(ids)}
    data = save({**named, "vectors": np.ascontiguousarray(vectors.vectors_ND)})
    with writing(path, overwrite=overwrite) as file:
        file.write(data)


def read_pt(path: Path, *, key: str | None = None) -> Vectors:
    """The one embedding weight there is, or the tensor that `key` names, such as "user.weight"."""
    tensors = _load_tensors(path)
    shown = _listed([f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()], quote=False)
    if key is None:
        weights = [
            name
            for name, tensor in tensors.items()
            if f".{name}".endswith(".weight") and tensor.ndim == 2 and tensor.is_floating_point()
        ]
        if len(weights) != 1:
            raise InvalidInput(f"has {len(weights)} matrices named weight; pick a tensor by key: it has {shown}")
        key = weights[0]
    if key not in tensors:
        raise InvalidInput(f"has no tensor {key!r}; it has {shown}")
    matrix_ND = _as_numpy(key, tensors[key])
    return Vectors.of(row_numbers(len(matrix_ND) if matrix_ND.ndim else 0), matrix_ND)


def write_pt(path: Path, vectors: Vectors, *, overwrite: bool) -> None:
    """{"weight": [N, D]}, which `nn.Embedding.load_state_dict` takes; needs ids that are row numbers."""
    torch = needed("torch")
    check_row_numbers(vectors)
    with writing(path, overwrite=overwrite) as file:
        torch.save({"weight": torch.tensor(vectors.vectors_ND)}, file)


def _load_tensors(path: Path) -> dict[str, Any]:
    """{name: tensor} of all that a file holds, nested names joined by points."""
    torch = needed("torch")

    def flat(state: object, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(state, torch.Tensor):
            yield name or "weight", state
        elif isinstance(state, Mapping):
            for step, inner in state.items():
                yield from flat(inner, f"{name}.{step}" if name else str(step))

    try:
        with path.open("rb") as file:
            return dict(flat(torch.load(file, map_location="cpu", weights_only=True), ""))
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle may raise anything, as Python's documentation of pickle says
        raise InvalidInput(
            "is no PyTorch file of tensors alone, or is damaged; write it by torch.save(module.state_dict(), …)"
        ) from error


def _as_numpy(name: str, tensor: Any) -> NDArray[Any]:
    torch = needed("torch")
    try:
        if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
            tensor = tensor.float()  # bfloat16, which numpy doesn't have
        array: NDArray[Any] = tensor.detach().numpy()
    except (RuntimeError, TypeError) as error:
        raise InvalidInput(f"tensor {name!r} is {tensor.dtype}, {tensor.layout}; it must be dense floats") from error
    return array


def _packed(keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    encoded = [key.encode() for key in keys]
    return {
        "keys": np.asarray(bytearray().join(encoded)),
        "key_offsets": np.cumsum([0, *map(len, encoded)], dtype=np.int64),
    }


def _unpacked(keys: NDArray[Any], offsets: NDArray[Any]) -> tuple[str, ...]:
    if keys.dtype != np.uint8 or offsets.dtype != np.int64 or keys.ndim != 1 or offsets.ndim != 1:
        raise InvalidInput(
            f"'keys' is {keys.dtype} {list(keys.shape)} and 'key_offsets' {offsets.dtype} {list(offsets.shape)}; they "
            "must be uint8 and int64 of one dimension"
        )
    if not offsets.size or offsets[0] != 0 or offsets[-1] != len(keys) or (np.diff(offsets) < 0).any():
        raise InvalidInput(f"'key_offsets' must rise from 0 to {len(keys):,}, the length of 'keys'")
    text, strings = bytes(keys), []
    for start, end in pairwise(offsets.tolist()):
        try:
            strings.append(text[start:end].decode())
        except UnicodeDecodeError as error:
            raise InvalidInput(f"row {len(strings)}: the key is not UTF-8: {error}") from error
    return tuple(strings)


def _listed(names: list[str], *, quote: bool = True) -> str:
    told = ", ".join(map(repr, names[:_LISTED]) if quote else names[:_LISTED])
    return (told or "none") + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")
