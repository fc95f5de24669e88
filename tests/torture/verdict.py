"""Whether what was told is what must have been."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from embershard import codec
from embershard.config import Config
from embershard.engine.entries import Kind
from embershard.engine.pipeline import Record
from embershard.store.id_files import read_clients, read_id_file
from embershard.store.manifest import Snapshot, open_snapshot
from embershard.store.snapshot import read_tensors
from embershard.v1 import embershard_pb2 as pb
from torture import requests
from torture.history import Ack, Done, History, Seen
from torture.model import Model


class Verdict:
    """Follows the log with a model, some versions behind."""

    def __init__(self, config: Config, history: History, folder: Path, ranks: int) -> None:
        self._ranks = ranks
        self._history, self._model = history, Model(config, folder)
        self._vocabularies = [table.name for table in config.tables if table.ids.kind == "vocabulary"]
        self._checked: set[int] = set()
        self._acks: list[Ack] = []
        self._done: list[Done] = []
        self._seen: defaultdict[int, list[Seen]] = defaultdict(list)
        self._pinned: list[Seen] = []

    @property
    def version(self) -> int:
        """How far the model is."""
        return self._model.version

    def follow(self, last: int) -> None:
        """Up to a version of the log, after which nothing that was told before may come in late."""
        self._take()
        self._check_version()
        while self.version < last:
            record = self._history.records[self.version + 1]
            if not self._was_sent(record):
                self._history.fail(f"version {record.version} is a {record.kind.name} that nobody has sent")
            self._model.apply(record)
            self._history.counts["versions"] += 1
            self._check_version()
        for version in [version for version in self._seen if version < last]:
            for seen in self._seen.pop(version):
                self._history.fail(f"a lookup of version {seen.version} came in late")
        self._check_pinned()
        self._acks = [ack for ack in self._acks if ack.version > last or self._check_ack(ack)]
        self._done = [done for done in self._done if done.version > last or self._check_done(done)]

    def end(self) -> None:
        """Nothing is left over: what was acknowledged must be there."""
        for ack in self._acks:
            self._history.fail(f"{ack.client}: update {ack.sequence} was acknowledged as {ack.version}, and is lost")
        for version in self._seen:
            self._history.fail(f"version {version} was read, and is lost")
        for version in self._history.snapshots.keys() - self._checked:
            self._history.fail(f"the snapshot of version {version} is of a version that the log never had")

    def _take(self) -> None:
        history = self._history
        (acks, history.acks), (done, history.done) = (history.acks, []), (history.done, [])
        seen, history.seen = history.seen, []
        self._acks += acks
        self._done += done
        for one in seen:
            if one.pinned:
                self._pinned.append(one)
            elif one.version < self.version:
                history.fail(f"a lookup of version {one.version} came in late")
            else:
                self._seen[one.version].append(one)

    def _was_sent(self, record: Record) -> bool:
        match record.kind:
            case Kind.SIGHT:
                return True  # the server has made it of lookups
            case Kind.ROLLBACK:
                return pb.ActivateRequest.FromString(record.request).version == self._model.before
        return record.request in self._history.sent

    def _check_version(self) -> None:
        self._check_snapshots()
        for seen in self._seen.pop(self.version, []):
            self._check_seen(seen, self._model.lookup(pb.LookupRequest.FromString(seen.request)))

    def _check_ack(self, ack: Ack) -> None:
        where = f"{ack.client}: update {ack.sequence}, told as version {ack.version},"
        version = self._model.applied.get((ack.client, ack.sequence))
        if version is None:
            self._history.fail(f"{where} isn't applied")
        elif version > ack.version or (version != ack.version and (ack.recent or not ack.duplicate)):
            self._history.fail(f"{where} is version {version}")
        elif ack.recent and self._history.records[version].request not in ack.sent:
            self._history.fail(f"{where} is another than was sent")

    def _check_done(self, done: Done) -> None:
        if self._history.records[done.version].request != done.request:
            self._history.fail(f"version {done.version} isn't what an operator was told")

    def _check_pinned(self) -> None:
        by_version = defaultdict(list)
        for seen in self._pinned:
            if seen.version <= self.version:
                by_version[seen.version].append(seen)
        self._pinned = [seen for seen in self._pinned if seen.version > self.version]
        for version, of_it in by_version.items():
            session = self._model.session_of(version)
            for seen in of_it:
                self._check_seen(seen, self._model.lookup(pb.LookupRequest.FromString(seen.request), session))

    def _check_seen(self, seen: Seen, found: Any) -> None:
        self._history.counts["lookups compared"] += 1
        answer = codec.decode_answer(seen.response, pb.D_TYPE_FLOAT32)
        for number, (feature, vectors) in enumerate(answer.items()):
            wanted = [(vectors, found.vectors[number].numpy())]
            if feature in answer.provenance:
                counts = found.counts[number]
                wanted.append((answer.provenance[feature], counts.provenance_N))
            if feature in answer.updates:
                wanted += [(answer.updates[feature], counts.updates_N), (answer.sightings[feature], counts.sightings_N)]
            if not all(self._alike(feature, told, true) for told, true in wanted):
                pinned = ", pinned," if seen.pinned else ""
                self._history.fail(f"version {seen.version}{pinned} has other vectors of {feature} than were told")

    def _alike(self, name: str, told: Any, true: Any) -> bool:
        """Bit for bit; but ranks add up the gradients of a projection in another order than one process does."""
        if self._ranks and name.startswith(requests.PROJECTED):
            return np.allclose(told, true, rtol=1e-4, atol=1e-5)
        return np.array_equal(told, true)

    def _check_snapshots(self) -> None:
        """Those of the model's version, and those that were completed late."""
        due = [version for version in self._history.snapshots if version <= self.version]
        for version in sorted({*due} - self._checked):
            self._checked.add(version)
            kept = self._model.keep() if version == self.version else self._model.kept(version)
            if kept is None:
                self._history.fail(f"the snapshot of version {version} was completed long after")
                continue
            self._compare(open_snapshot(self._history.snapshots[version]), kept)
            self._history.counts["snapshots compared"] += 1

    def _compare(self, found: Snapshot, kept: Snapshot) -> None:
        where = f"the snapshot of version {kept.version}"
        found.verify()
        if found.tensors.keys() != kept.tensors.keys():
            self._history.fail(f"{where} has other tensors than the model")
            return
        told, true = read_tensors(found, found.tensors), read_tensors(kept, kept.tensors)
        for name in told:
            if not self._alike(name, told[name].numpy(), true[name].numpy()):
                self._history.fail(f"{where} has another {name} than the model")
        for table in self._vocabularies:
            mine, theirs = (_sorted(read_id_file(one.path, table)) for one in (found, kept))
            for key in theirs:
                if not np.array_equal(mine[key], theirs[key]):
                    self._history.fail(f"{where} has other {key} in the vocabulary of {table} than the model")
        if _clients(read_clients(found.path)) != self._model.clients[kept.version]:
            self._history.fail(f"{where} has other clients than the model")


def _sorted(state: dict[str, Any]) -> dict[str, Any]:
    """Slots of candidates mean nothing: those of the same keys are the same."""
    order = np.argsort(state["candidate_keys"])
    return {key: array[order] if key.startswith("candidate_") else array for key, array in state.items()}


def _clients(state: dict[str, Any]) -> dict[str, tuple[int, list[int]]]:
    names = state.get("names", [])
    rows = zip(names, state["sequences"].tolist(), state["versions"].tolist(), strict=True) if names else []
    return {name: (sequence, [version for version in versions if version]) for name, sequence, versions in rows}
