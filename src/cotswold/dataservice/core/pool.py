"""The head of a pool of data servers: it tracks connected servers and trainers.

Knows: names, the last message of each, heartbeats. Does not know: samples, sockets, processes.

    server     event                                                      next
    none       `DataServerReport` with the pool's terms                   connected: all trainers are informed
    none       `DataServerReport` with other or no terms                  none: it is rejected
    connected  `DataServerReport`                                         connected
    connected  its process or connection ends, `LeavePool`, silence       none: all trainers are informed

    trainer    event                                                      next
    none       `JoinPool` for the pool's store                            connected: `PoolMembers`
    none       `JoinPool` for another store                               none: `PoolMembers` says why
    connected  the first `DataServerReport` is of another store           none: `PoolMembers` says why
    connected  `JoinPool` with an older version of the members            connected: `PoolMembers`
    connected  its connection ends, `LeavePool`, silence                  none

    connected  `EpochReport`                                              connected: `SharedEpochs` answers
    none       `EpochReport`                                              none: it must join first

If trainers have separate orders, the head's knowledge of trainers is for display only. If trainers share
epochs, a lost trainer keeps what it has taken, and no more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cotswold.dataservice.core.shared_epochs import SharedEpochs
from cotswold.wire import DataServerReport, EpochReport, JoinPool, LeavePool, PoolMembers, Send, Shutdown


@dataclass
class DataServerRecord:
    """A connected data server."""

    offer: DataServerReport
    last_report: float


@dataclass
class TrainerRecord:
    """A connected trainer."""

    join: JoinPool
    last_report: float


class PoolState:
    """Servers and trainers of one pool."""

    def __init__(self, name: str, silent_seconds: float = 10.0) -> None:
        """``name`` must be unique among pools; servers and trainers that are silent for ``silent_seconds``
        are lost."""
        self.name, self.silent_seconds = name, silent_seconds
        self.version = 1
        """Version of the list of members."""
        self.terms = ""
        """The pool's terms, as its first server stated them."""
        self._store = ""
        """Identity of the store that is served."""
        self.servers: dict[str, DataServerRecord] = {}
        self.trainers: dict[str, TrainerRecord] = {}
        self.shared_epochs = SharedEpochs()
        """The epochs that trainers share."""

    def receive(
        self, sender: str, message: DataServerReport | JoinPool | EpochReport | LeavePool, now: float
    ) -> list[Send]:
        """Handle a message of a server or a trainer."""
        match message:
            case DataServerReport() if message.name == sender:
                return self._offered(message, now)
            case JoinPool() if message.name == sender:
                return self._attended(message, now)
            case EpochReport() if (
                message.name == sender and message.pool == self.name and sender in self.trainers
            ):
                self.trainers[sender].last_report = now
                return self.shared_epochs.receive(message, now)
            case LeavePool():
                return self.on_lost(sender, now)
            case _:
                return []

    def on_lost(self, name: str, now: float) -> list[Send]:
        """Handle the end of a process or its connection."""
        self.trainers.pop(name, None)
        if self.servers.pop(name, None) is None:
            return self.shared_epochs.on_trainer_lost(name, now)
        return self._changed()

    def tick(self, now: float) -> list[Send]:
        """Do periodic work: remove silent servers and trainers."""
        sends: list[Send] = []
        for name, trainer in list(self.trainers.items()):
            if now - trainer.last_report > self.silent_seconds:
                sends += self.on_lost(name, now)
        silent = [name for name, each in self.servers.items() if now - each.last_report > self.silent_seconds]
        for name in silent:
            del self.servers[name]
        sends += self.shared_epochs.tick(now)
        return sends + self._changed() if silent else sends

    def exclude_stall(self, seconds: float) -> None:
        """Do not count this process's own pause as silence of others."""
        for server in self.servers.values():
            server.last_report += seconds
        for trainer in self.trainers.values():
            trainer.last_report += seconds

    @property
    def members_message(self) -> PoolMembers:
        """The message to trainers about servers and terms."""
        servers = tuple((name, self.servers[name].offer.address) for name in sorted(self.servers))
        return PoolMembers(self.name, self.version, servers, self.terms)

    def _offered(self, offer: DataServerReport, now: float) -> list[Send]:
        sends: list[Send] = []
        if not self.terms:
            store = _store_of(offer.terms)
            if store is None:
                return [Send(offer.name, Shutdown(0, "its terms name no store"))]
            self.terms, self._store = offer.terms, store
            for name, trainer in list(self.trainers.items()):
                if self._wants_other_store(trainer.join):
                    sends += [self._refusal(trainer.join), *self.on_lost(name, now)]
        if offer.terms != self.terms:
            return [Send(offer.name, Shutdown(0, "the other servers of the pool have other terms"))]
        known = self.servers.get(offer.name)
        self.servers[offer.name] = DataServerRecord(offer, now)
        return (
            sends if known is not None and known.offer.address == offer.address else sends + self._changed()
        )

    def _attended(self, attend: JoinPool, now: float) -> list[Send]:
        if self._wants_other_store(attend):
            return [self._refusal(attend)]
        self.trainers[attend.name] = TrainerRecord(attend, now)
        return [] if attend.version == self.version else [Send(attend.name, self.members_message)]

    def _wants_other_store(self, attend: JoinPool) -> bool:
        """True if a trainer wants another store."""
        return bool(attend.store and self._store and attend.store != self._store)

    def _refusal(self, attend: JoinPool) -> Send:
        why = f"the pool serves the store {self._store:.12}, not {attend.store:.12}"
        return Send(attend.name, PoolMembers(self.name, 0, (), "", why))

    def _changed(self) -> list[Send]:
        self.version += 1
        return [Send(name, self.members_message) for name in self.trainers]


def _store_of(terms: str) -> str | None:
    """The store's identity in the terms; None if there is none."""
    try:
        said = json.loads(terms)
    except (ValueError, RecursionError):
        return None
    store = said.get("store") if isinstance(said, dict) else None
    return store if isinstance(store, str) and store else None
