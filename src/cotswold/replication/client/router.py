"""Routes of a client's messages to buckets: to the last known primary.

Knows: groups, as reported. Does not know: the contents of messages; the sender repeats them.

    event                                              action
    a message to a bucket with a known primary         send it to the primary
    a message to a bucket without one                  drop it; `LookupRequest`
    BucketEnvelope                                     deliver its message as the bucket's
    NotPrimary, of a newer term                        use the primary that it names
    NotPrimary, without a primary                      `LookupRequest`
    LookupReply                                        use all newer groups
    a bucket is silent for long                        `LookupRequest`
    a message to the controllers                       send it to the presumed leader
    NotLeader, with another leader                     presume that one, and ask it at once
    the presumed leader does not reply for long        presume the next controller
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from cotswold.wire import (
    CONTROLLERS,
    BucketEnvelope,
    BucketMessage,
    Group,
    LookupReply,
    LookupRequest,
    NotLeader,
    NotPrimary,
    Send,
)

ToRouter = BucketEnvelope | NotPrimary | LookupReply | NotLeader


@dataclass
class _Route:
    term: int = 0
    primary: str = ""
    requested_at: float | None = None
    """Time of the first message to it without a reply."""


class Router:
    """Routes of one client."""

    def __init__(
        self,
        controllers: Sequence[str],
        buckets: Iterable[str] = (),
        *,
        find_seconds: float = 0.25,
        leader_seconds: float = 0.6,
    ) -> None:
        """``controllers``: all, by name; ``leader_seconds``: timeout after which another controller is
        presumed the leader."""
        self._routes = {name: _Route() for name in buckets}
        self._find_seconds, self._leader_seconds = find_seconds, leader_seconds
        self._leader_seen_at = float("-inf")
        self._controllers, self._leader = tuple(controllers), 0
        """Position of the presumed leader."""
        self._leader_requested_at: float | None = None
        """Time of the first message to the presumed leader without a reply."""
        self._moved_buckets: list[str] = []
        self._lost_servers: dict[str, None] = {}
        """Lost servers, which may have a new address now."""
        self.addresses: dict[str, str] = {}
        """Addresses of servers by name."""
        self.groups: dict[str, Group] = {}
        """The newest known group of each bucket."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """Known buckets."""
        return tuple(self._routes)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Buckets without a known primary."""
        return tuple(name for name, route in self._routes.items() if not route.primary)

    def add(self, buckets: Iterable[str]) -> None:
        """Add buckets."""
        for name in buckets:
            self._routes.setdefault(name, _Route())

    def primary(self, bucket: str) -> str:
        """Return the known primary of a bucket; empty if none is known."""
        return self._routes[bucket].primary

    def send(self, sends: Iterable[Send], now: float) -> list[Send]:
        """Return the messages addressed to servers and controllers; messages to other peers are unchanged."""
        found: list[Send] = []
        for each in sends:
            route = self._routes.get(each.to)
            if each.to == CONTROLLERS:
                found.append(Send(self._assumed_leader(now), each.message))
            elif route is None:
                found.append(each)
            else:
                if route.requested_at is None:
                    route.requested_at = now
                if route.primary:
                    of_bucket = BucketEnvelope(each.to, route.term, cast(BucketMessage, each.message))
                    found.append(Send(route.primary, of_bucket))
        return found

    def receive(self, sender: str, message: ToRouter, now: float) -> tuple[str, BucketMessage] | None:
        """Return the name of a bucket and its message; None for messages about routes."""
        if isinstance(message, NotLeader):
            self._follow(sender, message)
        else:
            self.on_leader_message(sender)
        match message:
            case BucketEnvelope(bucket, _, said) if bucket in self._routes:
                self._routes[bucket].requested_at = None
                return bucket, said
            case NotPrimary(bucket, term, primary) if bucket in self._routes:
                route = self._routes[bucket]
                if primary and term > route.term:
                    self._move(bucket, term, primary)
                elif sender == route.primary:
                    route.requested_at = float("-inf")  # ask a controller at once
            case LookupReply(groups, addresses):
                self.addresses.update(addresses)
                self._lost_servers = {
                    name: None for name in self._lost_servers if name not in dict(addresses)
                }
                for group in groups:
                    if group.term >= self.groups.get(group.bucket, group).term:
                        self.groups[group.bucket] = group
                    known = self._routes.get(group.bucket)
                    if known is not None and group.term > known.term:
                        self._move(group.bucket, group.term, group.primary)
            case _:
                pass
        return None

    def take_moved(self) -> list[str]:
        """Return the buckets with a new primary, since the last call, that have not replied."""
        moved, self._moved_buckets = self._moved_buckets, []
        return moved

    def on_lost(self, server: str) -> None:
        """Record a lost server and look up the primaries of its buckets at once."""
        for route in self._routes.values():
            if route.primary == server:
                route.requested_at = float("-inf")
                self._lost_servers[server] = None

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time."""
        late = now - self._find_seconds
        if self._leader_seen_at > late or not any(
            each.requested_at is not None and (each.requested_at <= late or not each.primary)
            for each in self._routes.values()
        ):
            return []
        self._leader_seen_at = now
        terms = tuple((name, each.term) for name, each in self._routes.items())
        return self.send([Send(CONTROLLERS, LookupRequest(terms, self._unreachable))], now)

    @property
    def _unreachable(self) -> tuple[str, ...]:
        """Servers that were lost, and primaries named by another server: their addresses are unknown, and
        a lookup by known terms would not return them."""
        named = {each.primary for each in self._routes.values() if each.primary}
        return (
            *self._lost_servers,
            *sorted(each for each in named - self._lost_servers.keys() if not self.addresses.get(each)),
        )

    def _move(self, bucket: str, term: int, primary: str) -> None:
        route = self._routes[bucket]
        if route.requested_at is not None and route.primary != primary:
            route.requested_at = None
            self._moved_buckets.append(bucket)
        route.term, route.primary = term, primary

    def _assumed_leader(self, now: float) -> str:
        if self._leader_requested_at is not None and now - self._leader_requested_at > self._leader_seconds:
            self._leader_requested_at, self._leader = None, (self._leader + 1) % len(self._controllers)
        if self._leader_requested_at is None:
            self._leader_requested_at = now
        return self._controllers[self._leader]

    def on_leader_message(self, sender: str) -> None:
        """Record that a controller sent something other than `NotLeader`."""
        if sender in self._controllers and sender == self._controllers[self._leader]:
            self._leader_requested_at = None

    def _follow(self, sender: str, message: NotLeader) -> None:
        if sender in self._controllers and message.leader in self._controllers and message.leader != sender:
            self._leader, self._leader_requested_at = self._controllers.index(message.leader), None
            self._leader_seen_at = float("-inf")
