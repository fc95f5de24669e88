"""What has become of requests: counted, and timed into HDR histograms that add up over processes.

What was given up (its deadline passed, it was never sent, the run was cut off) is in the histogram of latency with the
time it had waited until then, so that nobody's latency is told better for it; what was refused or has failed isn't, and
so the number of requests stands beside every latency.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hdrh.histogram import HdrHistogram

ANSWERED: Final = "answered"
REFUSED: Final = "refused"
DEADLINE_PASSED: Final = "deadline_passed"
NEVER_SENT: Final = "never_sent"
CUT_OFF: Final = "cut_off"
OUTCOMES: Final = (ANSWERED, REFUSED, DEADLINE_PASSED, NEVER_SENT, CUT_OFF)
"""What may become of a request; every other outcome is the name of the gRPC status that it ended with."""
GIVEN_UP: Final = (DEADLINE_PASSED, NEVER_SENT, CUT_OFF)
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
"""What is told of a histogram, by name."""
MOST_BINS: Final = 120
_SHORTEST_BIN_S: Final = 0.5
_LARGEST_US: Final = 3_600_000_000
_DIGITS: Final = 3
_DIGITS_OF_BIN: Final = 2


def new_histogram(digits: int = _DIGITS) -> Any:
    """Of whole microseconds, up to an hour."""
    return HdrHistogram(1, _LARGEST_US, digits)


def add(histogram: Any, seconds: float) -> None:
    """Records a time."""
    histogram.record_value(min(max(round(seconds * 1e6), 1), _LARGEST_US))


def milliseconds(histogram: Any, percentile: float) -> float | None:
    """What so many percent of the times don't exceed; None: there are none."""
    return histogram.get_value_at_percentile(percentile) / 1000 if histogram.get_total_count() else None


def summary(histogram: Any) -> dict[str, float | None]:
    """PERCENTILES, in milliseconds; None: so few values don't have it, as of p99 fewer than 100."""
    count = histogram.get_total_count()
    return {
        name: milliseconds(histogram, percentile)
        if percentile == 100 or count >= round(100 / (100 - percentile))
        else None
        for name, percentile in PERCENTILES.items()
    }


def bin_width_s(seconds: float) -> float:
    """How long a bin is of a run that takes so long."""
    return max(_SHORTEST_BIN_S, seconds / MOST_BINS)


class Bin:
    """What fell due in some span of a run."""

    def __init__(self) -> None:
        self.asked = self.answered = 0
        """`answered` counts those whose answers came in the span."""
        self.latency = new_histogram(_DIGITS_OF_BIN)


class Tally:
    """Of one kind of request, by one process or by several.

    Every request that was asked for has one outcome. Times are in seconds from the beginning of what is measured.
    """

    def __init__(self, planned_s: float) -> None:
        self._planned_s = self.seconds = planned_s
        """`seconds` is less where the run was ended early."""
        self._width_s = bin_width_s(planned_s)
        self.asked = self.held = self.in_time = self.rows = self.bytes = 0
        """`held`: those that waited because as many as may be were in flight; `in_time`: answers that came before the
        end, and `rows` and `bytes` of these."""
        self.outcomes: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        """{outcome: what the service said, the first time}."""
        self.latency, self.service, self.late = new_histogram(), new_histogram(), new_histogram()
        """From when a request was due; from when it was sent, of those that were answered; and by how much the
        generator itself sent it late."""
        self.bins = [Bin() for _ in range(math.ceil(round(planned_s / self._width_s, 6)))]

    def ask(self, due: float) -> None:
        """Counts a request that is due."""
        self.asked += 1
        self._bin(due).asked += 1

    def send(self, late_s: float, *, held: bool) -> None:
        """The generator comes to send it, so much after it could."""
        self.held += held
        add(self.late, late_s)

    def answer(self, due: float, sent: float, done: float, rows: int, size: int) -> None:
        """It was answered by so many bytes."""
        self.outcomes[ANSWERED] += 1
        if done <= self.seconds:
            self.in_time += 1
            self.rows += rows
            self.bytes += size
            self._bin(done).answered += 1
        add(self.service, done - sent)
        self._wait(due, done)

    def end(self, outcome: str, due: float, done: float, message: str = "") -> None:
        """It came to another end."""
        self.outcomes[outcome] += 1
        if message:
            self.messages.setdefault(outcome, message)
        if outcome in GIVEN_UP:
            self._wait(due, done)

    def _wait(self, due: float, done: float) -> None:
        add(self.latency, done - due)
        add(self._bin(due).latency, done - due)

    def _bin(self, at: float) -> Bin:
        return self.bins[min(max(int(at / self._width_s), 0), len(self.bins) - 1)]

    @property
    def unanswered(self) -> int:
        """Requests that came to another end."""
        return self.asked - self.outcomes[ANSWERED]

    def document(self) -> dict[str, Any]:
        """Everything, as JSON has it; the way between processes, too."""
        return {
            "planned_s": self._planned_s,
            "seconds": self.seconds,
            "asked": self.asked,
            "held": self.held,
            "in_time": self.in_time,
            "rows": self.rows,
            "bytes": self.bytes,
            "outcomes": dict(self.outcomes),
            "messages": self.messages,
            "histograms": {name: encoded(getattr(self, name)) for name in ("latency", "service", "late")},
            "bins": [[one.asked, one.answered, encoded(one.latency)] for one in self.bins],
        }

    @classmethod
    def merged(cls, documents: Sequence[Mapping[str, Any]]) -> Tally:
        """The tally of all processes of one run."""
        made = cls(documents[0]["planned_s"])
        made.seconds = max(part["seconds"] for part in documents)
        for part in documents:
            for name in ("asked", "held", "in_time", "rows", "bytes"):
                setattr(made, name, getattr(made, name) + part[name])
            made.outcomes.update(part["outcomes"])
            made.messages = part["messages"] | made.messages
            for name, told in part["histograms"].items():
                getattr(made, name).decode_and_add(told)
            for one, (asked, answered, told) in zip(made.bins, part["bins"], strict=True):
                one.asked += asked
                one.answered += answered
                one.latency.decode_and_add(told)
        return made

    def timeline(self) -> list[dict[str, float | None]]:
        """Of each span: when it began, requests a second, and the median and longest latency of what was due in it."""
        told = []
        for number, one in enumerate(self.bins):
            start = number * self._width_s
            width_s = min(self._width_s, self.seconds - start)
            if width_s <= 0:
                break
            told.append(
                {
                    "at_s": start,
                    "asked_per_s": one.asked / width_s,
                    "answered_per_s": one.answered / width_s,
                    "p50_ms": milliseconds(one.latency, 50),
                    "max_ms": milliseconds(one.latency, 100),
                }
            )
        return told


def encoded(histogram: Any) -> str:
    """In the format that all HDR histograms share (V2, compressed, base64)."""
    text: bytes = histogram.encode()
    return text.decode()


def decoded(text: str) -> Any:
    """The way back.

    Raises:
        ValueError: it is none.
    """
    try:
        return HdrHistogram.decode(text.encode())
    except Exception as error:  # zlib's, base64's and its own, which share no other
        raise ValueError(f"is no HDR histogram: {error}") from error
