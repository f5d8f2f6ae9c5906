"""Messenger to buckets: routes each message to the current primary.

Knows: the route to each bucket, addresses of servers and controllers. Does not know: the contents of
messages, groups (`replication.client.router`).

For its user a bucket is a peer: messages to the bucket's name go to its primary, and replies of the primary
come from the bucket. The loss of a server is not reported: its buckets soon have another primary, and the
user repeats unanswered messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.replication.client.endpoints import ClusterEndpoints
from cotswold.replication.client.router import Router, ToRouter
from cotswold.replication.client.unreachable import ConnectionResults
from cotswold.transport import Endpoint, Lost
from cotswold.wire import (
    CONTROLLERS,
    COORDINATOR,
    Group,
    LookupReply,
    LookupRequest,
    Message,
    NotLeader,
    Send,
)
from cotswold.wire.lifecycle import ControllerAddresses
from cotswold.wire.messenger import AnyMessage, Event, Messenger, PeerMoved, Received, Reconnector

_TICK_SECONDS = 0.05


class RoutedMessenger(Messenger):
    """Messenger over an endpoint; ``controllers``: address by name, empty if not yet known.

    ``outgoing`` connects to servers and controllers of a cluster that outlives this run.
    """

    def __init__(
        self, endpoint: Endpoint, controllers: Mapping[str, str], outgoing: ClusterEndpoints | None = None
    ) -> None:
        super().__init__(endpoint if outgoing is None else outgoing.networks(endpoint))
        self._run = None if outgoing is None else endpoint
        """The run's own endpoint, without servers and controllers."""
        self._reconnector = Reconnector(
            (lambda address: endpoint) if outgoing is None else outgoing.endpoint_to
        )
        self._controllers = dict(controllers)
        self._router = Router(tuple(controllers))
        self._ticked = 0.0
        self._moved_buckets: list[str] = []
        self.calls = ConnectionResults()
        """Connections to controllers."""
        self._reserve(controllers)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Buckets without a known primary."""
        return self._router.unknown

    @property
    def servers(self) -> tuple[str, ...]:
        """Known primaries."""
        found = {self._router.primary(bucket) for bucket in self._router.buckets}
        return tuple(sorted(found - {""}))

    def find(self, controllers: Mapping[str, str]) -> None:
        """Set the addresses of controllers."""
        self._controllers.update(controllers)

    @property
    def groups(self) -> Mapping[str, Group]:
        """The last known group of each bucket."""
        return self._router.groups

    def _reserve(self, names: Iterable[str]) -> None:
        """Reserve the names of a cluster's servers and controllers, so that no process of the run can use
        them."""
        if self._run is None:
            return
        for name in names:
            self._run.accept_only_answers_of(name)
            if self._run.has(name):
                self._run.rejections["strangers"] += 1
                self._run.drop(name)

    def find_primaries(self) -> None:
        """Request the groups of all buckets."""
        self.send(CONTROLLERS, LookupRequest(tuple((name, 0) for name in self._router.buckets)))

    def connect(self, peers: Iterable[tuple[str, str]]) -> None:
        """Add peers; those without an address are buckets."""
        known = list(peers)
        self._router.add(name for name, address in known if not address)
        super().connect((name, address) for name, address in known if address)

    def call(self, servers: Mapping[str, str]) -> None:
        """Connect to servers, by name and address, whether or not they are primaries."""
        self._reconnector.connect(servers)

    def send(self, to: str, message: AnyMessage) -> bool:
        """Send like a messenger. Return True for buckets, controllers and servers: they are connected if
        necessary, and the caller repeats a message without a reply."""
        if self._is_routed(to):
            self.deliver([Send(to, cast(Message, message))])
            return True
        return super().send(to, message)

    def _is_routed(self, to: str) -> bool:
        known = (self._router.addresses, self._controllers)
        return to == CONTROLLERS or to in self._router.buckets or any(to in some for some in known)

    def deliver(self, sends: Iterable[Send]) -> None:
        """Send like a messenger."""
        self._deliver(self._router.send(sends, time.monotonic()))

    def receive(self, timeout: float | None) -> Event | None:
        """Receive like a messenger. A message from a bucket has the bucket's name; a bucket with a new
        primary is reported as moved. Of lookup replies, only those with a number are returned."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._moved_buckets:
            now = time.monotonic()
            if now - self._ticked >= _TICK_SECONDS:
                self._ticked = now
                self._deliver(self._router.tick(now))
            left = _TICK_SECONDS if deadline is None else min(_TICK_SECONDS, max(0.0, deadline - now))
            event = super().receive(left)
            found = self._routed(event)
            self._moved_buckets += self._router.take_moved()
            if found is not None:
                return found
            if event is None and deadline is not None and time.monotonic() >= deadline:
                return None
        return PeerMoved(self._moved_buckets.pop())

    def _routed(self, event: Event | None) -> Event | None:
        """Return the event if it is for the user of this messenger."""
        if isinstance(event, Received) and event.sender in self._controllers:
            self.calls.on_reply(event.sender, is_leader=not isinstance(event.message, NotLeader))
        match event:
            case Received(sender, message) if isinstance(message, ToRouter):
                said = self._router.receive(sender, message, time.monotonic())
                if isinstance(message, LookupReply):
                    self._reserve(name for name, _ in message.addresses)
                if isinstance(message, LookupReply) and message.number:
                    return event
                return None if said is None else Received(*said)
            case Received(sender, message) if sender in self._controllers:
                self._router.on_leader_message(sender)
                return event
            case Received(sender, ControllerAddresses(addresses)) if sender == COORDINATOR:
                self.find(dict(addresses))
                return None
            case Lost(peer) if peer in self._router.addresses:
                self._router.on_lost(peer)
                return None
            case Lost(peer) if peer in self._controllers:
                self.calls.on_lost(event)
                return None
            case _:
                return event

    def _deliver(self, sends: Sequence[Send]) -> None:
        """Send to servers and controllers; connect them if necessary."""
        known = (self._controllers, self._router.addresses)
        self._reconnector.connect(
            {peer: of[peer] for peer in {each.to for each in sends} for of in known if of.get(peer)}
        )
        super().deliver(sends)


def messengers_of(
    name: str, endpoint_settings: Mapping[str, Any], controllers: Mapping[str, str] | None, cluster_run: str
) -> Callable[[Endpoint], Messenger]:
    """Return the constructor of the messenger of a process: routed if servers are replicated, else plain.

    Args:
        name: Name of the process.
        endpoint_settings: Fields of `EndpointSettings`.
        controllers: Controllers' addresses by name; empty or None if servers are not replicated.
        cluster_run: Name of the run on a standalone cluster; empty if the servers are the run's own.
    """
    if not controllers:
        return Messenger
    outward = (
        ClusterEndpoints(name, cluster_run, EndpointSettings(**endpoint_settings)) if cluster_run else None
    )
    return lambda endpoint: RoutedMessenger(endpoint, controllers, outward)
