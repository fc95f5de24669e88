"""Generates the protobuf and gRPC code from proto/ into src/, or with --check proves that it is up to date."""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))


def generate(target: Path) -> None:
    """Writes messages, type stubs and service stubs below `target`."""
    target.mkdir(parents=True, exist_ok=True)
    bundled = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={ROOT / 'proto'}",
        f"--proto_path={bundled}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        *map(str, PROTOS),
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed: see its message above")


def stale() -> list[str]:
    """Names of generated files that differ from what proto/ gives today."""
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        made = [path.relative_to(fresh) for path in Path(fresh).rglob("*.py*")]
        return [
            str(name)
            for name in made
            if not (ROOT / "src" / name).is_file()
            or not filecmp.cmp(ROOT / "src" / name, Path(fresh) / name, shallow=False)
        ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if anything is out of date")
    if not parser.parse_args().check:
        generate(ROOT / "src")
    elif names := stale():
        sys.exit(f"generated code is out of date: {', '.join(names)}; run `make generate`")


if __name__ == "__main__":
    main()
