"""What sections of the benchmark have found, as files: a JSON each, and of all bench.md, targets.json and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from outcome import told

Found = Mapping[str, Any]
"""A section's `Outcome` as JSON has it, with its module, date and what it was measured on."""


def versions() -> dict[str, str]:
    """Of packages that matter for speed, beside those that `measured_on` tells."""
    return {name: version(name) for name in ("grpcio", "protobuf", "torchrec", "embershard")}


def keep(folder: Path, found: Found) -> None:
    """Writes one section's file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1, default=_plain)
    # A list of numbers is one line, so that differences can be read.
    text = re.sub(r"\[\n([-+.\d\seE,]+)\]", lambda numbers: f"[{' '.join(numbers[1].split())}]", text)
    (folder / f"{found['section']}.json").write_text(text + "\n")


def write_report(folder: Path, modules: Sequence[str]) -> None:
    """Writes what there is of all sections, whether they were run now or before; modules give the order."""
    written = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    sections = [found for found in written if isinstance(found, dict) and found.get("module") in modules]
    sections.sort(key=lambda found: modules.index(found["module"]))
    targets = [_target(found, target) for found in sections for target in found["targets"]]
    (folder / "targets.json").write_text(json.dumps(targets, indent=1) + "\n")
    (folder / "bench.md").write_text("\n".join(_lines(sections, targets)) + "\n")
    for found in sections:
        for plot in found["plots"]:
            _draw(plot, folder / f"{plot['name']}.png")


def _target(found: Found, target: Found) -> dict[str, Any]:
    measured = target["measured"]
    return {
        "section": found["section"],
        "name": target["name"],
        "measured": measured["median"],
        "spread": [measured["low"], measured["high"]],
        "target": target["target"],
        "sense": target["sense"],
        "holds": target["holds"],
        "note": target["note"],
    }


def _lines(sections: Sequence[Found], targets: Sequence[Found]) -> Iterator[str]:
    yield "# What `make bench` has measured"
    yield ""
    yield "Medians, with first and third quartiles where a spread is told. Contestants take turns in every round, so"
    yield "that whatever else the machine does falls on all of them: trust ratios more than rates."
    yield ""
    yield from _machines(sections)
    yield "## Targets"
    yield ""
    yield from _table(
        ["", "measured", "quartiles", "target", "holds", ""],
        [
            [
                target["name"],
                target["measured"],
                " – ".join(map(told, target["spread"])),
                f"{'≥' if target['sense'] == 'at least' else '≤'} {told(target['target'])}",
                "yes" if target["holds"] else "**no**",
                target["note"],
            ]
            for target in targets
        ],
    )
    for found in sections:
        yield from _section(found)


def _machines(sections: Sequence[Found]) -> Iterator[str]:
    """Which sections were measured on what."""
    machines: dict[str, list[str]] = {}
    for found in sections:
        on = {key: value for key, value in found["measured_on"].items() if key != "load_average"}
        machines.setdefault(", ".join(f"{key} {value}" for key, value in on.items()), []).append(found["section"])
    for machine, names in machines.items():
        yield f"- {', '.join(names)}: {machine}"
    yield ""


def _section(found: Found) -> Iterator[str]:
    yield f"## {found['section']}"
    yield ""
    quick = ", a quick run, whose figures say little" if found["quick"] else ""
    yield f"{found['date']}{quick}; load average at the start {found['measured_on']['load_average']}."
    yield f"Configuration: `{json.dumps(found['configuration'])}`"
    yield ""
    for plot in found["plots"]:
        yield f"![{plot['title']}]({plot['name']}.png)"
        yield ""
    for table in found["tables"]:
        yield f"### {table['title']}"
        yield ""
        yield from _table(table["columns"], table["rows"])
        if table["note"]:
            yield table["note"]
            yield ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        cells = [told(cell).replace("|", "\\|") for cell in row]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _draw(plot: Found, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(plot["curves"].items()):
        # matplotlib has ten colours.
        axes.plot(*zip(*points, strict=True), marker="osv^D"[number // 10 % 5], label=name, linewidth=1.2)
    axes.set(title=plot["title"], xlabel=plot["x"], ylabel=plot["y"], xscale="log", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=80)


def _plain(value: Any) -> Any:
    """What numpy has made, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} can't be kept in a result file: {value!r}")
