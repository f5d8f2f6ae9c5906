"""Ports that a message passes between two ranks.

Knows: hosts, cards, switches, the place of each rank. Does not know: when a message is sent, its size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from cotswold.errors import ClusterError
from cotswold.simulate.hardware.cluster import Cluster, Link

BITS = 1e9 / 8
"""Bytes per second of one Gbit/s."""


@dataclass(frozen=True)
class Port:
    """A queue of messages in one direction, which leave one after another at the port's rate."""

    position: tuple[str, int]
    bytes_per_second: float


@dataclass(frozen=True)
class Route:
    """The ports from one rank to another, with the latency in seconds to the first byte.

    ``offload`` is the fraction of the time in which the devices at both ends can compute.
    """

    ports: tuple[Port, ...]
    latency: float
    offload: float

    def seconds(self, bytes_: int) -> float:
        """Return the seconds of a message of ``bytes_`` without contention."""
        return self.latency + bytes_ / min(port.bytes_per_second for port in self.ports)


class Topology:
    """Ranks on a cluster, which fill host after host, device after device.

    More ranks than devices share the devices.
    """

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        if ranks < 1:
            raise ClusterError(f"ranks must be at least 1, got {ranks}")
        self.cluster, self.ranks = cluster, ranks
        self._routes: dict[tuple[int, int], Route] = {}
        if ranks > 1 and cluster.inside is None and (cluster.devices > 1 or cluster.size < ranks):
            raise ClusterError(f"{cluster.name} has no [inside] link for several ranks on a host; add one")

    def device(self, rank: int) -> int:
        """Return the device of a rank."""
        return rank if self.ranks <= self.cluster.size else rank * self.cluster.size // self.ranks

    def host(self, rank: int) -> int:
        """Return the host of a rank."""
        return self.device(rank) // self.cluster.devices

    @cached_property
    def hosts(self) -> int:
        """Number of hosts that have ranks."""
        return len({self.host(rank) for rank in range(self.ranks)})

    @cached_property
    def ranks_on_host(self) -> int:
        """Number of ranks on the fullest host."""
        return max(Counter(self.host(rank) for rank in range(self.ranks)).values())

    @property
    def cores(self) -> int:
        """Number of devices of a rank."""
        several = self.cluster.threads is not None and self.ranks_on_host < self.cluster.devices
        return self.cluster.devices // self.ranks_on_host if several else 1

    @property
    def max_devices_per_host(self) -> int:
        """Number of devices that compute on the fullest host."""
        return min(self.cluster.devices, self.ranks_on_host * self.cores)

    @property
    def speedup(self) -> float:
        """Speedup of a rank over one device."""
        return 1.0 + (self.cores - 1) * (self.cluster.threads or 0.0)

    @property
    def contention(self) -> float:
        """Contention from 0 (one device of a host computes) to 1 (all do)."""
        return (
            (self.max_devices_per_host - 1) / (self.cluster.devices - 1) if self.cluster.devices > 1 else 0.0
        )

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth in GB/s of a device while all devices of its host compute."""
        own, shared = self.cluster.device.bandwidth, self.cluster.host_bandwidth
        whole = self.speedup * own
        return whole if shared is None else min(whole, shared / min(self.ranks_on_host, self.cluster.devices))

    def route(self, source: int, target: int) -> Route:
        """Return the route from one rank to another."""
        key = source, target
        if key not in self._routes:
            self._routes[key] = self._find_route(source, target)
        return self._routes[key]

    def _find_route(self, source: int, target: int) -> Route:
        a, b = self.host(source), self.host(target)
        if a == b:
            link = _require_link(self.cluster.inside)
            rate = link.gbits * BITS
            ports = Port(("device out", source), rate), Port(("device in", target), rate)
            return Route(ports, link.latency_us * 1e-6, link.offload)
        link = _require_link(self.cluster.network)
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
        """Number of the card by which a host reaches another; within a group, the card to the next group."""
        groups = self.cluster.groups
        if groups is None:
            return host
        count = self.cluster.hosts // groups.hosts
        own, towards = host // groups.hosts, other // groups.hosts
        return host * count + (towards if towards != own else (own + 1) % count)


def _require_link(link: Link | None) -> Link:
    assert link is not None, "the schema requires a link wherever there are several devices or hosts"
    return link
