"""Publishes what a training job has made to a running service: in full, or what has changed since.

    publisher = Publisher("127.0.0.1:50051", publisher="nightly", world=world)
    publisher.full(snapshot)                      # as an activation: what was served stays, for a rollback
    touched = Touched(engine)                     # from the step of that snapshot on
    …                                             # train
    publisher.delta(touched.take())               # the service serves it within a second

Whatever breaks is tried again until `timeout_s` have passed: uploads go on from where they ended, and a publication is
served once, by its publisher and number.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from embershard.client import Client, Security
from embershard.client.delivery import LONGEST_WAIT_S, Waits
from embershard.client.sync import client_of
from embershard.client.wire import PIECE_BYTES
from embershard.config import fingerprint_of
from embershard.engine.publication import StagedFile
from embershard.errors import (
    DeadlineExceeded,
    EmbershardError,
    InternalError,
    Overloaded,
    SnapshotError,
    Unavailable,
)
from embershard.store.delta_files import write_delta_file
from embershard.store.manifest import MANIFEST
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from embershard.engine.touched import Changes
    from embershard.engine.world import World
    from embershard.store.manifest import Snapshot

_Result = TypeVar("_Result")

TIMEOUT_S = 600.0
"""Longest that one publication may take."""
_PATIENCE = 2
"""Ranks wait for each other for so many times as long."""

Told = Callable[[int, int], object]
"""Is told how many bytes of all this rank's files the service has, and how many they are."""


class Publisher:
    """One a rank of a training job; its methods are joint, on the thread that trains or on any other: ranks meet by
    `World.meet`. One publication is made at a time."""

    def __init__(
        self,
        client: Client | str,
        *,
        publisher: str,
        world: World,
        number: int = 0,
        timeout_s: float = TIMEOUT_S,
        told: Told = lambda _done, _all: None,
        security: Security | None = None,
    ) -> None:
        """`publisher` names the job: letters, digits, '_', '.' and '-'. `number` is that of its last publication.
        `security` is that of a client which is made here, of HOST:PORT."""
        self._client, self._owns_client = client_of(client, security)
        self.publisher, self.number = publisher, number
        self._world, self._timeout_s, self._told = world, timeout_s, told
        self._in_doubt = 0
        """The number of a publication of which nobody knows whether it was served."""

    def close(self) -> None:
        """Ends the connection, unless it was handed in."""
        if self._owns_client:
            self._client.close()

    def full(self, snapshot: Snapshot) -> pb.PublishResponse:
        """Joint: serves a snapshot in place of all tables; every rank sends a share of its files.

        Raises:
            FingerprintMismatch: the service has another collection.
            DeadlineExceeded: it couldn't be done in time; it may have been served.
            EmbershardError: why it is refused; nothing was changed.
        """
        manifest = snapshot.manifest

        def files(_number: int, _folder: Path) -> Mapping[Path, StagedFile]:
            listed = [
                StagedFile(name=name, size=told["bytes"], sha256=told["sha256"])
                for name, told in sorted(manifest["files"].items())
            ]
            mine = listed[self._world.rank :: self._world.size]
            if self._world.rank == 0:
                mine.append(_described(snapshot.path / MANIFEST))
            return {snapshot.path / file.name: file for file in mine}

        return self._publish(files, manifest["layout"], delta=False)

    def delta(self, changes: Changes) -> pb.PublishResponse:
        """Joint: serves what has changed since the publication before; every rank sends its own rows.

        If it fails, `Touched.put_back` has the next delta bring these changes, too; after SequenceGap, which says that
        the service has other tables than the delta builds on, publish in full.

        Raises:
            SequenceGap: it builds on another publication than the service has.
            FingerprintMismatch, DeadlineExceeded, EmbershardError: as `full`.
        """

        def files(number: int, folder: Path) -> Mapping[Path, StagedFile]:
            file = write_delta_file(folder, self.publisher, number, changes)
            return {folder / file.name: file}

        return self._publish(files, changes.layout, delta=True)

    def _publish(
        self, files: Callable[[int, Path], Mapping[Path, StagedFile]], layout: Mapping[str, Any], *, delta: bool
    ) -> pb.PublishResponse:
        deadline = time.monotonic() + self._timeout_s
        first = self._world.rank == 0
        number, piece_bytes = self._agreed(lambda: self._begin(deadline, delta=delta) if first else (0, 0))[0]
        with ExitStack() as stack:

            def made() -> Mapping[Path, StagedFile]:
                return files(number, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="embershard-"))))

            mine = self._agreed(made)[self._world.rank]
            try:
                answer = self._send(number, mine, piece_bytes, deadline, layout, delta=delta)
            except SnapshotError:  # what was left behind of other files is gone now
                answer = self._send(number, mine, piece_bytes, deadline, layout, delta=delta)
        self.number, self._in_doubt = number, 0
        return answer

    def _begin(self, deadline: float, *, delta: bool) -> tuple[int, int]:
        """The number of the next publication, and how large the pieces of its files are."""
        described = self._until(deadline, 0, lambda left_s: self._client.describe(timeout_s=left_s))
        there = described.published.number if described.published.publisher == self.publisher else 0
        last = self.number
        if there == self._in_doubt or not delta:
            last = max(last, there)
        return last + 1, min(PIECE_BYTES, described.limits.message_bytes // 2)

    def _send(
        self,
        number: int,
        mine: Mapping[Path, StagedFile],
        piece_bytes: int,
        deadline: float,
        layout: Mapping[str, Any],
        *,
        delta: bool,
    ) -> pb.PublishResponse:
        """Joint: sends what the service doesn't have yet of the files, and has them served."""
        staged = self._agreed(lambda: self._stage(number, mine, piece_bytes, deadline))
        request = pb.PublishRequest(
            publisher=self.publisher,
            number=number,
            delta=delta,
            files=[
                pb.StagedFile(name=file.name, size=file.size, sha256=bytes.fromhex(file.sha256))
                for of_rank in staged
                for file in of_rank
            ],
            layout=json.dumps(layout),
            fingerprint=fingerprint_of(dict(layout)),
        )

        def commit() -> pb.PublishResponse:
            return self._until(deadline, number, lambda left_s: self._client.publish(request, timeout_s=left_s))

        self._in_doubt = number
        return self._agreed(commit if self._world.rank == 0 else pb.PublishResponse)[0]

    def _stage(
        self, number: int, files: Mapping[Path, StagedFile], piece_bytes: int, deadline: float
    ) -> Sequence[StagedFile]:
        """Sends files, each from where it ends on the service's disk."""
        whole, before = sum(file.size for file in files.values()), 0
        for path, file in files.items():
            with path.open("rb") as source:
                there = self._until(
                    deadline,
                    number,
                    lambda left_s, name=file.name, source=source, before=before: self._client.stage(  # type: ignore[misc]
                        self.publisher,
                        number,
                        name,
                        source,
                        piece_bytes=piece_bytes,
                        told=lambda done: self._told(before + done, whole),
                        timeout_s=left_s,
                    ),
                )
            if there != file.size:
                raise SnapshotError(
                    f"{self._client.target}: has {there:,} bytes of {file.name}, which has {file.size:,} here: another "
                    f"job publishes as {self.publisher!r}; give this one another name"
                )
            before += file.size
        return [*files.values()]

    def _until(self, deadline: float, number: int, call: Callable[[float], _Result]) -> _Result:
        """Calls again while the service is away or busy, given the seconds that are left."""
        waits = Waits(deadline)
        while True:
            try:
                return call(max(deadline - time.monotonic(), 0.001))
            except (Unavailable, Overloaded, DeadlineExceeded) as error:
                over = isinstance(error, DeadlineExceeded) or deadline - time.monotonic() <= 2 * LONGEST_WAIT_S
                try:
                    wait_s = waits.after(error)
                except EmbershardError:
                    if not over:
                        raise
                    raise DeadlineExceeded(
                        f"publication {number or self.number + 1:,} of {self.publisher!r} couldn't be made within "
                        f"{self._timeout_s:g} s: {error}"
                    ) from error
                time.sleep(wait_s)

    def _agreed(self, work: Callable[[], _Result]) -> list[_Result]:
        """Joint: what it makes on every rank; an error of one is raised on all."""
        result, failure = None, None
        try:
            result = work()
        except EmbershardError as error:
            failure = error
        except Exception as error:  # the others wait, and must hear of it, whatever it is
            failure = InternalError(f"rank {self._world.rank} can't publish: {type(error).__name__}: {error}")
            failure.__cause__ = error
        told = self._world.meet(f"publisher/{self.publisher}", (result, failure), timeout_s=_PATIENCE * self._timeout_s)
        if failure:
            raise failure
        for _, of_other in told:
            if of_other:
                raise of_other
        return [of_rank for of_rank, _ in told]


def _described(path: Path) -> StagedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StagedFile(name=path.name, size=path.stat().st_size, sha256=digest)
