"""Helm, and what it makes of the chart."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.pages import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "embershard"
TOOLS: Final = Path(os.environ.get("EMBERSHARD_TOOLS", ROOT / ".venv" / "tools"))
"""Where `make` puts Helm and kubectl, or EMBERSHARD_TOOLS says."""


def tool(name: str) -> Path:
    """Helm or kubectl; a test that needs what isn't there is skipped."""
    if not (found := TOOLS / name).is_file():
        pytest.skip(f"there is no {found}: python tools/deploy_tools.py brings it")
    return found


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(tool("helm")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class Releases:
    """What there would be in a cluster after commands of Helm's."""

    def __init__(self) -> None:
        self._flags: dict[str, list[str]] = {}
        """{release: those that it was installed and upgraded with}."""

    def take(self, text: str) -> None:
        """One command: the chart takes its values, and an upgrade changes nothing that can't be changed.

        Where Helm isn't, its files and the release that it names are there.
        """
        _, verb, release, *rest = shlex.split(text)
        assert (release in self._flags) == (verb != "install"), f"release {release}"
        if verb == "test":
            return
        chart, *flags = rest
        assert ROOT / chart == CHART
        before = self._flags.get(release, [])
        if "--reuse-values" in flags:
            flags = [*before, *(flag for flag in flags if flag != "--reuse-values")]
        self._flags[release] = flags
        if (TOOLS / "helm").is_file():
            claims = _claims(release, flags)
            assert verb == "install" or claims == _claims(release, before), "a claim can't be changed"


def _claims(release: str, flags: list[str]) -> list[Any]:
    """The volumes that the chart asks for."""
    done = helm("template", release, CHART, *flags)
    assert done.returncode == 0, done.stderr
    manifests = yaml.safe_load_all(done.stdout)
    return [one["spec"] for one in manifests if one and one["kind"] == "PersistentVolumeClaim"]
