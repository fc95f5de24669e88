"""A run: what `embershard train` does from its start, or from its last checkpoint, to its end.

All files of a run are in its folder, which is a data directory as a server has one, so that `embershard serve`,
`export`, `diff` and `publish` can be told it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from embershard.errors import ConfigError, EmbershardError, TrainingError
from embershard.store.agreement import everywhere
from embershard.store.folder import DataDir
from embershard.train.checkpoint import Checkpoints, Progress, restore
from embershard.train.job import load_job
from embershard.train.outcome import outcome
from embershard.train.peers import Peers
from embershard.train.publishing import Publishing
from embershard.train.report import Report
from embershard.train.setup import Setup
from embershard.train.tables import Tables
from embershard.train.trainer import Trainer

if TYPE_CHECKING:
    from torch import nn

    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.world import World
    from embershard.store.manifest import Snapshot
    from embershard.train.batches import Batch, Stream
    from embershard.train.evaluation import Metrics
    from embershard.train.job import JobSpec

logger = logging.getLogger(__name__)

TOLD = 100
"""How many times a run tells its loss, about; if nobody knows how many steps it has, every so many of them."""


class Wishes(NamedTuple):
    """What ranks want beside the next step; added up, what all of them do."""

    stop: int
    """To end after a checkpoint, as they were asked to."""
    checkpoint: int
    """A checkpoint; rank 0 says when."""
    publish: int
    """A publication, likewise."""


class Run:
    """One job on this rank; every method is joint."""

    def __init__(self, path: Path, folder: Path, world: World, publish: Mapping[str, Any] | None = None) -> None:
        """`path` is the job file, `folder` the run's; what `publish` has, is in place of the job file's.

        Raises:
            EmbershardError: on every rank: it can't begin, or go on; says why.
        """
        job, config = load_job(path)
        if publish:
            job = job.publishing(publish)
        self.world, self.stopped = world, False
        """`stopped`: whether it has ended because it was asked to."""
        self.folder, self._data_dir = folder, DataDir(folder, flag="--folder")
        self._report: Report | None = None
        self._publishing: Publishing | None = None
        self._data_dir.hold(self.world)
        try:
            self._begin(job, config, path.parent)
        except BaseException:
            self.close()
            raise

    def _begin(self, job: JobSpec, config: Config, files: Path) -> None:
        self._setup = Setup(job=job, config=config, folder=files, peers=Peers(self.world))
        self._checkpoints, self.progress = Checkpoints(self.folder, job.checkpoint.kept, job.identity), Progress()
        with everywhere(self.world.gather, "the job can't begin", ConfigError):
            model = self._setup.make_model()
            data, self._evaluation = self._setup.open(model)
        newest = self._checkpoints.newest(self.world)
        self._start = self._setup.find_start(self.world, self.folder)
        engine = self._setup.make_engine(self.world, newest[0] if newest else self._start)
        self._trainer = Trainer(Tables(engine), model, job.optimizer, peers=self._setup.peers, seed=job.seed)
        if newest:
            with everywhere(self.world.gather, "the run can't be gone on with"):
                self.progress = restore(newest[1], model, self._trainer.optimizer, job.identity)
        if self.world.rank == 0:
            come = f"goes on after step {self.progress.step:,}" if newest else "begins"
            logger.info("%s: %s; a checkpoint every %s", self.folder, come, job.checkpoint.often)
        self._stream = self._setup.stream(data)
        with everywhere(self.world.gather, "the run's folder can't be written", ConfigError):
            if self.world.rank == 0:
                self._report = Report(self.folder, step=self.progress.step)
        if job.publish is not None:
            self._publishing = Publishing(job.publish, engine, self.folder)
        self._learned, self._learning_s = 0, 0.0
        self._saved, self._saved_s = newest and newest[0], time.monotonic()
        self._asked_to_stop = False
        self._evaluated = self.world.gather(self._report and self._report.metrics_at(self.progress.step))[0]

    def to_its_end(self) -> dict[str, Any] | None:
        """Trains, evaluates, and tells; rank 0's result. None if it was asked to stop before (SIGTERM, SIGINT).

        Raises:
            TrainingError, InvalidInput: on every rank: it can't go on; the last checkpoint is kept.
        """
        every_steps = self._setup.job.evaluate.every_steps
        with tqdm(
            total=self._steps,
            initial=self.progress.step,
            unit=" steps",
            desc="training",
            delay=2,
            disable=self.world.rank > 0 or None,
        ) as bar:
            for batch in self._batches():
                wishes = self._step(batch)
                bar.update()
                if wishes.stop or wishes.checkpoint:
                    self.checkpoint()
                if wishes.stop:
                    self.stopped = True
                    if self.world.rank == 0:
                        logger.info(
                            "stopped after step %d, with a checkpoint; the same command goes on", self.progress.step
                        )
                    return None
                if wishes.publish and self._publishing:
                    self._publishing.begin(self.progress.step, self.checkpoint)
                if every_steps and self.progress.step % every_steps == 0:
                    self.evaluate()
        self.checkpoint()
        metrics = self.evaluate()
        problem = self._publish_last()
        told = self._told(metrics)
        if problem:
            raise problem
        return told

    def close(self) -> None:
        """Leaves the folder to others; not joint."""
        if self._publishing is not None:
            self._publishing.close()
        if self._report is not None:
            self._report.close()
        self._data_dir.release()

    def checkpoint(self) -> Snapshot:
        """Keeps what was learned until now, unless it is kept."""
        if self._saved is None or self._saved.version != self.progress.step:
            self._trainer.check(self.progress.step)
            # What is being published in full, is read until that has ended.
            self._checkpoints.needed = {self._publishing.uploaded} if self._publishing else set()
            self._saved = self._checkpoints.save(self.engine, self.model, self._trainer.optimizer, self.progress)
            self._saved_s = time.monotonic()
        return self._saved

    def evaluate(self) -> Metrics | None:
        """How good it is, if there is data to tell; once a step."""
        step = self.progress.step
        if self._evaluation is None:
            return None
        if self._evaluated is None or self._evaluated[0] != step:
            self._evaluated = step, self._evaluation(self.model, self._trainer.tables, step)
            if self._report is not None:
                self._report.tell(*self._evaluated)
        metrics: Metrics = self._evaluated[1]
        return metrics

    def _batches(self) -> Iterator[Batch | EmbershardError]:
        """What is left of the data, or why there is no more of it on this rank."""
        job = self._setup.job
        for epoch in range(self.progress.epoch, job.epochs):
            whole = self.progress.batch == 0
            with closing(self._stream.epoch(epoch, self.progress.batch)) as batches:
                while job.steps is None or self.progress.step < job.steps:
                    try:
                        batch = next(batches, None)
                    except EmbershardError as error:
                        yield error
                        raise
                    if batch is None:
                        break
                    yield batch
            self._trainer.check_classes(whole=whole)
            if job.steps is not None and self.progress.step >= job.steps:
                return
            self.progress = replace(self.progress, epoch=epoch + 1, batch=0)

    def _step(self, batch: Batch | EmbershardError) -> Wishes:
        done, begun_s = self.progress, time.monotonic()
        read, wishes = self._trainer.prepare(batch, done.step, self._wishes())
        assert not isinstance(batch, EmbershardError), "which `prepare` has raised"
        loss = done.loss + self._trainer.learn(read, batch, done.step)
        self.progress = Progress(
            step=done.step + 1, epoch=done.epoch, batch=batch.position, loss=loss, losses=done.losses + 1
        )
        self._learned += batch.global_examples
        self._learning_s += time.monotonic() - begun_s
        if self.progress.step % self._every == 0:
            self._tell(self.progress.loss / self.progress.losses)
            self.progress = replace(self.progress, loss=0.0, losses=0)
        return Wishes(*wishes)

    def _tell(self, loss: float) -> None:
        if self._report is not None:
            self._report.tell(self.progress.step, {"loss": loss})
            if not sys.stderr.isatty():  # there is no bar
                logger.info("step %d of %s: loss %.4f", self.progress.step, self._steps or "?", loss)

    def _wishes(self) -> Wishes:
        """Of this rank, for after the next step."""
        spec, after = self._setup.job.checkpoint, self.progress.step + 1
        if spec.every_steps is not None:
            due = after % spec.every_steps == 0
        else:
            due = time.monotonic() - self._saved_s >= spec.every_s
        publish = self._publishing is not None and self._publishing.due()
        first = self.world.rank == 0
        return Wishes(stop=self._asked_to_stop, checkpoint=due and first, publish=publish and first)

    @property
    def stream(self) -> Stream:
        """What is learned of."""
        return self._stream

    @property
    def model(self) -> nn.Module:
        """The layers."""
        return self._trainer.model

    @property
    def engine(self) -> Engine:
        """The tables."""
        return self._trainer.tables.engine

    def stop(self) -> None:
        """Not joint: asks to end after the next step, and a checkpoint."""
        self._asked_to_stop = True

    @property
    def _steps(self) -> int | None:
        """All steps of the job, as far as is known."""
        batches, job = self._stream.batches, self._setup.job
        whole = None if batches is None else batches * job.epochs
        return job.steps if whole is None else min(whole, job.steps or whole)

    @property
    def _every(self) -> int:
        return TOLD if self._steps is None else max(1, self._steps // TOLD)

    def _publish_last(self) -> EmbershardError | None:
        """Why what was learned isn't served, if it is to be and isn't."""
        if self._publishing is not None:
            try:
                self._publishing.finish(self.progress.step, self.checkpoint)
            except EmbershardError as problem:
                return problem
        return None

    def _told(self, metrics: Metrics | None) -> dict[str, Any] | None:
        """Joint: writes what came of it.

        Raises:
            TrainingError: on every rank: it can't be written, or what is frozen has moved.
        """
        told: dict[str, Any] | None = None
        with everywhere(self.world.gather, "what came of the run can't be told", TrainingError):
            if self._report is not None:
                assert self._saved is not None
                told = outcome(
                    job=self._setup.job,
                    progress=self.progress,
                    engine=self.engine,
                    learned=(self._learned, self._learning_s),
                    metrics=metrics,
                    cut=self._stream.cut,
                    before=self._start,
                    after=self._saved,
                    published=self._publishing.last if self._publishing else None,
                )
                self._report.finish(told)
        return told
