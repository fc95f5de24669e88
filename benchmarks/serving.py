"""What benchmarks share: a server as an operator starts it, and what they were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fbgemm_gpu
import numpy as np
import psutil
import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A local engine, served."""

    target: str
    """Its address."""
    process: psutil.Process
    """The server."""
    metrics: str = ""
    """Where it has metrics, if it has any."""


@contextmanager
def served(config: str, folder: Path, *flags: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Serves a configuration until the block ends; all that it keeps is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "collection.toml").write_text(config)
    command = [sys.executable, "-u", "-m", "embershard_server", "--config", str(folder / "collection.toml")]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(folder / "data"), "--log-level", "warning", *flags]
    variables, metrics = os.environ | dict(environment or {}), ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := re.match(r"rank 0 of 1 \(local engine\) has metrics on (\S+)", line):
                    metrics = match[1]
                if match := re.match(r"rank 0 of 1 \(local engine\) serves (\S+)", line):
                    yield Server(target=match[1], process=psutil.Process(process.pid), metrics=metrics)
                    break
            else:
                sys.exit("the server didn't start; its own lines above say why")
        finally:
            process.terminate()
            process.communicate()


def measured_on() -> dict[str, Any]:
    """Hardware and versions."""
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.IGNORECASE)
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "fbgemm": fbgemm_gpu.__version__,
    }
