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

from cotswold.dataservice.core.epoch_pass import EpochPass, MakeRequest, SharedEpochSettings
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


class BatchRequester:
    """One trainer, from its first message to its end."""

    def __init__(
        self,
        name: str,
        address: str,
        store: str,
        request_settings: RequestSettings,
        now: float,
        beat_seconds: float = 1.0,
    ) -> None:
        """``store``: identity of the wanted store; empty for any."""
        self.name, self.requests = name, RequestScheduler(request_settings, now)
        self.terms = ""
        """The pool's terms, in JSON; empty until known."""
        self.addresses: dict[str, str] = {}
        """Addresses of connected servers, by name."""
        self.error = ""
        """The reason why it cannot continue, without a final period."""
        self.wants_other_store = False
        """True if it wants another store than the pool serves."""
        self.handed, self.waited = 0, 0.0
        """Samples delivered to its loop, and seconds for which the loop waited; for monitoring."""
        self._join_message = JoinPool(name, address, store, 0)
        self._pool = ""
        self._beat_seconds = min(beat_seconds, request_settings.no_server_seconds / BEATS)
        self._reported_at = float("-inf")
        self._is_outdated = False
        """True if a server was lost that the members still list."""
        self._ticked = now
        self._sessions = 0
        self._epoch_passes: list[EpochPass] = []
        """The last may be active; the head has not acknowledged that the others are left."""

    @property
    def pool(self) -> str:
        """Name of the pool that it has joined; empty before."""
        return self._pool

    @property
    def is_joined(self) -> bool:
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
                return self._on_members(message, now)
            case EpochAssignment() if sender == POOL:
                return [send for each in self._epoch_passes for send in each.receive(message, now)]
            case Shutdown(_, why) if sender == POOL:
                ended = "the pool of data servers has ended"
                self.error = self.error or (f"{ended}: {why}" if why else ended)
                return []
            case BatchReply() | BatchRejected() | BatchPending() if sender == message.server:
                return self.requests.receive(sender, message, now)
            case _:
                return []

    def on_lost(self, peer: str, why: str, now: float) -> list[Send]:
        """Handle the end of a connection."""
        if peer == POOL:
            what = "is lost" if self._pool else "cannot be reached"
            self.error = self.error or f"the head of the pool of data servers {what}: {why}"
            return []
        if self.addresses.pop(peer, None) is None:
            return []
        self._is_outdated = True
        return self.requests.on_server_lost(peer, now)

    def tick(self, now: float) -> list[Send]:
        """Do periodic work; call several times per heartbeat."""
        stood, self._ticked = now - self._ticked, now
        sends = self.requests.tick(now)
        if now - self._reported_at >= self._beat_seconds:
            self._reported_at = now
            version = 0 if self._is_outdated else self._join_message.version
            said = replace(
                self._join_message, version=version, delivered=self.handed, waited_seconds=self.waited
            )
            sends.append(Send(POOL, said))
        self._epoch_passes = [
            each for each in self._epoch_passes if not each.is_done or each is self.active_pass
        ]
        for each in self._epoch_passes:
            if stood > self.requests.settings.pause_seconds:
                each.exclude_stall(stood)
            sends += each.tick(self._pool, now)
        return sends

    def failure(self, now: float) -> str:
        """The reason why no batch arrives; empty if batches arrive."""
        drawn = self.active_pass.failure(now) if self.active_pass is not None else ""
        return self.error or drawn or self.requests.failure(now)

    def leave(self) -> list[Send]:
        """Leave the pool."""
        return [*self.leave_epoch(self._ticked), *self.requests.cancel(), Send(POOL, LeavePool(self.name))]

    # --- shared epochs ---

    @property
    def active_pass(self) -> EpochPass | None:
        """The active pass."""
        return self._epoch_passes[-1] if self._epoch_passes and not self._epoch_passes[-1].is_left else None

    def start_pass(self, settings: SharedEpochSettings, epoch: int, now: float) -> list[Send]:
        """Start a pass over an epoch; -1 for the current epoch, whose number arrives in the next
        assignment."""
        assert self.is_joined, "a trainer must join before it shares epochs"
        sends = self.leave_epoch(now)
        self._epoch_passes.append(
            EpochPass(self.name, settings, epoch, self._session, self.requests, now, self._beat_seconds)
        )
        return sends + self._epoch_passes[-1].tick(self._pool, now)

    def begin(self, make_request: MakeRequest, now: float) -> list[Send]:
        """The order of the current epoch is known."""
        return [] if self.active_pass is None else self.active_pass.begin(make_request, now)

    def next(self, now: float) -> tuple[BatchReply | None, list[Send]]:
        """Return the next batch of the shared epoch, once it is ready and taken."""
        return (None, []) if self.active_pass is None else self.active_pass.next(self._pool, now)

    def leave_epoch(self, now: float) -> list[Send]:
        """Leave the current shared epoch."""
        return [] if self.active_pass is None else self.active_pass.leave(self._pool, now)

    def _session(self) -> int:
        self._sessions += 1
        return self._sessions

    def _on_members(self, members: PoolMembers, now: float) -> list[Send]:
        if members.why:
            self.error, self.wants_other_store = members.why, True
            return []
        if self._pool not in ("", members.pool):
            self.error = "another pool of data servers serves at this address now; connect again"
            return []
        if members.version < self._join_message.version:
            return []
        self._pool, self.terms, self._is_outdated = members.pool, members.terms or self.terms, False
        self._join_message = replace(self._join_message, version=members.version)
        known, self.addresses = self.addresses, dict(members.servers)
        sends: list[Send] = []
        for name, address in known.items():
            if self.addresses.get(name, address) != address:
                sends += self.requests.on_server_lost(name, now)
        return sends + self.requests.set_servers(self.addresses, now)
