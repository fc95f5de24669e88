"""What came of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from embershard.errors import TrainingError
from embershard.store import drift_report
from embershard.store.drift import drift

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.store.manifest import Snapshot
    from embershard.train.checkpoint import Progress
    from embershard.train.evaluation import Metrics
    from embershard.train.job import JobSpec


def outcome(
    *,
    job: JobSpec,
    progress: Progress,
    engine: Engine,
    learned: tuple[int, float],
    metrics: Metrics | None,
    cut: Mapping[str, int],
    before: Snapshot | None,
    after: Snapshot,
    published: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """For machines; `learned` is how many examples this process has learned of, and the seconds that it took.

    Raises:
        TrainingError: what is frozen has moved since `before`.
    """
    examples, seconds = learned
    return {
        "model": job.model,
        "steps": progress.step,
        "epochs": progress.epoch,
        "world_size": engine.world.size,
        "engine": engine.name,
        "metrics": metrics,
        "examples": examples,
        "seconds": seconds,
        "examples_per_s": examples / seconds if examples else None,
        "cut": dict(cut),
        "drift": None if before is None else _drift(before, after, engine.config),
        "published": published,
        "snapshot": str(after.path),
        "job": asdict(job),
    }


def _drift(before: Snapshot, after: Snapshot, config: Config) -> dict[str, Any]:
    told = drift_report.document(drift(before, after))
    for table in config.tables:
        if table.frozen and any(matrix["moved"] for matrix in told["tables"][table.name]["matrices"].values()):
            told["problems"].append(f"table {table.name!r} is frozen, and has moved")
    if told["problems"]:
        raise TrainingError("; ".join(told["problems"]))
    return told


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """The same for people."""
    speed = f"; in this process {told['examples_per_s']:,.0f} examples/s" if told["examples_per_s"] else ""
    yield f"{told['steps']:,} steps{speed}"
    for name, value in (told["metrics"] or {}).items():
        yield f"{name} {'–' if value is None else format(value, '.4f')}"
    for feature, count in told["cut"].items():
        if count:
            yield f"{feature}: {count:,} bags were longer than max_length, and were cut"
    if told["drift"] is not None:
        yield from drift_report.lines(told["drift"])
    if told["published"] is not None:
        yield f"step {told['published']['step']:,} is served as version {told['published']['version']:,}"
    yield f"snapshot {told['snapshot']}"
