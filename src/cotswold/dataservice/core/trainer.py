"""A trainer of a pool of data servers: it attends, knows who serves, and asks.

Knows: the roster, beats, its requests. Does not know: what is requested, clocks, sockets.

    state      what happens                                         next
    outside    the first `Roster`                                   here
    outside    a `Roster` that turns it away                        an error
    here       a `Roster` of the same pool                          here: servers join and leave
    here       a `Roster` of another pool                           an error: the head was started anew
    here       the connection to a server ends                      here, without it until it is listed anew
    any        the connection to the head ends, or `Dismiss`        an error

What it draws together with others is an `EpochPass`, of which one is on at a time; those that it has left are
kept until the head knows.

Every beat it says that it lives, and which roster it has; so a roster that was lost is sent again.
"""

from __future__ import annotations

from dataclasses import replace

from cotswold.dataservice.core.epoch_pass import AskOf, Drawing, EpochPass
from cotswold.dataservice.core.request_scheduler import Asking, Requests
from cotswold.wire import (
    POOL,
    Attend,
    Dealt,
    Depart,
    Dismiss,
    Pending,
    Roster,
    Send,
    Supplied,
    Unsupplied,
)

BEATS = 4
"""At least so many within the time for which it waits for an answer."""


class Trainer:
    """One trainer, from its first `Attend` to its end."""

    def __init__(
        self, name: str, address: str, store: str, asking: Asking, now: float, beat_seconds: float = 1.0
    ) -> None:
        """``store``: the identity of the one that it wants; empty for any."""
        self.name, self.requests = name, Requests(asking, now)
        self.terms = ""
        """What is served, in JSON; empty as long as that is not known."""
        self.addresses: dict[str, str] = {}
        """Of the servers that are there, by name."""
        self.error = ""
        """Why it cannot go on, in a sentence without its end."""
        self.is_stranger = False
        """Whether it wants another store than is served."""
        self.handed, self.waited = 0, 0.0
        """Samples that its loop has got, and the seconds for which it waited; for whoever watches."""
        self._attend = Attend(name, address, store, 0)
        self._pool = ""
        self._beat_seconds = min(beat_seconds, asking.lonely_seconds / BEATS)
        self._beaten = float("-inf")
        self._doubts = False
        """Whether a server was lost that the roster lists."""
        self._ticked = now
        self._sessions = 0
        self._passes: list[EpochPass] = []
        """The last may be on; the head does not know yet that the others are left."""

    @property
    def pool(self) -> str:
        """The name of the one that it has joined; empty before."""
        return self._pool

    @property
    def is_here(self) -> bool:
        """Whether it has a roster, and knows what is served."""
        return bool(self._pool and self.terms)

    def receive(
        self, sender: str, message: Roster | Dealt | Supplied | Unsupplied | Pending | Dismiss, now: float
    ) -> list[Send]:
        """What the head or a server says."""
        match message:
            case Roster() if sender == POOL:
                return self._heard(message, now)
            case Dealt() if sender == POOL:
                return [send for each in self._passes for send in each.receive(message, now)]
            case Dismiss(_, why) if sender == POOL:
                ended = "the pool of data servers has ended"
                self.error = self.error or (f"{ended}: {why}" if why else ended)
                return []
            case Supplied() | Unsupplied() | Pending() if sender == message.server:
                return self.requests.receive(sender, message, now)
            case _:
                return []

    def lost(self, peer: str, why: str, now: float) -> list[Send]:
        """The connection to a peer has ended."""
        if peer == POOL:
            what = "is lost" if self._pool else "cannot be reached"
            self.error = self.error or f"the head of the pool of data servers {what}: {why}"
            return []
        if self.addresses.pop(peer, None) is None:
            return []
        self._doubts = True
        return self.requests.lost(peer, now)

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called some times in each beat."""
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
                each.forgive(stood)
            sends += each.tick(self._pool, now)
        return sends

    def trouble(self, now: float) -> str:
        """Why nothing goes on; empty where it does."""
        drawn = self.on.trouble(now) if self.on is not None else ""
        return self.error or drawn or self.requests.trouble(now)

    def leave(self) -> list[Send]:
        """Go."""
        return [*self.leave_epoch(self._ticked), *self.requests.cancel(), Send(POOL, Depart(self.name))]

    # --- what it draws together with others ---

    @property
    def on(self) -> EpochPass | None:
        """The pass that is on."""
        return self._passes[-1] if self._passes and not self._passes[-1].is_left else None

    def draw(self, drawing: Drawing, epoch: int, now: float) -> list[Send]:
        """Begin a pass over an epoch; -1 for the one that is on, whose number the next `Dealt` says."""
        assert self.is_here, "a trainer draws where it has a roster"
        sends = self.leave_epoch(now)
        self._passes.append(
            EpochPass(self.name, drawing, epoch, self._session, self.requests, now, self._beat_seconds)
        )
        return sends + self._passes[-1].tick(self._pool, now)

    def begin(self, ask_of: AskOf, now: float) -> list[Send]:
        """The order of the epoch that is drawn is known."""
        return [] if self.on is None else self.on.begin(ask_of, now)

    def next(self, now: float) -> tuple[Supplied | None, list[Send]]:
        """The next batch of the epoch that is drawn, once it is made and taken."""
        return (None, []) if self.on is None else self.on.next(self._pool, now)

    def leave_epoch(self, now: float) -> list[Send]:
        """Draw no more of it."""
        return [] if self.on is None else self.on.leave(self._pool, now)

    def _session(self) -> int:
        self._sessions += 1
        return self._sessions

    def _heard(self, roster: Roster, now: float) -> list[Send]:
        if roster.why:
            self.error, self.is_stranger = roster.why, True
            return []
        if self._pool not in ("", roster.pool):
            self.error = "another pool of data servers serves there now; what this one was handed is its own"
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
