"""A replica: when it steps, pushes and pulls; message in, messages out.

Knows: samples in hand, versions, updates that are not answered. Does not know: weights, gradients, sockets,
clocks, threads.

Whoever runs it takes `task`, does that, and says `stepped`; meanwhile messages come in by `receive`, and
`tick` says that it lives and sends again what was not answered. The shell computes in one thread and carries
messages in others: pulls and pushes go on while a step is computed.

    state      what happens                            next
    OUTSIDE    Admitted: all servers are asked         FETCHING
    FETCHING   every shard has come                    READY
    READY      Directions, PulledNewer, Applied, ...   READY
    any        Rejoin                                  OUTSIDE    (all in hand is dropped)
    any        Dismiss                                 GONE

    in READY                              what it does
    samples in hand                       a step, into the accumulation
    n_push steps, or the last in hand     the accumulation is closed, and pushed to every server
    a hand that is pushed alone           the accumulation is closed before its first step and after its last
    a push is not answered everywhere     steps go on until the next accumulation is closed
    n_fetch steps                         it pulls what is newer; steps go on meanwhile
    the same, and it ``moves``            it pulls between one push, applied, and the next
    ``overlap`` off                       no step until the push is applied everywhere and its pull has come
    a checkpoint is heard of              its marker goes to every server, once the push before is answered
    nothing in hand                       an update without shards: nobody need wait for what it has pulled

A push has the same number on every server, so the markers cut all servers at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

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
    Ranges,
    Rejoin,
    Send,
    ToReplica,
    UpdateRefused,
)
from cotswold.wire.ranges import joined


class State(Enum):
    """Where a replica is."""

    OUTSIDE = "outside"
    FETCHING = "fetching"
    READY = "ready"
    GONE = "gone"


@dataclass(frozen=True)
class Pace:
    """How often a replica fetches and pushes (Dean et al. 2012, section 4.1)."""

    batch: int
    """Samples a step; the last of what it is handed may have fewer."""
    n_fetch: int = 1
    """Steps between pulls."""
    n_push: int = 1
    """Steps that a push adds up."""
    overlap: bool = True
    """Whether steps go on while pushes and pulls are under way; otherwise its own staleness is 0, and servers
    know from what it computes."""
    moves: bool = False
    """Whether it pushes steps that it takes on its own copy: those that a pull does not have yet stay there.
    So that it is known which these are, a pull waits until the push before is applied."""
    stretch: int = 1
    """A push adds up so many times `n_push` steps, at most, while the one before is not answered: what a
    server had may be somewhere else soon. With overlap alone."""

    def __post_init__(self) -> None:
        for name in ("batch", "n_fetch", "n_push", "stretch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 1")
        if not self.overlap and self.n_fetch > self.n_push:
            raise ValueError("without overlap n_fetch is at most n_push: each push is computed from a pull")


@dataclass(frozen=True)
class StepTask:
    """Put newer shards in their place, then compute on the samples, and add to the accumulation."""

    installs: list[PulledNewer]
    """Whoever has put them in their place clears it: what they lie in is lent until then."""
    samples: tuple[int, int]
    """Places, from start to before stop."""
    rate: float
    """The learning rate, for whoever takes steps of its own."""
    opens: bool
    """Whether the accumulation begins with this step: what is in it belongs to another push."""
    closes: bool
    """Whether what is accumulated is to go to the servers, unless `Replica.stretches`."""
    pull: tuple[int, int]
    """Which pull was asked for last, by session and number: ``installs`` are of it."""
    behind: int
    """Accumulations that were closed and are not in that pull."""


class _Hand(NamedTuple):
    """Samples in hand that no step has taken: places from start to before stop."""

    start: int
    stop: int
    is_alone: bool
    """Whether no push has samples of this hand and of another one."""


@dataclass
class _Accumulation:
    versions: dict[int, int]
    """Of the shards when it was opened."""
    rate: int
    steps: int = 0
    samples: Ranges = ()
    is_alone: bool = False
    """Whether its samples are of a hand that is pushed alone."""
    ends_hand: bool = False
    """Whether its newest step is the last of a hand."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """By server, once it is closed."""


@dataclass
class _Session:
    """What a replica has while it is in a session."""

    admitted: Admitted
    updates: Numbered
    """What it pushes."""
    versions: dict[int, int]
    """Of the shards that it has, or that wait for being installed; -1 for none."""
    hands: list[_Hand] = field(default_factory=list)
    newest_hand: int = 0
    directions: Directions | None = None
    pulling: dict[str, PullNewer] = field(default_factory=dict)
    """Not answered, by server."""
    pull_sent: float = 0.0
    pulls: int = 0
    """Asked for."""
    pulled_closed: int = 0
    """Accumulations that were applied when the newest pull was asked for."""
    installs: list[PulledNewer] = field(default_factory=list)
    since_pull: int = 0
    """Steps."""
    must_pull: bool = False
    """Whether a pull must come before the next step."""
    has_pulled: bool = False
    """Whether it has pulled for its next push."""
    accumulation: _Accumulation | None = None
    closed: _Accumulation | None = None
    """Waits for the push before it."""
    closings: int = 0
    """Accumulations that were closed."""
    beaten: float = float("-inf")

    @property
    def pushing(self) -> tuple[str, ...]:
        """The servers that have not answered the newest push."""
        return tuple(self.updates.waiting)

    @property
    def left(self) -> int:
        """Samples in hand."""
        return sum(each.stop - each.start for each in self.hands)


class Replica:
    """One replica process, from its first `Join` to its end."""

    def __init__(self, join: Join, pace: Pace) -> None:
        self.name, self.pace, self.state = join.name, pace, State.OUTSIDE
        self.steps = 0
        self._join = join
        self._joined: float | None = None
        self._session: _Session | None = None
        self._stepping: _Session | None = None
        """In which session the task is being done."""
        self._leaving: str | None = None

    @property
    def session(self) -> int:
        """Its session; 0 outside of one."""
        return 0 if self._session is None else self._session.admitted.session

    @property
    def doing(self) -> tuple[str, tuple[str, ...]]:
        """What it does now, and by name for whom it waits: `computing`; `pushing`, until its push is applied;
        `pulling`, until parameters come; `idle`, until it is handed samples; `joining`; `gone`."""
        session = self._session
        if session is None:
            return ("gone", ()) if self.state is State.GONE else ("joining", (COORDINATOR,))
        if self._stepping is not None:
            return "computing", ()
        pushing, pulling = session.pushing, tuple(session.pulling)
        if self.state is State.FETCHING:
            return "pulling", pulling
        if pushing and (session.closed is not None or not session.hands or not self.pace.overlap):
            return "pushing", pushing
        if pulling and (session.must_pull or not self.pace.overlap):
            return "pulling", pulling
        if not session.hands:
            return "idle", (COORDINATOR,)
        return "computing", ()

    # --- what it hears ---

    def receive(self, sender: str, message: ToReplica, now: float) -> list[Send]:
        """A message of the coordinator or of a server."""
        if isinstance(message, Admitted):
            return self._admitted(message, now)
        session = self._session
        if isinstance(message, Dismiss) and message.session in (0, self.session):
            return self._gone()
        if isinstance(message, Rejoin) and message.session == self.session:
            return self._outside(now)
        if session is None or message.session != self.session:
            return []
        match message:
            case Directions():
                self._directed(session, message)
            case PulledNewer() if message.server == sender:
                self._pulled(session, message)
            case Applied() if message.server == sender:
                session.updates.answered(sender, message.number)
            case UpdateRefused() if message.server == sender:
                session.updates.refused(sender, message)
            case _:
                return []
        return self._go_on(session, now)

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each beat, while a step is computed too."""
        if self.state is State.GONE:
            return []
        session = self._session
        if session is None:
            if self._joined is not None and now - self._joined < 1.0:
                return []
            self._joined = now
            return [Send(COORDINATOR, self._join)]
        sends: list[Send] = []
        retry = session.admitted.retry_seconds
        if session.pulling and now - session.pull_sent >= retry:
            session.pull_sent = now
            sends += [Send(server, pull) for server, pull in session.pulling.items()]
        sends += session.updates.again(now)
        if now - session.beaten >= session.admitted.beat_seconds:
            sends += self._rest(session, now)
            sends += self._beat(session, now)
            if self._leaving is not None:
                sends.append(Send(COORDINATOR, Leave(self.session, self._leaving)))
        return sends

    def again(self, server: str) -> list[Send]:
        """What a server has not answered, at once: another is in its place."""
        session = self._session
        if session is None:
            return []
        owed = session.pulling.get(server), session.updates.waiting.get(server)
        return [Send(server, each) for each in owed if each is not None]

    def leave(self, reason: str) -> list[Send]:
        """It wants to go; it is GONE once what it has in hand is counted."""
        self._leaving = reason
        return [Send(COORDINATOR, Leave(self.session, reason))] if self._session else self._gone()

    # --- what it does ---

    def task(self) -> StepTask | None:
        """The next step; None while there is none, or one is being computed."""
        session = self._session
        if session is None or self.state is not State.READY or self._stepping is not None:
            return None
        if not session.hands or session.closed is not None or session.directions is None:
            return None
        if session.must_pull or (not self.pace.overlap and (session.pushing or session.pulling)):
            return None
        start, stop, is_alone = session.hands.pop(0)
        samples = (start, min(stop, start + self.pace.batch))
        if samples[1] < stop:
            session.hands.insert(0, _Hand(samples[1], stop, is_alone))
        opens = session.accumulation is None
        if session.accumulation is None:
            session.accumulation = _Accumulation(dict(session.versions), session.directions.rate)
        accumulation = session.accumulation
        accumulation.steps += 1
        accumulation.samples = joined(accumulation.samples, (samples,))
        accumulation.is_alone, accumulation.ends_hand = is_alone, samples[1] == stop
        closes = accumulation.steps >= self.pace.n_push or self._must_close(session, accumulation)
        installs, session.installs = session.installs, []
        self._stepping = session
        pull, behind = (self.session, session.pulls), session.closings - session.pulled_closed
        return StepTask(installs, samples, session.directions.rate_value, opens, closes, pull, behind)

    @property
    def stretches(self) -> bool:
        """Whether what is accumulated, with the step of the task, need not go to the servers yet, for they
        have not answered what came before."""
        session = self._session
        if session is None or session.accumulation is None or not session.pushing:
            return False
        if self._must_close(session, session.accumulation):
            return False
        return session.accumulation.steps < self.pace.n_push * self.pace.stretch

    @staticmethod
    def _must_close(session: _Session, accumulation: _Accumulation) -> bool:
        """Whether the next step, if there is one, belongs to another push."""
        if not session.hands:
            return True
        return accumulation.ends_hand and (accumulation.is_alone or session.hands[0].is_alone)

    def coming(self, most: int) -> list[tuple[int, int]]:
        """Places of the samples of the steps after the one that is being computed, as far as they are in
        hand: at most so many steps."""
        found: list[tuple[int, int]] = []
        for start, stop, _ in () if self._session is None else self._session.hands:
            for first in range(start, stop, self.pace.batch):
                if len(found) == most:
                    return found
                found.append((first, min(stop, first + self.pace.batch)))
        return found

    def stepped(self, parts: Mapping[str, Part] | None, now: float) -> list[Send]:
        """The step of the task is in the accumulation; where that closes, what goes to each server."""
        session, self._stepping = self._stepping, None
        assert session is not None, "a step was being computed"
        self.steps += 1
        if session is not self._session:
            return []
        session.since_pull += 1
        if parts is not None:
            assert session.accumulation is not None and session.closed is None, "one was open"
            session.closed, session.accumulation = session.accumulation, None
            session.closed.parts = parts
            session.closings += 1
        sends = self._go_on(session, now)
        if session.left < self.pace.batch:
            sends += self._beat(session, now)
        return sends

    # --- joining and leaving ---

    def _admitted(self, admitted: Admitted, now: float) -> list[Send]:
        if self._session is not None or (admitted.name, admitted.attempt) != (self.name, self._join.attempt):
            return []
        versions = {shard.number: -1 for shard in admitted.shards}
        self._session = session = _Session(admitted, Numbered(admitted), versions)
        self.state = State.FETCHING
        return [*self._pull(session, now), *self._beat(session, now)]

    def _outside(self, now: float) -> list[Send]:
        self._session = None
        if self._leaving is not None:
            return self._gone()
        self.state, self._joined = State.OUTSIDE, now
        self._join = replace(self._join, attempt=self._join.attempt + 1)
        return [Send(COORDINATOR, self._join)]

    def _gone(self) -> list[Send]:
        self._session, self.state = None, State.GONE
        return []

    def _beat(self, session: _Session, now: float) -> list[Send]:
        session.beaten = now
        return [Send(COORDINATOR, Alive(self.session, session.newest_hand, session.left))]

    def _directed(self, session: _Session, directions: Directions) -> None:
        before = session.directions
        if before is None or (directions.rate, directions.checkpoint) >= (before.rate, before.checkpoint):
            session.directions = directions
        for number, start, stop in directions.hands:
            if number == session.newest_hand + 1:
                session.newest_hand = number
                session.hands.append(_Hand(start, stop, number in directions.alone))

    # --- pulls ---

    def _shards(self, session: _Session) -> dict[str, tuple[int, ...]]:
        return {
            server: tuple(each.number for each in session.admitted.shards if each.server == server)
            for server, _ in session.admitted.servers
        }

    def _pull(self, session: _Session, now: float) -> list[Send]:
        """Ask every server for what is newer."""
        # while a push waits somewhere the next may have to wait for it, so nobody is to wait for the next;
        # a marker waits for nobody
        number = 0 if session.updates.is_working or session.closed else session.updates.worked + 1
        session.pull_sent, session.since_pull = now, 0
        session.pulls, session.pulled_closed = session.pulls + 1, session.closings - bool(session.closed)
        session.has_pulled = session.has_pulled or number > 0
        session.pulling = {
            server: PullNewer(
                session.admitted.run,
                self.session,
                number,
                shards,
                tuple(session.versions[each] for each in shards),
            )
            for server, shards in self._shards(session).items()
        }
        return [Send(server, pull) for server, pull in session.pulling.items()]

    def _pulled(self, session: _Session, pulled: PulledNewer) -> None:
        pull = session.pulling.get(pulled.server)
        if pull is None or pulled.error is not None or pulled.number != pull.number:
            return  # asked for again by `tick`
        del session.pulling[pulled.server]
        newer = [
            place
            for place, (number, version) in enumerate(zip(pulled.shards, pulled.versions, strict=True))
            if version > session.versions[number]
        ]
        if newer:
            kept = replace(
                pulled,
                shards=tuple(pulled.shards[place] for place in newer),
                versions=tuple(pulled.versions[place] for place in newer),
                buffers=tuple(pulled.buffers[place] for place in newer),
            )
            session.versions.update(zip(kept.shards, kept.versions, strict=True))
            session.installs.append(kept)
        if not session.pulling:
            session.must_pull = False
            if self.state is State.FETCHING and min(session.versions.values()) >= 0:
                self.state = State.READY

    # --- pushes ---

    def _go_on(self, session: _Session, now: float) -> list[Send]:
        """Send what may be sent now: one push at a time, a pull when one is due."""
        if self.state is not State.READY:
            return []
        sends: list[Send] = []
        if self.pace.moves and self.pace.overlap and not session.pushing:
            sends += self._pull_if_due(session, now)
        checkpoint = 0 if session.directions is None else session.directions.checkpoint
        if not session.pushing and checkpoint > session.updates.marked:
            sends += session.updates.mark(checkpoint, now)
        elif not session.pushing and session.closed is not None:
            closed, session.closed = session.closed, None
            session.has_pulled = False
            origin = Origin(closed.versions, closed.rate, closed.samples)
            sends += session.updates.push(closed.parts, origin, now)
        is_free = self.pace.overlap and not self.pace.moves
        if is_free or not (session.pushing or session.closed):
            sends += self._pull_if_due(session, now)
        return sends

    def _pull_if_due(self, session: _Session, now: float) -> list[Send]:
        is_due = (session.must_pull and session.hands) or session.since_pull >= self.pace.n_fetch
        # the steps that are not in a pull are known once what was pulled before is in its place
        is_busy = session.pulling or (self.pace.moves and session.installs and not session.must_pull)
        return self._pull(session, now) if is_due and not is_busy else []

    def _rest(self, session: _Session, now: float) -> list[Send]:
        """Nothing is in hand: whoever waits for what it computes from its pull need not."""
        busy = session.hands or session.accumulation or session.closed or session.pushing or session.pulling
        if busy or self._stepping or not session.has_pulled or self.state is not State.READY:
            return []
        session.must_pull, session.has_pulled = True, False
        return session.updates.push({}, Origin(), now)
