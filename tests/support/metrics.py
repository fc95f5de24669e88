"""What a rank tells over HTTP."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections import Counter
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Told(NamedTuple):
    """An answer."""

    status: int
    text: str
    kind: str


def told(url: str, *, context: ssl.SSLContext | None = None, **headers: str) -> Told:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return Told(answer.status, answer.read().decode(), answer.headers["Content-Type"])
    except urllib.error.HTTPError as error:
        with error:
            return Told(error.code, error.read().decode(), error.headers["Content-Type"])


class Scrape:
    """The samples of a rank at one moment."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        self.text = told(f"{url}/metrics", context=context).text
        self.families = list(text_string_to_metric_families(self.text))
        self._samples = Counter(
            {
                (sample.name.removeprefix("embershard_"), frozenset(sample.labels.items())): sample.value
                for family in self.families
                for sample in family.samples
            }
        )

    @property
    def names(self) -> set[str]:
        """Of all series that these metrics have, whether or not there are any yet."""
        found = {sample.name for family in self.families for sample in family.samples}
        for family in self.families:
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            found |= {family.name + end for end in ends}
        return found

    def value(self, name: str, **labels: str) -> float:
        """One sample; 0 if there is none."""
        return self._samples[name, frozenset(labels.items())]

    def of(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """All samples of a name that aren't 0, by these labels."""
        return {
            tuple(dict(values)[label] for label in labels): value
            for (found, values), value in self._samples.items()
            if found == name and value
        }
