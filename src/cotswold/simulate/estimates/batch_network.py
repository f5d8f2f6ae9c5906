"""The workers and parameter servers of a described cluster, as a network for reductions.

Knows: hosts, cards, switches, placement. Does not know: vectors, plans, time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from cotswold.errors import ClusterError
from cotswold.geometry import Host, Network, NetworkCard
from cotswold.simulate.hardware.cluster import Cluster, Groups, Server
from cotswold.simulate.hardware.topology import Topology

HOSTS_MOST = 256
"""Maximum number of hosts: choosing a plan for more takes minutes."""
MESSAGE_NS = Network.message_ns
"""Minimum overhead of a message in Cotswold's processes, in nanoseconds, without its bytes."""


@dataclass(frozen=True)
class BatchNetwork:
    """A network of workers (ranks 0 to ``workers - 1``) and parameter servers (the following ranks)."""

    workers: int
    among_workers: Network
    """Network of the workers alone, for reductions and broadcasts."""
    network: Network
    """Network of workers and servers."""

    @property
    def message_seconds(self) -> float:
        """Seconds of a small message, from the call of send until it has been read."""
        return self.network.message_ns / 1e9


def batch_network(cluster: Cluster, workers: int, servers: int) -> BatchNetwork:
    """Place workers and servers on a cluster.

    Workers fill host after host, one device each, and share devices if there are more workers; `server` is
    the first host. Parameter servers and the coordinator are on the first host. Raises ClusterError for too
    many hosts.
    """
    own = 0 if cluster.server is None else cluster.devices
    hosts: list[list[int]] = [list(range(min(own, workers)))] if own else []
    if workers > own:
        topology = Topology(cluster, workers - own)
        first = len(hosts)
        hosts += [[] for _ in range(topology.hosts)]
        for rank in range(own, workers):
            hosts[first + topology.host(rank - own)].append(rank)
    if len(hosts) > HOSTS_MOST:
        raise ClusterError(
            f"predictions of evaluations support at most {HOSTS_MOST} hosts, but {workers} workers of "
            f"{cluster.name} need {len(hosts)}; use fewer ranks"
        )
    cards = [_cards(cluster, number) for number in range(-1 if own else 0, len(hosts) - (1 if own else 0))]
    if len(hosts) == 1:
        cards = [()]
    inside, outside = cluster.inside, cluster.network
    latency_us = (
        max(link.latency_us for link in (inside, outside if len(hosts) > 1 else None) if link)
        if (inside or (outside and len(hosts) > 1))
        else 0.0
    )
    memory = cluster.device.bandwidth if inside is None else inside.gbits / 8
    uplinks = {}
    if cluster.switch is not None:
        bits = int(cluster.switch.uplink.gbits * 1e9)
        uplinks = {card.switch: bits for each in cards for card in each}

    def network(ranks: list[list[int]]) -> Network:
        return Network(
            tuple(Host(tuple(each), has) for each, has in zip(ranks, cards, strict=True)),
            uplinks,
            max(1, int(memory * 1e9)),
            max(MESSAGE_NS, int(latency_us * 1000)),
        )

    with_servers = [[*hosts[0], *range(workers, workers + servers)], *hosts[1:]]
    return BatchNetwork(workers, network(hosts), network(with_servers))


def _cards(cluster: Cluster, host: int) -> tuple[NetworkCard, ...]:
    """Network cards of a host; those of `server` if ``host`` is -1."""
    groups = cluster.groups
    if cluster.network is None:
        return ()
    bits = int(cluster.network.gbits * 1e9)
    if groups is None:
        return (NetworkCard(0 if cluster.switch is None else host // cluster.switch.hosts, bits),)
    if host < 0:
        assert cluster.server is not None, "only a server has the number -1"
        return _server_cards(cluster, groups, cluster.server)
    own = host // groups.hosts
    others = (other for other in range(cluster.hosts // groups.hosts) if other != own)
    return tuple(NetworkCard(switch_between(cluster, own, other), bits) for other in others)


def _server_cards(cluster: Cluster, groups: Groups, server: Server) -> tuple[NetworkCard, ...]:
    bits = int(server.gbits * 1e9)
    return tuple(NetworkCard(switch_between(cluster, *pair), bits) for pair in server.switches)


def switch_between(cluster: Cluster, one: int, other: int) -> int:
    """Number of the switch between two groups, which is its lane in plans."""
    assert cluster.groups is not None and one != other, "two different groups of the cluster"
    pairs = list(combinations(range(cluster.hosts // cluster.groups.hosts), 2))
    return pairs.index((min(one, other), max(one, other)))
