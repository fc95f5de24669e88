"""Helm and kubectl come out of a package within a package within a package, once."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tools" / "deploy_tools.py"


def wheel(folder: Path, name: str, version: str) -> None:
    """As the real one is, with a word in place of each tool."""
    layer, npm = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        for tool in ("helm", "kubectl"):
            archive.writestr(f"{tool}/{tool}", f"#!/bin/sh\necho {tool}\n")
    with tarfile.open(fileobj=npm, mode="w:gz") as package:
        told = tarfile.TarInfo("package/lib/layer.zip")
        told.size = len(layer.getvalue())
        package.addfile(told, io.BytesIO(layer.getvalue()))
    distribution = name.replace("-", "_")
    with zipfile.ZipFile(folder / f"{distribution}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{distribution}/_jsii/layer@{version}.jsii.tgz", npm.getvalue())
        about = f"{distribution}-{version}.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


def test_the_tools_are_brought_once_and_again_only_for_another_version(tmp_path: Path) -> None:
    index, tools = tmp_path / "index", tmp_path / "tools"
    index.mkdir()
    pinned = re.search(r'PACKAGE = "(.+)==(.+)"', SCRIPT.read_text())
    assert pinned is not None
    wheel(index, pinned[1], pinned[2])

    def bring(found_in: Path) -> int:
        environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(found_in), "PIP_CONFIG_FILE": os.devnull}
        command = [sys.executable, str(SCRIPT), str(tools)]
        return subprocess.run(command, env=environment, capture_output=True, timeout=120).returncode

    assert bring(index) == 0
    for tool in ("helm", "kubectl"):
        assert subprocess.run([tools / tool], capture_output=True, text=True, check=True).stdout == f"{tool}\n"
    (tmp_path / "empty").mkdir()
    assert bring(tmp_path / "empty") == 0, "they are there"
    (tools / "made").write_text(f"{pinned[1]}==0.0.1")
    assert bring(tmp_path / "empty") != 0, "they are others"
