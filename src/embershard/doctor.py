"""Says what is installed, whether it belongs together and works, and what to paste if it doesn't.

What can be read off (versions, GPUs) is judged by `examine`; whether FBGEMM and TorchRec really work is tried out, each
in a process of its own, so that a crash in there is a finding and not the end.
"""

from __future__ import annotations

import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from embershard.errors import InstallError

Status = Literal["ok", "warning", "problem"]

Installed = Mapping[str, str]
"""{distribution: version} of what is installed, and "python"."""

TOGETHER: tuple[Mapping[str, str], ...] = ({"torch": "2.13.0", "fbgemm": "1.8.0", "torchrec": "1.8.0"},)
"""Versions that belong together, the one to recommend last; the extras of this package pin it."""

FBGEMM = {"cpu": "fbgemm-gpu-cpu", "gpu": "fbgemm-gpu"}
"""{backend: its distribution}; both install the module fbgemm_gpu."""

SERVER = {
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "safetensors": "safetensors",
    "xxhash": "xxhash",
    "torch": "torch",
    "fbgemm-gpu-cpu or fbgemm-gpu": "fbgemm_gpu",
}
"""{distribution: module} that the server needs beyond what the client needs."""

_REPORTED = ("python", "embershard", "numpy", "grpcio", "protobuf", *SERVER, *FBGEMM.values(), "torchrec")
_TORCHREC_NEEDS = "tensordict torchmetrics==1.0.3 tqdm pyre-extensions"
_ATTEMPT_S = 120.0
"""Importing takes 4 to 8 seconds on two cores; a busy or cold machine gets more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    """What was looked at."""
    status: Status
    """Whether something is to be done: `problem` if something doesn't work, `warning` if something could be better."""
    found: str
    """What was found."""
    remedy: str = ""
    """Lines to paste into a shell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """How code ended in a process of its own."""

    worked: bool
    """Whether it ran to its end."""
    told: str
    """What it printed, or why it failed."""


def diagnose() -> list[Finding]:
    """Everything about this installation; takes some seconds where there is a server to try out."""
    installed, gpus = installed_versions(), seen_gpus()
    return examine(installed, gpus) + try_out(installed, gpus)


def worst(findings: Sequence[Finding]) -> Status:
    """The gravest status of all."""
    order: tuple[Status, ...] = ("problem", "warning", "ok")
    return next((status for status in order if any(finding.status == status for finding in findings)), "ok")


def examine(installed: Installed, gpus: Sequence[str]) -> list[Finding]:
    """What the versions that are installed and the GPUs that are seen tell."""
    findings = [Finding(name=name, status="ok", found=installed[name]) for name in _REPORTED if name in installed]
    findings.append(_gpus(gpus))
    findings.append(_server(installed, gpus))
    if has_server(installed):
        findings += [*_backend(installed, gpus), _versions(installed, gpus), *_sharded_engine(installed)]
    return findings


def try_out(
    installed: Installed, gpus: Sequence[str], attempt: Callable[[str], Attempt] | None = None
) -> list[Finding]:
    """Whether FBGEMM gathers rows and TorchRec can be imported, as far as they are installed."""
    if not (has_server(installed) and "torch" in installed):
        return []
    codes = ["import sys; from embershard import doctor; sys.stdout.write(doctor.gather_on())"]
    if "torchrec" in installed:
        codes.append("import torchrec.distributed.embedding, torchrec.distributed.sharding_plan")
    with ThreadPoolExecutor() as threads:
        gathered, *imported = threads.map(attempt or run_apart, codes)
    return [_gather(gathered, installed, gpus), *(_torchrec(outcome, installed) for outcome in imported)]


def has_server(installed: Installed) -> bool:
    """Whether somebody wants a server here, complete or not: an FBGEMM is there, or all that is needed besides."""
    besides = set(SERVER) - {"torch", _EITHER_FBGEMM}
    return bool(_backends(installed)) or besides <= installed.keys()


def installed_versions() -> dict[str, str]:
    """What is installed of all that is reported on."""
    found = {"python": platform.python_version()}
    for name in _REPORTED[1:]:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # noqa: PERF203
            continue
    return found


def seen_gpus() -> list[str]:
    """Names of the GPUs that the NVIDIA driver shows."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return []
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []  # a driver that doesn't answer shows no GPU
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def run_apart(code: str, *, timeout_s: float = _ATTEMPT_S) -> Attempt:
    """Runs Python code in a process of its own."""
    command = [sys.executable, "-P", "-c", code]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return Attempt(worked=False, told=f"did not end within {timeout_s:g} s")
    if done.returncode < 0:
        return Attempt(worked=False, told=f"crashed: {signal.Signals(-done.returncode).name}")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raised = (line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line))
        return Attempt(worked=False, told=next(raised, lines[-1]))
    return Attempt(worked=True, told=done.stdout.strip())


def gather_on() -> str:
    """Gathers three rows with FBGEMM where the local engine would; returns the device.

    Raises:
        InstallError: the rows are not the right ones.
    """
    import torch
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    place = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA) if on_gpu else (EmbeddingLocation.HOST, ComputeDevice.CPU)
    kernel = SplitTableBatchedEmbeddingBagsCodegen([(8, 4, *place)], device=device)
    rows = torch.arange(32.0, device=device).reshape(8, 4)
    kernel.split_embedding_weights()[0].detach().copy_(rows)
    ids = torch.tensor([1, 5, 7], device=device)
    if not torch.equal(kernel(ids, torch.arange(4, device=device)), rows[ids]):
        raise InstallError(f"FBGEMM gathers wrong rows on {device.type}")
    return device.type
