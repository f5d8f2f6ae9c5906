"""A trainer of a pool of data servers: it attends, knows who serves, and asks.

Knows: the roster, beats, its requests. Does not know: what is requested, clocks, sockets.

    state      what happens                                         next
    outside    the first `Roster`                                   here
    outside    a `Roster` that turns it away                        an error
    here       a `Roster` of the same pool                          here: servers join and leave
    here       a `Roster` of another pool                           an error: the head was started anew
    here       the connection to a server ends                      here, without it until it is listed anew
    any        the connection to the head ends, or `Dismiss`        an error

Every beat it says that it lives, and which roster it has; so a roster that was lost is sent again.
"""

from __future__ import annotations

from dataclasses import replace

from cotswold.server.messages import POOL, Attend, Depart, Dismiss, Roster, Send, Supplied, Unsupplied
from cotswold.server.requests import Asking, Requests


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
        self.handed, self.waited = 0, 0.0
        """Samples that its loop has got, and the seconds for which it waited; for whoever watches."""
        self._attend = Attend(name, address, store, 0)
        self._pool = ""
        self._beat_seconds, self._beaten = beat_seconds, float("-inf")
        self._doubts = False
        """Whether a server was lost that the roster lists."""

    @property
    def is_here(self) -> bool:
        """Whether it has a roster, and knows what is served."""
        return bool(self._pool and self.terms)

    def receive(
        self, sender: str, message: Roster | Supplied | Unsupplied | Dismiss, now: float
    ) -> list[Send]:
        """What the head or a server says."""
        match message:
            case Roster() if sender == POOL:
                return self._heard(message, now)
            case Dismiss() if sender == POOL:
                self.error = self.error or "the pool of data servers has ended"
                return []
            case Supplied() | Unsupplied() if sender == message.server:
                return self.requests.receive(sender, message, now)
            case _:
                return []

    def lost(self, peer: str, why: str, now: float) -> list[Send]:
        """The connection to a peer has ended."""
        if peer == POOL:
            self.error = self.error or f"the head of the pool of data servers is lost: {why}"
            return []
        if self.addresses.pop(peer, None) is None:
            return []
        self._doubts = True
        return self.requests.lost(peer, now)

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called some times in each beat."""
        sends = self.requests.tick(now)
        if now - self._beaten >= self._beat_seconds:
            self._beaten = now
            version = 0 if self._doubts else self._attend.version
            said = replace(self._attend, version=version, handed=self.handed, waited=self.waited)
            sends.append(Send(POOL, said))
        return sends

    def trouble(self, now: float) -> str:
        """Why nothing goes on; empty where it does."""
        return self.error or self.requests.trouble(now)

    def leave(self) -> list[Send]:
        """Go."""
        return [*self.requests.cancel(), Send(POOL, Depart(self.name))]

    def _heard(self, roster: Roster, now: float) -> list[Send]:
        if roster.why:
            self.error = roster.why
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
