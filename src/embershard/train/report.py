"""What a run tells while it goes on, and at its end.

RUN/history.jsonl    a line every now and then: step, loss, metrics
RUN/events/          the same for TensorBoard
RUN/result.json      what came of it, and what it was made of
RUN/curves.png       loss and metrics by step
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embershard.errors import InstallError
from embershard.formats.files import writing

if TYPE_CHECKING:
    from collections.abc import Mapping

Line = dict[str, Any]
"""{"step": …, "loss": …} of the steps before it, or {"step": …, "auc": …} of an evaluation; null is no number."""


class Report:
    """Rank 0 writes it."""

    def __init__(self, run: Path, *, step: int) -> None:
        """`step` steps came before: what an earlier life of the run has told of later ones is forgotten.

        Raises:
            InstallError: a package is missing.
        """
        self._run = run
        run.mkdir(parents=True, exist_ok=True)
        history = run / "history.jsonl"
        self.lines: list[Line] = [line for line in _lines(history) if line["step"] <= step]
        with writing(history, overwrite=True) as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in self.lines).encode())
        self._history = history.open("a")
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise InstallError(
                f"training jobs need the package tensorboardX: pip install tensorboardX ({error})"
            ) from error
        self._board = SummaryWriter(str(run / "events"), purge_step=step + 1 if step else None)

    def tell(self, step: int, told: Mapping[str, float | None]) -> None:
        """Adds a line, and the points of the curves."""
        line = {"step": step, **{name: _number(value) for name, value in told.items()}}
        self.lines.append(line)
        self._history.write(f"{json.dumps(line)}\n")
        self._history.flush()
        for name, value in line.items():
            if value is not None and name != "step":
                self._board.add_scalar(name, value, step)
        self._board.flush()

    def metrics_at(self, step: int) -> tuple[int, Line] | None:
        """What was told of a step by evaluation, if anything was."""
        for line in reversed(self.lines):
            if line["step"] == step and "loss" not in line:
                return step, {name: value for name, value in line.items() if name != "step"}
        return None

    def close(self) -> None:
        """Lets go of the files."""
        self._history.close()
        self._board.close()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes what came of it."""
        with writing(self._run / "result.json", overwrite=True) as file:
            file.write(json.dumps(result, indent=2, allow_nan=False, default=str).encode())
        with writing(self._run / "curves.png", overwrite=True) as file:
            _draw(self.lines, file)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _lines(path: Path) -> list[Line]:
    """A line that a sudden end has cut is left out."""
    if not path.is_file():
        return []
    found = []
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n"):
            found.append(json.loads(text))
    return found


def _draw(lines: list[Line], file: Any) -> None:
    """One picture for each name, one under the other."""
    from matplotlib.figure import Figure

    names = sorted({name for line in lines for name in line} - {"step"}, key=lambda name: (name != "loss", name))
    figure = Figure(figsize=(8, 2.4 * max(1, len(names))), layout="constrained")
    for place, name in enumerate(names):
        axes = figure.add_subplot(len(names), 1, place + 1)
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < 50 else None) if points else None
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    if names:
        axes.set_xlabel("step")
    figure.savefig(file, format="png", dpi=110)
