"""Who may call what."""

from __future__ import annotations

import hmac
import logging
import time
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from embershard.bearer import digest_of
from embershard.errors import AccessDenied, ConfigError, Unauthenticated
from embershard_server.allowance import Allowance
from embershard_server.files import stamp_of
from embershard_server.tokens import TokenSpec, load_tokens

if TYPE_CHECKING:
    from embershard_server.watch import Context, Watch

    Refusal = Unauthenticated | AccessDenied

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""A file that can't be used is read again after so long."""
TOLD_S = 10.0
"""Calls that nobody may make are told in the log so often at most."""
_NONE = (
    "the call has no token, and this service wants one: give it by EMBERSHARD_TOKEN_FILE, --token-file or "
    "Security(token=…); on the wire it is metadata, authorization: Bearer TOKEN"
)
_UNKNOWN = "the call's token isn't one of this service's; was it replaced?"
_REVOKED = "the call's token was taken away"


class Role(IntEnum):
    """What a caller may do; each role may do what those before it may."""

    READ = 1
    """Look up, and ask what is served."""
    UPDATE = 2
    """Change rows, too."""
    ADMIN = 3
    """All of AdminService, too."""


class Caller:
    """Who has a token."""

    def __init__(self, name: str, role: Role, digest: bytes) -> None:
        self.name, self.role, self.digest = name, role, digest
        self.allowance = Allowance(name)
        self.revoked = False
        """Whether the token isn't valid any more, or not for all that it was."""


class Access:
    """All who may call, by their tokens; on the thread that answers calls."""

    def __init__(self, tokens: Sequence[TokenSpec], file: Path | None = None) -> None:
        """`file` is where the tokens are from, and is read again when it has changed."""
        self._file, self._stamp = file, file and stamp_of(file)
        self.problem = ""
        """Why the file, which has changed, can't be used; "": it can."""
        self._again_s = 0.0
        self._callers: dict[tuple[str, str, bytes], Caller] = {}
        self.take(tokens)
        self._refusals: Counter[str] = Counter()
        self._told = float("-inf")

    def caller(self, context: Context, needs: Role, watch: Watch) -> Caller:
        """Who makes a call, if they may; notes their name.

        Raises:
            Unauthenticated: there is no token, or one that isn't known.
            AccessDenied: it isn't for this.
        """
        given = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        if len(given) != 1:
            raise self._refused(watch, context, Unauthenticated(_NONE))
        scheme, _, token = str(given[0]).partition(" ")
        presented, found = digest_of(token), None
        for caller in self._callers.values():  # all of them, so that how long it takes tells nothing
            if hmac.compare_digest(caller.digest, presented):
                found = caller
        if found is None or scheme.lower() != "bearer":
            raise self._refused(watch, context, Unauthenticated(_UNKNOWN))
        watch.identity = found.name
        if found.role < needs:
            has, wanted = found.role.name.lower(), needs.name.lower()
            denied = AccessDenied(f"this needs a token of role {wanted!r}, and {found.name!r} has {has!r}")
            raise self._refused(watch, context, denied)
        return found

    def reread(self) -> list[TokenSpec] | None:
        """What the file has since it has changed; None: it hasn't, or can't be used, which is told once, and tried
        again. From any thread, one at a time."""
        if self._file is None:
            return None
        stamp, now = stamp_of(self._file), time.monotonic()
        if stamp == self._stamp and not (self.problem and now >= self._again_s):
            return None
        self._stamp, self._again_s = stamp, now + AGAIN_S
        try:
            tokens = load_tokens(self._file)
        except ConfigError as error:
            if str(error) != self.problem:
                logger.error("the file of tokens has changed and can't be used; those of before stay: %s", error)
            self.problem = str(error)
            return None
        self.problem = ""
        return tokens

    def take(self, tokens: Sequence[TokenSpec]) -> None:
        """These are valid from now on. Callers that are there still keep what they have under way."""
        before, self._callers = self._callers, {}
        gone = {**before}
        for spec in tokens:
            key = spec.name, spec.role, spec.digest
            caller = gone.pop(key, None) or Caller(spec.name, Role[spec.role.upper()], spec.digest)
            caller.allowance.limit(spec.calls, spec.ids_per_s)
            self._callers[key] = caller
        for caller in gone.values():
            caller.revoked = True
        if before:
            logger.info("%s: has changed, and its tokens are valid now: %d", self._file, len(self._callers))

    def _refused(self, watch: Watch, context: Context, reason: Refusal) -> Refusal:
        watch.lead()
        self._refusals[f"{watch.name} by {watch.identity or 'somebody without a valid token'}"] += 1
        logger.debug("%s from %s is refused: %s", watch.name, context.peer(), reason)
        self.tell_refusals()
        return reason

    def tell_refusals(self) -> None:
        """Logs what was refused since the last time, unless that was just now."""
        if self._refusals and (now := time.monotonic()) >= self._told + TOLD_S:
            told = ", ".join(f"{count} × {what}" for what, count in self._refusals.most_common())
            logger.warning("calls that their callers may not make, and refused: %s", told)
            self._refusals.clear()
            self._told = now


def revocation() -> Unauthenticated:
    """Why a call ends whose caller's token was taken away meanwhile."""
    return Unauthenticated(_REVOKED)


def name_in_certificate(context: Context) -> str:
    """The common name of the client's certificate, or the first of its other names; "" if there is none."""
    told = context.auth_context()
    names = [*told.get("x509_common_name", ()), *told.get("x509_subject_alternative_name", ())]
    name = next((name.decode(errors="replace") for name in names if name), "")
    return name if name.isprintable() else ascii(name)
