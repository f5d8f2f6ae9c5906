"""A client that brings its own samples and pulls and pushes on request; message in, messages out.

Knows: its session, versions, the unanswered update and pull. Does not know: weights, gradients, samples,
sockets, clocks, threads.

    state      event                                         next
    OUTSIDE    SessionOpened, then ReplicaInstructions       JOINED
    JOINED     SessionExpired (silent for too long)          OUTSIDE    (joins again by itself)
    any        Shutdown                                      GONE

    event in JOINED                        action
    a pull is requested                    ask every server for newer shards
    a push is requested                    send it to every server after the reply to the previous one
    a checkpoint begins                    send its marker to every server, between two pushes
    no reply                               repeat the message: servers count an update once

If a session ends before all servers have answered an update, the update is not sent again. The servers'
ledger decides whether it counted or was torn; for the client it is `lost`. A pull continues in the next
session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from cotswold.paramserver.core.update_sequence import ServerUpdate, UpdateSequence, UpdateSource
from cotswold.wire import (
    COORDINATOR,
    Applied,
    Join,
    Leave,
    PulledNewer,
    PullNewer,
    ReplicaHeartbeat,
    ReplicaInstructions,
    Send,
    SessionExpired,
    SessionOpened,
    Shard,
    Shutdown,
    ToReplica,
    UpdateRefused,
)

JOIN_SECONDS = 1.0
"""Seconds between two requests to join."""
_REMAINING_SAMPLES = 1
"""Number of samples that the client reports, so that it receives none."""


class ClientState(Enum):
    """State of a client."""

    OUTSIDE = "outside"
    JOINED = "here"
    GONE = "gone"


@dataclass
class PushOutcome:
    """Result of a push."""

    number: int
    """Number 1, 2, 3, ... of this client's pushes. The sequence number on the wire also counts markers and
    restarts with each session."""
    applied: dict[str, Applied] = field(default_factory=dict)
    """Replies of servers that have applied it, by server."""
    refused: dict[str, UpdateRefused] = field(default_factory=dict)
    """Permanent rejections, by server."""
    lost: bool = False
    """True if its session ended before all servers had answered."""


@dataclass
class _PendingPush:
    parts: Mapping[str, ServerUpdate]
    versions: Mapping[int, int]
    samples: int


@dataclass
class _Session:
    admitted: SessionOpened
    updates: UpdateSequence
    """Update sequence of the session."""
    instructions: ReplicaInstructions | None = None
    pushed_samples: int = 0
    """Number of pushed samples."""
    outcome: PushOutcome | None = None
    """Outcome of the update in flight; None for a marker."""
    last_beat: float = float("-inf")


class ClientSession:
    """One client, from its first `Join` to its end."""

    def __init__(self, join: Join) -> None:
        self.name, self.state = join.name, ClientState.OUTSIDE
        self.versions: dict[int, int] = {}
        """Version of each shard that the client has; -1 for none."""
        self.newer: list[PulledNewer] = []
        """Pulled shards that the caller has not taken yet."""
        self.outcome: PushOutcome | None = None
        """Outcome of the newest push, once known and not taken yet."""
        self.sessions = 0
        """Number of sessions so far."""
        self.pushes = 0
        """Number of pushes sent so far."""
        self._join = join
        self._joined: float | None = None
        self._session: _Session | None = None
        self._pending_push: _PendingPush | None = None
        self._pulls = False
        self._pulling: dict[str, PullNewer] = {}
        self._pull_sent_at = 0.0
        self._pull_number = 0

    @property
    def is_gone(self) -> bool:
        """True after `Shutdown`."""
        return self.state is ClientState.GONE

    @property
    def session(self) -> int:
        """Number of its session; 0 without one."""
        return 0 if self._session is None else self._session.admitted.session

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards of the servers; none without a session."""
        return () if self._session is None else self._session.admitted.shards

    @property
    def is_pulling(self) -> bool:
        """True while a requested pull is incomplete."""
        return self._pulls or bool(self._pulling)

    # --- requests of the caller ---

    def pull(self, now: float) -> list[Send]:
        """Request all newer shards; no other client waits for an update computed from them."""
        self._pulls = True
        return self._send_due(now)

    def push(
        self, parts: Mapping[str, ServerUpdate], versions: Mapping[int, int], samples: int, now: float
    ) -> list[Send]:
        """Push ``parts`` (one per server), computed from these versions and this number of samples."""
        assert self._pending_push is None and not self.is_pushing, "one push at a time"
        self.outcome = None
        self._pending_push = _PendingPush(parts, versions, samples)
        return self._send_due(now)

    @property
    def is_pushing(self) -> bool:
        """True while the outcome of a requested push is unknown."""
        return self._pending_push is not None or (
            self._session is not None and self._session.outcome is not None
        )

    def leave(self, reason: str) -> list[Send]:
        """Ask to leave; `Shutdown` will follow."""
        return [Send(COORDINATOR, Leave(self.session, reason))] if self._session else []

    # --- received messages ---

    def receive(self, sender: str, message: ToReplica, now: float) -> list[Send]:
        """Handle a message of the coordinator or of a server."""
        if isinstance(message, SessionOpened):
            return self._on_session_opened(message, now)
        session = self._session
        if isinstance(message, Shutdown) and message.session in (0, self.session):
            self._end_session()
            self.state = ClientState.GONE
            return []
        if session is None or message.session != self.session:
            return []
        match message:
            case SessionExpired():
                self._end_session()
                self.state, self._joined = ClientState.OUTSIDE, now
                self._join = replace(self._join, attempt=self._join.attempt + 1)
                return [Send(COORDINATOR, self._join)]
            case ReplicaInstructions():
                before = session.instructions
                if before is None or message.rate >= before.rate:
                    session.instructions = message
                self.state = ClientState.JOINED
            case PulledNewer() if message.server == sender:
                self._on_pulled(message)
            case Applied() if message.server == sender and message.number == session.updates.number:
                if session.outcome is not None:
                    session.outcome.applied[sender] = message
                self._on_answer(session, sender)
            case UpdateRefused() if message.server == sender:
                self._on_refusal(session, sender, message)
            case _:
                return []
        return self._send_due(now)

    def tick(self, now: float) -> list[Send]:
        """Advance the time; call it a few times per heartbeat interval."""
        session = self._session
        if self.state is ClientState.GONE:
            return []
        if session is None:
            if self._joined is not None and now - self._joined < JOIN_SECONDS:
                return []
            self._joined = now
            return [Send(COORDINATOR, self._join)]
        sends: list[Send] = []
        retry = session.admitted.retry_seconds
        if self._pulling and now - self._pull_sent_at >= retry:
            self._pull_sent_at = now
            sends += [Send(server, pull) for server, pull in self._pulling.items()]
        sends += session.updates.resend(now)
        if now - session.last_beat >= session.admitted.beat_seconds:
            sends += self._beat(session, now)
        return sends

    # --- sessions ---

    def _on_session_opened(self, admitted: SessionOpened, now: float) -> list[Send]:
        if self._session is not None or (admitted.name, admitted.attempt) != (self.name, self._join.attempt):
            return []
        self._session = session = _Session(admitted, UpdateSequence(admitted))
        self.sessions += 1
        for shard in admitted.shards:
            self.versions.setdefault(shard.number, -1)
        return self._beat(session, now)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.outcome is not None:
            session.outcome.lost = True
            self.outcome = session.outcome
        if self._pulling:
            self._pulls, self._pulling = True, {}

    def _beat(self, session: _Session, now: float) -> list[Send]:
        session.last_beat = now
        return [Send(COORDINATOR, ReplicaHeartbeat(self.session, 0, _REMAINING_SAMPLES))]

    def _servers(self, session: _Session) -> Sequence[str]:
        return [name for name, _ in session.admitted.servers]

    # --- pulls and pushes ---

    def _send_due(self, now: float) -> list[Send]:
        """Send what is due: one update at a time, one pull at a time."""
        session = self._session
        if session is None or session.instructions is None:
            return []
        sends: list[Send] = []
        is_free = not session.updates.unanswered
        if is_free and session.instructions.checkpoint > session.updates.sent_marker:
            sends += session.updates.mark(session.instructions.checkpoint, now)
        elif is_free and self._pending_push is not None:
            wanted, self._pending_push = self._pending_push, None
            sends += self._push(session, session.instructions, wanted, now)
        if self._pulls and not self._pulling:
            self._pulls = False
            sends += self._pull(session, now)
        return sends

    def _push(
        self, session: _Session, directions: ReplicaInstructions, push: _PendingPush, now: float
    ) -> list[Send]:
        samples = ((session.pushed_samples, session.pushed_samples + push.samples),) if push.samples else ()
        session.pushed_samples += push.samples
        sends = session.updates.push(push.parts, UpdateSource(push.versions, directions.rate, samples), now)
        self.pushes += 1
        session.outcome = PushOutcome(self.pushes)
        return sends

    def _on_answer(self, session: _Session, server: str) -> None:
        session.updates.record_answer(server, session.updates.number)
        if not session.updates.unanswered and session.outcome is not None:
            self.outcome, session.outcome = session.outcome, None

    def _on_refusal(self, session: _Session, server: str, refusal: UpdateRefused) -> None:
        if not session.updates.record_refusal(server, refusal):
            return
        if session.outcome is not None:
            session.outcome.refused[server] = refusal
        self._on_answer(session, server)

    def _pull(self, session: _Session, now: float) -> list[Send]:
        self._pull_sent_at = now
        self._pull_number -= 1  # belongs to no update, so no client waits for it; and identifies the reply
        for server in self._servers(session):
            own = tuple(each.number for each in session.admitted.shards if each.server == server)
            known = tuple(self.versions[each] for each in own)
            self._pulling[server] = PullNewer(
                session.admitted.run, self.session, self._pull_number, own, known
            )
        return [Send(server, pull) for server, pull in self._pulling.items()]

    def _on_pulled(self, pulled: PulledNewer) -> None:
        if pulled.server not in self._pulling or pulled.number != self._pull_number or pulled.error:
            return  # `tick` asks again
        del self._pulling[pulled.server]
        fresh = dict(zip(pulled.shards, pulled.versions, strict=True))
        if all(version > self.versions[number] for number, version in fresh.items()):
            self.versions.update(fresh)
            self.newer.append(pulled)
