"""The command `embershard`, which Ctrl-C ends without a traceback even while all else of it is being imported."""

INTERRUPTED = 130
"""As `embershard.cli` says."""


def main() -> int:
    """Runs one command; returns the exit status."""
    try:
        from embershard.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
