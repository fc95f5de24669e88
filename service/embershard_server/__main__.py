"""Starts a rank: `python -m embershard_server`, also under torchrun; `embershard serve` is the same."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embershard.errors import ConfigError, EmbershardError
from embershard.heap import keep_freed_memory
from embershard.loopback import is_loopback
from embershard_server.address import check_free, check_plaintext, of_rank
from embershard_server.options import parse

if TYPE_CHECKING:
    import argparse

    from embershard.engine.base import Engine
    from embershard_server.access import Access
    from embershard_server.tls import Certificates


logger = logging.getLogger("embershard_server")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m embershard_server") -> int:
    """Runs a rank until it leaves; returns the exit status."""
    options = parse(prog, arguments)
    rank = os.environ.get("RANK", "0")
    # The libraries below log pages at level info; the level asked for is that of our own loggers.
    logging.basicConfig(level="WARNING", format=f"%(asctime)s %(levelname)s [rank {rank}] %(name)s: %(message)s")
    for name in ("embershard", "embershard_server"):
        logging.getLogger(name).setLevel(options.log_level.upper())
    status = 1
    try:
        status = _serve(options)
    except EmbershardError as error:
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


def _serve(options: argparse.Namespace) -> int:
    from embershard.config import load_config

    config = load_config(options.config)
    address = of_rank(options.listen, int(os.environ.get("LOCAL_RANK", 0)))
    certificates, access = _security(options, address)
    check_free(address)
    keep_freed_memory()
    from embershard.quiet import quieten

    quieten()
    from embershard.store.folder import DataDir
    from embershard_server.server import Server
    from embershard_server.start import start

    data = DataDir(options.data_dir)
    started = start(config, data)

    async def run() -> int:
        server = Server(started, config, address=address, data=data, certificates=certificates, access=access)
        flags = " --ca CA.pem" * bool(certificates) + " --token-file FILE" * bool(access)
        return await server.run(lambda bound, version: _announce(started.replica.engine, bound, version, flags))

    return asyncio.run(run())


def _security(options: argparse.Namespace, address: str) -> tuple[Certificates | None, Access | None]:
    """How callers are known, and known to whom they talk."""
    from embershard_server.access import Access
    from embershard_server.tls import certificates_of
    from embershard_server.tokens import tokens_of

    certificates = certificates_of(options.tls_cert, options.tls_key, options.tls_client_ca)
    if certificates and options.plaintext:
        raise ConfigError("--plaintext and --tls-cert are both given: a front end speaks the one or the other")
    check_plaintext(address, flag="--listen", encrypted=certificates is not None, allowed=options.plaintext)
    tokens = tokens_of(options.tokens, os.environ)
    if not (tokens or is_loopback(address)):
        who = "whoever has a certificate of --tls-client-ca" if options.tls_client_ca else "whoever reaches it"
        logger.warning("no tokens are given: %s may read, change and administer what %s serves", who, address)
    return certificates, Access(tokens, options.tokens) if tokens else None


def _announce(engine: Engine, address: str, version: int, flags: str) -> None:
    """Tells the operator what is served, and where."""
    config, world, sizes = engine.config, engine.world, engine.table_bytes()
    lines = []
    if world.rank == 0:
        lines.append(f"collection {config.collection.name!r}, fingerprint {config.fingerprint()}, version {version}")
        lines += [
            f"  {table.name:<16} {table.rows:>13,} × {table.dim:<5} {table.dtype}  {table.ids.kind:<10} "
            f"{sizes[table.name] / 2**20:>10,.1f} MiB  ← {', '.join(table.features)}"
            for table in config.tables
        ]
        lines.append(f"  {sum(sizes.values()) / 2**20:,.1f} MiB of rows and optimizer state on {world.size} rank(s)")
    lines.append(f"rank {world.rank} of {world.size} ({engine.name} engine) serves {address}")
    if world.rank == 0:
        feature = config.tables[0].features[0]
        command = Path(sys.executable).with_name("embershard")
        lines.append(f"try: {command} lookup --target {address}{flags} --ids {feature}=1,2,3")
    # In one write, line ends and all, so that the lines of several ranks don't run into each other.
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
