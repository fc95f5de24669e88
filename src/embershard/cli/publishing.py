"""What `embershard publish` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from embershard import doctor
from embershard.cli.answer import Answer, need_packages
from embershard.cli.flags import connected
from embershard.errors import SequenceGap
from embershard.formats.files import writing

if TYPE_CHECKING:
    from argparse import Namespace

    from embershard.publisher import Told


def publish(options: Namespace) -> Answer:
    """A snapshot, or what differs between two, in place of what is served."""
    need_packages("embershard publish", doctor.SERVER)
    from embershard.quiet import quieten

    quieten()
    from embershard.engine.world import SoloWorld
    from embershard.publisher import Publisher
    from embershard.store.offline import find_snapshot
    from embershard.store.snapshot_changes import changes_between

    made = find_snapshot(options.snapshot)
    since = None if options.since is None else find_snapshot(_beside(made.path, options.since))
    name = options.publisher or made.manifest["collection"]
    with connected(options) as client, _progress() as told:
        there = client.describe().published
        ledger = _Ledger(made.path.parent / "published.json", options.target, name)
        if since is not None:
            ledger.check(there.number if there.publisher == name else 0, since.version)
        publisher = Publisher(
            client,
            publisher=name,
            world=SoloWorld(),
            number=there.number if there.publisher == name else 0,
            timeout_s=options.timeout,
            told=told,
        )
        done = publisher.full(made) if since is None else publisher.delta(changes_between(since, made))
    ledger.note(publisher.number, made.version)
    document = {
        "version": done.version,
        "publisher": name,
        "number": publisher.number,
        "delta": since is not None,
        "duplicate": done.duplicate,
        "rows": done.rows,
        "frozen": done.frozen,
        "before": done.before,
    }
    lines = [f"version {done.version}", f"publication {publisher.number} of {name}"]
    if since is None:
        lines.append(f"before {done.before or 'none'}")
    else:
        lines.append(f"rows {done.rows:,}" + f" ({done.frozen:,} are frozen, and stay)" * (done.frozen > 0))
    return Answer(document=document, lines=lines)


class _Ledger:
    """Which snapshot was published last to a service, by this command: what a delta builds on."""

    def __init__(self, path: Path, target: str, publisher: str) -> None:
        self._path, self._key = path, f"{target} {publisher}"
        self._lines: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}

    def check(self, number: int, version: int) -> None:
        """Raises SequenceGap unless the service has this snapshot, as its publication of this number."""
        if not number or self._lines.get(self._key) != [number, version]:
            known = self._lines.get(self._key)
            told = f"snapshot {known[1]:,}, as publication {known[0]:,}" if known else "none of these snapshots"
            raise SequenceGap(
                f"--since {version}: this command has last published {told}, and the service has publication "
                f"{number:,}: what differs from snapshot {version:,} would not make it whole; publish in full"
            )

    def note(self, number: int, version: int) -> None:
        """Remembers what was published."""
        with writing(self._path, overwrite=True) as file:
            file.write(json.dumps(self._lines | {self._key: [number, version]}).encode())


def _beside(path: Path, since: str) -> Path:
    """A snapshot by its folder, or by its version in the folder of the other."""
    return path.with_name(f"{int(since):012d}") if since.isdecimal() else Path(since)


@contextmanager
def _progress() -> Iterator[Told]:
    """A progress bar on a terminal, where it takes over two seconds."""
    from tqdm import tqdm

    with tqdm(desc="sent", unit="B", unit_scale=True, delay=2, disable=None, file=sys.stderr) as bar:

        def told(done: int, whole: int) -> None:
            bar.total = whole
            bar.update(done - bar.n)

        yield told
