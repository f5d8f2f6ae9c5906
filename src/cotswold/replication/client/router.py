"""Where a client's messages to buckets go: to the primary that it knows, until it hears of another.

Knows: groups as they were told. Does not know: what messages say; whoever sends them sends them again.

    what comes                                         what it does
    a message to a bucket, its primary is known        it goes there
    a message to a bucket that is not known            nothing goes; `Find`
    OfBucket                                           it is the bucket's
    Elsewhere, of a newer term                         that is the primary from now on
    Elsewhere, that names nobody                       `Find`
    Found                                              what is newer is so
    a bucket has said nothing for long                 `Find`
    something for the controllers                      it goes to the one that is taken for their leader
    NotLeading, that names another                     that is their leader from now on, and is asked at once
    their leader was asked, and has not answered       the next of them is
      for long
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from cotswold.wire import (
    CONTROLLERS,
    Elsewhere,
    Enclosed,
    Find,
    Found,
    Group,
    NotLeading,
    OfBucket,
    Send,
)

ToRouter = OfBucket | Elsewhere | Found | NotLeading


@dataclass
class _Route:
    term: int = 0
    primary: str = ""
    asked: float | None = None
    """When it was first sent something that it has not answered."""


class Router:
    """That of one client."""

    def __init__(
        self,
        controllers: Sequence[str],
        buckets: Iterable[str] = (),
        *,
        find_seconds: float = 0.25,
        leader_seconds: float = 0.6,
    ) -> None:
        """``controllers``: all, by name; ``leader_seconds``: after which another of them may lead."""
        self._routes = {name: _Route() for name in buckets}
        self._find_seconds, self._leader_seconds = find_seconds, leader_seconds
        self._found = float("-inf")
        self._controllers, self._leader = tuple(controllers), 0
        """The place of whoever is taken for their leader."""
        self._leader_asked: float | None = None
        """When that was first sent something since it said anything."""
        self._moved: list[str] = []
        self._lost: dict[str, None] = {}
        """Servers that were lost, and may be somewhere else now."""
        self.addresses: dict[str, str] = {}
        """Of servers that were named."""
        self.groups: dict[str, Group] = {}
        """The newest that were found, by bucket."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """Those that it knows by name."""
        return tuple(self._routes)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Those of which it knows no primary."""
        return tuple(name for name, route in self._routes.items() if not route.primary)

    def add(self, buckets: Iterable[str]) -> None:
        """These are buckets too."""
        for name in buckets:
            self._routes.setdefault(name, _Route())

    def primary(self, bucket: str) -> str:
        """Who is it, as far as is known; empty where nobody is."""
        return self._routes[bucket].primary

    def send(self, sends: Iterable[Send], now: float) -> list[Send]:
        """The same, to servers and controllers: what is for others as it is."""
        found: list[Send] = []
        for each in sends:
            route = self._routes.get(each.to)
            if each.to == CONTROLLERS:
                found.append(Send(self._taken_for_leader(now), each.message))
            elif route is None:
                found.append(each)
            else:
                if route.asked is None:
                    route.asked = now
                if route.primary:
                    of_bucket = OfBucket(each.to, route.term, cast(Enclosed, each.message))
                    found.append(Send(route.primary, of_bucket))
        return found

    def receive(self, sender: str, message: ToRouter, now: float) -> tuple[str, Enclosed] | None:
        """What a bucket says, with its name; None where it is about the way there."""
        if isinstance(message, NotLeading):
            self._follow(sender, message)
        else:
            self.heard(sender)
        match message:
            case OfBucket(bucket, _, said) if bucket in self._routes:
                self._routes[bucket].asked = None
                return bucket, said
            case Elsewhere(bucket, term, primary) if bucket in self._routes:
                route = self._routes[bucket]
                if primary and term > route.term:
                    self._move(bucket, term, primary)
                elif sender == route.primary:
                    route.asked = float("-inf")  # ask a controller at once
            case Found(groups, addresses):
                self.addresses.update(addresses)
                self._lost = {name: None for name in self._lost if name not in dict(addresses)}
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
        """Buckets that have another primary since this was called last, and owe an answer."""
        moved, self._moved = self._moved, []
        return moved

    def lost(self, server: str) -> None:
        """A server is not there any more: who has its buckets now is asked at once."""
        for route in self._routes.values():
            if route.primary == server:
                route.asked = float("-inf")
                self._lost[server] = None

    def tick(self, now: float) -> list[Send]:
        """Time has passed."""
        late = now - self._find_seconds
        if self._found > late or not any(
            each.asked is not None and (each.asked <= late or not each.primary)
            for each in self._routes.values()
        ):
            return []
        self._found = now
        terms = tuple((name, each.term) for name, each in self._routes.items())
        return self.send([Send(CONTROLLERS, Find(terms, self._unreached))], now)

    @property
    def _unreached(self) -> tuple[str, ...]:
        """Servers that were lost, and primaries that another server has named: of these it knows no address,
        and is told none with their groups, whose terms it knows."""
        named = {each.primary for each in self._routes.values() if each.primary}
        return (
            *self._lost,
            *sorted(each for each in named - self._lost.keys() if not self.addresses.get(each)),
        )

    def _move(self, bucket: str, term: int, primary: str) -> None:
        route = self._routes[bucket]
        if route.asked is not None and route.primary != primary:
            route.asked = None
            self._moved.append(bucket)
        route.term, route.primary = term, primary

    def _taken_for_leader(self, now: float) -> str:
        if self._leader_asked is not None and now - self._leader_asked > self._leader_seconds:
            self._leader_asked, self._leader = None, (self._leader + 1) % len(self._controllers)
        if self._leader_asked is None:
            self._leader_asked = now
        return self._controllers[self._leader]

    def heard(self, sender: str) -> None:
        """Somebody said something else than that it does not lead."""
        if sender in self._controllers and sender == self._controllers[self._leader]:
            self._leader_asked = None

    def _follow(self, sender: str, message: NotLeading) -> None:
        if sender in self._controllers and message.leader in self._controllers and message.leader != sender:
            self._leader, self._leader_asked = self._controllers.index(message.leader), None
            self._found = float("-inf")
