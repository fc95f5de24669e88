"""Programs in processes of their own, each of which prints what it has measured as a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def in_a_process(script: str | Path, *arguments: object) -> Any:
    """What the script has measured.

    Raises:
        CalledProcessError: it has failed; its own lines say why.
    """
    return _measured([], script, arguments)


def on_ranks(script: str | Path, world: int, *arguments: object) -> Any:
    """What rank 0 has measured, of so many that torchrun starts on this host with a thread each.

    Raises:
        CalledProcessError: one has failed; its own lines say why.
    """
    return _measured(
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"],
        script,
        arguments,
        OMP_NUM_THREADS="1",
    )


def _measured(launcher: list[str], script: str | Path, arguments: tuple[object, ...], **environment: str) -> Any:
    command = [sys.executable, *launcher, str(script), *map(str, arguments)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | environment)
    return json.loads(shown.stdout.strip().splitlines()[-1])
