"""A job from its file to what came of it: what is written, what stays, what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from support.jobs import DLRM, MODELS, NEXT_ITEM, SGD, VOCABULARY, collection, losses, run_job, write_job
from support.service import Service

from embershard import Client
from embershard.config import parse_config
from embershard.engine.local import LocalEngine
from embershard.engine.world import SoloWorld
from embershard.errors import ConfigError, EmbershardError, InvalidInput, TrainingError
from embershard.store.loading import read_tensors
from embershard.store.manifest import find_snapshot
from embershard.train.model import Inputs
from embershard.train.peers import Peers
from embershard.train.run import Run
from embershard.train.tables import Tables
from embershard.types import FeatureBatch


def test_a_run_leaves_its_curves_its_result_and_a_snapshot_that_can_be_served(tmp_path: Path) -> None:
    path = write_job(tmp_path, DLRM, tables=collection("adagrad", 0.1), epochs=4, more="")
    run_job(path, tmp_path / "run", SoloWorld())
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["steps"] == 32
    assert result["metrics"].keys() == {"auc", "log_loss", "normalised_entropy"}
    assert (tmp_path / "run/curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run/events").glob("events.out.tfevents.*"))
    assert len(losses(tmp_path / "run")) == 32
    found = find_snapshot(tmp_path / "run")
    found.verify()
    assert found.version == 32
    updates = read_tensors(found, ["item.updates"])["item.updates"]
    assert updates[0] == 0, "nothing names the padding id"
    assert (updates[1:] > 0).all()


def test_a_model_of_ones_own_is_named_in_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Bias(torch.nn.Module):\n"
        "    def __init__(self, about, *, start):\n"
        "        super().__init__()\n"
        "        self.bias = torch.nn.Parameter(torch.tensor(float(start)))\n"
        "    def forward(self, inputs):\n"
        "        users = inputs.vectors['user_id'].sum(1) + self.bias\n"
        "        return (users - inputs.labels_B) ** 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    job = DLRM.replace('"dlrm"', '"mine:Bias"').replace("bottom = [8]\ntop = [16]", "start = 1")
    run_job(write_job(tmp_path, job, epochs=6), tmp_path / "run", SoloWorld())
    told = losses(tmp_path / "run")
    assert told[-1] < told[0]
    assert json.loads((tmp_path / "run/result.json").read_text())["metrics"].keys() == {"evaluation_loss"}


def test_a_row_that_two_features_read_moves_by_the_sum_of_both_gradients() -> None:
    """As autograd has it of one tensor; also where a rank's vectors are made of factors, and of ids without a row."""
    config = parse_config(
        {
            "collection": {"name": "tied", "seed": 1},
            "optimizer": {"kind": "sgd", "learning_rate": 0.5},
            "tables": [
                {"name": "item", "rows": 9, "dim": 4, "features": ["a", "b"], "scale": "sqrt_dim"},
                {"name": "low", "rows": 9, "dim": 4, "factor": {"kind": "low_rank", "rank": 2}, "features": ["c", "d"]},
            ],
        }
    )
    engine = LocalEngine(config, SoloWorld())
    leaves = {name: view.clone().requires_grad_() for name, view in engine.tensors().items() if name.endswith("weight")}
    ids = {"a": [1, 2, 2], "b": [2, 3, 1], "c": [4, 5, 5], "d": [5, 6, 4]}
    slopes = torch.randn(3, 4)

    def loss(vectors: dict[str, torch.Tensor]) -> torch.Tensor:
        return (vectors["a"] * vectors["b"].tanh() * vectors["c"] * slopes + vectors["d"].sigmoid()).sum()

    tables = Tables(engine)
    loss(tables(tables.read([FeatureBatch.of(name, of_it) for name, of_it in ids.items()]))).backward()
    tables.move()
    plain = {name: leaves["item.weight"][ids[name]] * 2 for name in "ab"} | {
        name: leaves["low.weight"][ids[name]] @ leaves["low:projection.weight"] for name in "cd"
    }
    loss(plain).backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(engine.tensors()[name], leaf.detach() - 0.5 * leaf.grad, atol=1e-6, rtol=0)
        assert leaf.grad.abs().max() > 0


def test_frozen_rows_tables_and_padding_stay_bit_for_bit(tmp_path: Path) -> None:
    base = write_job(tmp_path, DLRM, tables=collection("adagrad", 0.1) + VOCABULARY, epochs=1, more="")
    before = run_job(base, tmp_path / "base", SoloWorld())
    freeze = '[freeze]\ntables = ["tag"]\nids = { user_id = [3, 5], item_id = [7] }\n'
    path = write_job(tmp_path, DLRM, tables=collection("adagrad", 0.1) + VOCABULARY, start="base", more=freeze)
    after = run_job(path, tmp_path / "tuned", SoloWorld())
    for name in ("user", "item", "tag"):
        kept = {"user": [3, 5], "item": [0, 7], "tag": range(12)}[name]
        for kind in ("weight", "sum", "updates"):
            assert np.array_equal(after[f"{name}.{kind}"][list(kept)], before[f"{name}.{kind}"][list(kept)])
        others = np.setdiff1d(np.arange(len(after[f"{name}.weight"])), list(kept))
        assert (after[f"{name}.weight"][others] != before[f"{name}.weight"][others]).any(axis=1).all()
    drift = json.loads((tmp_path / "tuned/result.json").read_text())["drift"]
    assert drift["problems"] == []
    assert drift["tables"]["user"]["matrices"]["user"]["moved"] == 58


def test_a_job_that_is_killed_goes_on_from_its_last_checkpoint_with_the_same_curve(tmp_path: Path) -> None:
    path = write_job(tmp_path, DLRM, batch=16, epochs=3, more="[checkpoint]\nevery_steps = 7\n")
    run_job(path, tmp_path / "whole", SoloWorld())
    command = [sys.executable, "-m", "embershard.train", str(path), "--folder", str(tmp_path / "parts")]
    for until in (12, 70):
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stderr is not None
            assert any(line.startswith(f"step {until} of 96: loss ") for line in process.stderr), "it has ended before"
            process.kill()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "96 steps" in done.stdout
    np.testing.assert_allclose(losses(tmp_path / "parts"), losses(tmp_path / "whole"), atol=1e-6)


def test_a_job_that_is_asked_to_stop_writes_a_checkpoint_and_says_so(tmp_path: Path) -> None:
    path = write_job(tmp_path, DLRM, batch=16, epochs=10_000)
    command = [sys.executable, "-m", "embershard.train", str(path), "--folder", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("step ") for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
    assert process.returncode == 143, told
    assert find_snapshot(tmp_path / "run").version > 0


def _without(column: str) -> pa.Table:
    return lambda table: table.drop_columns([column])


def _with(column: str, values: Any) -> pa.Table:
    return lambda table: table.set_column(table.column_names.index(column), column, pa.array(values(len(table))))


@pytest.mark.parametrize(
    ("spoil", "error", "told"),
    [
        (_without("clicked"), EmbershardError, "clicked"),
        (_with("user_id", lambda n: [1.5] * n), EmbershardError, "user_id.*double"),
        (_with("clicked", lambda n: [1.0] * n), InvalidInput, "all 512 labels are 1: a model of clicks needs both"),
        (
            _with("clicked", lambda n: [2.0] * n),
            InvalidInput,
            "data.label: 2 is no label of a click, which is 0 or 1",
        ),
        (_with("user_id", lambda n: [60] * n), InvalidInput, r"'user_id': ids\[0\] = 60 is out of range; table 'user'"),
        (lambda table: table.slice(0, 0), EmbershardError, "there is no row"),
        (_with("number1", lambda n: [1e38] * n), TrainingError, "a gradient of step 1 is no number"),
    ],
    ids=["missing", "type", "one class", "labels", "ids", "empty", "not finite"],
)
def test_bad_data_is_told_and_leaves_a_sound_state(
    tmp_path: Path, spoil: Any, error: type[EmbershardError], told: str
) -> None:
    path = write_job(tmp_path, DLRM)
    data = tmp_path / "data.parquet"
    parquet.write_table(spoil(parquet.read_table(data)), data)
    with pytest.raises(error, match=told):
        run_job(path, tmp_path / "run", SoloWorld())
    data.unlink()
    result = run_job(write_job(tmp_path, DLRM), tmp_path / "run", SoloWorld())
    assert np.isfinite(result["user.weight"]).all()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("user_id = {}, ", "user_name = {}, "), r"job\.toml: data: 'user_name' is not in tables\.toml, which has"),
        (('"dlrm"', '"dlm"'), "model = 'dlm': give dlrm, two_tower, next_item, or package.module:Class"),
        (('"dlrm"', '"os:path"'), "model = 'os:path': is no torch.nn.Module"),
        (
            ("bottom = [8]", "botom = [8]"),
            r"'botom' among its model_options, which are bottom = \(64,\), top",
        ),
        (("batch = 64", "batch = 0"), r"job\.toml: batch = 0"),
        (('"SGD"', '"Sgd"'), "optimizer kind = 'Sgd': is not one of those of torch.optim that fit: .*SGD"),
        (("lr = 0.1", "rate = 0.1"), "optimizer kind = 'SGD': can't be made with these options"),
        (('label = "clicked"', ""), "data.label is missing"),
        (("[data]", "[date]"), r"job\.toml: date: unknown key; allowed here: collection, model"),
    ],
)
def test_a_job_file_that_makes_no_sense_is_refused(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = write_job(tmp_path, DLRM)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=told):
        run_job(path, tmp_path / "run", SoloWorld())


def test_sequences_that_are_too_long_are_cut_counted_and_told(tmp_path: Path) -> None:
    job = NEXT_ITEM.replace("history = {}", "history = { max_length = 4 }")
    run_job(write_job(tmp_path, job), tmp_path / "run", SoloWorld())
    histories = parquet.read_table(tmp_path / "data.parquet")["history"].slice(0, 512).to_pylist()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["cut"] == {"history": sum(len(history) > 4 for history in histories)}


def test_two_jobs_never_share_a_folder(tmp_path: Path) -> None:
    path = write_job(tmp_path, DLRM)
    with closing(Run(path, tmp_path / "run", SoloWorld())), pytest.raises(ConfigError, match="is in use by"):
        Run(path, tmp_path / "run", SoloWorld())


def test_another_model_doesnt_go_on_with_a_run(tmp_path: Path) -> None:
    run_job(write_job(tmp_path, DLRM), tmp_path / "run", SoloWorld())
    with pytest.raises(EmbershardError, match=r"begun with another job: .*model: 'two_tower' here"):
        run_job(write_job(tmp_path, MODELS["two_tower"]), tmp_path / "run", SoloWorld())


@pytest.mark.parametrize("model", ["two_tower", "next_item"])
def test_without_items_to_rank_evaluation_tells_the_loss_and_changes_nothing(tmp_path: Path, model: str) -> None:
    job = MODELS[model].replace('[evaluate]\nitems = "items.parquet"\n', "")
    once = run_job(write_job(tmp_path, job, epochs=2), tmp_path / "once", SoloWorld())
    often = run_job(
        write_job(tmp_path, job, epochs=2, more=SGD + "[evaluate]\nevery_steps = 3\n"), tmp_path / "often", SoloWorld()
    )
    result = json.loads((tmp_path / "often/result.json").read_text())
    assert result["metrics"].keys() == {"evaluation_loss"}
    for name, array in once.items():
        np.testing.assert_array_equal(often[name], array, err_msg=name)


def test_a_target_in_the_data_is_all_that_is_foreseen(tmp_path: Path) -> None:
    job = NEXT_ITEM.replace("history = {} }", "history = {}, item_id = {} }")
    with closing(Run(write_job(tmp_path, job), tmp_path / "run", SoloWorld())) as run:
        batch = next(iter(run.stream.epoch(0)))
        read, _ = run._trainer.prepare(batch, 0, ())
        inputs = Inputs(batch=batch, vectors=run._trainer.tables(read), peers=Peers(SoloWorld()), step=0)
        assert run.model(inputs).shape == (64,)


def test_a_folder_that_a_server_has_used_is_not_gone_on_with(tmp_path: Path) -> None:
    path = write_job(tmp_path, DLRM)
    run_job(path, tmp_path / "run", SoloWorld())
    with Service(collection(), tmp_path / "run") as service, Client(service.target) as client:
        client.assign({"user_id": [3]}, values={"user_id": np.ones((1, 8))})
    with pytest.raises(
        ConfigError, match=r"has snapshot 9 that no job has written.*go on in another --folder, with start"
    ):
        run_job(path, tmp_path / "run", SoloWorld())
    again = run_job(write_job(tmp_path, DLRM, start="run"), tmp_path / "on", SoloWorld())
    assert np.isfinite(again["user.weight"]).all()


def test_a_run_that_is_gone_on_with_heeds_other_options_of_the_optimizer(tmp_path: Path) -> None:
    before = run_job(write_job(tmp_path, DLRM, epochs=1), tmp_path / "run", SoloWorld())
    still = SGD.replace("0.1", "0.0")
    after = run_job(write_job(tmp_path, DLRM, epochs=2, more=still), tmp_path / "run", SoloWorld())
    assert np.array_equal(after["top.0.weight"], before["top.0.weight"])
    assert not np.array_equal(after["user.weight"], before["user.weight"])


def test_a_damaged_file_of_the_trainer_is_found(tmp_path: Path) -> None:
    path = write_job(tmp_path, DLRM)
    run_job(path, tmp_path / "run", SoloWorld())
    (file,) = (tmp_path / "run/trainer").iterdir()
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(EmbershardError, match=r"its digest is wrong.*; move it and the snapshot of its step away"):
        run_job(path, tmp_path / "run", SoloWorld())
