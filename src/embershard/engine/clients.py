"""What each client has sent, so that an update that comes again is applied once; the same on every rank."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from embershard.errors import InvalidInput, SequenceGap

MAX_CLIENT_ID = 128
"""Longest name of a client, in characters."""
MAX_SEQUENCE = 2**62
"""Largest sequence number."""
_RECENT = 16
"""Versions of a client's latest updates that are remembered one by one."""


def check_identity(client: str, sequence: int) -> None:
    """Raises InvalidInput unless both are given, or neither."""
    if bool(client) != bool(sequence):
        raise InvalidInput("client_id and sequence go together: give both, or neither and the update isn't told apart")
    if len(client) > MAX_CLIENT_ID or sequence > MAX_SEQUENCE:
        raise InvalidInput(f"client_id has up to {MAX_CLIENT_ID} characters, and sequence is up to {MAX_SEQUENCE:,}")


class Clients:
    """The last updates of each client; of too many clients, those that have been silent for longest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, tuple[int, list[int]]] = OrderedDict()
        """Of each client, the number of its last update, and the versions of its last ones; the client that was heard
        last comes last. What is known of one is replaced, never changed, so that any thread may ask."""

    def __len__(self) -> int:
        return len(self._known)

    def version_of(self, client: str, sequence: int) -> int | None:
        """The version that has this update already, or None if it is the client's next.

        Raises:
            SequenceGap: updates before it haven't come.
        """
        if not client:
            return None
        last, versions = self._known.get(client, (0, []))
        if sequence == last + 1:
            return None
        if sequence > last:
            known = f"the last one of this client is {last:,}" if last else "nothing is known of this client"
            raise SequenceGap(
                f"client {client!r}: update {sequence:,} can't be applied, as {known}; send the ones between first, or "
                "begin at 1 with another client_id"
            )
        return versions[max(len(versions) - 1 - (last - sequence), 0)]

    def note(self, client: str, sequence: int, version: int) -> None:
        """Remembers that an update was applied, as this version."""
        if not client:
            return
        _, versions = self._known.get(client, (0, []))
        self._known[client] = sequence, [*versions[1 - _RECENT :], version]
        self._known.move_to_end(client)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def copy(self) -> Clients:
        """The same, which stays as it is now."""
        copy = Clients(self._most)
        copy._known = self._known.copy()
        return copy

    def state(self) -> dict[str, Any]:
        """Everything that is to outlive the process: arrays, and a list of strings."""
        versions_nv = np.zeros((len(self), _RECENT), np.int64)
        for row, (_, versions) in enumerate(self._known.values()):
            versions_nv[row, : len(versions)] = versions
        sequences_n = np.array([sequence for sequence, _ in self._known.values()], np.int64)
        return {"names": list(self._known), "sequences": sequences_n, "versions": versions_nv}

    def restore(self, state: dict[str, Any]) -> None:
        """Becomes what it was; of no state, what it was before any update."""
        names: list[str] = state.get("names", [])
        known = zip(state["sequences"].tolist(), state["versions"].tolist(), strict=True) if names else ()
        self._known = OrderedDict(
            (name, (sequence, [version for version in versions if version]))
            for name, (sequence, versions) in zip(names, known, strict=True)
        )
