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
    exposed_seconds: float
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
    action_index: int = 0
    through: set[tuple[str, int, int]] = field(default_factory=set)
    """Delivered messages of which the rank is an end: exchange, source, target."""
    wait: Wait | None = None
    started_at: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    busy_intervals: list[Stretch] = field(default_factory=list)
    idle_intervals: list[Stretch] = field(default_factory=list)
    message_intervals: list[Stretch] = field(default_factory=list)
    end_time: float = 0.0

    @property
    def action(self) -> Action | None:
        return self.program[self.action_index] if self.action_index < len(self.program) else None


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
        self._reducing: dict[tuple[int, ...], list[int]] = {}
        self._sent = self._outside = self._messages = 0

    def run(self) -> Timeline:
        for rank in range(len(self._ranks)):
            self._run_rank(rank, 0.0)
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        stuck = [number for number, rank in enumerate(self._ranks) if rank.action is not None]
        assert not stuck, f"ranks {stuck} wait for messages that no rank sends"
        seconds = max(rank.end_time for rank in self._ranks)
        times = tuple(_times(rank, seconds) for rank in self._ranks)
        return Timeline(seconds, times, self._sent, self._outside, self._messages)

    def _schedule(self, when: float, event: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _run_rank(self, number: int, now: float) -> None:
        """Execute actions until one takes time."""
        rank = self._ranks[number]
        while (action := rank.action) is not None:
            rank.started_at = now
            match action:
                case Compute():
                    device = self._device(number)
                    device.begin(now, number, action.seconds)
                    self._schedule_end(number)
                    return
                case Post():
                    for target, bytes_ in action.sends:
                        self._send(now, number, target, action.exchange, bytes_)
                case Wait() if not _is_waiting_throughout(number, rank, action):
                    rank.wait = action
                    return
                case AllReduce():
                    arrived = self._reducing.setdefault(action.members, [])
                    arrived.append(number)
                    if len(arrived) == len(action.members or self._ranks):
                        self._all_reduce(now, action)
                    return
            rank.action_index += 1
        rank.end_time = now

    def _device(self, rank: int) -> SharedDevice:
        return self._devices.setdefault(self._topology.device(rank), SharedDevice())

    def _schedule_end(self, rank: int) -> None:
        """Schedule the next end of work on a rank's device."""
        device = self._device(rank)
        following = device.next_end()
        if following is not None:
            when, who = following
            version = device.version
            self._schedule(
                when, lambda now: self._finish_work(who, now) if device.version == version else None
            )

    def _finish_work(self, number: int, now: float) -> None:
        rank = self._ranks[number]
        action = rank.action
        assert isinstance(action, Compute), "only work ends"
        self._device(number).end(now, number)
        rank.work[action.kind] = rank.work.get(action.kind, 0.0) + now - rank.started_at
        rank.busy_intervals.append((rank.started_at, now))
        rank.action_index += 1
        self._schedule_end(number)
        self._run_rank(number, now)

    def _send(self, now: float, source: int, target: int, exchange: str, bytes_: int) -> None:
        route = self._topology.route(source, target)
        self._sent += bytes_
        self._messages += 1
        if self._topology.host(source) != self._topology.host(target):
            self._outside += bytes_
        message = _Message(exchange, source, target, bytes_, route, now)
        self._schedule(now, lambda when: self._enter(message, 0, when, when))

    def _enter(self, message: _Message, number: int, tail: float, now: float) -> None:
        """Handle the arrival of a message's first byte at a port; its last byte leaves after ``tail``."""
        route = message.route
        port, last = route.ports[number], number == len(route.ports) - 1
        begin = max(now, self._ports.get(port.position, 0.0))
        end = begin + message.bytes / port.bytes_per_second
        self._ports[port.position] = end
        if route.offload < 1 and (number == 0 or last):
            rank = message.source if number == 0 else message.target
            self._schedule(begin, lambda when: self._take(rank, route.offload, when))
            self._schedule(end, lambda when: self._end_transfer(rank, route.offload, when))
        tail = max(tail, end)
        if last:
            self._schedule(tail, lambda when: self._arrive(message, when))
        else:
            hop = route.latency / (len(route.ports) - 1)
            self._schedule(begin + hop, lambda when: self._enter(message, number + 1, tail + hop, when))

    def _take(self, rank: int, left: float, now: float) -> None:
        self._device(rank).take(now, left)
        self._schedule_end(rank)

    def _end_transfer(self, rank: int, left: float, now: float) -> None:
        self._device(rank).end_message(now, left)
        self._schedule_end(rank)

    def _arrive(self, message: _Message, now: float) -> None:
        for number in (message.source, message.target):
            rank = self._ranks[number]
            rank.through.add((message.exchange, message.source, message.target))
            rank.message_intervals.append((message.sent, now))
            if rank.wait is not None and _is_waiting_throughout(number, rank, rank.wait):
                rank.wait = None
                rank.idle_intervals.append((rank.started_at, now))
                rank.action_index += 1
                self._run_rank(number, now)

    def _all_reduce(self, now: float, action: AllReduce) -> None:
        """Perform an all-reduce with the latency steps of a tree, and the bandwidth of a ring.

        Every link of the ring carries 2 (P - 1) / P of the bytes, also those between hosts.
        """
        members = action.members or tuple(range(len(self._ranks)))
        count = len(members)
        routes = [self._topology.route(members[a - 1], members[a]) for a in range(count)]
        latency = max(route.latency for route in routes)
        rate = min(port.bytes_per_second for route in routes for port in route.ports)
        seconds = 2 * ceil(log2(count)) * latency + 2 * (count - 1) / count * action.bytes / rate
        sent = 2 * (count - 1) * action.bytes
        hosts = [self._topology.host(rank) for rank in members]
        between = sum(a != b for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True))
        self._sent += sent
        self._outside += round(sent * between / count)
        self._messages += 2 * (count - 1)
        reducing = self._reducing.pop(action.members)
        self._schedule(now + seconds, lambda when: self._all_reduced(reducing, now, when))

    def _all_reduced(self, reducing: list[int], began: float, now: float) -> None:
        for number in reducing:
            rank = self._ranks[number]
            rank.message_intervals.append((began, now))
            rank.idle_intervals.append((rank.started_at, now))
            rank.action_index += 1
        for number in reducing:
            self._run_rank(number, now)


def _is_waiting_throughout(number: int, rank: _Rank, wait: Wait) -> bool:
    return all((wait.exchange, source, number) in rank.through for source in wait.sources) and all(
        (wait.exchange, number, target) in rank.through for target in wait.targets
    )


def _times(rank: _Rank, seconds: float) -> RankTimes:
    in_flight, idle = union(rank.message_intervals), union([*rank.idle_intervals, (rank.end_time, seconds)])
    exposed = common(in_flight, idle)
    return RankTimes(
        rank.work, exposed, length(idle) - exposed, common(in_flight, union(rank.busy_intervals))
    )
