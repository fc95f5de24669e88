"""A reader of the documentation who tries everything out: in one folder, with a service that runs."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import ssl
import subprocess
import tomllib
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import numpy as np
import yaml
from embershard_server.options import parser as server_parser
from embershard_server.tokens import load_tokens
from torch.distributed.run import get_args_parser

from embershard import Client
from embershard.cli.parser import parser
from embershard.config import parse_config
from embershard.train.job import load_job
from embershard.train.options import parser as job_parser
from support.command import COMMAND, call
from support.helm import Releases
from support.pages import ROOT, Block
from support.service import Service

JOB_HEAD: Final = 'collection = "shop.toml"\nmodel = "dlrm"\nbatch = 8\n'
PROGRAMS: Final = {"embershard_server": server_parser, "embershard.train": job_parser}


class Reader:
    """Runs the blocks of one page, one after the other."""

    def __init__(self, folder: Path, service: Service, secured: Callable[[], Service], **names: Any) -> None:
        """`folder` is the present one of this process; `names` are what fragments of code (```py) begin with."""
        self._folder, self._service, self._secured = folder, service, secured
        self._names, self._releases = names, Releases()

    def read(self, block: Block) -> None:
        """Does what a block says; one that no rule covers is an error."""
        languages: dict[str, Callable[[Block], None]] = {
            "": self._picture,
            "toml": self._toml,
            "ini": lambda ini: configparser.RawConfigParser(strict=False).read_string(ini.text),
            "py": self._python,
            "python": self._python,
            "sh": self._shell,
            "yaml": lambda manifests: check_manifests(manifests.text),
        }
        if block.language not in languages:
            raise AssertionError(f"{block.where}: no rule for ```{block.language}")
        languages[block.language](block)

    def replaced(self, text: str) -> str:
        """With what there is here in place of what pages name."""
        for placeholder, value in self._placeholders().items():
            if placeholder in text:
                text = text.replace(placeholder, value())
        return text

    def _placeholders(self) -> dict[str, Callable[[], str]]:
        return {
            "127.0.0.1:50051": lambda: self._service.target,
            "10.0.0.7:50051": lambda: self._service.target,
            "localhost:50051": lambda: self._secured().target.replace("127.0.0.1", "localhost"),
            " secrets/": self._secrets,
            " deploy/prometheus/": lambda: f" {ROOT}/deploy/prometheus/",
            "http://127.0.0.1:9464": lambda: self._service.metrics[0],
            "https://localhost:9464": lambda: self._secured().metrics[0].replace("127.0.0.1", "localhost"),
            "new/": lambda: str(copied_pair(self._folder / "secrets", self._folder / "new")) + "/",
            "VERSION": lambda: str(self._newest()),
            "000000000042": lambda: f"{self._newest():012d}",
            "--seconds 3": lambda: "--seconds 0.2 --warmup 0",
        }

    def _secrets(self) -> str:
        """The folder of credentials, which is made with the service that has them."""
        if not (self._folder / "secrets").exists():
            self._secured()
        return " secrets/"

    def _newest(self) -> int:
        """The version of the newest snapshot on the disk."""
        with Client(self._service.target) as client:
            return max(told.version for told in client.list_versions() if told.bytes)

    def _picture(self, block: Block) -> None:
        assert not re.search(r"^(\$|embershard|make|python) ", block.text, re.MULTILINE), block.where

    def _toml(self, block: Block) -> None:
        if block.saved_as:
            (self._folder / block.saved_as).write_text(block.text)
        data = tomllib.loads(block.text)
        if "tokens" in data:
            path = self._folder / "tokens-of-a-page.toml"
            path.write_text(block.text)
            load_tokens(path)
        elif "tables" in data:
            parse_config({"collection": {"name": "page"}, **data})
        else:
            head = "" if "model" in data else JOB_HEAD
            path = self._folder / "a-job.toml"
            path.write_text(head + block.text)
            load_job(path)

    def _python(self, block: Block) -> None:
        code = "\n" * (block.line - 1) + self.replaced(block.text)
        exec(compile(code, str(block.page), "exec"), self._names)

    def _shell(self, block: Block) -> None:
        rules: tuple[tuple[str, Callable[[str], None]], ...] = (
            (r"make [-a-z]+( \w+=\S+)*", dry_run),
            (r"embershard serve .*", self._serve),
            (r"embershard train .*", lambda text: self._check_program("embershard.train", shlex.split(text)[2:])),
            (r"embershard (doctor|loadtest --ramp .*)", flags_of_command),  # long; they have tests of their own
            (r"embershard credentials secrets/( .*)?", flags_of_command),  # what is replaced has done it
            (r"embershard rollback", self._rollback),
            (r"embershard loadtest .*", load_test),
            (r"embershard .*", self._command),
            (r"torchrun .*", self._torchrun),
            (r"curl( --fail)?( --cacert \S+)? \S+", fetch),
            (r"(buf|cp|df|du|ls|mkdir|mv|openssl|sed) .*", bash),
            (r"helm (install|test|upgrade) .*", self._releases.take),
            (r'(EMBERSHARD_\w+=(\S+|"\$\(id -u\)") )*docker (build|run|compose) .*', files_are_there),
            (r"kubectl (apply|create|delete|exec|scale|wait) .*", files_are_there),
            (r"source \.venv/bin/activate|export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", lambda _: None),
            (r"pip install( --upgrade)? '(\.|embershard)\[cpu\]'", lambda _: None),
            (r"sudo (mv|chown -R embershard:) .*", path_is_there),
            (r"sudo systemctl (start|stop|restart) embershard", lambda _: None),
            (r"journalctl (--unit embershard|--dmesg)( --(lines|since|grep) (\d+|\"[^\"]+\"))*", lambda _: None),
        )
        for command in block.commands:
            rule = next((rule for pattern, rule in rules if re.fullmatch(pattern, command)), None)
            assert rule is not None, f"{block.where}: no rule for: {command}"
            try:
                rule(self.replaced(command))
            except Exception as error:
                raise AssertionError(f"{block.where}: {command}: {error}") from error

    def _command(self, text: str) -> None:
        status, output, errors = call(*shlex.split(text)[1:])
        assert status == 0, errors
        assert output

    def _rollback(self, text: str) -> None:
        """Of an activation, which pages don't have before it."""
        self._command(f"embershard activate {self._newest()}")
        self._command(text)

    def _serve(self, text: str) -> None:
        """Starts it, unless the data directory has a server already."""
        given = self._check_program("embershard_server", shlex.split(text)[2:])
        lock = given.data_dir / "lock"
        if given.check:
            bash(text)
        elif not lock.exists() or not Path(f"/proc/{lock.read_text().strip()}").exists():
            with Service(given.config, given.data_dir) as started, Client(started.target) as client:
                client.describe()

    def _torchrun(self, text: str) -> None:
        given = get_args_parser().parse_args(shlex.split(text)[1:])
        assert given.module
        self._check_program(given.training_script, given.training_script_args)

    def _check_program(self, module: str, arguments: list[str]) -> Any:
        """Its flags are understood, and the file that it reads is there."""
        given = parsed(PROGRAMS[module](module), arguments)
        assert (self._folder / (given.config if module == "embershard_server" else given.job)).is_file()
        return given


def bash(text: str) -> None:
    """Runs a line in a shell, where the environment's own programs come first."""
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], env=os.environ | {"PATH": path}, capture_output=True, check=True
    )


def fetch(text: str) -> None:
    """What curl fetches is there; and of metrics, that each is told of."""
    given = dict(pairwise(text.split()))
    context = ssl.create_default_context(cafile=given["--cacert"]) if "--cacert" in given else None
    with urllib.request.urlopen(text.split()[-1], context=context) as answer:
        found = re.findall(r"^# TYPE (embershard_\w+)", answer.read().decode(), re.MULTILINE)
    told = (ROOT / "docs" / "observability.md").read_text()
    assert [name for name in found if f"`{name}`" not in told] == []


def load_test(text: str) -> None:
    """Its status may be 1: a busy machine doesn't answer all in time."""
    status, output, errors = call(*shlex.split(text)[1:])
    assert status in (0, 1), errors
    assert "answered" in output


def files_are_there(text: str) -> None:
    """A command that can't be run here: the files of the repository that it names are there."""
    for name in re.findall(r"(?<![\w./])deploy/[\w./-]+", text):
        assert (ROOT / name).exists(), name


def check_manifests(text: str) -> None:
    """Kubernetes would take them."""
    for manifest in yaml.safe_load_all(text):
        kubernetes_validate.validate(manifest, "1.37", strict=True)


def path_is_there(text: str) -> None:
    """What only the administrator may move or give away, and is left where it is."""
    words = shlex.split(text)
    assert Path(words[2] if words[1] == "mv" else words[-1]).exists(), text


def copied_pair(secrets: Path, target: Path) -> Path:
    """A folder with the certificate and key that an authority would have made anew."""
    target.mkdir(exist_ok=True)
    for name in ("server.pem", "server.key"):
        shutil.copy(secrets / name, target / name)
    return target


def parsed(made: Any, arguments: list[str]) -> Any:
    """What a parser makes of flags; wrong ones are an error that says which."""

    def refuse(message: str) -> None:
        raise AssertionError(message)

    made.error = refuse
    return made.parse_args(arguments)


def flags_of_command(text: str) -> None:
    """A command that isn't run: its flags are understood."""
    parser().parse_args(shlex.split(text)[1:])


def dry_run(text: str) -> None:
    """make knows the target."""
    shown = subprocess.run(
        ["make", "--dry-run", *shlex.split(text)[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr


class Redis:
    """Stands in for redis-py's client, whose server has the vectors of a hundred queries."""

    def __init__(self, _host: str, _port: int) -> None:
        vectors = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
        self._held = {f"query:q{number}".encode(): vector.data.tobytes() for number, vector in enumerate(vectors)}

    def scan_iter(self, match: str, count: int) -> list[bytes]:
        return [key for key in self._held if key.startswith(match.removesuffix("*").encode())]

    def mget(self, keys: list[bytes] | list[str]) -> list[bytes]:
        return [self._held[key if isinstance(key, bytes) else key.encode()] for key in keys]


def make_snapshots(service: Service, feature: str, dim: int, count: int = 3) -> None:
    """So that there is something to activate, to move away, and to go back to."""
    with Client(service.target) as client:
        for number in range(count):
            client.update({feature: [1]}, gradients={feature: np.full((1, dim), number + 1, np.float32)})
            client.snapshot()


def remove(folder: Path) -> None:
    """The copies that a reader has made."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
