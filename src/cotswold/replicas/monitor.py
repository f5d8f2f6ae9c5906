"""What replicas and servers have said of themselves, for whoever looks on.

Knows: what was said when, rates over the last seconds. Does not know: processes, sockets, which samples
count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field

from cotswold.wire.lifecycle import Counts, Doing, Learnt

_WINDOW_SECONDS = 5.0
"""Rates are means over so long."""
_ASK_SECONDS = 1.0
"""How often a server is asked for its counts, once it has answered."""
_ASK_AGAIN_SECONDS = 10.0
"""After which it is asked again where it has not: the question may not have reached it."""


@dataclass(frozen=True)
class ReplicaStatus:
    """What a replica does."""

    name: str
    machine: str
    pid: int
    doing: str
    """As `Replica.doing` says it; `starting` before it has said anything."""
    waits_for: tuple[str, ...]
    for_seconds: float
    """Since its last step began or ended; since its process began, for one that starts."""
    silent_seconds: float
    """Since anything was heard from it."""
    samples: int
    """That it has computed, whatever became of them."""
    samples_per_second: float
    in_hand: int
    """Samples that it was handed, and that are not settled."""
    updates: int
    """Of its, each shard's by itself, that are applied."""
    staleness: float
    """The mean of these."""
    staleness_most: int


@dataclass(frozen=True)
class ServerStatus:
    """What a parameter server does."""

    name: str
    machine: str
    pid: int
    shards: int
    updates: int
    """Applied, each shard's by itself."""
    updates_per_second: float
    waiting: int
    """Bytes of updates that wait."""
    queued: int
    """Updates that wait."""
    waits_for: tuple[str, ...]
    """Replicas that make it keep updates back."""
    refused: tuple[tuple[str, int], ...]
    """Updates, by the first word of the reason."""
    silent_seconds: float
    """For which it has not answered; 0 for one that does."""
    short: tuple[int, int, int] = (0, 0, 0)
    """As in `Counts`."""
    dirty_bytes: int | None = None
    """Of numbers that are not on its disk; None where it has none, likewise the next."""
    window_seconds: float | None = None
    """How old the oldest of these changes is: what is lost if all servers die."""
    longest_seconds: float | None = None
    """The longest that it ever was, in this process."""
    leads: int | None = None
    """As in `Parts`, likewise the next; None where nothing is copied."""
    copies: int | None = None
    term: int | None = None
    lag: int | None = None


@dataclass(frozen=True)
class Place:
    """Where a process runs."""

    name: str
    machine: str
    pid: int


class Rate:
    """How fast something grows, over the last seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> None:
        """It has come to ``total``."""
        self._points.append((now, total))
        while len(self._points) > 2 and self._points[1][0] <= now - _WINDOW_SECONDS:
            self._points.popleft()

    def per_second(self, now: float) -> float:
        """Mean growth; 0 before there are two points, and less and less where none comes any more."""
        if len(self._points) < 2:
            return 0.0
        (began, first), (_, last) = self._points[0], self._points[-1]
        return (last - first) / max(now - began, 1e-9) if now - began > 0 else 0.0


@dataclass
class _Heard:
    """Of one replica."""

    since: float
    """When it was first known."""
    said: float
    """When anything was heard of it."""
    doing: Doing | None = None
    doing_at: float = 0.0
    samples: int = 0
    rate: Rate = field(default_factory=Rate)


@dataclass
class _Counted:
    """Of one server."""

    asked: float | None = None
    """Since when an answer is awaited."""
    sent: float = float("-inf")
    """When it was asked last."""
    answered: float = float("-inf")
    counts: Counts | None = None
    leads: tuple[int, int] | None = None
    """How many buckets it led when it said so, and in which term at most."""
    replicas: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Updates of each replica, their mean staleness, and the most."""
    rate: Rate = field(default_factory=Rate)


class Watching:
    """Hears what is said, and says how things are; times are seconds of a clock that only goes on."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Heard] = {}
        self._servers: dict[str, _Counted] = {}

    def hear(self, message: Learnt | Doing | Counts, now: float) -> None:
        """A replica or a server has said something of itself."""
        if isinstance(message, Counts):
            server = self._servers.setdefault(message.server, _Counted())
            leads = None if message.parts is None else (message.parts.leads, message.parts.term)
            before = 0 if server.counts is None else server.counts.updates
            if leads != server.leads or message.updates < before:  # what others had applied came, or went
                server.rate = Rate()
            server.asked, server.answered, server.counts, server.leads = None, now, message, leads
            server.rate.add(now, message.updates)
            server.replicas = {name: figures for name, *figures in message.replicas}
            return
        replica = self._replicas.setdefault(message.name, _Heard(now, now))
        replica.said = now
        if isinstance(message, Doing):
            replica.doing, replica.doing_at = message, now
        else:
            if not replica.samples:
                replica.rate.add(now - message.seconds, 0)
            replica.samples += message.samples
            replica.rate.add(now, replica.samples)

    def to_ask(self, name: str, now: float) -> bool:
        """Whether a server is to be asked for its counts now; it is then taken for asked."""
        server = self._servers.setdefault(name, _Counted())
        if server.asked is None:
            is_due = now - server.answered >= _ASK_SECONDS
        else:
            is_due = now - server.sent >= _ASK_AGAIN_SECONDS
        if is_due:
            server.asked, server.sent = server.asked or now, now
        return is_due

    def silent_seconds(self, name: str, now: float) -> float:
        """For how long a server has not answered; 0 for one that does, or was not asked."""
        known = self._servers.get(name)
        return 0.0 if known is None or known.asked is None else now - known.asked

    def replica(self, place: Place, in_hand: int, heard: float, now: float) -> ReplicaStatus:
        """Of a replica whose process runs; ``heard``: when the coordinator heard from it, at least."""
        known = self._replicas.setdefault(place.name, _Heard(now, now))
        said = known.doing
        of_it = [each.replicas[place.name] for each in self._servers.values() if place.name in each.replicas]
        updates = sum(count for count, _, _ in of_it)
        return ReplicaStatus(
            place.name,
            place.machine,
            place.pid,
            "starting" if said is None else said.what,
            () if said is None else said.waits_for,
            now - known.since if said is None else said.seconds + now - known.doing_at,
            now - max(known.said, heard),
            known.samples,
            known.rate.per_second(now),
            in_hand,
            int(updates),
            sum(count * mean for count, mean, _ in of_it) / max(1, updates),
            int(max((most for _, _, most in of_it), default=0)),
        )

    def server(self, place: Place, shards: int, now: float) -> ServerStatus:
        """Of a server whose process runs, and that has so many shards."""
        known = self._servers.setdefault(place.name, _Counted())
        counts, silent = known.counts, self.silent_seconds(place.name, now)
        if counts is None:
            return ServerStatus(place.name, place.machine, place.pid, shards, 0, 0.0, 0, 0, (), (), silent)
        of, parts = counts.unsaved, counts.parts
        return ServerStatus(
            place.name,
            place.machine,
            place.pid,
            counts.shards,
            counts.updates,
            known.rate.per_second(now),
            counts.waiting,
            counts.queued,
            counts.waits_for,
            counts.refused,
            silent,
            counts.short,
            *((None, None, None) if of is None else (of.dirty_bytes, of.window_seconds, of.longest_seconds)),
            *((None, None, None, None) if parts is None else astuple(parts)),
        )

    def forget(self, name: str) -> None:
        """A process is no more."""
        self._replicas.pop(name, None)
        self._servers.pop(name, None)
