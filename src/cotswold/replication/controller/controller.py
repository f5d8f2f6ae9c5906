"""One controller: which servers have replicas of which bucket, in which term. Takes messages, returns
messages and requests to the metadata store.

Knows: whether it leads, the request to the metadata store that is in flight. Does not know: the work of a
leader (`leader`), the contents of buckets, sockets, clocks, the kind of metadata store.

    event                                           action
    it becomes the leader                           read all keys, page by page; heartbeats in between keep
                                                      the leadership, so no other controller writes
    all keys are read                               serve requests by the committed state
    it leads and has changes to commit              `Transact`, conditional on its leadership
    the transaction is committed                    apply the changes and send them to the servers
    the transaction failed, or its result is        step down; claim the leadership and read all keys again
      unknown
    a client sends a request to a follower          `NotLeader`
    it or the store stalled, and it leads again     extend all leases by the length of the stall: the servers
      in the same epoch                               could not be heard

A group takes effect when it is committed. Every group has a new term. A transaction commits only if the
stored group is the predecessor and this controller leads. No message mentions a group before that. Source:
Chilimbi et al. 2014, section 3.3.3, which keeps leases next to roles. Here leases are not stored: a new
leader assumes that every server received a lease at the moment when it began to lead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cotswold.replication.controller.event_log import ClusterEventLog
from cotswold.replication.controller.leader import LeaderState
from cotswold.replication.controller.leader_election import LeaderElection, Read, StateRequest
from cotswold.replication.controller.messages import FromClients, FromServers
from cotswold.replication.controller.server_registry import ServerRegistry
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.shards.core.events import Event
from cotswold.wire import Create, Group, NotLeader, Send

_ALL_KEYS = ""
"""Prefix of all keys."""
_PAGE = 4000
"""Maximum number of keys per read."""


class Controller:
    """A controller: follower or leader of the cluster's metadata."""

    def __init__(self, name: str, control: ControllerSettings, now: float, token: str) -> None:
        """``token``: a word that is unique to this process (`LeaderElection`)."""
        self.name, self.control = name, control
        self.election = LeaderElection(
            name,
            now,
            token=token,
            beat_seconds=control.beat_seconds,
            leader_seconds=control.leader_seconds,
        )
        self._events = ClusterEventLog()
        self._state = LeaderState(name, control, 0, "", self._events, now)
        """The state of the latest leadership; unused while this controller follows."""
        self._request: StateRequest | None = None
        """The request to the metadata store that is in flight."""
        self._read_after = ""
        """The greatest key that the initial read has returned."""
        self._ticked: float | None = None
        """Time of the last tick as the leader of this epoch."""

    # --- metadata store ---

    def next_request(self, now: float) -> StateRequest | None:
        """Return the next request to the metadata store; None while one is in flight or nothing is due."""
        if self._request is not None:
            return None
        self._request = self.election.next_request(now)
        if self._request is None and self.election.leads(now):
            if not self._state.is_loaded:
                self._request = Read(_ALL_KEYS, self._read_after, _PAGE)
            else:
                self._request = self._state.view.map.transaction(self.election.key)
        return self._request

    def on_read(self, items: dict[str, str], now: float) -> list[Send]:
        """Process the result of a read."""
        asked, self._request = self._request, None
        if asked != Read(_ALL_KEYS, self._read_after, _PAGE):
            self.election.read(items, now)
        elif self.election.leads(now):
            self._state.load(items)
            self._read_after = max(items, default=self._read_after)
            if len(items) < _PAGE:
                return self._state.finish_loading(now)
        return []

    def on_read_failed(self) -> list[Send]:
        """Process a failed read."""
        self._request = None
        return []

    def on_transaction(self, is_done: bool | None, now: float) -> list[Send]:
        """Process the result of a transaction: committed, refused, or None if the result is unknown."""
        self._request = None
        known = self._state.view
        if known.map.has_transaction:
            if is_done:
                return self._state.written(known.commit(), now)
            known.map.discard_in_flight()
            self.election.step_down()  # if it leads again, it reads the committed state
        elif self.election.on_transaction(is_done, now):
            leading = self.election
            self._state = LeaderState(
                self.name, self.control, leading.epoch, leading.cluster, self._events, now
            )
            self._ticked, self._read_after = None, ""
            self._events.note("leader_elected", self.name, f"{self.name} leads the controllers", now)
        return []

    def leads(self, now: float) -> bool:
        """True if this controller leads and has read all keys."""
        return self._state.is_loaded and self.election.leads(now)

    # --- its view ---

    @property
    def servers(self) -> ServerRegistry:
        """All known servers."""
        return self._state.view.servers

    @property
    def groups(self) -> Mapping[str, Group]:
        """Committed groups, by bucket."""
        return self._state.view.groups

    @property
    def descriptions(self) -> Mapping[str, str]:
        """Committed descriptions that servers need, by run."""
        return self._state.view.map.runs

    @property
    def keys(self) -> Mapping[str, str]:
        """Digests of the servers' keys, by server name."""
        return self._state.view.map.keys

    def peers_of(self, server: str) -> list[str]:
        """Return the servers that share a bucket with this one, now or soon."""
        known, groups = self.servers.of.get(server), self.groups
        buckets = () if known is None else known.copies
        found = {name for each in buckets if each in groups for name in groups[each].all_servers}
        return sorted(found - {server})

    @property
    def unsettled_buckets(self) -> set[str]:
        """Buckets whose group may change soon."""
        state = self._state
        return {*state.view.map.in_transition, *state.elections.of, *state.arbiter.of}

    def note(self, kind: str, name: str, sentence: str, now: float) -> None:
        """Record an event that only the process has observed."""
        self._events.note(kind, name, sentence, now)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        return self._events.take_events()

    def take_summaries(self, now: float) -> list[Event]:
        """Return the bucket events since the last call, one sentence for all that share a cause, shortly
        after the last of them."""
        return self._events.gathered(now)

    @property
    def under_replicated(self) -> Collection[str]:
        """Under-replicated buckets."""
        return self._state.view.under_replicated

    # --- inputs ---

    def create(self, request: Create, now: float) -> bool:
        """Place new buckets evenly on the available servers; False if there are too few servers or it does
        not lead."""
        return self.leads(now) and self._state.create(request, now)

    def receive(self, sender: str, message: FromServers, now: float) -> list[Send]:
        """Process a message and return the messages to send."""
        if self.leads(now):
            return self._state.receive(sender, message, now)
        told = NotLeader(self.election.epoch, self.election.leader)
        # servers send to all controllers and need no redirect
        return [Send(sender, told)] if isinstance(message, FromClients) else []

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time; call it a few times per retry interval."""
        if not self.leads(now):
            return []
        since, self._ticked = self._ticked, now
        if since is not None and now - since > self.control.stall_seconds:
            self._state.extend_leases(now - since)
        return self._state.tick(now)
