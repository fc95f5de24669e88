"""Two documents side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embershard.errors import InvalidInput
from embershard.formats.files import about
from embershard.loadtest.tally import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORMAT: Final = 1
"""Of documents: those of another one can't be compared."""
HEADS: Final = ("earlier", "now", "ratio")
RATES: Final = ("answered_per_s", "rows_per_s", "bytes_per_s")
_OF_ITS_OWN: Final = ("target", "rate", "callers")
"""What runs are compared by, and so may differ without a warning."""
_SERVED: Final = ("name", "fingerprint", "engine", "world_size", "server_version")


def read(path: Path) -> dict[str, Any]:
    """The document of an earlier test.

    Raises:
        InvalidInput: it can't be read, or is none.
    """
    with about(path, "read"):
        try:
            told = json.loads(path.read_bytes())
            if not (isinstance(told, dict) and told.get("loadtest") == FORMAT):
                raise InvalidInput("is no document of this version's `embershard loadtest --output`")
            for calls in told["result"]["calls"].values():
                decoded(calls["histograms"]["latency_us"])
            compare(told, told)  # has all that will be needed
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"is no document of `embershard loadtest --output`, or is damaged: {error}") from error
    return told


def compare(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios, now by earlier, and in what the two tests differed."""
    calls = now["result"]["calls"], earlier["result"]["calls"]
    return {
        "began": earlier["began"],
        "rates": {name: _pair(now["result"][name], earlier["result"][name]) for name in RATES},
        "latency_ms": {
            kind: {
                name: _pair(number, calls[1][kind]["latency_ms"].get(name))
                for name, number in calls[0][kind]["latency_ms"].items()
            }
            for kind in calls[0]
            if kind in calls[1]
        },
        "differences": list(_differences(now, earlier)),
    }


def rows(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """What is compared, and the numbers under HEADS, for people."""
    pairs = {name.replace("_per_s", "/s"): pair for name, pair in told["rates"].items()}
    for kind, numbers in told["latency_ms"].items():
        pairs |= {f"{kind} {name} ms": pair for name, pair in numbers.items()}
    for name, pair in pairs.items():
        yield name, *("–" if pair[head] is None else f"{pair[head]:,.2f}" for head in HEADS)


def _pair(now: float | None, earlier: float | None) -> dict[str, float | None]:
    ratio = None if now is None or not earlier else now / earlier
    return {"earlier": earlier, "now": now, "ratio": ratio}


def _differences(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> Iterator[str]:
    for part, names in (("configuration", now["configuration"].keys() - _OF_ITS_OWN), ("served", _SERVED)):
        for name in sorted(names):
            one, other = earlier[part].get(name), now[part][name]
            if one != other:
                yield f"{name}: {json.dumps(one)} then, {json.dumps(other)} now"
