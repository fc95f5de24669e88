"""What deploy/ has is what its tools accept, and says what the server understands."""

from __future__ import annotations

import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.image import DOCKER, ROOT, instructions, stages

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yml"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
BIN = Path(sys.executable).parent
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*$")


def call(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)


def test_the_dockerfiles_are_there() -> None:
    assert [path.name for path in DOCKERFILES] == ["cpu.Dockerfile", "gpu.Dockerfile"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_has_nothing_to_say(dockerfile: Path) -> None:
    done = call([BIN / "hadolint", "--no-color", dockerfile])
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_is_pinned_runs_as_nobody_in_particular_and_has_nothing_to_build_with(dockerfile: Path) -> None:
    (base,) = (text for name, text in instructions(dockerfile) if name == "ARG" and text.startswith("PYTHON="))
    assert PINNED.match(base.partition("=")[2])
    builder, final = (dict(stage) for stage in stages(dockerfile))
    assert (builder["FROM"], final["FROM"]) == ("${PYTHON} AS builder", "${PYTHON}")
    assert final["USER"] == "10001:0"
    assert final["STOPSIGNAL"] == "SIGTERM"
    assert "pip" not in final["RUN"]
    assert "healthcheck.py" in final["HEALTHCHECK"]
    assert [text for name, text in stages(dockerfile)[1] if name == "COPY" and "--from=builder" in text] == [
        "--from=builder /opt/embershard /opt/embershard"
    ]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_is_installed_from_the_same_files_as_the_makefile_installs(dockerfile: Path) -> None:
    steps = " ".join(text for name, text in stages(dockerfile)[0] if name == "RUN")
    assert f"--requirement requirements/{dockerfile.stem}.lock" in steps
    assert "--no-deps --requirement requirements/torchrec.lock" in steps
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"setuptools==[\d.]+", steps) == re.findall(r"setuptools==[\d.]+", makefile)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_what_an_image_copies_is_there_and_not_ignored(dockerfile: Path) -> None:
    let_in = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = set()
    for name, text in instructions(dockerfile):
        if name == "COPY" and "--from" not in text:
            copied |= {source.rstrip("/") for source in text.split()[:-1]}
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


def test_versions_of_package_images_and_chart_are_one() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    chart = yaml.safe_load((DEPLOY / "helm" / "embershard" / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {version[1]}
    for dockerfile in DOCKERFILES:
        assert f'image.version="{version[1]}"' in dockerfile.read_text()
        assert f"--tag embershard:{version[1]}-{dockerfile.stem}" in dockerfile.read_text()
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert services["embershard"]["image"] == f"embershard:{version[1]}-cpu"


def test_each_variable_that_deploy_sets_stands_for_a_flag_of_the_command() -> None:
    templates = DEPLOY / "helm" / "embershard" / "templates"
    serves = set(yaml.safe_load(COMPOSE.read_text())["services"]["embershard"]["environment"])
    for path in (*DOCKERFILES, templates / "statefulset.yaml"):
        serves |= set(re.findall(r"EMBERSHARD_\w+", path.read_text()))
    asks = set(re.findall(r"EMBERSHARD_\w+", (templates / "tests" / "describe.yaml").read_text()))
    for command, variables in (("serve", serves - {"OMP_NUM_THREADS"}), ("describe", asks)):
        assert variables
        shown = call([BIN / "embershard", command, "--help"]).stdout
        flags = {f"--{name.removeprefix('EMBERSHARD_').lower().replace('_', '-')}" for name in variables}
        assert {flag for flag in flags if not re.search(rf"{flag}\b", shown)} == set(), command


class Ready(http.server.BaseHTTPRequestHandler):
    """Says that it is ready, or isn't, as a server does while it starts."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture(params=["http", "https"])
def ready(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[type[Ready], dict[str, str]]]:
    trustme = pytest.importorskip("trustme")

    class Handler(Ready):
        pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    environment = {"EMBERSHARD_METRICS_LISTEN": f"0.0.0.0:{server.server_port}"}
    if request.param == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("embershard").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        environment["EMBERSHARD_TLS_CERT"] = "server.pem"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Handler, environment
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_health_check_is_as_the_server_says(ready: tuple[type[Ready], dict[str, str]]) -> None:
    handler, environment = ready
    command = [sys.executable, str(DOCKER / "healthcheck.py")]

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)

    assert check().returncode == 0
    handler.status = 503
    refused = check()
    assert refused.returncode == 1
    assert refused.stderr.startswith("not ready: ")


def test_compose_lint_asks_for_nothing_but_digests() -> None:
    done = call([BIN / "compose-lint", "check", "--no-env", "--format", "json", COMPOSE])
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"CL-\d+", done.stdout)) == {"CL-0019"}


def test_each_service_of_compose_is_pinned_bounded_watched_and_kept_to_loopback() -> None:
    told = yaml.safe_load(COMPOSE.read_text())
    assert set(told["services"]) == {"embershard", "prometheus", "grafana"}
    for service in told["services"].values():
        assert PINNED.match(service["image"])
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {"cpus", "memory", "pids"} == set(service["deploy"]["resources"]["limits"])
        assert service["healthcheck"]["test"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert {volume.partition(":")[0] for volume in service["volumes"]} & set(told["volumes"])
    assert told["services"]["embershard"]["stop_grace_period"] == "2m"


def test_what_compose_mounts_is_in_the_checkout() -> None:
    for service in yaml.safe_load(COMPOSE.read_text())["services"].values():
        for volume in service["volumes"]:
            source = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", volume).split(":")[0]
            if source.startswith(".") and "credentials" not in source:
                _there(COMPOSE.parent / source)


def _there(path: Path) -> None:
    assert path.resolve().is_file(), path


@pytest.mark.parametrize("path", sorted((DEPLOY / "compose").rglob("*.yml")), ids=lambda path: path.name)
def test_files_of_compose_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_prometheus_and_grafana_find_each_other_and_embershard() -> None:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    (scrape,) = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["embershard:9464"]}]
    assert "127.0.0.1:9464:9464" in services["embershard"]["ports"]
    (source,) = yaml.safe_load((COMPOSE.parent / "grafana" / "datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((COMPOSE.parent / "grafana" / "dashboards.yml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/embershard.json" in mounted
    assert set(services["grafana"]["networks"]) & set(services["prometheus"]["networks"])
    assert set(services["embershard"]["networks"]) & set(services["prometheus"]["networks"])
    dashboard = json.loads((DEPLOY / "grafana" / "embershard.json").read_text())
    assert dashboard["title"]
