"""The head of a pool of data servers: which servers and trainers are there.

Knows: names, what each has said last, beats. Does not know: samples, sockets, processes.

    server     what happens                                          next
    none       `Offer` of what the others serve, too                 there: all trainers hear of it
    none       `Offer` of something else                             none: it is told to go
    there      `Offer`                                               there
    there      its process or connection ends, `Depart`, silence     none: all trainers hear of it

    trainer    what happens                                          next
    none       `Attend` for what is served                           there: `Roster`
    none       `Attend` for another store                            none: `Roster` says why
    there      `Attend` with an older roster                         there: `Roster`
    there      its connection ends, `Depart`, silence                none

Nothing depends on what the head knows of trainers but what is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.server.messages import Attend, Depart, Dismiss, Offer, Roster, Send


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
        self.servers: dict[str, Supplier] = {}
        self.trainers: dict[str, Attendant] = {}

    def receive(self, sender: str, message: Offer | Attend | Depart, now: float) -> list[Send]:
        """What a server or a trainer says."""
        match message:
            case Offer() if message.name == sender:
                return self._offered(message, now)
            case Attend() if message.name == sender:
                return self._attended(message, now)
            case Depart():
                return self.gone(sender)
            case _:
                return []

    def gone(self, name: str) -> list[Send]:
        """A process, or the connection to it, has ended."""
        self.trainers.pop(name, None)
        if self.servers.pop(name, None) is None:
            return []
        return self._changed()

    def tick(self, now: float) -> list[Send]:
        """Time has passed; whoever is silent is gone."""
        for name, trainer in list(self.trainers.items()):
            if now - trainer.heard > self.silent_seconds:
                del self.trainers[name]
        silent = [name for name, each in self.servers.items() if now - each.heard > self.silent_seconds]
        for name in silent:
            del self.servers[name]
        return self._changed() if silent else []

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
        if not self.terms:
            self.terms = offer.terms
        if offer.terms != self.terms:
            return [Send(offer.name, Dismiss(0))]
        known = self.servers.get(offer.name)
        self.servers[offer.name] = Supplier(offer, now)
        return [] if known is not None and known.offer.address == offer.address else self._changed()

    def _attended(self, attend: Attend, now: float) -> list[Send]:
        store = self._store
        if attend.store and store and attend.store != store:
            why = f"the pool serves the store {store:.12}, and this trainer learns from {attend.store:.12}"
            return [Send(attend.name, Roster(self.name, 0, (), "", why))]
        self.trainers[attend.name] = Attendant(attend, now)
        return [] if attend.version == self.version else [Send(attend.name, self.roster)]

    @property
    def _store(self) -> str:
        terms: Mapping[str, object] = json.loads(self.terms) if self.terms else {}
        return str(terms.get("store", ""))

    def _changed(self) -> list[Send]:
        self.version += 1
        return [Send(name, self.roster) for name in self.trainers]
