"""A controller: who has copies of which bucket in which term; message in, messages and wishes out.

Knows: whether it leads, what the state was asked for. Does not know: what is done by whoever leads (`reign`),
what buckets hold, sockets, clocks, where the state is kept.

    what happens                                    what it does
    it leads from now on                            everything is read, page by page: it says in between that
                                                      it leads, after which nobody else writes anything
    everything is read                              it goes on with what is written down, and answers
    it leads, and something is to be written        `Transact`, if it still leads
    that is done                                    it counts, and is said
    that is not done, or nobody knows               it leads no more, until it has claimed it again and read
    it does not lead, a client asks                 `NotLeading`
    it stood still, or the state did, and it        silence of that time is nobody's: servers have
      leads again in the same epoch                   as much longer

A group counts once it is written down: each is a new term, put only if the one before stands there and this
controller leads. Nothing is said of it before. Source: Chilimbi et al. 2014, section 3.3.3, where leases are
kept with roles; here they are not: whoever leads next takes any lease for one that was given when it began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cotswold.batch.core.requests import Event
from cotswold.replication.controller.event_log import Events
from cotswold.replication.controller.leader import FromClients, FromServers, Reign
from cotswold.replication.controller.leader_election import Leading, Read, Wish
from cotswold.replication.controller.server_registry import Servers
from cotswold.replication.controller.settings import Control
from cotswold.wire import Create, Group, NotLeading, Send

_EVERYTHING = ""
"""With which all keys begin."""
_PAGE = 4000
"""Keys that are read at once."""


class Controller:
    """One of the controllers."""

    def __init__(self, name: str, control: Control, now: float, fresh: str) -> None:
        """``fresh``: a word that no other process has (`Leading`)."""
        self.name, self.control = name, control
        self.leading = Leading(
            name,
            now,
            fresh=fresh,
            beat_seconds=control.beat_seconds,
            leader_seconds=control.leader_seconds,
        )
        self._events = Events()
        self._reign = Reign(name, control, 0, "", self._events, now)
        """The last; it is over where this does not lead."""
        self._asking: Wish | None = None
        """What the state was asked for last, until that is answered."""
        self._read_to = ""
        """The last key that was read, of all."""
        self._ticked: float | None = None
        """When it led last in this epoch, and time passed."""

    # --- the state ---

    def wish(self, now: float) -> Wish | None:
        """What is wanted of the state next; None while the last is not answered, or nothing is."""
        if self._asking is not None:
            return None
        self._asking = self.leading.wish(now)
        if self._asking is None and self.leading.leads(now):
            if not self._reign.is_loaded:
                self._asking = Read(_EVERYTHING, self._read_to, _PAGE)
            else:
                self._asking = self._reign.board.map.transaction(self.leading.key)
        return self._asking

    def read(self, items: dict[str, str], now: float) -> list[Send]:
        """What was read."""
        asked, self._asking = self._asking, None
        if asked != Read(_EVERYTHING, self._read_to, _PAGE):
            self.leading.read(items, now)
        elif self.leading.leads(now):
            self._reign.load(items)
            self._read_to = max(items, default=self._read_to)
            if len(items) < _PAGE:
                return self._reign.loaded(now)
        return []

    def unread(self) -> list[Send]:
        """What was to be read was not."""
        self._asking = None
        return []

    def transacted(self, is_done: bool | None, now: float) -> list[Send]:
        """Whether what was to be put was put; None where that is not known."""
        self._asking = None
        known = self._reign.board
        if known.map.is_asking:
            if is_done:
                return self._reign.written(known.done(), now)
            known.map.in_doubt()
            self.leading.step_down()  # it reads again what is so, if it leads again
        elif self.leading.transacted(is_done, now):
            leading = self.leading
            self._reign = Reign(self.name, self.control, leading.epoch, leading.cluster, self._events, now)
            self._ticked, self._read_to = None, ""
            self._events.note("leads", self.name, f"{self.name} leads the controllers", now)
        return []

    def leads(self, now: float) -> bool:
        """Whether it leads, and has read what there is."""
        return self._reign.is_loaded and self.leading.leads(now)

    # --- what it knows ---

    @property
    def servers(self) -> Servers:
        """Those that it knows."""
        return self._reign.board.servers

    @property
    def groups(self) -> Mapping[str, Group]:
        """As they are written down."""
        return self._reign.board.groups

    @property
    def descriptions(self) -> Mapping[str, str]:
        """What servers must know of each run; as it is written down."""
        return self._reign.board.map.runs

    @property
    def keys(self) -> Mapping[str, str]:
        """Digests of the keys of servers, by name."""
        return self._reign.board.map.keys

    def neighbours(self, server: str) -> list[str]:
        """Servers that have, or are to have, copies of the same buckets."""
        known, groups = self.servers.of.get(server), self.groups
        buckets = () if known is None else known.copies
        found = {name for each in buckets if each in groups for name in groups[each].everybody}
        return sorted(found - {server})

    @property
    def unsettled(self) -> set[str]:
        """Buckets of which the group may be another soon."""
        reign = self._reign
        return {*reign.board.map.moving, *reign.elections.of, *reign.judging.of}

    def note(self, kind: str, name: str, sentence: str, now: float) -> None:
        """Something has happened of which only the process knows."""
        self._events.note(kind, name, sentence, now)

    def take_events(self) -> list[Event]:
        """What has happened since they were taken last."""
        return self._events.take()

    def take_gathered(self, now: float) -> list[Event]:
        """What has happened to buckets, in one sentence for all that have the same cause; since it was taken
        last, and a moment late."""
        return self._events.gathered(now)

    @property
    def short(self) -> Collection[str]:
        """Buckets with fewer members than there are to be."""
        return self._reign.board.short

    # --- what happens ---

    def create(self, wanted: Create, now: float) -> bool:
        """Give new buckets to the servers that are there, evenly; whether there are enough, and it leads."""
        return self.leads(now) and self._reign.create(wanted, now)

    def receive(self, sender: str, message: FromServers, now: float) -> list[Send]:
        """What a message leads to."""
        if self.leads(now):
            return self._reign.receive(sender, message, now)
        told = NotLeading(self.leading.epoch, self.leading.leader)
        # servers tell all controllers, and need not hear it
        return [Send(sender, told)] if isinstance(message, FromClients) else []

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each retry."""
        if not self.leads(now):
            return []
        since, self._ticked = self._ticked, now
        if since is not None and now - since > self.control.still_seconds:
            self._reign.stood_still(now - since)
        return self._reign.tick(now)
