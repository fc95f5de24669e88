"""The gate of a front end: who is let in, how many calls there are at once, and what memory they hold, both bounded.

Nothing is read of a call that is refused. No connection may have more than what is left for all others: however many
greedy ones there are, there is room for one more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from embershard.errors import DeadlineExceeded, EmbershardError, Overloaded, Unavailable
from embershard_server import connections
from embershard_server.access import revocation
from embershard_server.call import Call

if TYPE_CHECKING:
    from embershard.config import LimitSpec
    from embershard_server.access import Access, Role
    from embershard_server.watch import Context, Watch

logger = logging.getLogger(__name__)

SWEEP_S = 0.1
"""The gate waits so long until it looks again at what has come on connections and what stalls, or longer where that
takes more than a tenth of it."""
BLIND_S = 5.0
"""The same after a time that it couldn't."""
_CALL_BYTES, _MESSAGE_BYTES = 512, 64
"""What a call, and a message, may have around it on the wire."""


class _Peer:
    """What one connection holds."""

    def __init__(self) -> None:
        self.calls: set[Call] = set()
        self.bytes = 0
        """Of messages that have come, and of answers that aren't taken."""
        self.arriving = 0
        """Of messages of which a part has come."""
        self.taken = self.settled = 0
        """Of messages that have come since the last sweep began, and before."""


class Gate:
    """All calls of a front end."""

    def __init__(self, limits: LimitSpec, access: Access | None = None) -> None:
        self._limits, self._access, self.wait_s = limits, access, limits.wait_ms / 1000
        self._most_bytes = limits.in_flight_messages * limits.message_bytes
        self._peers: dict[str, _Peer] = {}
        self._calls = self._bytes = self._arriving = 0
        self._received: dict[str, int] = {}
        self._leaving: EmbershardError | None = None
        self._drained = asyncio.Event()
        self.sending: dict[Call, float] = {}
        """Calls whose answer is on its way, and since when."""

    @property
    def calls(self) -> int:
        """How many there are."""
        return self._calls

    @property
    def held(self) -> int:
        """Bytes that requests and answers hold."""
        return self._bytes

    def enter(self, context: Context, watch: Watch, *, needs: Role | None, single: bool) -> Call:
        """Lets a call in, of a `single` message or a stream, whose caller `needs` a role, if any.

        Raises:
            Unauthenticated, AccessDenied: the caller may not.
            Overloaded: there are too many, of this connection or at all.
            Unavailable: the server leaves.
        """
        if self._leaving:
            raise self._leaving
        caller = self._access.caller(context, needs, watch) if self._access and needs else None
        name = context.peer()
        peer = self._peers.get(name) or _Peer()
        if len(peer.calls) + 1 > self._limits.calls - self._calls - 1:
            raise self._overloaded(
                "calls",
                f"this connection has {len(peer.calls):,} calls, all have {self._calls:,}, and limits.calls = "
                f"{self._limits.calls:,}",
            )
        if caller:
            caller.allowance.enter()
        call = Call(self, name, caller, context, watch, single=single)
        self._peers[name] = peer
        peer.calls.add(call)
        self._calls += 1
        context.add_done_callback(lambda _: self._leave(call))  # type: ignore[arg-type]  # grpc's stub
        return call

    def hold(self, name: str, size: int) -> None:
        """A connection has so many more bytes; Overloaded if that is too much."""
        peer = self._peers[name]
        if peer.bytes + size > self._room() - size:
            raise self._overloaded(
                "bytes",
                f"requests and answers of this connection hold {peer.bytes:,} bytes, those of all {self._bytes:,}, and "
                f"there is no room for {size:,} more: limits.in_flight_messages × limits.message_bytes = "
                f"{self._most_bytes:,}; read answers sooner, or ask for less at once",
            )
        peer.bytes += size
        self._bytes += size

    def let_go(self, name: str, size: int) -> None:
        """It has so many fewer."""
        self._peers[name].bytes -= size
        self._bytes -= size

    def took(self, name: str, size: int) -> None:
        """A whole message has come."""
        self._peers[name].taken += size + _MESSAGE_BYTES

    def leave(self) -> None:
        """Lets nobody in any more, and ends calls that wait for a message; others end with their answer."""
        self._leaving = Unavailable("the server is stopping; try again in a moment, or elsewhere")
        for call in self._all_calls():
            call.end(self._leaving)
        if not self._calls:
            self._drained.set()

    async def drained(self) -> None:
        """Waits until all calls have ended after `leave`."""
        await self._drained.wait()

    async def sweep(self) -> None:
        """Ends what stalls or sends too much, again and again."""
        while True:
            if self._access:
                self._access.tell_refusals()
                if (tokens := await asyncio.to_thread(self._access.reread)) is not None:
                    self._access.take(tokens)
                    self._end_revoked()
            for peer in self._peers.values():
                peer.settled, peer.taken = peer.taken, 0
            try:
                received, spent_s = await asyncio.to_thread(connections.received)
            except OSError as error:  # no file may be opened any more, say
                received, spent_s = self._received, BLIND_S / 10
                logger.warning("it can't be seen what comes on connections; this is tried again: %s", error)
            self._note(received)
            self._end_greedy()
            if stalled := self._stalled():
                with suppress(OSError):  # likewise: they are stalled the next time, too
                    await asyncio.to_thread(connections.shut, stalled)
            await asyncio.sleep(max(SWEEP_S, 10 * spent_s))

    def _leave(self, call: Call) -> None:
        call.sent()
        if call.caller:
            call.caller.allowance.leave()
        peer = self._peers[call.peer]
        peer.calls.remove(call)
        peer.taken += _CALL_BYTES
        self._calls -= 1
        if self._leaving and not self._calls:
            self._drained.set()

    def _note(self, received: dict[str, int]) -> None:
        """What has come on connections and is no whole message yet."""
        self._peers = {name: peer for name, peer in self._peers.items() if peer.calls}
        for name, peer in self._peers.items():
            address = connections.address_of(name)
            come = received.get(address, 0) - self._received.get(address, 0)
            waits = any(call.receiving for call in peer.calls)
            peer.arriving = max(0, peer.arriving + come - peer.settled) if waits else 0
        self._received = received
        self._arriving = sum(peer.arriving for peer in self._peers.values())

    def _end_greedy(self) -> None:
        """Ends calls of connections on which more is arriving than there is room for."""
        for peer in sorted(self._peers.values(), key=lambda peer: peer.bytes + peer.arriving, reverse=True):
            if peer.arriving and peer.bytes + peer.arriving > self._room():
                reason = self._overloaded(
                    "bytes",
                    f"{peer.arriving:,} bytes of requests are arriving on this connection, {self._arriving:,} on all, "
                    f"and there is no room for them: limits.in_flight_messages × limits.message_bytes = "
                    f"{self._most_bytes:,}; send less at once",
                )
                self._arriving -= peer.arriving
                peer.arriving = 0
                for call in peer.calls:
                    if call.receiving:
                        call.end(reason)

    def _end_revoked(self) -> None:
        for call in self._all_calls():
            if call.caller and call.caller.revoked:
                call.end(revocation())

    def _stalled(self) -> set[str]:
        """Ends requests that don't arrive; returns the addresses of peers that don't take their answers."""
        latest = time.monotonic() - self._limits.stalled_s
        late = f"within limits.stalled_s = {self._limits.stalled_s} s"
        for call in self._all_calls():
            if call.receiving and call.single and call.waits_since < latest:
                call.end(DeadlineExceeded(f"the request didn't arrive whole {late}; nothing was done"))
        slow = {connections.address_of(call.peer) for call, since in self.sending.items() if since < latest}
        if slow:
            logger.warning("ending connections that didn't take an answer %s: %s", late, ", ".join(sorted(slow)))
        return slow

    def _all_calls(self) -> list[Call]:
        return [call for peer in self._peers.values() for call in peer.calls]

    def _room(self) -> int:
        """Bytes that nobody has."""
        return self._most_bytes - self._bytes - self._arriving

    def _overloaded(self, reason: str, message: str) -> Overloaded:
        refusal = Overloaded(message)
        refusal.retry_after_s, refusal.reason = self._limits.queue_ms / 1000, reason
        return refusal
