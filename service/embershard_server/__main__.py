"""Starts a rank: `python -m embershard_server`, also under torchrun; `embershard serve` is the same."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embershard.errors import EmbershardError
from embershard.heap import keep_freed_memory
from embershard_server.address import check_apart, check_free, of_rank
from embershard_server.logs import set_up
from embershard_server.options import parse

if TYPE_CHECKING:
    import argparse

    from embershard.config import Config, TableSpec
    from embershard.engine.base import Engine

logger = logging.getLogger("embershard_server")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m embershard_server") -> int:
    """Runs a rank until it leaves; returns the exit status."""
    options = parse(prog, arguments)
    rank = int(os.environ.get("RANK", 0))
    set_up(level=options.log_level, form=options.log_format, rank=rank)
    status = 1
    try:
        status = _serve(options, rank)
    except EmbershardError as error:
        if options.log_format == "json":
            logger.critical("%s", error)
        else:
            print(f"embershard: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:  # before it serves: from then on a signal makes it leave
        status = 130
    except BaseException:
        logger.exception("the server ends because of a defect")
        raise
    finally:
        if "WORLD_SIZE" in os.environ and status:
            # Peers may be gone or stuck, and the process group's own end would wait for them.
            sys.stderr.flush()
            os._exit(status)
    return status


def _serve(options: argparse.Namespace, rank: int) -> int:
    from embershard.config import load_config
    from embershard_server.protection import protection_of

    config = load_config(options.config)
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    addresses = {
        flag: of_rank(listen, local_rank, flag)
        for flag, listen in (("--listen", options.listen), ("--metrics-listen", options.metrics_listen))
        if listen
    }
    check_apart(addresses, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    address = addresses["--listen"]
    protection = protection_of(options, addresses)
    flags = " --ca CA.pem" * bool(protection.certificates) + " --token-file FILE" * bool(protection.access)
    told = _log if options.log_format == "json" else _print
    if options.check:
        told([_collection(config), *map(_table, config.tables), f"this would be served on {address}"])
        return 0
    check_free(address)
    keep_freed_memory()
    from embershard.quiet import quieten

    quieten()
    from embershard.store.folder import DataDir
    from embershard_server.observing import Observing
    from embershard_server.server import Server
    from embershard_server.start import start

    metrics = addresses.get("--metrics-listen", "")
    with Observing(metrics, rank, protection=protection, examine_every=options.provenance_every) as observing:
        data = DataDir(options.data_dir)
        started = start(config, data)

        async def run() -> int:
            server = Server(started, config, address=address, data=data, protection=protection, observing=observing)
            engine = started.replica.engine
            return await server.run(
                lambda bound, version: told(_announcement(engine, bound, version, observing.url, flags))
            )

        return asyncio.run(run())


def _print(lines: Sequence[str]) -> None:
    """In one write, line ends and all, so that the lines of several ranks don't run into each other."""
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


def _log(lines: Sequence[str]) -> None:
    for line in lines:
        logger.info("%s", line.strip())


def _collection(config: Config) -> str:
    return f"collection {config.collection.name!r}, fingerprint {config.fingerprint()}"


def _table(table: TableSpec, size: str = "") -> str:
    shape = f"{table.name:<16} {table.rows:>13,} × {table.dim:<5} {table.dtype}"
    return f"  {shape}  {table.ids.kind:<10} {size}  ← {', '.join(table.features)}"


def _announcement(engine: Engine, address: str, version: int, metrics: str, flags: str) -> list[str]:
    """Tells the operator what is served, and where."""
    config, world, sizes = engine.config, engine.world, engine.table_bytes()
    lines = []
    if world.rank == 0:
        lines += [f"{_collection(config)}, version {version}"]
        lines += [_table(table, f"{sizes[table.name] / 2**20:>10,.1f} MiB") for table in config.tables]
        lines.append(f"  {sum(sizes.values()) / 2**20:,.1f} MiB of rows and optimizer state on {world.size} rank(s)")
    who = f"rank {world.rank} of {world.size} ({engine.name} engine)"
    if metrics:
        lines.append(f"{who} has metrics on {metrics}")
    lines.append(f"{who} serves {address}")
    if world.rank == 0:
        feature = config.tables[0].features[0]
        command = Path(sys.executable).with_name("embershard")
        lines.append(f"try: {command} lookup --target {address}{flags} --ids {feature}=1,2,3")
    return lines


if __name__ == "__main__":
    sys.exit(main())
