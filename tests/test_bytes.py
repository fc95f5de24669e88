"""What tables cost: learned numbers and real bytes are what is predicted, without anything being made."""

from __future__ import annotations

from typing import Any

import pytest
from support.implementation import Implementation
from support.scenario import collection

from embershard.engine.placement import bytes_of_tables, groups_of
from embershard.vocabulary import Vocabulary, bytes_of_vocabulary


@pytest.mark.parametrize(
    ("table", "parameters"),
    [
        ({"rows": 50_257, "dim": 768}, 38_597_376),  # GPT-2 small
        ({"rows": 128_256, "dim": 4096}, 525_336_576),  # Llama 3 8B
        ({"rows": 50_257, "dim": 768, "factor": {"kind": "low_rank", "rank": 64}}, 50_257 * 64 + 64 * 768),
        ({"rows": 50_257, "dim": 768, "factor": {"kind": "quotient_remainder"}}, 2 * 225 * 768 - 768),
    ],
)
def test_parameters_count_as_they_should(table: dict[str, Any], parameters: int) -> None:
    assert collection([{"name": "t", **table}]).tables[0].parameters == parameters


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("factor", "per_row"),
    [
        (None, {"t": (24, 8)}),
        ({"kind": "low_rank", "rank": 4}, {"t": (24, 4), "t:projection": (4, 8)}),
        ({"kind": "quotient_remainder"}, {"t:quotient": (5, 8), "t:remainder": (5, 8)}),
        ({"kind": "quotient_remainder", "combine": "concat"}, {"t:quotient": (5, 4), "t:remainder": (5, 4)}),
    ],
)
def test_real_bytes_are_what_is_predicted(
    optimizer: str, dtype: str, factor: dict[str, Any] | None, per_row: dict[str, tuple[int, int]]
) -> None:
    table = {"name": "t", "rows": 24, "dim": 8, "dtype": dtype, **({"factor": factor} if factor else {})}
    config = collection([table], kind=optimizer)
    implementation = Implementation(None)
    implementation.build(config)
    tensors = implementation.state()
    real = sum(array.nbytes for name, array in tensors.items() if name.endswith((".weight", ".sum")))
    by_hand = 0
    for name, (rows, dim) in per_row.items():
        number = 2 if dtype == "float16" and name != "t:projection" else 4
        by_hand += rows * (dim * number + {"sgd": 0, "adagrad": 4 * dim, "rowwise_adagrad": 4}[optimizer])
    assert real == by_hand == bytes_of_tables(groups_of(config, 1))["t"]


def test_a_vocabulary_takes_at_most_what_is_predicted() -> None:
    for rows in (100, 100_000, 300_000):
        ids = {"kind": "vocabulary", "fallback_rows": 10}
        table = collection([{"name": "t", "rows": rows, "dim": 4, "ids": ids}]).tables[0]
        assert 0.4 < Vocabulary(table).bytes / bytes_of_vocabulary(table) <= 1
