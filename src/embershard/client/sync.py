"""The client for ordinary code."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

from embershard.client.admin import AdminCalls
from embershard.client.answers import Asked, read_answer
from embershard.client.connecting import why
from embershard.client.delivery import Senders, Waits
from embershard.client.resend import Unanswered
from embershard.client.security import Security
from embershard.client.throttle import Throttle
from embershard.client.wire import TIMEOUT_S, Features, embedding_stub, lookup_request, update_request
from embershard.errors import DeadlineExceeded, EmbershardError, InvalidInput
from embershard.types import Rows
from embershard.v1 import embershard_pb2 as pb


class Client(AdminCalls):
    """A connection to one front end; safe to share between threads.

        with Client("127.0.0.1:50051") as client:
            rows = client.lookup({"user_id": [3, 5], "genres": (genres, lengths)})
            version = client.update({"user_id": [3, 5]}, gradients={"user_id": gradients_ND})

    Features are {feature: ids}, {feature: (ids, lengths)} or {feature: (ids, lengths, weights)}: ids an array of int64
    or uint64 or a list of strings, lengths the number of ids of each example, weights one number an id.

    `security` has TLS, certificates and the token; None: what the environment says (`Security.from_environment`).
    `timeout_s` is the deadline of each call that doesn't give its own; streams have none unless they give it. Errors
    are those of `embershard.errors`. Once lookups are refused because the service is overloaded, fewer are let through
    at once, and others end here with the same error, Overloaded (`throttle`); streams hold back by themselves.
    """

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, security: Security | None = None) -> None:
        super().__init__(target, timeout_s, security)
        self._senders, self._lookups = Senders(), Throttle()
        self._embedding = embedding_stub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_ready(self, timeout_s: float = 60.0) -> pb.DescribeResponse:
        """Waits until the service answers, and returns its description; DeadlineExceeded if it doesn't in time."""
        try:
            return self._call(self._embedding.Describe, pb.DescribeRequest(), timeout_s, wait_for_ready=True)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}{why(self._channel)}") from error

    def describe(self, *, timeout_s: float | None = None) -> pb.DescribeResponse:
        """The collection: tables, features, fingerprint, version, limits."""
        return self._call(self._embedding.Describe, pb.DescribeRequest(), timeout_s)

    def lookup(
        self,
        features: Features,
        *,
        dtype: str = "float32",
        min_version: int = 0,
        fingerprint: str = "",
        with_provenance: bool = False,
        with_counts: bool = False,
        pinned_version: int = 0,
        timeout_s: float | None = None,
    ) -> Rows:
        """The vectors of ids: {feature: [ids, or examples if pooled, dim]} of `dtype` float32 or float16; or
        int8, which is float32 that has travelled in a quarter of the bytes, and lost what the proto says of it.

        `min_version` waits for a version, so that you read your own writes; `pinned_version` reads a loaded snapshot,
        which never changes, and not what is served; `fingerprint` refuses another collection;
        `with_provenance` tells for each id where its vector comes from (`Provenance`), `with_counts` how many updates
        have moved its rows, and how often updates have named ids with these rows; of tables that keep counts.
        """
        request = lookup_request(
            features,
            dtype=dtype,
            min_version=min_version,
            fingerprint=fingerprint,
            with_provenance=with_provenance,
            with_counts=with_counts,
            pinned_version=pinned_version,
        )
        with self._lookups.call(self.target, waits=min_version > 0):
            answer = self._call(self._embedding.Lookup, request, timeout_s)
        return read_answer(request, answer)

    def update(
        self,
        features: Features,
        *,
        gradients: Mapping[str, object],
        fingerprint: str = "",
        identity: tuple[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Applies gradients, each of the shape that `lookup` answers for the same ids; returns the version made.

        All of it is applied, or nothing, and once: it is sent again, with the same number, as long as the service is
        away or overloaded and there is time. What isn't answered in time may have been applied or not. With `identity`,
        (client_id, sequence), numbers are the caller's own, 1, 2, 3 …, and hold when its process starts again, too.
        """
        request = update_request(features, gradients=gradients, fingerprint=fingerprint, identity=identity)
        return self._deliver(request, timeout_s)

    def assign(
        self,
        features: Features,
        *,
        values: Mapping[str, object],
        fingerprint: str = "",
        identity: tuple[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Overwrites the rows that ids own, one [dim] vector an id; returns the version made.

        An id of a vocabulary is given a row by it. Of an id that is given twice, the last values stay. Optimizer state
        isn't touched.
        """
        request = update_request(features, values=values, fingerprint=fingerprint, identity=identity)
        return self._deliver(request, timeout_s)

    def start(
        self,
        features: Features,
        *,
        parents: Mapping[str, object],
        fingerprint: str = "",
        identity: tuple[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Starts the rows of ids anew, each as the mean of the rows of its parents: ids of the same table.

        `parents` is {feature: ids}, one parent an id, or {feature: (ids, lengths)}. An id of a vocabulary is given a
        row by it. Optimizer state and counts of the row begin at nothing.
        """
        request = update_request(features, parents=parents, fingerprint=fingerprint, identity=identity)
        return self._deliver(request, timeout_s)

    def lookup_stream(
        self,
        requests: Iterable[Features],
        *,
        dtype: str = "float32",
        fingerprint: str = "",
        timeout_s: float | None = None,
    ) -> Iterator[Rows]:
        """Many lookups on one stream, cheaper a call than `lookup`; answers come in order.

        `timeout_s` is the deadline of the whole stream; None: it may last for ever.
        """
        asked = Asked()
        messages = (asked.note(lookup_request(features, dtype=dtype, fingerprint=fingerprint)) for features in requests)
        for answer in self._stream(self._embedding.LookupStream, messages, timeout_s):
            yield asked.read(answer)

    def update_stream(
        self,
        requests: Iterable[tuple[Features, Mapping[str, object]]],
        *,
        fingerprint: str = "",
        timeout_s: float | None = None,
    ) -> Iterator[int]:
        """Many `(features, gradients)` on one stream, one after the other; yields the version of each.

        A stream that breaks is opened again, and goes on with what wasn't answered, which is applied once; but not
        after the client's `timeout_s` without any answer.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        unanswered = Unanswered(
            update_request(features, gradients=gradients, fingerprint=fingerprint) for features, gradients in requests
        )
        waits = Waits(time.monotonic() + self._timeout_s)
        while True:
            left_s = None if timeout_s is None else deadline - time.monotonic()
            try:
                for response in self._stream(self._embedding.UpdateStream, unanswered.messages(), left_s):
                    unanswered.answered()
                    yield int(response.version)
                    waits = Waits(min(deadline, time.monotonic() + self._timeout_s))
                return
            except EmbershardError as error:
                time.sleep(waits.after(error))

    def _deliver(self, request: pb.UpdateRequest, timeout_s: float | None) -> int:
        """Sends an update again until it is answered, or its time is over; it is applied once."""
        delivery = self._senders.deliver(request, self._timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                answer = self._call(self._embedding.Update, request, delivery.left_s)
            except EmbershardError as error:
                time.sleep(delivery.failed(error))
            else:
                delivery.done()
                return int(answer.version)


def client_of(service: Client | str, security: Security | None) -> tuple[Client, bool]:
    """A client that there is, or one that is made here of HOST:PORT; and which of both.

    Raises:
        InvalidInput: there is a client, which has a security of its own.
    """
    if isinstance(service, str):
        return Client(service, security=security), True
    if security is not None:
        raise InvalidInput("security is that of a client which is made here: give HOST:PORT, or a client with it")
    return service, False
