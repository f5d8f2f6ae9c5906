"""Which ports a message passes from rank to rank.

Knows: hosts, cards, switches, which rank stands where. Does not know: when a message is sent, its size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from cotswold.errors import ClusterError
from cotswold.simulate.cluster import Cluster, Link

BITS = 1e9 / 8
"""Bytes a second of a Gbit/s."""


@dataclass(frozen=True)
class Port:
    """Where messages queue in one direction: one after another, at the port's rate."""

    place: tuple[str, int]
    bytes_a_second: float


@dataclass(frozen=True)
class Route:
    """The ports from one rank to another, the seconds to the first byte, and the part of the time in which
    the devices at either end can compute."""

    ports: tuple[Port, ...]
    latency: float
    offload: float

    def seconds(self, bytes_: int) -> float:
        """How long a message takes if it meets no other."""
        return self.latency + bytes_ / min(port.bytes_a_second for port in self.ports)


class Topology:
    """Ranks on a cluster: host after host is filled, device after device. More ranks than devices share."""

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        if ranks < 1:
            raise ClusterError(f"there must be at least one rank, not {ranks}")
        self.cluster, self.ranks = cluster, ranks
        self._routes: dict[tuple[int, int], Route] = {}
        if ranks > 1 and cluster.inside is None and (cluster.devices > 1 or cluster.size < ranks):
            raise ClusterError(
                f"{cluster.name} has no [inside] link for several ranks on a host; give it one"
            )

    def device(self, rank: int) -> int:
        """The device that a rank computes on."""
        return rank if self.ranks <= self.cluster.size else rank * self.cluster.size // self.ranks

    def host(self, rank: int) -> int:
        """The host of a rank."""
        return self.device(rank) // self.cluster.devices

    @cached_property
    def hosts(self) -> int:
        """Hosts that have ranks."""
        return len({self.host(rank) for rank in range(self.ranks)})

    @cached_property
    def ranks_on_host(self) -> int:
        """Ranks on the fullest host."""
        return max(Counter(self.host(rank) for rank in range(self.ranks)).values())

    @property
    def cores(self) -> int:
        """Devices that a rank has to itself."""
        several = self.cluster.threads is not None and self.ranks_on_host < self.cluster.devices
        return self.cluster.devices // self.ranks_on_host if several else 1

    @property
    def busiest(self) -> int:
        """Devices that compute on the fullest host."""
        return min(self.cluster.devices, self.ranks_on_host * self.cores)

    @property
    def times(self) -> float:
        """How many times as fast as one device a rank is."""
        return 1.0 + (self.cores - 1) * (self.cluster.threads or 0.0)

    @property
    def crowd(self) -> float:
        """From 0, one device of a host computes, to 1, all do."""
        return (self.busiest - 1) / (self.cluster.devices - 1) if self.cluster.devices > 1 else 0.0

    @property
    def bandwidth(self) -> float:
        """GB/s of memory of a device while all devices of its host compute."""
        own, shared = self.cluster.device.bandwidth, self.cluster.host_bandwidth
        whole = self.times * own
        return whole if shared is None else min(whole, shared / min(self.ranks_on_host, self.cluster.devices))

    def route(self, source: int, target: int) -> Route:
        """The way from one rank to another."""
        key = source, target
        if key not in self._routes:
            self._routes[key] = self._found(source, target)
        return self._routes[key]

    def _found(self, source: int, target: int) -> Route:
        a, b = self.host(source), self.host(target)
        if a == b:
            link = _there(self.cluster.inside)
            rate = link.gbits * BITS
            ports = Port(("device out", source), rate), Port(("device in", target), rate)
            return Route(ports, link.latency_us * 1e-6, link.offload)
        link = _there(self.cluster.network)
        rate = link.gbits * BITS
        latency = link.latency_us
        between: tuple[Port, ...] = ()
        switch = self.cluster.switch
        if switch is not None and a // switch.hosts != b // switch.hosts:
            up = switch.uplink.gbits * BITS
            between = Port(("switch out", a // switch.hosts), up), Port(("switch in", b // switch.hosts), up)
            latency += 2 * switch.uplink.latency_us
        card_a, card_b = self._card(a, b), self._card(b, a)
        ways = (Port(("card out", card_a), rate), *between, Port(("card in", card_b), rate))
        return Route(ways, latency * 1e-6, link.offload)

    def _card(self, host: int, other: int) -> int:
        """The number of the card by which a host reaches another; within a group it is that to the next."""
        groups = self.cluster.groups
        if groups is None:
            return host
        count = self.cluster.hosts // groups.hosts
        own, towards = host // groups.hosts, other // groups.hosts
        return host * count + (towards if towards != own else (own + 1) % count)


def _there(link: Link | None) -> Link:
    assert link is not None, "the schema wants a link wherever there is somebody to join"
    return link
