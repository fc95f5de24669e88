"""A real learned table, GloVe's 10,000 most frequent words, loaded and asked through gRPC on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.implementation import Array
from support.service import Service

from embershard import Client

DATA = Path(__file__).parents[2] / "shared" / "data" / "glove_top10k"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/glove_top10k, which isn't here")

CONFIG = """
[collection]
name = "glove"
[[tables]]
name = "word"
rows = 10_000
dim = 50
"""
NEIGHBOURS = {
    "king": {"prince": 0.824, "queen": 0.784, "ii": 0.775},
    "run": {"running": 0.880, "runs": 0.845, "went": 0.845},
}
ANALOGIES = {("king", "man", "woman"): ("queen", 0.861), ("paris", "france", "germany"): ("berlin", 0.918)}


class Glove:
    """The table as the service answers it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.words = (DATA / "glove_top10k_vocab.txt").read_text().split()
        self._number = {word: number for number, word in enumerate(self.words)}
        rows_ND = client.lookup({"word": np.arange(10_000)})["word"]
        self._unit_ND = rows_ND / np.linalg.norm(rows_ND, axis=1, keepdims=True)

    def __getitem__(self, word: str) -> Array:
        return self._client.lookup({"word": [self._number[word]]})["word"][0]

    def nearest(self, vector_D: Array, count: int, without: set[str]) -> dict[str, float]:
        cosine_N = self._unit_ND @ vector_D / np.linalg.norm(vector_D)
        best = (self.words[number] for number in np.argsort(-cosine_N))
        chosen = [word for word, _ in zip((word for word in best if word not in without), range(count), strict=False)]
        return {word: round(float(cosine_N[self._number[word]]), 3) for word in chosen}


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def glove(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glove]:
    with (
        Service(CONFIG, tmp_path_factory.mktemp("glove"), ranks=request.param) as service,
        Client(service.target) as client,
    ):
        rows_ND = np.load(DATA / "glove_top10k_50d.npy", allow_pickle=False)
        client.assign({"word": np.arange(10_000)}, values={"word": rows_ND})
        np.testing.assert_array_equal(client.lookup({"word": np.arange(10_000)})["word"], rows_ND)
        yield Glove(client)


@pytest.mark.parametrize("word", NEIGHBOURS)
def test_neighbours_are_those_of_the_data_sets_page(glove: Glove, word: str) -> None:
    assert glove.nearest(glove[word], 3, {word}) == NEIGHBOURS[word]


@pytest.mark.parametrize("words", ANALOGIES)
def test_analogies_are_those_of_the_data_sets_page(glove: Glove, words: tuple[str, str, str]) -> None:
    first, minus, plus = words
    answer, cosine = ANALOGIES[words]
    assert glove.nearest(glove[first] - glove[minus] + glove[plus], 1, set(words)) == {answer: cosine}
