"""Predicted time of a reduction on a described network, and the fastest plan for it.

Knows: hosts, their cards, switches and rates, the steps of a plan. Does not know: sockets; nothing is
measured here.

The model: every card sends and receives at its rate, both at once, and so does every link between two
switches. A rank adds, and a host moves messages between its ranks, at the rate of its memory. Messages for
the same resource queue in the order in which they could start. A rank forwards a message only when it has
arrived completely, so long vectors are cut into pieces.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from cotswold.errors import GeometryError
from cotswold.geometry.reduction import Item, ReductionPlan
from cotswold.geometry.reduction_plans import (
    ALGORITHMS,
    Algorithm,
    Tree,
    across_lanes,
    all_reduction,
    binomial_tree,
    chain,
    hierarchy,
    leaves,
    reduction,
    ring_over_groups,
    star,
)

PIECES = 128
"""Approximate pieces of a vector: a chain over few hosts then costs 2 % more than one vector over a link."""
PIECE_BYTES_LEAST, PIECE_BYTES_MOST = 1 << 15, 1 << 20
PREDICTED_PIECES_MOST = 256
_Resource = tuple[str, int, int]


@dataclass(frozen=True)
class NetworkCard:
    """A network card.

    Args:
        switch: Number of the switch to which the card is connected.
        bits_per_second: Rate in each direction, in bits per second.
    """

    switch: int
    bits_per_second: int


@dataclass(frozen=True)
class Host:
    """A host; its lane ``i`` is its card at switch ``i`` (see `Network`).

    Args:
        ranks: Ranks that run on the host.
        cards: Its network cards.
    """

    ranks: tuple[int, ...]
    cards: tuple[NetworkCard, ...]


@dataclass(frozen=True)
class Network:
    """Hosts and switches. Lanes are switches if hosts have several cards; else there is only lane 0.

    Args:
        hosts: The hosts; each of the ranks 0 to n - 1 is on one host.
        uplink_bits_per_second: Rate of a switch's link to all others, by switch. Hosts at a switch without a
            link reach only hosts at the same switch.
        memory_bytes_per_second: Rate at which a rank adds and a host moves messages between its ranks.
        message_ns: Fixed cost of a message at its receiver, in nanoseconds.

    Raises:
        GeometryError: Ranks that are not 0 to n - 1, each once, or a rate of 0 or less.
    """

    hosts: tuple[Host, ...]
    uplink_bits_per_second: Mapping[int, int] = field(default_factory=dict)
    memory_bytes_per_second: int = 3_000_000_000
    message_ns: int = 100_000

    def __post_init__(self) -> None:
        ranks = sorted(rank for host in self.hosts for rank in host.ranks)
        rates = [card.bits_per_second for host in self.hosts for card in host.cards]
        rates += [*self.uplink_bits_per_second.values(), self.memory_bytes_per_second]
        if not ranks or ranks != list(range(len(ranks))) or min(rates) <= 0:
            raise GeometryError(
                "a network needs ranks 0 to n - 1, each on one host, and rates above 0; "
                f"got ranks {ranks[:20]} and a least rate of {min(rates)}"
            )

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(len(host.ranks) for host in self.hosts)

    @cached_property
    def host_of(self) -> Mapping[int, int]:
        """Index of each rank's host."""
        return {rank: at for at, host in enumerate(self.hosts) for rank in host.ranks}

    def lanes(self) -> list[int]:
        """Return the switches at which all hosts have a card; [0] if there are fewer than two."""
        common = set.intersection(*({card.switch for card in host.cards} for host in self.hosts))
        return sorted(common) if len(common) > 1 else [0]

    def path_between(self, sender: int, receiver: int, lane: int) -> list[tuple[_Resource, int]]:
        """Return the resources that a message uses in order, each with its rate in bytes per second.

        Args:
            sender: Sending rank.
            receiver: Receiving rank.
            lane: Network of the message.

        Raises:
            GeometryError: The two hosts are not connected.
        """
        source, target = self.host_of[sender], self.host_of[receiver]
        if source == target:
            return [(("memory", source, 0), self.memory_bytes_per_second)]
        out, into = self._cards(source, target, lane)
        way = [(("sends", source, out.switch), out.bits_per_second // 8)]
        if out.switch != into.switch:
            for what, switch in (("up", out.switch), ("down", into.switch)):
                way.append(((what, switch, 0), self.uplink_bits_per_second[switch] // 8))
        return [*way, (("receives", target, into.switch), into.bits_per_second // 8)]

    def _cards(self, source: int, target: int, lane: int) -> tuple[NetworkCard, NetworkCard]:
        """Return the cards that connect two hosts: at the switch of the lane, if both have one there."""
        ours, theirs = self.hosts[source].cards, self.hosts[target].cards
        pairs = [(one, other) for one in ours for other in theirs if one.switch == other.switch]
        named = [pair for pair in pairs if pair[0].switch == lane]
        linked = [
            (one, other)
            for one in ours
            for other in theirs
            if one.switch in self.uplink_bits_per_second and other.switch in self.uplink_bits_per_second
        ]
        for found in (named, pairs, linked):
            if found:
                return max(found, key=lambda pair: min(card.bits_per_second for card in pair))
        raise GeometryError(f"hosts {source} and {target} are not connected; give their switches uplinks")


def piece_elements(count: int, element_bytes: int) -> int:
    """Return the elements of one piece of a vector: about `PIECES` pieces, within bounds on their bytes.

    >>> piece_elements(10, 4), piece_elements(1_729_440, 4), piece_elements(10**9, 4)
    (8192, 13512, 262144)
    """
    wanted = -(-count // PIECES) * element_bytes
    return max(1, min(PIECE_BYTES_MOST, max(PIECE_BYTES_LEAST, wanted)) // element_bytes)


def predicted_seconds(
    plan: ReductionPlan, network: Network, element_bytes: int, pieces: int | None = None
) -> float:
    """Return seconds from the start of a plan until the last message has been added.

    With ``pieces``, the vector is cut into this number of pieces; 1 forwards whole vectors, as the trees of
    libraries do. Without, pieces are those of `piece_elements`.
    """
    if plan.ranks != network.ranks:
        raise GeometryError(f"a plan of {plan.ranks} ranks does not fit a network of {network.ranks} ranks")
    if not plan.steps:
        return 0.0
    if pieces is None:
        least = -(-plan.count // PREDICTED_PIECES_MOST)
        cut = plan.pieces(max(least, piece_elements(plan.count, element_bytes)))
    else:
        cut = plan.pieces(-(-plan.count // pieces))
    agendas = {rank: plan.agenda(rank, cut) for rank in range(plan.ranks)}
    return max(_end_times(agendas, network, [(end - begin) * element_bytes for begin, end in cut]))


class _MessageAtHop(NamedTuple):
    """A message at one hop; the queue orders hops by these fields."""

    time: float
    stage: int
    piece: int
    sender: int
    receiver: int
    lane: int
    hop: int
    arrival_time: float
    """Time at which the last byte has passed all hops so far."""


def _end_times(
    agendas: Mapping[int, Sequence[Sequence[Item]]], network: Network, sizes: Sequence[int]
) -> Iterator[float]:
    """Yield the time at which each message has been added.

    A message queues for one resource after another. Messages behind it wait only at the resource where it
    queues.
    """
    done = {(rank, piece): 0 for rank in agendas for piece in range(len(sizes))}
    """Next agenda item of each rank and piece."""
    came: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    """Arrival times of messages that a rank cannot use yet, by rank and piece, then by stage and sender."""
    free: dict[_Resource, float] = {}
    queue: list[_MessageAtHop] = []
    ways: dict[tuple[int, int, int], list[tuple[_Resource, int]]] = {}

    def proceed(rank: int, piece: int, now: float) -> None:
        """Run the agenda items of a piece that a rank can run now."""
        items, waiting = agendas[rank][piece], came.setdefault((rank, piece), {})
        while (place := done[rank, piece]) < len(items):
            item = items[place]
            if item.sends:
                heapq.heappush(
                    queue, _MessageAtHop(now, item.stage, piece, rank, item.other, item.lane, 0, 0.0)
                )
            elif (item.stage, item.other) in waiting:
                now = max(now, waiting.pop((item.stage, item.other)))
            else:
                return
            done[rank, piece] += 1

    for rank in agendas:
        for piece in range(len(sizes)):
            proceed(rank, piece, 0.0)
    while queue:
        one = heapq.heappop(queue)
        who = one.sender, one.receiver, one.lane
        way = ways[who] if who in ways else ways.setdefault(who, network.path_between(*who))
        size = sizes[one.piece]
        if one.hop < len(way):
            resource, rate = way[one.hop]
            start = max(one.time, free.get(resource, 0.0))
            free[resource] = start + size / rate
            arrived = max(one.arrival_time, free[resource])
            # it is forwarded while it still arrives, but can be used only when complete
            at = arrived if one.hop + 1 == len(way) else start
            passing = _MessageAtHop(at, one.stage, one.piece, *who, one.hop + 1, arrived)
            heapq.heappush(queue, passing)
            continue
        adder = ("adds", one.receiver, 0)
        end = max(one.time, free.get(adder, 0.0))
        end += size / network.memory_bytes_per_second + network.message_ns / 1e9
        free[adder] = end
        yield end
        came.setdefault((one.receiver, one.piece), {})[one.stage, one.sender] = end
        proceed(one.receiver, one.piece, end)


def bound_seconds(network: Network, root: int, vector_bytes: int) -> float:
    """Return a lower bound on the seconds of any plan: one vector over all cards of the slowest host.

    Return 0 for a single host.
    """
    if len(network.hosts) == 1:
        return 0.0
    slowest = min(sum(card.bits_per_second for card in host.cards) for host in network.hosts)
    return 8 * vector_bytes / slowest


def candidates(network: Network, count: int, root: int) -> dict[str, ReductionPlan]:
    """Return the plans that suit a network, by name, each with the sum at ``root``."""
    if root not in network.host_of:
        raise GeometryError(f"root must be a rank from 0 to {network.ranks - 1}, got {root}")
    ranks = [root, *(rank for rank in range(network.ranks) if rank != root)]
    plans = {
        name: reduction(count, way, ranks)
        for name, way in (("binomial tree over all ranks", binomial_tree), ("star over all ranks", star))
    }
    lanes = network.lanes()
    by_host, by_switch = _tree_of_hosts(network, root), _tree_of_switches(network, root)
    for name, way in ALGORITHMS.items():
        plans[f"{name} over hosts"] = reduction(count, hierarchy(by_host, [way, star]), leaves(by_host))
        if len(lanes) > 1:
            plans[f"{name} over hosts, all cards"] = _multi_switch_plan(network, count, by_host, way, lanes)
        if len(by_switch) > 1:
            for inner in (chain, binomial_tree):
                steps = hierarchy(by_switch, [way, inner, star])
                label = f"{name} over switches, {inner.__name__.replace('_', ' ')} over hosts"
                plans[label] = reduction(count, steps, leaves(by_switch))
    return plans


def best_plan(network: Network, count: int, element_bytes: int, root: int) -> tuple[str, ReductionPlan]:
    """Return the plan of least predicted time with its name; on a tie, the one with fewer messages.

    Args:
        network: Hosts and switches.
        count: Elements of a vector.
        element_bytes: Bytes of an element.
        root: Rank that has the sum at the end.

    Raises:
        GeometryError: An unknown root, or hosts that are not connected.
    """
    return _fastest(candidates(network, count, root), network, element_bytes)


def best_all_reduce(network: Network, count: int, element_bytes: int) -> tuple[str, ReductionPlan]:
    """Return the all-reduce plan of least predicted time with its name.

    Args:
        network: Hosts and switches.
        count: Elements of a vector.
        element_bytes: Bytes of an element.

    Raises:
        GeometryError: Hosts that are not connected.
    """
    hosts = _tree_of_hosts(network, 0)
    plans = {
        f"{name}, and its mirror": all_reduction(plan) for name, plan in candidates(network, count, 0).items()
    }
    plans["ring over hosts, twice around"] = ring_over_groups(count, hosts)
    return _fastest(plans, network, element_bytes)


def _fastest(
    plans: Mapping[str, ReductionPlan], network: Network, element_bytes: int
) -> tuple[str, ReductionPlan]:
    """Return the plan of least predicted time; skip plans whose busiest resource alone takes longer."""
    busiest = {name: _busiest_seconds(plan, network, element_bytes) for name, plan in plans.items()}
    best, least = "", (math.inf, 0, "")
    for name in sorted(plans, key=lambda one: (busiest[one], one)):
        if busiest[name] > least[0]:
            break
        plan = plans[name]
        least, best = min(
            (least, best), ((predicted_seconds(plan, network, element_bytes), len(plan.steps), name), name)
        )
    return best, plans[best]


def _busiest_seconds(plan: ReductionPlan, network: Network, element_bytes: int) -> float:
    """Seconds of the busiest card, link or memory: a lower bound on the predicted time."""
    loads: dict[_Resource, float] = {}
    for step in plan.steps:
        for resource, rate in network.path_between(step.sender, step.receiver, step.lane):
            seconds = (step.end - step.begin) * element_bytes / rate
            loads[resource] = loads.get(resource, 0.0) + seconds
    return max(loads.values(), default=0.0)


def _tree_of_hosts(network: Network, root: int) -> list[list[int]]:
    """Ranks of every host, the root and its host first."""
    hosts = [sorted(host.ranks, key=lambda rank: rank != root) for host in network.hosts if host.ranks]
    return sorted(hosts, key=lambda ranks: ranks[0] != root)


def _tree_of_switches(network: Network, root: int) -> list[list[list[int]]]:
    """Hosts of every switch (by a host's first card), the root's switch first."""
    switches: dict[int, list[list[int]]] = {}
    for ranks in _tree_of_hosts(network, root):
        cards = network.hosts[network.host_of[ranks[0]]].cards
        switches.setdefault(cards[0].switch if cards else -1, []).append(ranks)
    return list(switches.values())


def _multi_switch_plan(
    network: Network, count: int, tree: Sequence[Sequence[int]], way: Algorithm, lanes: Sequence[int]
) -> ReductionPlan:
    """Return a hierarchy whose upper level uses several switches at once."""
    shares = [0] * (max(lanes) + 1)
    for lane in lanes:
        rates = [
            max(card.bits_per_second for card in host.cards if card.switch == lane) for host in network.hosts
        ]
        shares[lane] = min(rates)
    upper: list[Tree] = [list(ranks) for ranks in tree]
    return reduction(count, hierarchy(upper, [across_lanes(way, shares), star]), leaves(upper))


def remove_ranks(network: Network, removed: Sequence[int]) -> tuple[Network, list[int]]:
    """Return the network without some ranks, the others renumbered, and the old number of each."""
    left = [rank for rank in range(network.ranks) if rank not in set(removed)]
    numbers = {old: new for new, old in enumerate(left)}
    hosts = tuple(
        replace(host, ranks=tuple(numbers[rank] for rank in host.ranks if rank in numbers))
        for host in network.hosts
        if any(rank in numbers for rank in host.ranks)
    )
    return replace(network, hosts=hosts), left
