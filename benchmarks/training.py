"""Steps of a training job, against the same model written directly on TorchRec, and on nn.EmbeddingBag with DDP.

    python benchmarks/training.py [--worlds 1,2] [--bags 1,10] [--batch B] [--rounds R]

DLRM with 26 features, of one id each or in bags, and 13 numbers; ids by Zipf's law, made beforehand. The three take
turns in one group of ranks, some steps each, all with one thread a rank; medians over the rounds, in
results/training.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from processes import on_ranks
from serving import measured_on

from embershard.quiet import quieten

FEATURES, DENSE, DIM, ROWS = 26, 13, 64, 100_000
BOTTOM, TOP = [128, 64], [128, 64]
STEPS: Final = 5
RATE: Final = 0.05
RESULTS: Final = Path(__file__).parent / "results" / "training.json"
NAMES: Final = [f"f{number}" for number in range(FEATURES)]


def rank_main(batch: int, bag: int, rounds: int) -> None:
    """One rank: measures, and rank 0 prints a line of JSON."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    from embershard.engine.world import TorchWorld

    world = TorchWorld(timeout_s=120)
    batches = _batches(batch, bag, world.rank, world.size)
    contenders: dict[str, Callable[[int], Any]] = {
        "embershard": _ours(batches, world),
        "torchrec": _on_torchrec(batches, world.size),
        "ddp": _on_ddp(batches),
    }
    if world.size == 1:
        contenders["embershard, local engine"] = _ours(batches, None)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, step in contenders.items():
            dist.barrier()
            start = time.perf_counter()
            for at in range(STEPS):
                step(number * STEPS + at)
            if number:  # the first warms up
                seconds[name].append((time.perf_counter() - start) / STEPS)
    if world.rank == 0:
        print(json.dumps({name: [batch / s for s in taken] for name, taken in seconds.items()}), flush=True)
    world.leave()
    os._exit(0)  # gloo's threads have crashed processes that end with DistributedDataParallel still there


def _batches(batch: int, bag: int, rank: int, size: int) -> list[Any]:
    """This rank's shares of some global batches; every feature of every example has `bag` ids."""
    import numpy as np

    from embershard.train.batches import Batch
    from embershard.types import FeatureBatch

    made = []
    for number in range(8):
        random = np.random.default_rng(number)
        share = slice(*(np.array([rank, rank + 1]) * batch // size))
        drawn = {name: random.zipf(1.2, (batch, bag)) * 2654435761 % ROWS for name in NAMES}
        ids = {name: of_all.astype(np.int64)[share].reshape(-1) for name, of_all in drawn.items()}
        dense = random.normal(size=(batch, DENSE)).astype(np.float32)[share]
        labels = random.integers(0, 2, batch).astype(np.float32)[share]
        lengths = None if bag == 1 else np.full(len(labels), bag, np.int32)
        features = {name: FeatureBatch(feature=name, ids=values, lengths=lengths) for name, values in ids.items()}
        made.append(
            Batch(
                features=features,
                labels_B=labels,
                dense_BF=dense,
                examples=len(labels),
                global_examples=batch,
                position=number + 1,
            )
        )
    return made


def _ours(batches: list[Any], world: Any) -> Callable[[int], Any]:
    """As `embershard train` does a step."""
    from embershard.config import parse_config
    from embershard.engine.local import LocalEngine
    from embershard.engine.making import make_engine
    from embershard.engine.world import SoloWorld
    from embershard.train.job import DenseOptimizerSpec
    from embershard.train.model import About
    from embershard.train.models.dlrm import DLRM
    from embershard.train.peers import Peers
    from embershard.train.tables import Tables
    from embershard.train.trainer import Trainer

    config = parse_config(
        {
            "collection": {"name": "bench", "seed": 1},
            "optimizer": {"kind": "rowwise_adagrad", "learning_rate": RATE},
            "tables": [{"name": name, "rows": ROWS, "dim": DIM, "pooling": "sum"} for name in NAMES],
        }
    )
    engine = make_engine(config, world) if world is not None else LocalEngine(config, SoloWorld())
    about = About(tables={t.name: t for t in config.tables}, features=NAMES, dense=DENSE, seed=1)
    optimizer = DenseOptimizerSpec(kind="SGD", options={"lr": RATE})
    trainer = Trainer(Tables(engine), DLRM(about, bottom=BOTTOM, top=TOP), optimizer, peers=Peers(engine.world), seed=0)

    def step(number: int) -> None:
        batch = batches[number % len(batches)]
        read, _ = trainer.prepare(batch, number, [0, 0, 0])
        trainer.learn(read, batch, number)

    return step


def _layers() -> Any:
    """The same layers, by the same code."""
    from embershard.config import parse_config
    from embershard.train.model import About
    from embershard.train.models.dlrm import DLRM

    tables = [{"name": name, "rows": ROWS, "dim": DIM, "pooling": "sum"} for name in NAMES]
    config = parse_config({"collection": {"name": "bench", "seed": 1}, "tables": tables})
    about = About(tables={t.name: t for t in config.tables}, features=NAMES, dense=DENSE, seed=1)
    return DLRM(about, bottom=BOTTOM, top=TOP)


def _loss(layers: Any, vectors: dict[str, Any], batch: Any) -> Any:
    from types import SimpleNamespace

    import torch

    inputs = SimpleNamespace(
        one_each=vectors.__getitem__,
        dense_BF=torch.from_numpy(batch.dense_BF),
        labels_B=torch.from_numpy(batch.labels_B),
    )
    return layers(inputs).mean()


def _on_torchrec(batches: list[Any], size: int) -> Callable[[int], Any]:
    """As a user of TorchRec writes it: EmbeddingBagCollection in DistributedModelParallel, fused row-wise Adagrad."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torch import nn
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingPlan, ShardingType

    class RowWise(EmbeddingBagCollectionSharder):  # type: ignore[misc]  # TorchRec has no types
        """TorchRec's own leaves row-wise out for CPUs, where it works."""

        def sharding_types(self, compute_device_type: str) -> list[str]:  # noqa: ARG002
            return [ShardingType.ROW_WISE.value]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [
                EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name])
                for name in NAMES
            ]
            self.tables, self.layers = EmbeddingBagCollection(tables=tables, device=torch.device("meta")), _layers()

        def forward(self, ids: KeyedJaggedTensor, batch: Any) -> Any:
            return _loss(self.layers, self.tables(ids).to_dict(), batch)

    model = Model()
    sharder = RowWise(fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": RATE})
    plan = construct_module_sharding_plan(
        model.tables,
        {name: row_wise(compute_kernel="fused") for name in NAMES},
        sharder=sharder,
        local_size=size,
        world_size=size,
        device_type="cpu",
    )
    parallel = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan={"tables": plan}), sharders=[sharder]
    )
    optimizer = torch.optim.SGD(model.layers.parameters(), lr=RATE)

    def step(number: int) -> None:
        batch = batches[number % len(batches)]
        values = torch.cat([torch.from_numpy(batch.features[name].ids) for name in NAMES])
        bags = batch.examples * len(NAMES)
        lengths = torch.full((bags,), len(values) // bags, dtype=torch.int32)
        loss = parallel(KeyedJaggedTensor(keys=NAMES, values=values, lengths=lengths), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _on_ddp(batches: list[Any]) -> Callable[[int], Any]:
    """As PyTorch alone does it: sparse gradients of nn.EmbeddingBag, and a copy of all tables on every rank."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleDict({name: nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for name in NAMES})
            self.layers = _layers()

        def forward(self, batch: Any) -> Any:
            vectors = {
                name: self.tables[name](torch.from_numpy(batch.features[name].ids).reshape(batch.examples, -1))
                for name in NAMES
            }
            return _loss(self.layers, vectors, batch)

    model = Model()
    parallel = DistributedDataParallel(model)
    optimizers = [
        torch.optim.Adagrad(model.tables.parameters(), lr=RATE),
        torch.optim.SGD(model.layers.parameters(), lr=RATE),
    ]

    def step(number: int) -> None:
        parallel(batches[number % len(batches)]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def main() -> None:
    """Runs all worlds and kinds of bags, and writes what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="1,2", help="numbers of ranks (default %(default)s)")
    parser.add_argument("--bags", default="1,10", help="ids of a feature (default %(default)s)")
    parser.add_argument("--batch", type=int, default=2048, help="examples of all ranks (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each (default %(default)s)")
    options = parser.parse_args()
    quieten()
    if "RANK" in os.environ:
        rank_main(options.batch, int(options.bags), options.rounds)
        return
    runs = []
    for bag in map(int, options.bags.split(",")):
        for world in map(int, options.worlds.split(",")):
            flags = "--batch", options.batch, "--bags", bag, "--rounds", options.rounds
            rates: dict[str, list[float]] = on_ranks(__file__, world, *flags)  # examples a second, one a round
            medians = {name: median(of_one) for name, of_one in rates.items()}
            runs.append({"world_size": world, "bag": bag, "examples_per_s": rates, "medians": medians})
            print(f"{world} ranks, {bag} ids a feature, examples/s: {medians}")
            for name, rate in medians.items():
                if name.startswith("embershard"):
                    beside = {peer: round(rate / medians[peer], 2) for peer in ("torchrec", "ddp")}
                    runs[-1][f"{name}, times"] = beside
                    print(f"  {name}: {beside['torchrec']} × TorchRec, {beside['ddp']} × nn.EmbeddingBag with DDP")
    model = {"batch": options.batch, "features": FEATURES, "dense": DENSE, "dim": DIM, "rows": ROWS}
    model |= {"bottom": BOTTOM, "top": TOP}
    RESULTS.write_text(json.dumps({"measured_on": measured_on(), "model": model, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
