"""What a Dockerfile's builder does, done here: its RUN commands, with folders of a test's in place of the image's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(instruction, its text) in order; lines that go on are joined, comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(name, re.sub(r"\s+", " ", text)) for name, text in (line.split(maxsplit=1) for line in joined)]


def stages(dockerfile: Path) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, from its FROM on."""
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions(dockerfile):
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def build(dockerfile: Path, folder: Path) -> Path:
    """Copies and runs what the first stage says; returns the environment that it makes.

    `folder` has the base's Python, the context and the environment afterwards. Packages come from where this machine's
    pip finds them: ARG is left out, with the index that it names.
    """
    base, context, made = folder / "base", folder / "build", folder / "embershard"
    subprocess.run([sys.executable, "-m", "venv", str(base)], check=True)
    context.mkdir()
    hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PATH": f"{base / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    for name, text in stages(dockerfile)[0]:
        if name == "ENV":
            environment |= dict(pair.split("=", 1) for pair in text.split())
        elif name == "COPY":
            *sources, target = text.split()
            for source in sources:
                _copy(ROOT / source, context / target / ("" if source.endswith("/") else source))
        elif name == "RUN":
            command = text.replace("/opt/embershard", str(made))
            done = subprocess.run(
                ["/bin/sh", "-ec", command], cwd=context, env=environment, capture_output=True, text=True, timeout=1800
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return made


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    else:
        shutil.copy(source, target)
