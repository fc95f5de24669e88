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
        self._versions: OrderedDict[str, list[int]] = OrderedDict()
        """Of each client, the versions of its last updates; the client that was heard last comes last."""
        self._sequences: dict[str, int] = {}
        """The number of each client's last update."""

    def __len__(self) -> int:
        return len(self._versions)

    def version_of(self, client: str, sequence: int) -> int | None:
        """The version that has this update already, or None if it is the client's next.

        Raises:
            SequenceGap: updates before it haven't come.
        """
        if not client:
            return None
        last = self._sequences.get(client, 0)
        if sequence == last + 1:
            return None
        if sequence > last:
            known = f"the last one of this client is {last:,}" if last else "nothing is known of this client"
            raise SequenceGap(
                f"client {client!r}: update {sequence:,} can't be applied, as {known}; send the ones between first, or "
                "begin at 1 with another client_id"
            )
        recent = self._versions[client]
        return recent[max(len(recent) - 1 - (last - sequence), 0)]

    def note(self, client: str, sequence: int, version: int) -> None:
        """Remembers that an update was applied, as this version."""
        if not client:
            return
        self._sequences[client] = sequence
        self._versions[client] = [*self._versions.pop(client, [])[1 - _RECENT :], version]
        if len(self._versions) > self._most:
            forgotten, _ = self._versions.popitem(last=False)
            del self._sequences[forgotten]

    def copy(self) -> Clients:
        """The same, which stays as it is now."""
        copy = Clients(self._most)
        copy._versions, copy._sequences = self._versions.copy(), self._sequences.copy()
        return copy

    def state(self) -> dict[str, Any]:
        """Everything that is to outlive the process: arrays, and a list of strings."""
        versions_nv = np.zeros((len(self), _RECENT), np.int64)
        for row, recent in enumerate(self._versions.values()):
            versions_nv[row, : len(recent)] = recent
        sequences_n = np.array([self._sequences[client] for client in self._versions], np.int64)
        return {"names": list(self._versions), "sequences": sequences_n, "versions": versions_nv}

    def restore(self, state: dict[str, Any]) -> None:
        """Becomes what it was; of no state, what it was before any update."""
        names: list[str] = state.get("names", [])
        self._sequences = dict(zip(names, state["sequences"].tolist(), strict=True)) if names else {}
        self._versions = OrderedDict(
            (name, [version for version in recent if version])
            for name, recent in zip(names, state["versions"].tolist() if names else [], strict=True)
        )
