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
from contextlib import suppress
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
"""{backend: its distribution}. Both install the module fbgemm_gpu, so that only one may be there."""

SERVER = {
    "torch": "torch",
    FBGEMM["cpu"]: "fbgemm_gpu",
    "pydantic": "pydantic",
    "xxhash": "xxhash",
    "cryptography": "cryptography",
    "prometheus-client": "prometheus_client",
    "safetensors": "safetensors",
    "psutil": "psutil",
    "tqdm": "tqdm",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
}
"""{distribution: module} that the server needs beyond the client; the other backend's FBGEMM does as well."""

TRAIN = {
    "pyarrow": "pyarrow",
    "torchmetrics": "torchmetrics",
    "tensorboardX": "tensorboardX",
    "matplotlib": "matplotlib",
}
"""{distribution: module} that training jobs need beyond the server."""

_REPORTED = ("python", "embershard", "numpy", "grpcio", "protobuf", *SERVER, FBGEMM["gpu"], "torchrec")
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


def diagnose(say: Callable[[str], object]) -> list[Finding]:
    """Everything about this installation; `say` is told of what takes seconds."""
    installed, gpus = installed_versions(), seen_gpus()
    findings = examine(installed, gpus)
    if _backends(installed):
        say("trying out FBGEMM and TorchRec, which takes some seconds to import …")
    return findings + try_out(installed, gpus)


def worst(findings: Sequence[Finding]) -> Status:
    """The gravest status of all."""
    order: tuple[Status, ...] = ("problem", "warning", "ok")
    return next((status for status in order if any(finding.status == status for finding in findings)), "ok")


def examine(installed: Installed, gpus: Attempt) -> list[Finding]:
    """What versions and GPUs tell; `gpus` is what `seen_gpus` answers."""
    findings = [Finding(name=name, status="ok", found=installed[name]) for name in _REPORTED if name in installed]
    findings += [_gpu(gpus), _server(installed, gpus)]
    if _backends(installed):
        findings += [_backend(installed, gpus), _versions(installed, gpus)]
        if "torchrec" not in installed:
            found = "needs torchrec, which isn't installed; the local engine doesn't"
            remedy = _torchrec_remedy(installed, gpus)
            findings.append(Finding(name="sharded engine", status="warning", found=found, remedy=remedy))
    return findings


def try_out(installed: Installed, gpus: Attempt, attempt: Callable[[str], Attempt] | None = None) -> list[Finding]:
    """Whether FBGEMM gathers rows and TorchRec can be imported, as far as they are installed."""
    if not (_backends(installed) and "torch" in installed):
        return []
    codes = ["import sys; from embershard import doctor; sys.stdout.write(doctor.gather())"]
    if "torchrec" in installed:
        codes.append("import torchrec.distributed.embedding, torchrec.distributed.sharding_plan")
    with ThreadPoolExecutor() as threads:
        gathered, *imported = threads.map(attempt or run_apart, codes)
    return [_local_engine(gathered, installed, gpus), *(_sharded_engine(end, installed, gpus) for end in imported)]


def installed_versions() -> dict[str, str]:
    """What is installed of all that is reported on."""
    found = {"python": platform.python_version()}
    for name in _REPORTED[1:]:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def seen_gpus() -> Attempt:
    """What the NVIDIA driver tells: a line per GPU, and nothing where there is no driver."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return Attempt(worked=True, told="")
    return _run([tool, "--query-gpu=name,driver_version", "--format=csv,noheader"], timeout_s=20)


def run_apart(code: str, *, timeout_s: float = _ATTEMPT_S) -> Attempt:
    """Runs Python code in a process of its own."""
    return _run([sys.executable, "-P", "-c", code], timeout_s=timeout_s)


def gather() -> str:
    """Gathers three rows with FBGEMM where the local engine would; returns the device.

    Raises:
        InstallError: they are not the right ones.
    """
    import torch
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    from embershard.engine.world import SoloWorld

    device = SoloWorld().device
    on_cpu = device.type == "cpu"
    place = (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    kernel = SplitTableBatchedEmbeddingBagsCodegen([(8, 4, *place)], device=device)
    rows = torch.arange(32.0, device=device).reshape(8, 4)
    kernel.split_embedding_weights()[0].detach().copy_(rows)
    ids = torch.tensor([1, 5, 7], device=device)
    if not torch.equal(kernel(ids, torch.arange(4, device=device)), rows[ids]):
        raise InstallError(f"FBGEMM gathers wrong rows on {device.type}")
    return device.type


def _gpu(gpus: Attempt) -> Finding:
    if not gpus.worked:
        return Finding(name="GPU", status="warning", found=f"the NVIDIA driver fails: {gpus.told}", remedy="nvidia-smi")
    return Finding(name="GPU", status="ok", found="; ".join(gpus.told.splitlines()) or "no NVIDIA GPU is seen")


def _server(installed: Installed, gpus: Attempt) -> Finding:
    there = {*installed, *(FBGEMM.values() if _backends(installed) else ())}
    missing = [name for name in SERVER if name not in there]
    if not missing:
        return Finding(name="server", status="ok", found="all that it needs is installed")
    if not _backends(installed):
        extras = "pip install 'embershard[cpu]', or 'embershard[gpu]' with NVIDIA GPUs, brings it"
        return Finding(name="server", status="ok", found=f"not installed, which is fine for the client; {extras}")
    remedy = f"pip install 'embershard[{_chosen(installed, gpus)}]'"
    return Finding(name="server", status="problem", found=f"needs also {', '.join(missing)}", remedy=remedy)


def _backend(installed: Installed, gpus: Attempt) -> Finding:
    status: Status = "problem"
    remedy = _fresh(gpus)
    match _backends(installed):
        case ["cpu", "gpu"]:
            found = f"{' and '.join(FBGEMM.values())} install the same module: one spoils the other"
        case ["gpu"] if installed.get("torch", "").endswith("+cpu"):
            found = f"fbgemm-gpu needs a PyTorch for CUDA, and torch {installed['torch']} is for CPUs"
        case ["cpu"] if _seen(gpus):
            status, found = "warning", "fbgemm-gpu-cpu, so that the GPU has no use"
        case ["gpu"] if not _seen(gpus):
            status, found = "warning", "fbgemm-gpu, and no GPU is seen"
        case [backend]:
            status, found, remedy = "ok", FBGEMM[backend], ""
    return Finding(name="backend", status=status, found=found, remedy=remedy)


def _versions(installed: Installed, gpus: Attempt) -> Finding:
    """Whether the versions are of one line of the table; what isn't installed doesn't matter."""
    fbgemms = (("fbgemm", FBGEMM[backend]) for backend in _backends(installed))
    theirs = [("torch", "torch"), *fbgemms, ("torchrec", "torchrec")]
    there = [(of, name, installed[name].partition("+")[0]) for of, name in theirs if name in installed]
    found = ", ".join(f"{name} {version}" for _, name, version in there)
    if any(all(line[of] == version for of, _, version in there) for line in TOGETHER):
        return Finding(name="versions", status="ok", found=f"{found} belong together")
    best, backend = TOGETHER[-1], _chosen(installed, gpus)
    remedy = f"pip install torch=={best['torch']} {FBGEMM[backend]}=={best['fbgemm']}"
    if "torchrec" in installed:
        remedy += f"\npip install --no-deps torchrec=={best['torchrec']}"
    return Finding(name="versions", status="problem", found=f"{found} don't belong together", remedy=remedy)


def _local_engine(gathered: Attempt, installed: Installed, gpus: Attempt) -> Finding:
    if not gathered.worked:
        found = f"FBGEMM doesn't work: {gathered.told}"
        return Finding(name="local engine", status="problem", found=found, remedy=_fresh(gpus))
    if gathered.told == "cpu" and _seen(gpus) and "gpu" in _backends(installed):
        found, remedy = "FBGEMM works, but PyTorch doesn't use the GPU", 'python -c "import torch; torch.cuda.init()"'
        return Finding(name="local engine", status="warning", found=found, remedy=remedy)
    return Finding(name="local engine", status="ok", found=f"FBGEMM gathers rows on {gathered.told}")


def _sharded_engine(imported: Attempt, installed: Installed, gpus: Attempt) -> Finding:
    if imported.worked:
        return Finding(name="sharded engine", status="ok", found="TorchRec can be imported")
    found, remedy = f"TorchRec can't be imported: {imported.told}", _torchrec_remedy(installed, gpus)
    return Finding(name="sharded engine", status="problem", found=found, remedy=remedy)


def _seen(gpus: Attempt) -> bool:
    return gpus.worked and bool(gpus.told)


def _backends(installed: Installed) -> list[str]:
    return [backend for backend, name in FBGEMM.items() if name in installed]


def _chosen(installed: Installed, gpus: Attempt) -> str:
    """The backend that is installed, or that fits the machine if that is none or both."""
    backends = _backends(installed)
    return backends[0] if len(backends) == 1 else "gpu" if _seen(gpus) else "cpu"


def _fresh(gpus: Attempt) -> str:
    """Another backend needs another build of PyTorch, too."""
    extra = "gpu" if _seen(gpus) else "cpu"
    return f"pip uninstall --yes torch {' '.join(FBGEMM.values())}\npip install 'embershard[{extra}]'"


def _torchrec_remedy(installed: Installed, gpus: Attempt) -> str:
    """TorchRec asks for the FBGEMM for GPUs: on a CPU host it is installed without what it asks for."""
    if _chosen(installed, gpus) == "gpu":
        return "pip install 'embershard[gpu]'"
    return f"pip install --no-deps torchrec=={TOGETHER[-1]['torchrec']}\npip install {_TORCHREC_NEEDS}"


def _run(command: list[str], *, timeout_s: float) -> Attempt:
    try:
        done = subprocess.run(  # noqa: S603  # the commands are those above
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return Attempt(worked=False, told=f"no end within {timeout_s:g} s")
    if done.returncode < 0:
        return Attempt(worked=False, told=f"crashed ({signal.Signals(-done.returncode).name})")
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit status {done.returncode}"]
        raised = (line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line))
        return Attempt(worked=False, told=next(raised, lines[-1]))
    return Attempt(worked=True, told=done.stdout.strip())
