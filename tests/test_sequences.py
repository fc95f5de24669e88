"""What each client has sent is known by its numbers, within bounds, and after a restart, too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.engine.clients import Clients
from embershard.errors import SequenceGap

RECENT = 16
"""Updates of a client whose versions are known one by one."""


class PlainClients:
    """All that `Clients` promises, in the plainest way."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.versions: OrderedDict[str, list[int]] = OrderedDict()

    def version_of(self, client: str, sequence: int) -> Any:
        versions = self.versions.get(client, [])
        if sequence == len(versions) + 1:
            return None
        if sequence > len(versions):
            return SequenceGap
        return versions[sequence - 1] if len(versions) - sequence < RECENT else versions[-RECENT]

    def note(self, client: str, version: int) -> None:
        self.versions[client] = [*self.versions.get(client, []), version]
        self.versions.move_to_end(client)
        if len(self.versions) > self.most:
            self.versions.popitem(last=False)


@given(
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-20, 2), st.booleans()), max_size=150),
    most=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_clients_are_known_by_their_last_updates(steps: Sequence[tuple[str, int, bool]], most: int) -> None:
    clients, plain = Clients(most), PlainClients(most)
    for version, (client, offset, restarts) in enumerate(steps, 1):
        if restarts:
            state, clients = clients.state(), Clients(most)
            clients.restore(state)
        sequence = max(len(plain.versions.get(client, [])) + 1 + min(offset, 1), 1)
        expected = plain.version_of(client, sequence)
        if expected is SequenceGap:
            with pytest.raises(SequenceGap, match=f"client '{client}': update {sequence} can't be applied"):
                clients.version_of(client, sequence)
            continue
        assert clients.version_of(client, sequence) == expected
        if expected is None:
            clients.note(client, sequence, version)
            plain.note(client, version)
        assert len(clients) == len(plain.versions) <= most


def test_a_copy_of_clients_stays_as_it_is() -> None:
    clients = Clients(2)
    clients.note("a", 1, 5)
    copy = clients.copy()
    clients.note("a", 2, 6)
    clients.note("b", 1, 7)
    assert (copy.version_of("a", 2), len(copy)) == (None, 1)
    assert clients.version_of("a", 2) == 6


def test_whoever_gives_no_name_is_never_told_apart() -> None:
    clients = Clients(1)
    clients.note("", 0, 1)
    assert (len(clients), clients.version_of("", 0)) == (0, None)


def test_a_client_that_was_forgotten_is_told_to_begin_again() -> None:
    clients = Clients(1)
    clients.note("a", 1, 1)
    clients.note("b", 1, 2)
    with pytest.raises(SequenceGap, match=r"nothing is known of this client; send .* or begin at 1 with another"):
        clients.version_of("a", 2)
