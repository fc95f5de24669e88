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
SHARES: Final = ("answered", "refused", "failed")
"""Of what was asked: `failed` is all that was neither answered nor refused."""
_OF_ITS_OWN: Final = ("target",)
"""What may differ without a warning."""
_SERVED: Final = ("name", "fingerprint", "engine", "world_size", "server_version")


def read(path: Path, loop: str) -> dict[str, Any]:
    """The document of an earlier test of the same kind of loop, open or closed.

    Raises:
        InvalidInput: it can't be read, or is none.
    """
    with about(path, "read"):
        try:
            told = json.loads(path.read_bytes())
            if not (isinstance(told, dict) and told.get("loadtest") == FORMAT):
                raise InvalidInput("is no document of this version's `embershard loadtest --output`")
            for calls in told["result"]["calls"].values():
                if "histograms" not in calls:
                    raise InvalidInput("was printed by --json, without histograms: give a file that --output wrote")
                decoded(calls["histograms"]["latency_us"])
            compare(told, told)  # has all that will be needed
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, InvalidInput):
                raise
            what = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise InvalidInput(f"is no document of `embershard loadtest --output`, or is damaged: {what}") from error
        if (earlier := told["configuration"]["loop"]) != loop:
            raise InvalidInput(
                f"is of a test in {earlier} loop, and this one is in {loop} loop, where latency means something else: "
                "compare tests of one kind"
            )
    return told


def compare(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios, now by earlier, and in what the two tests differed."""
    calls = now["result"]["calls"], earlier["result"]["calls"]
    return {
        "began": earlier["began"],
        "rates": {name: _pair(now["result"][name], earlier["result"][name]) for name in RATES},
        "shares": {
            kind: {name: _pair(*(_share(part[kind], name) for part in calls)) for name in SHARES}
            for kind in calls[0]
            if kind in calls[1]
        },
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
    for kind, shares in told["shares"].items():
        for name, pair in shares.items():
            percent = {head: None if pair[head] is None else 100 * pair[head] for head in ("earlier", "now")}
            pairs[f"{kind} {name} %"] = pair | percent
    for name, pair in pairs.items():
        yield name, *("–" if pair[head] is None else f"{pair[head]:,.2f}" for head in HEADS)


def _share(calls: Mapping[str, Any], name: str) -> float | None:
    count = calls["asked"] - calls["answered"] - calls["refused"] if name == "failed" else calls[name]
    return count / calls["asked"] if calls["asked"] else None


def _pair(now: float | None, earlier: float | None) -> dict[str, float | None]:
    ratio = None if now is None or not earlier else now / earlier
    return {"earlier": earlier, "now": now, "ratio": ratio}


def _differences(now: Mapping[str, Any], earlier: Mapping[str, Any]) -> Iterator[str]:
    for part, names in (("configuration", now["configuration"].keys() - _OF_ITS_OWN), ("served", _SERVED)):
        for name in sorted(names):
            one, other = earlier[part].get(name), now[part][name]
            if one != other:
                yield f"{name}: {json.dumps(one)} then, {json.dumps(other)} now"
