"""How the clients send an update until it is answered, and have it applied once.

Each update that is under way has a *sender*: a random client_id that counts its updates, and is used by one at a time.
So updates that run side by side never wait for each other's numbers, and whatever becomes of one that can't be answered
in time, it leaves no gap: its sender is given up.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from dataclasses import dataclass

import grpc

from embershard.errors import EmbershardError, InvalidInput, Overloaded, SequenceGap, Unavailable
from embershard.v1 import embershard_pb2 as pb

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0
"""Between two tries, unless the server says how long."""


@dataclass(kw_only=True, slots=True, eq=False)
class Sender:
    """A client_id, and how many updates it has sent."""

    client_id: str
    """Random: no other has it."""
    sequence: int = 0
    """Of its last update that was applied."""

    @classmethod
    def new(cls) -> Sender:
        """One that nobody has heard of."""
        return cls(client_id=uuid.uuid4().hex)

    def sign(self, request: pb.UpdateRequest) -> None:
        """Makes a request its next."""
        request.client_id, request.sequence = self.client_id, self.sequence + 1


class Senders:
    """The senders of a client that aren't at work; from any thread."""

    def __init__(self) -> None:
        self._idle: list[Sender] = []
        self._lock = threading.Lock()

    def take(self) -> Sender:
        """One that is idle, or a new one."""
        with self._lock:
            return self._idle.pop() if self._idle else Sender.new()

    def give_back(self, sender: Sender) -> None:
        """For whoever comes next."""
        with self._lock:
            self._idle.append(sender)

    def deliver(self, request: pb.UpdateRequest, timeout_s: float) -> Delivery:
        """Begins to send an update; one that has an identity of its own keeps it."""
        return Delivery(self, request, time.monotonic() + timeout_s)


class Waits:
    """How long to wait before the next try: twice as long each time, and never just as long as others do."""

    def __init__(self, deadline: float) -> None:
        """`deadline` is in `time.monotonic()` seconds."""
        self._deadline, self._next_s = deadline, FIRST_WAIT_S

    def after(self, error: EmbershardError) -> float:
        """In seconds, or as the server asks; raises the error if trying again can't help, or comes too late."""
        told_s = error.retry_after_s if isinstance(error, Overloaded) else None
        away = isinstance(error, Unavailable) and isinstance(error.__cause__, grpc.RpcError)
        if told_s is None and not away:  # whatever is too large, for one, stays so
            raise error
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_WAIT_S)
        wait_s = (wait_s if told_s is None else told_s) * random.uniform(0.8, 1.2)  # noqa: S311  # no secret
        if time.monotonic() + wait_s >= self._deadline:
            raise error
        return wait_s


class Delivery:
    """One update on its way.

    while True:
        try:
            answer = call(request, timeout=delivery.left_s)
        except EmbershardError as error:
            sleep(delivery.failed(error))
        else:
            delivery.done()
    """

    def __init__(self, senders: Senders, request: pb.UpdateRequest, deadline: float) -> None:
        self._senders, self._request, self._deadline = senders, request, deadline
        self._waits = Waits(deadline)
        self._in_doubt = False
        self._sender: Sender | None = None
        if not request.client_id:
            self._sender = senders.take()
            self._sender.sign(request)

    @property
    def left_s(self) -> float:
        """Time until the deadline, in seconds."""
        return max(self._deadline - time.monotonic(), 0.001)

    def done(self) -> None:
        """It was answered."""
        if self._sender:
            self._sender.sequence += 1
            self._senders.give_back(self._sender)

    def failed(self, error: EmbershardError) -> float:
        """Seconds to wait before it is sent again; raises the error if it isn't."""
        if isinstance(error, SequenceGap) and self._sender and not self._in_doubt and self._sender.sequence:
            # The server has forgotten this sender, and never heard of this update.
            self._sender = Sender.new()
            self._sender.sign(self._request)
            return 0.0
        self._in_doubt |= not isinstance(error, (InvalidInput, Overloaded))
        try:
            return self._waits.after(error)
        except EmbershardError:
            if self._sender and not self._in_doubt:
                self._senders.give_back(self._sender)  # its number is still free
            raise
