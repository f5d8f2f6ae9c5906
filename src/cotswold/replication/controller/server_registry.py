"""The leader's registry of servers: which are alive, whose lease may be valid, which replicas each has.

Knows: when each server sent its last heartbeat, until when its lease may be valid, its buckets, whether it is
drained. Does not know: groups, elections.

    server              event                                        next
    unknown             Heartbeat                                    LIVING
    LIVING              silent until no lease of it can be valid     GONE
    LIVING              heartbeats without a new reply for as long   GONE: it may not act, nor be reached
    GONE                heartbeats without a new reply               GONE
    GONE                an operator declares it lost                 ENDED, until a heartbeat arrives
    LIVING              its supervisor reports that it exited        ENDED, at once and permanently
    unknown             its supervisor reports that it exited        unknown
    unknown             named as the owner of a restored disk        ENDED: no process has that name
    unknown             drained and without replicas when loaded     ENDED, until a heartbeat arrives
    GONE                Heartbeat                                    LIVING: it was partitioned or suspended
    GONE or ENDED       silent for long, without replicas            unknown

A server that an earlier leader named may hold a lease of that leader until it has reported to this one: at
most as long as a lease granted at the start of this leadership. A drained server stays alive and gets no new
replicas.

Servers ordered by load, over all and per host.

The lists stay sorted: a search reads only a few of their first entries.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeVar

from cotswold.replication.replica.saved_bucket import is_restored
from cotswold.wire import Heartbeat

_Item = TypeVar("_Item", tuple[int, str], tuple[int, str, str])


@dataclass
class ServerRecord:
    """One server."""

    name: str
    host: str = ""
    address: str = ""
    peer_address: str = ""
    """Address for other servers."""
    is_alive: bool = True
    lease_until: float = 0.0
    """Time after which no lease of it can be valid, by the controller's clock."""
    lease_start: float | None = None
    """Start of the uninterrupted sequence of its leases."""
    has_exited: bool = False
    """True if its supervisor has reported that the process exited."""
    may_return: bool = False
    """True if the exit was not observed: a heartbeat brings the server back to life."""
    is_drained: bool = False
    """True if it must not have replicas."""
    last_heartbeat: float | None = None
    """Time of the last heartbeat."""
    answered: int = -1
    """Number of the newest reply that the server has acknowledged."""
    answered_at: float = float("inf")
    """Time at which that number last changed."""
    heartbeat_interval: float = 0.0
    """Smoothed interval between two heartbeats, in seconds."""
    copies: dict[str, None] = field(default_factory=dict)
    """Buckets of which it has, or will have, a replica."""
    leads: dict[str, None] = field(default_factory=dict)
    """Buckets of which it is, or will be, the primary."""

    @property
    def can_receive(self) -> bool:
        """True if it may receive replicas."""
        return self.is_alive and self.last_heartbeat is not None and not self.is_drained

    def leased_seconds(self, now: float) -> float:
        """Return for how many seconds it has had leases without a gap; 0 if it has none."""
        return 0.0 if self.lease_start is None else now - self.lease_start

    def record_acknowledged(self, answered: int, now: float) -> float:
        """Return the seconds since the newest acknowledged reply changed; ``answered`` is its number."""
        if answered != self.answered:
            self.answered, self.answered_at = answered, now
        return now - self.answered_at

    def missed_heartbeats(self, now: float) -> int:
        """Return the number of missed heartbeats."""
        return (
            0
            if self.last_heartbeat is None or not self.heartbeat_interval
            else max(1, round((now - self.last_heartbeat) / self.heartbeat_interval))
        )


class ServerRegistry:
    """All servers that were ever named."""

    def __init__(self) -> None:
        self.of: dict[str, ServerRecord] = {}
        self._leased: OrderedDict[str, None] = OrderedDict()
        """Live servers, in the order in which their leases expire."""
        self._loads = LoadIndex()
        self._stale: dict[str, None] = {}
        """Servers whose place in the load index is outdated."""

    def record_heartbeat(self, heartbeat: Heartbeat, now: float) -> ServerRecord:
        """Record a heartbeat; it does not revive a server whose exit was reported."""
        known = self.of.get(heartbeat.server)
        if known is None:
            known = self.of[heartbeat.server] = ServerRecord(heartbeat.server)
        if known.last_heartbeat is not None:
            known.heartbeat_interval = (
                0.9 * known.heartbeat_interval + 0.1 * (now - known.last_heartbeat)
                if known.heartbeat_interval
                else now - known.last_heartbeat
            )
        if known.last_heartbeat is None or not known.is_alive or known.host != heartbeat.host:
            self._stale[heartbeat.server] = None
        known.last_heartbeat = now
        known.host, known.address = heartbeat.host, heartbeat.address
        known.peer_address = heartbeat.peer_address or heartbeat.address
        if known.may_return:
            known.has_exited = known.may_return = False
        known.is_alive = not known.has_exited
        if known.is_alive:
            self._leased[heartbeat.server] = None
        return known

    def lease(self, known: ServerRecord, until: float) -> None:
        """Record a lease that may be valid until ``until``."""
        known.lease_until = max(known.lease_until, until)
        self._leased[known.name] = None
        self._leased.move_to_end(known.name)

    def extend_leases(self, seconds: float) -> None:
        """Extend all leases by a stall of the leader, and restart the sequences of leases."""
        for name in self._leased:
            self.of[name].lease_until += seconds
            self.of[name].answered_at += seconds
            self.of[name].lease_start = None

    def get_or_add(self, name: str, held_until: float) -> ServerRecord:
        """Return the record of a server named in a group. It may not have reported yet, or stand for a
        restored disk that no server has had."""
        if name not in self.of and is_restored(name):
            self.of[name] = ServerRecord(name, is_alive=False, has_exited=True)
        elif name not in self.of:
            self.of[name] = ServerRecord(name, lease_until=held_until)
            self._leased[name] = None
        return self.of[name]

    def add_absent(self, name: str) -> None:
        """Record a drained server without replicas: it counts as exited until a heartbeat arrives."""
        if name not in self.of:
            self.of[name] = ServerRecord(name, is_alive=False, has_exited=True, may_return=True)

    def record_exit(self, name: str) -> bool:
        """Record that the process exited; True if that is new. An unknown server without replicas is no
        news: an earlier leader was told."""
        known = self.of.get(name)
        if known is None:
            return False
        is_news = known.is_alive
        known.has_exited, known.is_alive, known.may_return = True, False, False
        self._leased.pop(name, None)
        self._stale[name] = None
        return is_news

    def declare_lost(self, name: str) -> None:
        """Declare a server lost on an operator's word; a heartbeat brings it back."""
        self.of[name].may_return = True

    def set_drained(self, name: str, is_drained: bool, held_until: float) -> None:
        """Record that a drain begins or ends."""
        self.get_or_add(name, held_until).is_drained = is_drained
        self._stale[name] = None

    def take_expired(self, now: float) -> list[ServerRecord]:
        """Remove and return the servers whose last lease has expired."""
        found = []
        while self._leased:
            known = self.of[next(iter(self._leased))]
            if now <= known.lease_until:
                break
            del self._leased[known.name]
            known.is_alive, known.lease_start = False, None
            self._stale[known.name] = None
            found.append(known)
        return found

    def forget(self, name: str) -> None:
        """Forget a server."""
        del self.of[name]
        self._leased.pop(name, None)
        self._loads.remove(name)
        self._stale.pop(name, None)

    def may_act(self, name: str, now: float) -> bool:
        """True if a lease of the server may be valid."""
        known = self.of[name]
        return not known.has_exited and now <= known.lease_until

    def is_alive(self, name: str) -> bool:
        """True if the server is alive."""
        return name in self.of and self.of[name].is_alive

    @property
    def live(self) -> list[ServerRecord]:
        """Live servers."""
        return [each for each in self.of.values() if each.is_alive]

    # --- replicas ---

    def add_copy(self, name: str, bucket: str) -> None:
        """Record that the server has, or will have, a replica."""
        self.of[name].copies[bucket] = None
        self._stale[name] = None

    def remove_copy(self, name: str, bucket: str) -> None:
        """Record that the server has no replica any more."""
        if self.of[name].copies.pop(bucket, bucket) is None:
            self._stale[name] = None

    @property
    def loads(self) -> LoadIndex:
        """Servers that may receive replicas, ordered by their number of replicas."""
        for name in self._stale:
            known = self.of[name]
            if known.can_receive:
                self._loads.set_load(name, known.host, len(known.copies))
            else:
                self._loads.remove(name)
        self._stale.clear()
        return self._loads

    def choose_host(self, members: Collection[str], avoid: Collection[str]) -> str | None:
        """Return the server for another replica: on a host without any of ``members`` if there is one, and
        there the server with the fewest replicas."""
        hosts = {self.of[each].host for each in members if each in self.of}
        return self.loads.choose(hosts, {*members, *avoid})


class LoadIndex:
    """Servers that may take more load."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, str]] = {}
        self._all: list[tuple[int, str]] = []
        """(load, name); the same for each host."""
        self._by_host: dict[str, list[tuple[int, str]]] = {}
        self._hosts: list[tuple[int, str, str]] = []
        """(load, name, host) of the least loaded server of each host."""

    def set_load(self, name: str, host: str, load: int) -> None:
        """Set the load of a server."""
        if self._of.get(name) == (load, host):
            return
        self.remove(name)
        self._of[name] = load, host
        insort(self._all, (load, name))
        own = self._by_host.setdefault(host, [])
        if own and own[0] > (load, name):
            _remove(self._hosts, (*own[0], host))
        if not own or own[0] > (load, name):
            insort(self._hosts, (load, name, host))
        insort(own, (load, name))

    def remove(self, name: str) -> None:
        """Remove a server that may take no more load."""
        known = self._of.pop(name, None)
        if known is None:
            return
        load, host = known
        own = self._by_host[host]
        _remove(self._all, (load, name))
        is_first = own[0] == (load, name)
        _remove(own, (load, name))
        if is_first:
            _remove(self._hosts, (load, name, host))
            if own:
                insort(self._hosts, (*own[0], host))
        if not own:
            del self._by_host[host]

    @property
    def ascending(self) -> list[tuple[int, str]]:
        """(load, name) in ascending order."""
        return self._all

    def choose(self, hosts: Collection[str], without: Collection[str]) -> str | None:
        """Return the least loaded server outside these hosts, or, if there is none, on any host; never one
        of ``without``."""
        best: tuple[int, str] | None = None
        for load, name, host in self._hosts:
            if best is not None and (load, name) > best:
                break
            if host not in hosts:
                able = next((each for each in self._by_host[host] if each[1] not in without), None)
                best = able if best is None or (able is not None and able < best) else best
        if best is None:
            best = next((each for each in self._all if each[1] not in without), None)
        return None if best is None else best[1]


def _remove(items: list[_Item], item: _Item) -> None:
    place = bisect_left(items, item)
    assert items[place] == item, f"{item} is in its place"
    del items[place]
