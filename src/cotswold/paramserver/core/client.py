"""A client that brings its own samples: it pulls and pushes when it is asked to; message in, messages out.

Knows: its session, versions, the update and the pull that are not answered. Does not know: weights,
gradients, samples, sockets, clocks, threads.

    state      what happens                                  next
    OUTSIDE    Admitted, then Directions                     HERE
    HERE       Rejoin (it was silent for too long)           OUTSIDE    (a new session, by itself)
    any        Dismiss                                       GONE

    in HERE                                what it does
    it is asked to pull                    every server is asked for what is newer
    it is asked to push                    the next number to every server, once the one before is answered
    a checkpoint is heard of               its marker goes to every server, between two pushes
    no answer                              the same again: servers count an update once

An update whose session ends before all servers have answered is not sent again: what became of it is in the
account of the servers (counted or torn), and here it is `lost`. A pull goes on in the next session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from cotswold.paramserver.core.update_sequence import Numbered, Origin, Part
from cotswold.wire import (
    COORDINATOR,
    Admitted,
    Alive,
    Applied,
    Directions,
    Dismiss,
    Join,
    Leave,
    PulledNewer,
    PullNewer,
    Rejoin,
    Send,
    Shard,
    ToReplica,
    UpdateRefused,
)

JOIN_SECONDS = 1.0
"""After which it asks again to be admitted."""
_IN_HAND = 1
"""Samples that it says that it has, so that it is handed none."""


class State(Enum):
    """Where a client is."""

    OUTSIDE = "outside"
    HERE = "here"
    GONE = "gone"


@dataclass
class Outcome:
    """What became of a push."""

    number: int
    """1, 2, 3, ... of this client's pushes; what servers are told counts markers, too, and begins anew with
    each session."""
    applied: dict[str, Applied] = field(default_factory=dict)
    """By server."""
    refused: dict[str, UpdateRefused] = field(default_factory=dict)
    """By server, for ever."""
    lost: bool = False
    """Whether its session ended before all had answered."""


@dataclass
class _Push:
    parts: Mapping[str, Part]
    versions: Mapping[int, int]
    samples: int


@dataclass
class _Session:
    admitted: Admitted
    updates: Numbered
    """What it pushes."""
    directions: Directions | None = None
    place: int = 0
    """Samples pushed."""
    outcome: Outcome | None = None
    """Of the update under way; None for a marker."""
    beaten: float = float("-inf")


class Visitor:
    """One client, from its first `Join` to its end."""

    def __init__(self, join: Join) -> None:
        self.name, self.state = join.name, State.OUTSIDE
        self.versions: dict[int, int] = {}
        """Of the shards that it has; -1 for none."""
        self.newer: list[PulledNewer] = []
        """What was pulled, until somebody takes it."""
        self.outcome: Outcome | None = None
        """Of the newest push, once it is known, until somebody takes it."""
        self.sessions = 0
        """How many it has had."""
        self.pushes = 0
        """How many it was asked for and has sent."""
        self._join = join
        self._joined: float | None = None
        self._session: _Session | None = None
        self._wanted: _Push | None = None
        self._pulls = False
        self._pulling: dict[str, PullNewer] = {}
        self._pull_sent = 0.0
        self._pull_number = 0

    @property
    def is_gone(self) -> bool:
        """Whether it was dismissed."""
        return self.state is State.GONE

    @property
    def session(self) -> int:
        """Its session; 0 outside of one."""
        return 0 if self._session is None else self._session.admitted.session

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All that there are; none outside of a session."""
        return () if self._session is None else self._session.admitted.shards

    @property
    def is_pulling(self) -> bool:
        """Whether what it was asked to pull has not come."""
        return self._pulls or bool(self._pulling)

    # --- what it is asked for ---

    def pull(self, now: float) -> list[Send]:
        """Ask for all that is newer; nobody waits for what will be computed from it."""
        self._pulls = True
        return self._go_on(now)

    def push(
        self, parts: Mapping[str, Part], versions: Mapping[int, int], samples: int, now: float
    ) -> list[Send]:
        """Push ``parts`` (to each server its own), computed from these versions and so many samples."""
        assert self._wanted is None and not self.is_pushing, "one push at a time"
        self.outcome = None
        self._wanted = _Push(parts, versions, samples)
        return self._go_on(now)

    @property
    def is_pushing(self) -> bool:
        """Whether a push was asked for of which the outcome is not known."""
        return self._wanted is not None or (self._session is not None and self._session.outcome is not None)

    def leave(self, reason: str) -> list[Send]:
        """Go; `Dismiss` will come."""
        return [Send(COORDINATOR, Leave(self.session, reason))] if self._session else []

    # --- what it hears ---

    def receive(self, sender: str, message: ToReplica, now: float) -> list[Send]:
        """A message of the coordinator or of a server."""
        if isinstance(message, Admitted):
            return self._admitted(message, now)
        session = self._session
        if isinstance(message, Dismiss) and message.session in (0, self.session):
            self._end_session()
            self.state = State.GONE
            return []
        if session is None or message.session != self.session:
            return []
        match message:
            case Rejoin():
                self._end_session()
                self.state, self._joined = State.OUTSIDE, now
                self._join = replace(self._join, attempt=self._join.attempt + 1)
                return [Send(COORDINATOR, self._join)]
            case Directions():
                before = session.directions
                if before is None or message.rate >= before.rate:
                    session.directions = message
                self.state = State.HERE
            case PulledNewer() if message.server == sender:
                self._pulled(message)
            case Applied() if message.server == sender and message.number == session.updates.number:
                if session.outcome is not None:
                    session.outcome.applied[sender] = message
                self._answered(session, sender)
            case UpdateRefused() if message.server == sender:
                self._refused(session, sender, message)
            case _:
                return []
        return self._go_on(now)

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each beat."""
        session = self._session
        if self.state is State.GONE:
            return []
        if session is None:
            if self._joined is not None and now - self._joined < JOIN_SECONDS:
                return []
            self._joined = now
            return [Send(COORDINATOR, self._join)]
        sends: list[Send] = []
        retry = session.admitted.retry_seconds
        if self._pulling and now - self._pull_sent >= retry:
            self._pull_sent = now
            sends += [Send(server, pull) for server, pull in self._pulling.items()]
        sends += session.updates.again(now)
        if now - session.beaten >= session.admitted.beat_seconds:
            sends += self._beat(session, now)
        return sends

    # --- sessions ---

    def _admitted(self, admitted: Admitted, now: float) -> list[Send]:
        if self._session is not None or (admitted.name, admitted.attempt) != (self.name, self._join.attempt):
            return []
        self._session = session = _Session(admitted, Numbered(admitted))
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
        session.beaten = now
        return [Send(COORDINATOR, Alive(self.session, 0, _IN_HAND))]

    def _servers(self, session: _Session) -> Sequence[str]:
        return [name for name, _ in session.admitted.servers]

    # --- pulls and pushes ---

    def _go_on(self, now: float) -> list[Send]:
        """Send what may be sent now: one update at a time, one pull at a time."""
        session = self._session
        if session is None or session.directions is None:
            return []
        sends: list[Send] = []
        is_free = not session.updates.waiting
        if is_free and session.directions.checkpoint > session.updates.marked:
            sends += session.updates.mark(session.directions.checkpoint, now)
        elif is_free and self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            sends += self._push(session, session.directions, wanted, now)
        if self._pulls and not self._pulling:
            self._pulls = False
            sends += self._pull(session, now)
        return sends

    def _push(self, session: _Session, directions: Directions, push: _Push, now: float) -> list[Send]:
        samples = ((session.place, session.place + push.samples),) if push.samples else ()
        session.place += push.samples
        sends = session.updates.push(push.parts, Origin(push.versions, directions.rate, samples), now)
        self.pushes += 1
        session.outcome = Outcome(self.pushes)
        return sends

    def _answered(self, session: _Session, server: str) -> None:
        session.updates.answered(server, session.updates.number)
        if not session.updates.waiting and session.outcome is not None:
            self.outcome, session.outcome = session.outcome, None

    def _refused(self, session: _Session, server: str, refusal: UpdateRefused) -> None:
        if not session.updates.refused(server, refusal):
            return
        if session.outcome is not None:
            session.outcome.refused[server] = refusal
        self._answered(session, server)

    def _pull(self, session: _Session, now: float) -> list[Send]:
        self._pull_sent = now
        self._pull_number -= 1  # of no update, so nobody waits for it; and an answer says whose it is
        for server in self._servers(session):
            own = tuple(each.number for each in session.admitted.shards if each.server == server)
            known = tuple(self.versions[each] for each in own)
            self._pulling[server] = PullNewer(
                session.admitted.run, self.session, self._pull_number, own, known
            )
        return [Send(server, pull) for server, pull in self._pulling.items()]

    def _pulled(self, pulled: PulledNewer) -> None:
        if pulled.server not in self._pulling or pulled.number != self._pull_number or pulled.error:
            return  # asked for again by `tick`
        del self._pulling[pulled.server]
        fresh = dict(zip(pulled.shards, pulled.versions, strict=True))
        if all(version > self.versions[number] for number, version in fresh.items()):
            self.versions.update(fresh)
            self.newer.append(pulled)
