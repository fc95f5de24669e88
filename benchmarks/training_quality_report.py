"""What training_quality.py has found, as records and tables."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

Record = dict[str, Any]

FOLDER: Final = Path(__file__).parent / "results"
OURS: Final = "embershard"
_CAVEATS: Final = ()


def kept(task: str, found: Sequence[Record], tried: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """These records of a task, after those of other tasks that were found before."""
    path = FOLDER / "training_quality.json"
    before = json.loads(path.read_text()) if path.is_file() else {"records": [], "tried": []}
    others = ([record for record in before[key] if record["task"] != task] for key in ("records", "tried"))
    return next(others) + list(found), next(others) + list(tried)


def write_report(found: Sequence[Record], tried: Sequence[Record]) -> None:
    """Writes training_quality.json and training_quality.md."""
    packages = ("torch", "fbgemm-gpu-cpu", "implicit", "numpy", "embershard")
    document = {
        "measured_on": {
            "machine": platform.machine(),
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "records": found,
        "tried": tried,
    }
    (FOLDER / "training_quality.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
    (FOLDER / "training_quality.md").write_text("\n".join(_lines(found, tried)) + "\n")


def _lines(found: Sequence[Record], tried: Sequence[Record]) -> list[str]:
    lines = [
        "# How good trained models are",
        "",
        "Mean and standard deviation over seeds; seconds of training and evaluation of one seed, on one core.",
        *_CAVEATS,
    ]
    for task in dict.fromkeys(record["task"] for record in found):
        of_task = _by_method(task, found)
        names = list(of_task[OURS][0]["metrics"])
        lines += ["", f"## {task}", "", f"| | {' | '.join(names)} | seeds | seconds |", "|---" * (len(names) + 3) + "|"]
        for method, records in of_task.items():
            told = [_told([record["metrics"][name] for record in records]) for name in names]
            seconds = mean(record["seconds"] for record in records)
            lines.append(f"| {method} | {' | '.join(told)} | {len(records)} | {seconds:.1f} |")
        lines.append("")
        for method, attempts in _by_method(task, tried).items():
            chosen = ", ".join(f"{key} {_value(value)}" for key, value in of_task[method][0]["settings"].items())
            lines.append(f"- {method}: {chosen}; the best on validation data of {len(attempts)} settings.")
    return lines


def _by_method(task: str, records: Sequence[Record]) -> Mapping[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["task"] == task:
            found.setdefault(record["method"], []).append(record)
    return found


def _value(value: Any) -> str:
    return " + ".join(value) if isinstance(value, (list, tuple)) else f"{value:g}"


def _told(values: Sequence[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")
