"""What must not drift: who imports whom, what the client weighs, how large things grow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import embershard
import embershard.errors

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path
    for folder in ("src", "service", "benchmarks", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "v1" not in path.parts
)
LAYERS = [
    (
        "embershard.errors",
        "embershard.types",
        "embershard.name_list",
        "embershard.arrays",
        "embershard.bearer",
        "embershard.environment",
        "embershard.heap",
        "embershard.loopback",
        "embershard.meters",
        "embershard.pem",
        "embershard.protowire",
        "embershard.quiet",
        "embershard.small_file",
        "embershard.v1",
        "embershard.zipf",
    ),
    ("embershard.config", "embershard.formats"),
    ("embershard.codec", "embershard.ids", "embershard.factor", "embershard.rowwise", "embershard.sums"),
    ("embershard.client", "embershard.compose", "embershard.vocabulary"),
    ("embershard.change", "embershard.loadtest", "embershard.torch"),
    ("embershard.collection",),
    ("embershard.engine",),
    ("embershard.store",),
    ("embershard.publisher",),
    ("embershard.train",),
    ("embershard_server", "embershard.doctor"),
    ("embershard.cli",),
    ("embershard_command",),
]
"""Each layer imports only from itself and the ones above it; the package itself is the client's face."""


def layer(module: str) -> int | None:
    found = [number for number, names in enumerate(LAYERS) for name in names if f"{module}.".startswith(f"{name}.")]
    return found[0] if found else None


def modules() -> dict[str, Path]:
    named = {}
    for folder in (ROOT / "src", ROOT / "service"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_one_way(module: str) -> None:
    own = layer(module)
    if own is None:
        assert module == "embershard", f"{module} has no layer: give it one"
        return
    for imported in imports(modules()[module]):
        theirs = layer(imported)
        assert theirs is None or theirs <= own, f"{module} imports {imported}"


def test_a_trainer_needs_the_client_and_torch_alone() -> None:
    ours = {name: path for name, path in modules().items() if name.startswith("embershard.torch")}
    imported = {name for path in ours.values() for name in imports(path) if name.startswith("embershard")}
    allowed = ("embershard.client.", "embershard.errors.", "embershard.torch.", "embershard.types.", "embershard.v1.")
    assert ours
    assert {name for name in imported if not name.startswith(allowed)} == set()


def test_training_and_serving_never_import_each_other() -> None:
    sides = "embershard.train", "embershard_server"
    for mine, other in (sides, sides[::-1]):
        found = [
            (module, imported)
            for module, path in modules().items()
            if f"{module}.".startswith(f"{mine}.")
            for imported in imports(path)
            if f"{imported}.".startswith(f"{other}.")
        ]
        assert found == []


@pytest.mark.parametrize(
    "module", ["embershard", "embershard.client", "embershard.codec", "embershard.cli", "embershard.loadtest.fleet"]
)
def test_the_client_is_light(module: str) -> None:
    heavy = "torch", "torchrec", "fbgemm_gpu", "pydantic", "xxhash", "psutil", "safetensors", "tqdm"
    program = f"import {module}, sys; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_installing_the_package_alone_brings_only_what_the_client_needs() -> None:
    required = [line for line in metadata.requires("embershard") or [] if "extra ==" not in line]
    assert sorted(re.match(r"[\w-]+", line)[0] for line in required) == ["grpcio", "numpy", "protobuf"]  # type: ignore[index]


def test_the_local_engine_does_not_import_torchrec() -> None:
    program = "import embershard_server.server, sys; print('torchrec' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_one_module_knows_where_a_row_lives_and_one_turns_bytes_into_arrays() -> None:
    texts = {name: path.read_text() for name, path in modules().items() if not name.startswith("embershard.v1")}
    divides = {name for name, text in texts.items() if "rounding_mode" in text}
    assert divides == {"embershard.engine.placement"}
    assert {name for name, text in texts.items() if "frombuffer" in text or ".tobytes()" in text} == {
        "embershard.codec"
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_fit_on_a_screen(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 70, f"{path.name}: {node.name}"


@pytest.mark.parametrize("module", [embershard, embershard.errors], ids=lambda module: module.__name__)
def test_all_names_exist_and_are_sorted(module: object) -> None:
    names: list[str] = module.__all__  # type: ignore[attr-defined]  # both modules have it
    assert all(hasattr(module, name) for name in names)
    assert names == sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_every_error_has_a_status_or_never_travels() -> None:
    errors = embershard.errors
    kinds = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EmbershardError)
    }
    local = {errors.EmbershardError, errors.ConfigError, errors.InstallError, errors.LogError, errors.TrainingError}
    assert kinds - local == set(errors.STATUS_BY_ERROR)
    assert len(errors.ERROR_BY_STATUS) == len(errors.STATUS_BY_ERROR)
    assert all(kind.__name__ in str(errors.__doc__) for kind in kinds)
