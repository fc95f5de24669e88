"""A run that publishes while it goes on: what is served is what was learned; a service that is away costs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.jobs import DLRM, ITEMS, VOCABULARY, collection, losses, run_job, write_job
from support.ranks import Ranks
from support.service import Service

from embershard import Client
from embershard.collection import Read
from embershard.engine.session import Session
from embershard.engine.world import SoloWorld
from embershard.errors import EmbershardError, TrainingError
from embershard.train.batches import Batch
from embershard.train.run import Run
from embershard.types import FeatureBatch, Provenance

TABLES = collection("rowwise_adagrad", 0.1) + VOCABULARY
JOB = DLRM.replace("tags = {} }", "tags = {}, zip = {} }")
ASKED = {"user_id": list(range(60)), "item_id": list(range(1, ITEMS)), "zip": [f"z{n}" for n in range(40)]}


def publishing(target: str, every_s: float = 1e-6) -> str:
    return f'[publish]\ntarget = "{target}"\nevery_s = {every_s}\ntimeout_s = 20.0\n'


def test_what_is_served_is_what_was_learned(tmp_path: Path) -> None:
    with Service(TABLES, tmp_path / "state") as service, Client(service.target) as client:
        path = write_job(tmp_path, JOB, tables=TABLES, batch=32, epochs=3, more=publishing(service.target))
        for times in range(2):  # the second begins with a publication in full again
            with closing(Run(path, tmp_path / f"run{times}", SoloWorld())) as run:
                result = run.to_its_end()
                expected = Session(run.engine).lookup([FeatureBatch.of(name, ids) for name, ids in ASKED.items()])
            assert result is not None
            assert result["published"]["step"] == 48
            assert result["published"]["delta"]
            served = client.lookup(ASKED, min_version=result["published"]["version"], with_provenance=True)
            for name, vectors in zip(ASKED, expected.vectors, strict=True):
                assert (served[name] == vectors.numpy()).all()
            assert (served.provenance["user_id"] == Provenance.OWN_ROW).all()


@pytest.mark.slow
def test_ranks_publish_to_ranks(tmp_path: Path, world: Callable[[int], Ranks]) -> None:
    with Service(TABLES, tmp_path / "state", ranks=2) as service, Client(service.target) as client:
        more = publishing(service.target)
        path = write_job(tmp_path, JOB, tables=TABLES, batch=32, epochs=2, more=more)
        state = world(2).each("job", [[path, tmp_path / "run"]] * 2)[0]
        result = json.loads((tmp_path / "run/result.json").read_text())
        served = client.lookup({"user_id": list(range(60))}, min_version=result["published"]["version"])
        assert (served["user_id"] == state["user.weight"]).all()


def test_a_service_that_is_killed_loses_nothing_and_stops_nothing(tmp_path: Path) -> None:
    services = [Service(TABLES, tmp_path / "state").wait()]
    address = services[0].target
    job = {"tables": TABLES, "batch": 32, "epochs": 3}
    path = write_job(tmp_path, JOB, more=publishing(address, 0.05), **job)
    with closing(Run(path, tmp_path / "run", SoloWorld())) as run, Client(address) as client:
        learn = run._trainer.learn

        def killing(read: Read, batch: Batch, step: int) -> float:
            if step == 20:
                services[0].process.kill()
                services[0].ended()
                services.append(Service(TABLES, tmp_path / "state", listen=address))
            return learn(read, batch, step)

        run._trainer.learn = killing  # type: ignore[method-assign]
        result = run.to_its_end()
        assert result is not None
        assert result["published"]["step"] == 48
        undisturbed = run_job(write_job(tmp_path, JOB, more="", **job), tmp_path / "alone", SoloWorld())
        served = client.lookup({"user_id": list(range(60))}, min_version=result["published"]["version"])
        np.testing.assert_allclose(served["user_id"], undisturbed["user.weight"], atol=1e-6)
    services[1].stop()


def test_another_collection_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with Service(TABLES.replace("dim = 8", "dim = 9", 1), tmp_path / "state") as service:
        path = write_job(tmp_path, JOB, tables=TABLES, more=publishing(service.target))
        with pytest.raises(TrainingError, match=r"serves another collection, 'jobs', .*: user.dim: 8 here, 9 there"):
            run_job(path, tmp_path / "run", SoloWorld())
    assert not losses(tmp_path / "run")


def test_a_service_that_has_gone_is_told_once_the_result_is_written(tmp_path: Path) -> None:
    service = Service(TABLES, tmp_path / "state").wait()
    more = publishing(service.target, 1e6).replace("20.0", "2.0")
    path = write_job(tmp_path, JOB, tables=TABLES, epochs=2, more=more)
    with closing(Run(path, tmp_path / "run", SoloWorld())) as run:
        service.stop()
        with pytest.raises(EmbershardError, match="couldn't be made within 2 s"):
            run.to_its_end()
    assert json.loads((tmp_path / "run/result.json").read_text())["published"] is None
