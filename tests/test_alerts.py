"""Alert rules: each fires when it is to, not before, and says what to do then."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't here: Debian's prometheus")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]


@needs_promtool
@pytest.mark.parametrize("command", ["check", "test"])
def test_promtool_is_content(command: str) -> None:
    file = RULES if command == "check" else RULES.with_name("alerts_test.yml")
    checked = subprocess.run(["promtool", command, "rules", file], capture_output=True, text=True, cwd=RULES.parent)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_is_tested_and_says_what_to_do() -> None:
    tests = yaml.safe_load(RULES.with_name("alerts_test.yml").read_text())["tests"]
    tested = {name for test in tests for name in test["name"].split(", ")}
    assert tested == {alert["alert"] for alert in alerts()}
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"].startswith("docs/operations.md#")
        assert alert["labels"]["severity"] in ("page", "ticket")


def test_the_dashboard_has_its_rows_and_a_variable_data_source() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "embershard.json").read_text())
    panels = dashboard["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Overview",
        "Lookups",
        "Updates",
        "Engine",
        "Features and vocabularies",
        "Durability",
        "Memory",
        "Ranks",
    ]
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {"${datasource}"}
    assert len({panel["id"] for panel in panels}) == len(panels)
