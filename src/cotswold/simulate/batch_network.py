"""The workers and parameter servers of a described cluster, as reductions see them.

Knows: hosts, cards, switches, who stands where. Does not know: vectors, plans, time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from cotswold.errors import ClusterError
from cotswold.geometry import Card, Host, Network
from cotswold.simulate.cluster import Cluster, Groups, Server
from cotswold.simulate.topology import Topology

HOSTS_MOST = 256
"""A plan for more takes minutes to choose."""
MESSAGE_NS = Network.message_ns
"""What a message costs our processes besides its bytes, at least."""


@dataclass(frozen=True)
class BatchNetwork:
    """Ranks 0 to ``workers - 1`` are workers, those that follow are parameter servers."""

    workers: int
    among_workers: Network
    """Of the workers alone: what reductions and broadcasts go over."""
    whole: Network
    """With the servers."""

    @property
    def message_seconds(self) -> float:
        """A small message, from whoever sends it to having been read."""
        return self.whole.message_ns / 1e9


def batch_network(cluster: Cluster, workers: int, servers: int) -> BatchNetwork:
    """Workers fill host after host, a device each, and share devices where there are more; `server` is the
    first host. Parameter servers, and the coordinator, are on the first host.

    Raises ClusterError for more hosts than a plan is chosen for.
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
            f"evaluations are predicted for {HOSTS_MOST} hosts at most, and {workers} workers of "
            f"{cluster.name} are on {len(hosts)}; ask for fewer ranks"
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


def _cards(cluster: Cluster, host: int) -> tuple[Card, ...]:
    """The cards of a host; of `server` where ``host`` is -1."""
    groups = cluster.groups
    if cluster.network is None:
        return ()
    bits = int(cluster.network.gbits * 1e9)
    if groups is None:
        return (Card(0 if cluster.switch is None else host // cluster.switch.hosts, bits),)
    if host < 0:
        assert cluster.server is not None, "only a server is numbered so"
        return _server_cards(cluster, groups, cluster.server)
    own = host // groups.hosts
    others = (other for other in range(cluster.hosts // groups.hosts) if other != own)
    return tuple(Card(switch_between(cluster, own, other), bits) for other in others)


def _server_cards(cluster: Cluster, groups: Groups, server: Server) -> tuple[Card, ...]:
    bits = int(server.gbits * 1e9)
    return tuple(Card(switch_between(cluster, *pair), bits) for pair in server.switches)


def switch_between(cluster: Cluster, one: int, other: int) -> int:
    """The number of the switch between two groups, which is its lane in plans."""
    assert cluster.groups is not None and one != other, "there are groups, and a switch between two"
    pairs = list(combinations(range(cluster.hosts // cluster.groups.hosts), 2))
    return pairs.index((min(one, other), max(one, other)))
