"""What the server's flags say together, before anything is served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from embershard_server.address import check_apart

from embershard.errors import ConfigError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("listen", "metrics", "ranks"), [(5000, 5000, 1), (5000, 5001, 2), (5003, 5000, 4), (5000, 5003, 4)]
)
def test_ranks_whose_ports_meet_are_refused(listen: int, metrics: int, ranks: int) -> None:
    addresses = {"--listen": f"127.0.0.1:{listen}", "--metrics-listen": f"127.0.0.1:{metrics}"}
    with pytest.raises(ConfigError, match=r"--listen .* and --metrics-listen .*: a host's \d rank"):
        check_apart(addresses, ranks)


@pytest.mark.parametrize(("listen", "metrics", "ranks"), [(5000, 5001, 1), (5000, 5004, 4), (0, 0, 4), (5000, 0, 4)])
def test_ports_that_are_apart_are_taken(listen: int, metrics: int, ranks: int) -> None:
    check_apart({"--listen": f"127.0.0.1:{listen}", "--metrics-listen": f"[::1]:{metrics}"}, ranks)


def check(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "embershard_server", "--config", str(ROOT / "deploy/movielens.toml"), "--check"]
    return subprocess.run([*command, *flags], capture_output=True, text=True, check=False)


def test_a_configuration_is_checked_without_serving_it(tmp_path: Path) -> None:
    shown = check("--data-dir", str(tmp_path / "state"))
    assert shown.returncode == 0, shown.stderr
    assert "collection 'movielens', fingerprint " in shown.stdout
    assert "this would be served on 127.0.0.1:50051" in shown.stdout
    assert not (tmp_path / "state").exists()
    refused = check("--tokens", str(tmp_path / "none.toml"))
    assert refused.returncode == 2
    assert f"embershard: {tmp_path / 'none.toml'}: can't be read" in refused.stderr
