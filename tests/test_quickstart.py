"""The quickstart as a new user walks it: a new account, an empty home, a fresh clone, only Python and make."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ACCOUNT = f"quickstart{os.getpid()}"
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
# What Debian always has (its packages coreutils, dash, grep and sed), beside Python and make.
PROGRAMS = "cat dirname env grep make mktemp rm sed sh sleep tail touch"
README = (ROOT / "README.md").read_text()
TOLD = [line for line in re.findall(r"^embershard .*", README, re.MULTILINE) if "secrets/" in line]
"""The commands of the README that have to do with credentials."""
PIP = ("index-url", "extra-index-url", "find-links", "cert", "constraint", "default-timeout")
"""How this machine's pip reaches its packages, which is no part of the walk."""


@pytest.fixture
def home() -> Iterator[Path]:
    """Empty, and where anybody may look: pytest's own folders are closed to other accounts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def as_new_user(home: Path) -> Iterator[list[str]]:
    """What runs a command as an account that was made for it, if this one may make any; else as this one."""
    if os.getuid() or shutil.which("useradd") is None:
        yield []
        return
    subprocess.run(["useradd", "--no-create-home", "--home-dir", home / "home", ACCOUNT], check=True)
    yield ["runuser", "-u", ACCOUNT, "--"]
    subprocess.run(["userdel", ACCOUNT], check=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_new_user_gets_from_a_clone_to_a_lookup_with_tls_and_a_token(home: Path, as_new_user: list[str]) -> None:
    clone = home / "home" / "embershard"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    if as_new_user:
        subprocess.run(["chown", "--recursive", f"{ACCOUNT}:", home / "home"], check=True)
    environment = {"HOME": str(home / "home"), "PATH": str(_path(home / "bin"))} | _pip()
    shown = subprocess.run(
        [*as_new_user, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), "make", "quickstart"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.endswith("All went as it should.\n")
    assert not list(clone.rglob("*.token")), "credentials are left"
    ran = {_anywhere(command) for command in re.findall(r"^\$ ((?:.*\\\n)*.*)", shown.stdout, re.MULTILINE)}
    assert ran >= {_anywhere(command) for command in TOLD}


def test_the_readme_tells_how_to_get_credentials_and_to_use_them() -> None:
    assert [command.split()[1] for command in TOLD] == ["credentials", "serve", "lookup"]


@pytest.mark.parametrize("broken", ["lookup", "serve"])
def test_a_step_that_fails_ends_the_walk_with_its_command_and_without_a_trace(tmp_path: Path, broken: str) -> None:
    """With programs that stand in for the real ones: one of them fails."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/quickstart.sh", tmp_path / "deploy")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text(f"PATH={tmp_path}/.venv/bin:$PATH\n")
    _program(tmp_path / ".venv/bin/make", "exit 0")
    _program(
        tmp_path / ".venv/bin/embershard",
        f'[ "$1" != {broken} ] || {{ echo "cannot $1" >&2; exit 3; }}\n'
        f'[ "$1" != serve ] || {{ echo $$ >{tmp_path}/pid; echo "rank 0 of 1 serves localhost:1"; exec sleep 600; }}',
    )
    environment = {"PATH": f"{tmp_path}/.venv/bin:{os.environ['PATH']}"}
    shown = subprocess.run(
        ["sh", tmp_path / "deploy/quickstart.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 1
    assert f"cannot {broken}" in shown.stdout + shown.stderr
    assert f"$ embershard {broken} " in shown.stdout
    assert "quickstart: " in shown.stderr
    assert not (tmp_path / "secrets").exists()
    if broken != "serve":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def _anywhere(command: str) -> str:
    """A command without what is up to whoever gives it: addresses, the collection, and where its data are."""
    one_line = re.sub(r" \\\n *", " ", command).removesuffix(" &")
    return re.sub(r"(--listen|--target|--config|--data-dir) \S+", r"\1 …", one_line)


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _path(folder: Path) -> Path:
    """A folder of links to what a small Debian has."""
    folder.mkdir()
    for name in PROGRAMS.split():
        found = shutil.which(name, path=SYSTEM)
        assert found, f"{name} isn't there"
        (folder / name).symlink_to(found)
    python = shutil.which("python3.11", path=SYSTEM) or getattr(sys, "_base_executable", sys.executable)
    (folder / "python3.11").symlink_to(python)
    return folder


def _pip() -> dict[str, str]:
    """As environment variables, which are what the README tells to set."""
    listed = [sys.executable, "-m", "pip", "config", "list"]
    told = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    found = {name: os.environ[name] for name in ("PIP_CACHE_DIR",) if name in os.environ}
    for line in told.splitlines():  # those of the environment, which win, come first
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in PIP:
            found.setdefault(f"PIP_{key.upper().replace('-', '_')}", ast.literal_eval(value))
    return found
