"""The command `embershard`, which Ctrl-C ends without a traceback even while all else of it is being imported."""

import os

INTERRUPTED = 130
"""As `embershard.cli` says."""


def main() -> int:
    """Runs one command; returns the exit status."""
    try:
        # gRPC tells of each failed handshake in lines of its own, which our errors explain.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        from embershard.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
