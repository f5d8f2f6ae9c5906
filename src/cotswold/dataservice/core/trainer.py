"""A trainer of a pool of data servers: it joins, follows the servers, and sends requests.

Knows: the pool's members, heartbeats, its requests. Does not know: the content of requests, clocks, sockets.

    state      event                                                next
    outside    the first `PoolMembers`                              member
    outside    a `PoolMembers` that rejects it                      an error
    member     a `PoolMembers` of the same pool                     member: servers join and leave
    member     a `PoolMembers` of another pool                      an error: the head was restarted
    member     the connection to a server ends                      member, without it until listed again
    any        the connection to the head ends, or `Shutdown`       an error

Shared epochs are passes (`EpochPass`), one at a time. Passes that it has left are kept until the head
acknowledges them.

Each heartbeat contains the version of the members; so a lost `PoolMembers` is resent.
"""

from __future__ import annotations

from dataclasses import replace

from cotswold.dataservice.core.epoch_pass import AskOf, EpochPass, SharedEpochSettings
from cotswold.dataservice.core.request_scheduler import RequestScheduler, RequestSettings
from cotswold.wire import (
    POOL,
    BatchPending,
    BatchRejected,
    BatchReply,
    EpochAssignment,
    JoinPool,
    LeavePool,
    PoolMembers,
    Send,
    Shutdown,
)

BEATS = 4
"""Heartbeats within the time for which it waits for an answer, at least."""


class Trainer:
    """One trainer, from its first message to its end."""

    def __init__(
        self,
        name: str,
        address: str,
        store: str,
        asking: RequestSettings,
        now: float,
        beat_seconds: float = 1.0,
    ) -> None:
        """``store``: identity of the wanted store; empty for any."""
        self.name, self.requests = name, RequestScheduler(asking, now)
        self.terms = ""
        """The pool's terms, in JSON; empty until known."""
        self.addresses: dict[str, str] = {}
        """Addresses of connected servers, by name."""
        self.error = ""
        """The reason why it cannot continue, without a final period."""
        self.is_stranger = False
        """True if it wants another store than the pool serves."""
        self.handed, self.waited = 0, 0.0
        """Samples delivered to its loop, and seconds for which the loop waited; for monitoring."""
        self._attend = JoinPool(name, address, store, 0)
        self._pool = ""
        self._beat_seconds = min(beat_seconds, asking.lonely_seconds / BEATS)
        self._beaten = float("-inf")
        self._doubts = False
        """True if a server was lost that the members still list."""
        self._ticked = now
        self._sessions = 0
        self._passes: list[EpochPass] = []
        """The last may be active; the head has not acknowledged that the others are left."""

    @property
    def pool(self) -> str:
        """Name of the pool that it has joined; empty before."""
        return self._pool

    @property
    def is_here(self) -> bool:
        """True if it knows the members and the terms."""
        return bool(self._pool and self.terms)

    def receive(
        self,
        sender: str,
        message: PoolMembers | EpochAssignment | BatchReply | BatchRejected | BatchPending | Shutdown,
        now: float,
    ) -> list[Send]:
        """Handle a message of the head or a server."""
        match message:
            case PoolMembers() if sender == POOL:
                return self._heard(message, now)
            case EpochAssignment() if sender == POOL:
                return [send for each in self._passes for send in each.receive(message, now)]
            case Shutdown(_, why) if sender == POOL:
                ended = "the pool of data servers has ended"
                self.error = self.error or (f"{ended}: {why}" if why else ended)
                return []
            case BatchReply() | BatchRejected() | BatchPending() if sender == message.server:
                return self.requests.receive(sender, message, now)
            case _:
                return []

    def lost(self, peer: str, why: str, now: float) -> list[Send]:
        """Handle the end of a connection."""
        if peer == POOL:
            what = "is lost" if self._pool else "cannot be reached"
            self.error = self.error or f"the head of the pool of data servers {what}: {why}"
            return []
        if self.addresses.pop(peer, None) is None:
            return []
        self._doubts = True
        return self.requests.lost(peer, now)

    def tick(self, now: float) -> list[Send]:
        """Do periodic work; call several times per heartbeat."""
        stood, self._ticked = now - self._ticked, now
        sends = self.requests.tick(now)
        if now - self._beaten >= self._beat_seconds:
            self._beaten = now
            version = 0 if self._doubts else self._attend.version
            said = replace(self._attend, version=version, handed=self.handed, waited=self.waited)
            sends.append(Send(POOL, said))
        self._passes = [each for each in self._passes if not each.is_done or each is self.on]
        for each in self._passes:
            if stood > self.requests.asking.pause_seconds:
                each.exclude_stall(stood)
            sends += each.tick(self._pool, now)
        return sends

    def trouble(self, now: float) -> str:
        """The reason why no batch arrives; empty if batches arrive."""
        drawn = self.on.trouble(now) if self.on is not None else ""
        return self.error or drawn or self.requests.trouble(now)

    def leave(self) -> list[Send]:
        """Leave the pool."""
        return [*self.leave_epoch(self._ticked), *self.requests.cancel(), Send(POOL, LeavePool(self.name))]

    # --- shared epochs ---

    @property
    def on(self) -> EpochPass | None:
        """The active pass."""
        return self._passes[-1] if self._passes and not self._passes[-1].is_left else None

    def draw(self, drawing: SharedEpochSettings, epoch: int, now: float) -> list[Send]:
        """Start a pass over an epoch; -1 for the current epoch, whose number arrives in the next
        assignment."""
        assert self.is_here, "a trainer must join before it shares epochs"
        sends = self.leave_epoch(now)
        self._passes.append(
            EpochPass(self.name, drawing, epoch, self._session, self.requests, now, self._beat_seconds)
        )
        return sends + self._passes[-1].tick(self._pool, now)

    def begin(self, ask_of: AskOf, now: float) -> list[Send]:
        """The order of the current epoch is known."""
        return [] if self.on is None else self.on.begin(ask_of, now)

    def next(self, now: float) -> tuple[BatchReply | None, list[Send]]:
        """Return the next batch of the shared epoch, once it is ready and taken."""
        return (None, []) if self.on is None else self.on.next(self._pool, now)

    def leave_epoch(self, now: float) -> list[Send]:
        """Leave the current shared epoch."""
        return [] if self.on is None else self.on.leave(self._pool, now)

    def _session(self) -> int:
        self._sessions += 1
        return self._sessions

    def _heard(self, roster: PoolMembers, now: float) -> list[Send]:
        if roster.why:
            self.error, self.is_stranger = roster.why, True
            return []
        if self._pool not in ("", roster.pool):
            self.error = "another pool of data servers serves at this address now; connect again"
            return []
        if roster.version < self._attend.version:
            return []
        self._pool, self.terms, self._doubts = roster.pool, roster.terms or self.terms, False
        self._attend = replace(self._attend, version=roster.version)
        known, self.addresses = self.addresses, dict(roster.servers)
        sends: list[Send] = []
        for name, address in known.items():
            if self.addresses.get(name, address) != address:
                sends += self.requests.lost(name, now)
        return sends + self.requests.roster(self.addresses, now)
