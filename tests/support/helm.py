"""Helm, and what it makes of the chart."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
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


def rendered(*arguments: object) -> list[dict[str, Any]]:
    """The manifests that the chart gives."""
    done = helm("template", "shop", CHART, "--namespace", "ml", *arguments)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_mode(mode: str, *arguments: object) -> list[dict[str, Any]]:
    """With the values that ci/ has for a mode."""
    return rendered("--values", CHART / "ci" / f"{mode}.yaml", *arguments)


def one(manifests: Sequence[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The one manifest of a kind, and of a name that ends so."""
    (found,) = (
        manifest for manifest in manifests if manifest["kind"] == kind and manifest["metadata"]["name"].endswith(name)
    )
    return found


def container(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """That in which ranks run."""
    found: dict[str, Any] = one(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    return found


def environment(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{variable: value} of that container."""
    return {variable["name"]: variable.get("value") for variable in container(manifests)["env"]}


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
