"""The head of a pool of data servers: which servers and trainers are there.

Knows: names, what each has said last, beats. Does not know: samples, sockets, processes.

    server     what happens                                          next
    none       `Offer` of what the others serve, too                 there: all trainers hear of it
    none       `Offer` of something else, or no terms        none: it is told to go
    there      `Offer`                                               there
    there      its process or connection ends, `Depart`, silence     none: all trainers hear of it

    trainer    what happens                                          next
    none       `Attend` for what is served                           there: `Roster`
    none       `Attend` for another store                            none: `Roster` says why
    there      the first `Offer` is of another store                 none: `Roster` says why
    there      `Attend` with an older roster                         there: `Roster`
    there      its connection ends, `Depart`, silence                none

    there      `Draw`                                                there: `Sharing` answers
    none       `Draw`                                                none: it is there once it attends

Where trainers have orders of their own, nothing depends on what the head knows of them but what is shown.
Where they share epochs, whoever is gone has what it has taken, and no more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cotswold.dataservice.core.shared_epochs import Sharing
from cotswold.wire import Attend, Depart, Dismiss, Draw, Offer, Roster, Send


@dataclass
class Supplier:
    """A data server that is there."""

    offer: Offer
    heard: float


@dataclass
class Attendant:
    """A trainer that is there."""

    said: Attend
    heard: float


class Pool:
    """Servers and trainers of one pool."""

    def __init__(self, name: str, silent_seconds: float = 10.0) -> None:
        """``name``: one that no other pool has had; whoever says nothing for ``silent_seconds`` is gone."""
        self.name, self.silent_seconds = name, silent_seconds
        self.version = 1
        """Of the roster."""
        self.terms = ""
        """What is served, as the first server said it."""
        self._store = ""
        """The identity of the store that is served."""
        self.servers: dict[str, Supplier] = {}
        self.trainers: dict[str, Attendant] = {}
        self.sharing = Sharing()
        """The epochs that trainers draw together."""

    def receive(self, sender: str, message: Offer | Attend | Draw | Depart, now: float) -> list[Send]:
        """What a server or a trainer says."""
        match message:
            case Offer() if message.name == sender:
                return self._offered(message, now)
            case Attend() if message.name == sender:
                return self._attended(message, now)
            case Draw() if message.name == sender and message.pool == self.name and sender in self.trainers:
                self.trainers[sender].heard = now
                return self.sharing.receive(message, now)
            case Depart():
                return self.gone(sender, now)
            case _:
                return []

    def gone(self, name: str, now: float) -> list[Send]:
        """A process, or the connection to it, has ended."""
        self.trainers.pop(name, None)
        if self.servers.pop(name, None) is None:
            return self.sharing.gone(name, now)
        return self._changed()

    def tick(self, now: float) -> list[Send]:
        """Time has passed; whoever is silent is gone."""
        sends: list[Send] = []
        for name, trainer in list(self.trainers.items()):
            if now - trainer.heard > self.silent_seconds:
                sends += self.gone(name, now)
        silent = [name for name, each in self.servers.items() if now - each.heard > self.silent_seconds]
        for name in silent:
            del self.servers[name]
        sends += self.sharing.tick(now)
        return sends + self._changed() if silent else sends

    def forgive(self, seconds: float) -> None:
        """This process stood still for so long: nobody was silent meanwhile."""
        for server in self.servers.values():
            server.heard += seconds
        for trainer in self.trainers.values():
            trainer.heard += seconds

    @property
    def roster(self) -> Roster:
        """What trainers are told."""
        servers = tuple((name, self.servers[name].offer.address) for name in sorted(self.servers))
        return Roster(self.name, self.version, servers, self.terms)

    def _offered(self, offer: Offer, now: float) -> list[Send]:
        sends: list[Send] = []
        if not self.terms:
            store = _store_of(offer.terms)
            if store is None:
                return [Send(offer.name, Dismiss(0, "what it serves has no store"))]
            self.terms, self._store = offer.terms, store
            for name, trainer in list(self.trainers.items()):
                if self._is_strange(trainer.said):
                    sends += [self._refusal(trainer.said), *self.gone(name, now)]
        if offer.terms != self.terms:
            return [Send(offer.name, Dismiss(0, "the others of its pool serve something else"))]
        known = self.servers.get(offer.name)
        self.servers[offer.name] = Supplier(offer, now)
        return (
            sends if known is not None and known.offer.address == offer.address else sends + self._changed()
        )

    def _attended(self, attend: Attend, now: float) -> list[Send]:
        if self._is_strange(attend):
            return [self._refusal(attend)]
        self.trainers[attend.name] = Attendant(attend, now)
        return [] if attend.version == self.version else [Send(attend.name, self.roster)]

    def _is_strange(self, attend: Attend) -> bool:
        """Whether a trainer wants another store."""
        return bool(attend.store and self._store and attend.store != self._store)

    def _refusal(self, attend: Attend) -> Send:
        why = f"the pool serves the store {self._store:.12}, and this trainer learns from {attend.store:.12}"
        return Send(attend.name, Roster(self.name, 0, (), "", why))

    def _changed(self) -> list[Send]:
        self.version += 1
        return [Send(name, self.roster) for name in self.trainers]


def _store_of(terms: str) -> str | None:
    """The identity in terms; None where they have none."""
    try:
        said = json.loads(terms)
    except (ValueError, RecursionError):
        return None
    store = said.get("store") if isinstance(said, dict) else None
    return store if isinstance(store, str) and store else None
