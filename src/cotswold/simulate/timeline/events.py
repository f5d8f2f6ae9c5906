"""The event simulation: run programs of ranks on a topology to their ends.

Knows: queues at ports, messages that travel while ranks compute, ranks that wait for each other. Does not
know: networks, operations. It is a pure function: no clock, no process, no randomness.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2

from cotswold.simulate.hardware.topology import Route, Topology
from cotswold.simulate.timeline.actions import Action, AllReduce, Compute, Post, Program, Wait
from cotswold.simulate.timeline.intervals import Stretch, common, length, union
from cotswold.simulate.timeline.processor_sharing import SharedDevice


@dataclass(frozen=True)
class RankTimes:
    """One rank's seconds; they add up to the time of the update."""

    work: dict[str, float]
    """Seconds by kind of operation, including the wait for a shared device."""
    exposed: float
    """Seconds of waiting while messages of the rank were in flight."""
    imbalance: float
    """Seconds of waiting for slower ranks, also at the end of the update."""
    hidden: float
    """Seconds in which messages of the rank were in flight while it computed; a part of ``work``."""


@dataclass(frozen=True)
class Timeline:
    """The course of an update."""

    seconds: float
    """Time in seconds at which the last rank ended."""
    ranks: tuple[RankTimes, ...]
    bytes_sent: int
    """Bytes between ranks."""
    bytes_between_hosts: int
    """Bytes through network cards."""
    messages: int


def run_programs(programs: Sequence[Program], topology: Topology) -> Timeline:
    """Run one program per rank to its end.

    Messages queue at ports in the order of arrival, and cut through (their first bytes leave before the last
    arrive). Ranks that share a device have equal parts of it. Raises AssertionError if a program waits for a
    message that no rank sends.
    """
    return _Simulation(programs, topology).run()


@dataclass
class _Rank:
    program: Program
    place: int = 0
    through: set[tuple[str, int, int]] = field(default_factory=set)
    """Delivered messages of which the rank is an end: exchange, source, target."""
    waiting: Wait | None = None
    since: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    busy: list[Stretch] = field(default_factory=list)
    idle: list[Stretch] = field(default_factory=list)
    in_flight: list[Stretch] = field(default_factory=list)
    ended: float = 0.0

    @property
    def action(self) -> Action | None:
        return self.program[self.place] if self.place < len(self.program) else None


@dataclass(frozen=True)
class _Message:
    exchange: str
    source: int
    target: int
    bytes: int
    route: Route
    sent: float


class _Simulation:
    def __init__(self, programs: Sequence[Program], topology: Topology) -> None:
        self._topology = topology
        self._ranks = [_Rank(program) for program in programs]
        self._devices: dict[int, SharedDevice] = {}
        self._ports: dict[tuple[str, int], float] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._reducing: list[int] = []
        self._sent = self._outside = self._messages = 0

    def run(self) -> Timeline:
        for rank in range(len(self._ranks)):
            self._go_on(rank, 0.0)
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        stuck = [number for number, rank in enumerate(self._ranks) if rank.action is not None]
        assert not stuck, f"ranks {stuck} wait for messages that no rank sends"
        seconds = max(rank.ended for rank in self._ranks)
        times = tuple(_times(rank, seconds) for rank in self._ranks)
        return Timeline(seconds, times, self._sent, self._outside, self._messages)

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _go_on(self, number: int, now: float) -> None:
        """Execute actions until one takes time."""
        rank = self._ranks[number]
        while (action := rank.action) is not None:
            rank.since = now
            match action:
                case Compute():
                    device = self._device(number)
                    device.begin(now, number, action.seconds)
                    self._schedule_end(number)
                    return
                case Post():
                    for target, bytes_ in action.sends:
                        self._send(now, number, target, action.exchange, bytes_)
                case Wait() if not _all_through(number, rank, action):
                    rank.waiting = action
                    return
                case AllReduce():
                    self._reducing.append(number)
                    if len(self._reducing) == len(self._ranks):
                        self._all_reduce(now, action)
                    return
            rank.place += 1
        rank.ended = now

    def _device(self, rank: int) -> SharedDevice:
        return self._devices.setdefault(self._topology.device(rank), SharedDevice())

    def _schedule_end(self, rank: int) -> None:
        """Schedule the next end of work on a rank's device."""
        device = self._device(rank)
        following = device.next_end()
        if following is not None:
            when, who = following
            version = device.version
            self._at(when, lambda now: self._worked(who, now) if device.version == version else None)

    def _worked(self, number: int, now: float) -> None:
        rank = self._ranks[number]
        action = rank.action
        assert isinstance(action, Compute), "only work ends"
        self._device(number).end(now, number)
        rank.work[action.kind] = rank.work.get(action.kind, 0.0) + now - rank.since
        rank.busy.append((rank.since, now))
        rank.place += 1
        self._schedule_end(number)
        self._go_on(number, now)

    def _send(self, now: float, source: int, target: int, exchange: str, bytes_: int) -> None:
        route = self._topology.route(source, target)
        self._sent += bytes_
        self._messages += 1
        if self._topology.host(source) != self._topology.host(target):
            self._outside += bytes_
        message = _Message(exchange, source, target, bytes_, route, now)
        self._at(now, lambda when: self._enter(message, 0, when, when))

    def _enter(self, message: _Message, number: int, tail: float, now: float) -> None:
        """Handle the arrival of a message's first byte at a port; its last byte leaves after ``tail``."""
        route = message.route
        port, last = route.ports[number], number == len(route.ports) - 1
        begin = max(now, self._ports.get(port.place, 0.0))
        end = begin + message.bytes / port.bytes_a_second
        self._ports[port.place] = end
        if route.offload < 1 and (number == 0 or last):
            rank = message.source if number == 0 else message.target
            self._at(begin, lambda when: self._take(rank, route.offload, when))
            self._at(end, lambda when: self._give_back(rank, route.offload, when))
        tail = max(tail, end)
        if last:
            self._at(tail, lambda when: self._arrive(message, when))
        else:
            hop = route.latency / (len(route.ports) - 1)
            self._at(begin + hop, lambda when: self._enter(message, number + 1, tail + hop, when))

    def _take(self, rank: int, left: float, now: float) -> None:
        self._device(rank).take(now, left)
        self._schedule_end(rank)

    def _give_back(self, rank: int, left: float, now: float) -> None:
        self._device(rank).give_back(now, left)
        self._schedule_end(rank)

    def _arrive(self, message: _Message, now: float) -> None:
        for number in (message.source, message.target):
            rank = self._ranks[number]
            rank.through.add((message.exchange, message.source, message.target))
            rank.in_flight.append((message.sent, now))
            if rank.waiting is not None and _all_through(number, rank, rank.waiting):
                rank.waiting = None
                rank.idle.append((rank.since, now))
                rank.place += 1
                self._go_on(number, now)

    def _all_reduce(self, now: float, action: AllReduce) -> None:
        """Perform an all-reduce with the latency steps of a tree, and the bandwidth of a ring.

        Every link of the ring carries 2 (P - 1) / P of the bytes, also those between hosts.
        """
        count = len(self._ranks)
        routes = [self._topology.route(a, (a + 1) % count) for a in range(count)]
        latency = max(route.latency for route in routes)
        rate = min(port.bytes_a_second for route in routes for port in route.ports)
        seconds = 2 * ceil(log2(count)) * latency + 2 * (count - 1) / count * action.bytes / rate
        sent = 2 * (count - 1) * action.bytes
        hosts = [self._topology.host(rank) for rank in range(count)]
        between = sum(a != b for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True))
        self._sent += sent
        self._outside += round(sent * between / count)
        self._messages += 2 * (count - 1)
        reducing, self._reducing = self._reducing, []
        self._at(now + seconds, lambda when: self._all_reduced(reducing, now, when))

    def _all_reduced(self, reducing: list[int], began: float, now: float) -> None:
        for number in reducing:
            rank = self._ranks[number]
            rank.in_flight.append((began, now))
            rank.idle.append((rank.since, now))
            rank.place += 1
        for number in reducing:
            self._go_on(number, now)


def _all_through(number: int, rank: _Rank, wait: Wait) -> bool:
    return all((wait.exchange, source, number) in rank.through for source in wait.sources) and all(
        (wait.exchange, number, target) in rank.through for target in wait.targets
    )


def _times(rank: _Rank, seconds: float) -> RankTimes:
    in_flight, idle = union(rank.in_flight), union([*rank.idle, (rank.ended, seconds)])
    exposed = common(in_flight, idle)
    return RankTimes(rank.work, exposed, length(idle) - exposed, common(in_flight, union(rank.busy)))
