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
_NOTES: Final = {
    "": (
        "Mean and standard deviation over seeds; seconds of learning and evaluation of one seed, by one thread on",
        "a machine of two cores that others used at the time: they tell orders of magnitude. All read the same",
        "files and are measured by `embershard.train.metrics`. Settings were chosen by seed 0 on validation data",
        "that are cut off what is learned of. Those of the jobs were chosen by hand, as told below, and those of",
        "others from a grid, all of which is in training_quality.json (`tried`): neither is at its best. More was",
        "tried of some than of others, as is told. The grids of ALS and BPR were drawn round the best of 18 and 12",
        "settings that were tried on the same validation data before. What evaluates chose nothing, but each",
        "MovieLens job had been measured on it once before it was tuned. The spread over seeds isn't that over",
        "people: of 943 people, a Recall@10 of 0.2 has a standard error of 0.013, if each has one item to find.",
    ),
    "movielens_ctr": (
        "Seven tenths of the ratings that evaluate are by people who come with them (of the validation data more",
        "than eight): for them a model of ids has only the film, and attributes. Tried of the job, 11 settings,",
        "each looked at after every epoch: batches of 256, 1,024 and 4,096; top [64, 32], [32], [16]; with and",
        "without vectors; rates of rows 0.01, 0.02, 0.05, of layers 1e-3, 3e-3; AdamW; without zip_code, without",
        "user_id; one to eight epochs: log loss is best after three. On validation data the job was level with",
        "logistic regression (AUC 0.695 both) and ahead of factorisation (0.688), for which fewer settings were",
        "tried; on what evaluates, factorisation is ahead. Before it was tuned, one seed had AUC 0.715 and log",
        "loss 0.624.",
    ),
    "movielens_retrieval": (
        "Tried of the job, 25 settings, each looked at after every few epochs, and one more that was cut off: dot",
        "products and cosine; temperatures 0.1, 0.15, 0.2, 0.25; adagrad, rowwise_adagrad and sgd, with one to",
        "four rates each; dims 16 to 128; init 0.01 to 0.1; batches of 128, 512, 2,048; with and without the",
        "correction for popularity, without which it is below popularity. With user_id alone as the person, the",
        "best of these had NDCG@10 0.1435 on validation data, less than ALS; the history brought 0.179 at dim 64",
        "(0.183 at 128, which takes longer), and the job as it is, whose films start from smaller rows than in",
        "those trials, had 0.185, which was looked at last and chose nothing. ALS has the same films of a person,",
        "but as a set: whether the order or the model matters wasn't told apart. Before it was tuned, one seed had",
        "Recall@10 0.119 and NDCG@10 0.124.",
    ),
    "movielens_next_item": (
        "Leave one out: everybody's last film, among all that they hadn't rated. Tried of the job, two settings to",
        "their end: dropout 0.3 with two blocks, up to 15 epochs, still rising; 0.5 with one block and rate 0.03,",
        "up to 18. ALS, BPR and popularity don't see the order. Before it was tuned, with batches of 128 and 40",
        "epochs, one seed had Recall@10 0.203 and NDCG@10 0.108: what was gained is epochs, not quality. That",
        "setting wasn't measured on validation data: its run was given up.",
    ),
    "online_retail_next_item": (
        "No `seen`: shops buy the same again, and counting what they bought is better than this job. Tried of the",
        "job, four settings, on 4,000 queries of the validation data, where counting what they had bought came to",
        "Recall@10 0.079: batches of 256 and 512, dropout 0.1 and 0.2, rates of rows 0.05 and 0.1, of layers 1e-3",
        "and 2e-3, histories of 20 and, for an epoch, of 50, one to four epochs: it was best after three. All rows",
        "train, with all products to choose from.",
    ),
}
"""What is to be said of all, and of each job."""


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
    (FOLDER / "training_quality.json").write_text(json.dumps(document, indent=1, default=_named) + "\n")
    (FOLDER / "training_quality.md").write_text("\n".join(_lines(found, tried)) + "\n")


def _named(path: Path) -> str:
    """Not where it is, which differs from machine to machine."""
    return path.name


def _lines(found: Sequence[Record], tried: Sequence[Record]) -> list[str]:
    lines = [
        "# How good trained models are",
        "",
        *_NOTES[""],
    ]
    for task in dict.fromkeys(record["task"] for record in found):
        of_task = _by_method(task, found)
        names = list(of_task[OURS][0]["metrics"])
        lines += [
            "",
            f"## {task}",
            "",
            *_NOTES[task],
            "",
            f"| | {' | '.join(names)} | seeds | seconds |",
            "|---" * (len(names) + 3) + "|",
        ]
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
