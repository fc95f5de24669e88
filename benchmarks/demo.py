"""The main job on real input: trains a recommender on MovieLens 100K, every parameter of which is in the service.

    python benchmarks/demo.py [--ranks N] [--epochs E] [--seed S]

Starts a server with deploy/movielens.toml (several ranks: under torchrun, tables cut row-wise over them), and then is an
ordinary client of it: looks rows up, works out the gradients in numpy, sends them back, batch after batch. Prints what
was learned and how fast the calls were; the last line is one JSON object. The status is 1 if the RMSE on ratings that
the training never saw is over 0.95.

Shape suffixes: B ratings in a batch, D numbers in a row, I items.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from movielens import DataError, MovieLens, load
from tqdm import tqdm

from embershard import Client, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CONFIG: Final = Path(__file__).parents[1] / "deploy" / "movielens.toml"
START_S: Final = 180
STOP_S: Final = 60
SERVES: Final = re.compile(rb"rank (\d+) of \d+ \(\w+ engine\) serves (\S+)")

USER_SIDE: Final = ("user_id", "age_group", "occupation", "gender", "zip_code")
ITEM_SIDE: Final = ("item_id", "genres")
BATCH: Final = 4_096
# Weight decay of each row that a rating reads. Chosen on other splits than that of the default seed.
L2: Final = 0.15
WORST_RMSE: Final = 0.95
WELL_KNOWN: Final = ("Star Wars (1977)", "Toy Story (1995)", "Silence of the Lambs, The (1991)")
# Films that few have rated are all alike: their vectors are little more than those of their genres.
RATED_ENOUGH: Final = 50

_Result = TypeVar("_Result")


class ServerError(Exception):
    """The server didn't start, or didn't stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call to the service while it was trained."""

    method: str
    """lookup or update."""
    seconds: float
    """As the client saw it."""
    rows: int
    """Ids that it named."""


# The server


@contextmanager
def served(ranks: int) -> Iterator[list[str]]:
    """Runs a server on free ports, with a state of its own that goes with it; gives the address of every rank.

    Raises:
        ServerError: it ends before it serves, takes too long to, or doesn't stop when asked to.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    with tempfile.TemporaryDirectory(prefix="embershard-demo-") as folder:
        flags = ["--config", str(CONFIG), "--listen", "127.0.0.1:0", "--data-dir", f"{folder}/state"]
        command = [sys.executable, *launcher, "-m", "embershard_server", *flags]
        path = Path(folder) / "server.log"
        try:
            with path.open("ab", buffering=0) as log, _process(command, log) as process:
                addresses = _addresses(process, ranks, log)
                # What else it prints must be read, or it would wait for us once the pipe is full.
                threading.Thread(target=shutil.copyfileobj, args=(process.stdout, log), daemon=True).start()
                yield addresses
        except Exception:
            print(f"the server's log:\n{path.read_text(errors='replace')}", file=sys.stderr)
            raise


@contextmanager
def _process(command: list[str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block; torchrun passes the signal on to its ranks, and waits for them."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise ServerError(f"the server didn't stop within {STOP_S} s, and was killed") from error


def _addresses(process: subprocess.Popen[bytes], ranks: int, log: Any) -> list[str]:
    """Reads the server's output until every rank has said where it serves."""
    assert process.stdout is not None
    found: dict[int, str] = {}
    too_late = threading.Timer(START_S, process.terminate)  # ends the loop below: the output ends
    too_late.start()
    try:
        with tqdm(total=ranks, desc="ranks that serve", bar_format="{desc}: {n_fmt}/{total_fmt} after {elapsed}") as bar:
            for line in process.stdout:
                log.write(line)
                if match := SERVES.match(line):
                    found[int(match[1])] = match[2].decode()
                    bar.update()
                if len(found) == ranks:
                    return [found[rank] for rank in range(ranks)]
    finally:
        too_late.cancel()
    raise ServerError(f"the server ended, or took over {START_S} s, before all of its {ranks} rank(s) served")


class Service:
    """The ranks of a service together: work is shared out over them, a thread a rank."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._clients = [Client(address) for address in addresses]
        for client in self._clients:
            client.wait_ready()
        self._threads = ThreadPoolExecutor(len(addresses))
        self.version = 0
        """Of the newest update that this process made."""
        self.calls: list[Call] = []
        """So far, since somebody last emptied it."""

    def close(self) -> None:
        """Ends the connections."""
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    def share_out(
        self, work: Callable[[Client, NDArray[np.int64]], _Result], places_B: NDArray[np.int64]
    ) -> list[_Result]:
        """Has each rank's client do its part of a batch, all at once; the results in the order of the parts."""
        return list(self._threads.map(work, self._clients, np.array_split(places_B, len(self._clients))))

    def lookup(self, client: Client, features: Mapping[str, Any]) -> Rows:
        """Looks up what all updates so far have made, whichever rank took them."""
        with self._measured("lookup", features):
            return client.lookup(features, min_version=self.version)

    def update(self, client: Client, features: Mapping[str, Any], gradients: Mapping[str, Any]) -> int:
        """Applies gradients; returns the version made."""
        with self._measured("update", features):
            return client.update(features, gradients=gradients)

    def assign(self, features: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Overwrites rows, through any rank."""
        self.version = self._clients[0].assign(features, values=values)

    @contextmanager
    def _measured(self, method: str, features: Mapping[str, Any]) -> Iterator[None]:
        rows = sum(len(ids[0]) if isinstance(ids, tuple) else len(ids) for ids in features.values())
        begun = time.perf_counter()
        yield
        self.calls.append(Call(method=method, seconds=time.perf_counter() - begun, rows=rows))


# The model: rating ≈ global bias + p₀ + q₀ + p₁·q₁ + p₂·q₂ + …, where p sums the rows of a person, q those of a film.


def summed(rows: Rows, side: Sequence[str]) -> NDArray[np.float32]:
    """The vectors [B, D] of people or of films."""
    return np.sum([rows[feature] for feature in side], axis=0)


def predict(rows: Rows) -> NDArray[np.float32]:
    """The ratings [B] that the model expects."""
    people_BD, films_BD = summed(rows, USER_SIDE), summed(rows, ITEM_SIDE)
    biases_B = rows["global_bias"][0, 0] + people_BD[:, 0] + films_BD[:, 0]
    return biases_B + (people_BD[:, 1:] * films_BD[:, 1:]).sum(axis=1)


def gradients_of(rows: Rows, errors_B: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The gradient of ½·error² + ½·L2·|row|² by every row that was looked up."""
    slopes: dict[str, NDArray[np.float32]] = {}
    for side, other in ((USER_SIDE, ITEM_SIDE), (ITEM_SIDE, USER_SIDE)):
        slope_BD = summed(rows, other)
        slope_BD[:, 0] = 1  # a bias counts once, whatever the other side
        slopes |= dict.fromkeys(side, errors_B[:, None] * slope_BD)
    gradients = {feature: slope_BD + L2 * rows[feature] for feature, slope_BD in slopes.items()}
    return gradients | {"global_bias": errors_B.sum().reshape(1, 1)}


# The job


def train(service: Service, data: MovieLens, places: NDArray[np.int64], *, epochs: int, seed: int) -> None:
    """Stochastic gradient descent in batches; the optimizer is the service's."""

    def step(client: Client, places_B: NDArray[np.int64]) -> tuple[float, int]:
        features = data.features(places_B)
        rows = service.lookup(client, features)
        errors_B = predict(rows) - data.stars_N[places_B]
        version = service.update(client, features, gradients_of(rows, errors_B))
        return float((errors_B**2).sum()), version

    generator = np.random.default_rng(seed)
    with tqdm(total=epochs * len(places), desc="training", unit=" ratings", unit_scale=True) as bar:
        for _ in range(epochs):
            squared = 0.0
            shuffled = generator.permutation(places)
            for start in range(0, len(shuffled), BATCH):
                done = service.share_out(step, shuffled[start : start + BATCH])
                service.version = max(version for _, version in done)
                squared += sum(error for error, _ in done)
                bar.update(min(BATCH, len(shuffled) - start))
            bar.set_postfix(rmse=f"{(squared / len(places)) ** 0.5:.3f}")


def rmse(service: Service, data: MovieLens, places: NDArray[np.int64]) -> float:
    """The root of the mean squared error of ratings, in batches."""

    def squared(client: Client, places_B: NDArray[np.int64]) -> float:
        stars_B = np.clip(predict(service.lookup(client, data.features(places_B))), 1, 5)
        return float(((stars_B - data.stars_N[places_B]) ** 2).sum())

    batches = np.array_split(places, -(-len(places) // BATCH))
    return (sum(sum(service.share_out(squared, places_B)) for places_B in batches) / len(places)) ** 0.5


def print_neighbours(service: Service, data: MovieLens) -> None:
    """Prints the films whose factors point the same way as those of well-known ones."""
    items_I = np.flatnonzero(np.bincount(data.items_N) >= RATED_ENOUGH)
    parts = service.share_out(
        lambda client, items_B: summed(service.lookup(client, data.item_features(items_B)), ITEM_SIDE), items_I
    )
    factors_ID = np.concatenate(parts)[:, 1:]
    factors_ID /= np.linalg.norm(factors_ID, axis=1, keepdims=True)
    titles_I = data.titles_I[items_I]
    print(f"nearest films, by cosine, of {len(items_I):,} that at least {RATED_ENOUGH} people rated:")
    for title in WELL_KNOWN:
        cosines_I = factors_ID @ factors_ID[titles_I == title][0]
        nearest = np.argsort(-cosines_I)[1:6]
        print(f"  {title}: " + "; ".join(f"{titles_I[place]} {cosines_I[place]:.2f}" for place in nearest))


def print_speed(calls: Sequence[Call], seconds: float) -> dict[str, float]:
    """Prints how the calls of the training went; returns the figures for the last line."""
    rows = sum(call.rows for call in calls)
    print(f"training: {len(calls) / seconds:,.1f} calls/s, {rows / seconds:,.0f} rows/s, {rows / len(calls):,.0f} a call")
    figures: dict[str, float] = {"rows_per_s": round(rows / seconds, 1)}
    for method in ("lookup", "update"):
        milliseconds = [call.seconds * 1e3 for call in calls if call.method == method]
        p50, p99 = (round(float(share), 3) for share in np.percentile(milliseconds, (50, 99)))
        print(f"{method}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, of {len(milliseconds):,} calls")
        figures |= {f"{method}_p50_ms": p50, f"{method}_p99_ms": p99}
    return figures


def run(service: Service, data: MovieLens, *, epochs: int, seed: int) -> dict[str, float]:
    """Trains on 80 of 100 ratings, and tells how well the others are foreseen and how fast it went."""
    shuffled = np.random.default_rng(seed).permutation(len(data.stars_N))
    held_out, seen = np.split(shuffled, [len(shuffled) // 5])
    service.assign({"global_bias": [0]}, {"global_bias": [[data.stars_N[seen].mean()]]})
    before = rmse(service, data, held_out)
    service.calls.clear()
    begun = time.perf_counter()
    train(service, data, seen, epochs=epochs, seed=seed)
    seconds, calls = time.perf_counter() - begun, service.calls.copy()
    after = rmse(service, data, held_out)
    print(f"RMSE of {len(held_out):,} held-out ratings: {before:.4f} before, {after:.4f} after training")
    print_neighbours(service, data)
    figures = {"rmse_before": round(before, 4), "rmse_after": round(after, 4), **print_speed(calls, seconds)}
    return figures


def main() -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description="Trains a recommender on MovieLens 100K over gRPC.")
    parser.add_argument("--ranks", type=int, default=1, help="1: the local engine; more: torchrun (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the ratings (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the split and the batches (default %(default)s)")
    options = parser.parse_args()
    if options.ranks < 1 or options.epochs < 1:
        parser.error("--ranks and --epochs must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped then, too
    try:
        data = load()
        with served(options.ranks) as addresses, closing(Service(addresses)) as service:
            figures = run(service, data, epochs=options.epochs, seed=options.seed)
    except (DataError, ServerError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures))
    if figures["rmse_after"] > WORST_RMSE:
        print(f"demo: the RMSE after training is over {WORST_RMSE}: something is wrong", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
