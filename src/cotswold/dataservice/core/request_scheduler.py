"""The requests of a trainer: the choice of servers, and the order of delivery.

Knows: request numbers, servers by name, the speed of each. Does not know: the content of requests, clocks,
sockets, how servers are found.

    state      event                                                next
    queued     a server is connected                                requested
    queued     no server has been connected for too long            an error: `trouble`
    requested  an answer                                            ready; others are cancelled, unless late
    requested  its last server is lost, or overloaded               queued
    requested  it is late, and another server is connected          requested from both
    requested  all connected servers were asked, and are silent     requested again
    queued     every connected server rejects it                    an error: `trouble`
    ready      everything before it is delivered                    delivered
    any        `cancel`                                             none

An answer to a ready, delivered or cancelled request is dropped. `room` bounds the requests that are queued,
requested or ready. A request goes to the server with the earliest expected answer, given its outstanding
requests and its speed. A silent server counts as slow as its silence is long, even if others have answered
its requests: its first outstanding request stays until it answers. An overloaded server gets no requests for
`late_seconds`.

No request is given up while servers send any message, `BatchPending` or that they are overloaded, unless no
batch arrives for ten times as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from cotswold.wire import BatchPending, BatchRejected, BatchReply, BatchRequest, CancelRequests, Send

_PACE = 0.3
"""Weight of the newest answer in a server's pace."""
_PATIENCE = 10
"""Longest wait for servers that answer but send no batches, as a multiple of `lonely_seconds`."""
_QUESTIONS = 6
"""Number of times that a silent server is asked within `lonely_seconds`, at least."""
_FORGOTTEN = 50
"""Idle time after which a slow server is tried again, as a multiple of the seconds of a request. The cause
may be over, such as reading new shards."""
_OUTLIER = 10.0
"""Slowest pace that an answer counts for, as a multiple of the server's previous pace: the server may have
been paused."""
_LATENCIES = 33
"""Number of answers from which the usual latency is computed."""


@dataclass(frozen=True)
class RequestSettings:
    """Settings of a trainer's requests."""

    window: int = 8
    """Requests that are outstanding, or ready and not delivered, at most."""
    together: int = 8
    """Batches per request, at most. They are requested together because a request costs as much as
    transforming a hundred small images."""
    together_bytes: int = 2 << 20
    """Bytes of a request of several batches, at most."""
    late: float = 3.0
    """A request is late after this multiple of the usual latency."""
    late_seconds: float = 0.25
    """Seconds before which no request is late."""
    retry_seconds: float = 2.0
    """Seconds after which an unanswered request is resent."""
    lonely_seconds: float = 30.0
    """Seconds to wait while all servers are silent."""
    pause_seconds: float = 1.0
    """Seconds between two ticks above which the trainer itself was paused, so that no server counts as
    late."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 request, got {self.window}")
        for name in ("late", "late_seconds", "retry_seconds", "lonely_seconds", "pause_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass
class _Request:
    ask: BatchRequest
    asked: dict[str, float] = field(default_factory=dict)
    """Time of the last request to each server."""
    refused: dict[str, str] = field(default_factory=dict)
    """Servers that cannot make it, and the reasons."""
    made: BatchReply | None = None


@dataclass
class _Server:
    owed: dict[int, int] = field(default_factory=dict)
    """Samples of each outstanding request."""
    pace: float | None = None
    """Seconds per sample; None before the first answer."""
    moved: float = 0.0
    """Time of its last answer, or of a request while none was outstanding."""
    full_until: float = float("-inf")
    """Time until which an overloaded server gets no requests."""

    def forget(self, samples: int, now: float) -> None:
        """Forget its pace if it has been idle for too long."""
        if not self.owed and now - self.moved > _FORGOTTEN * samples * (self.pace or 0.0):
            self.pace = None


class RequestScheduler:
    """All requests of one trainer."""

    def __init__(self, asking: RequestSettings, now: float) -> None:
        self.asking = asking
        self.answers = self.copies = self.dropped = self.resent = 0
        """Numbers of answers, requests sent to a further server, dropped answers, and resent requests."""
        self._requests: dict[int, _Request] = {}
        """Requests in the order of delivery."""
        self._servers: dict[str, _Server] = {}
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._heard = self._made = self._ticked = now
        """Time of the servers' last message, and of the last batch; requests restart them while none was
        outstanding."""
        self._number = 0

    @property
    def servers(self) -> Mapping[str, float | None]:
        """Connected servers, and their seconds per sample."""
        return {name: server.pace for name, server in self._servers.items()}

    @property
    def room(self) -> int:
        """Number of requests that may be added now."""
        return max(0, self.asking.window - len(self._requests))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of all requests that are not delivered."""
        return tuple(self._requests)

    # --- the trainer's calls ---

    def fresh(self) -> int:
        """Return an unused request number."""
        self._number += 1
        return self._number

    def ask(self, ask: BatchRequest, now: float) -> list[Send]:
        """Request a batch, to be delivered after those requested before."""
        assert ask.number not in self._requests, f"request {ask.number} is a duplicate"
        assert self.room, "the window is full"
        if all(request.made for request in self._requests.values()):
            self._heard = self._made = now
        self._requests[ask.number] = _Request(ask)
        return self._assign(self._requests[ask.number], now)

    def take(self) -> BatchReply | None:
        """Return the next batch, once it is ready."""
        number = next(iter(self._requests), None)
        if number is None or self._requests[number].made is None:
            return None
        return self._requests.pop(number).made

    def made(self, number: int) -> bool:
        """True if an undelivered request is ready."""
        return self._requests[number].made is not None

    def pick(self, number: int) -> BatchReply:
        """Return a ready batch, out of order."""
        made = self._requests.pop(number).made
        assert made is not None, f"request {number} is not ready"
        return made

    def cancel(self, numbers: Iterable[int] | None = None) -> list[Send]:
        """Cancel these requests; by default all."""
        dropped: dict[str, list[int]] = {}
        for number in self.numbers if numbers is None else numbers:
            self._requests.pop(number, None)
            for name, server in self._servers.items():
                if self._is_called_off(server, number, self._ticked):
                    dropped.setdefault(name, []).append(number)
        return [Send(name, CancelRequests(tuple(each))) for name, each in dropped.items()]

    # --- changes of servers ---

    def roster(self, names: Iterable[str], now: float) -> list[Send]:
        """Exactly these servers are connected."""
        there = set(names)
        sends: list[Send] = []
        for name in there - set(self._servers):
            self._servers[name] = _Server(moved=now)
        for name in set(self._servers) - there:
            sends += self.lost(name, now)
        return sends + self._assign_all(now)

    def lost(self, name: str, now: float) -> list[Send]:
        """A server is lost; request its batches from others."""
        if self._servers.pop(name, None) is None:
            return []
        for request in self._requests.values():
            request.asked.pop(name, None)
            request.refused.pop(name, None)
        return self._assign_all(now)

    # --- answers ---

    def receive(
        self, sender: str, message: BatchReply | BatchRejected | BatchPending, now: float
    ) -> list[Send]:
        """Handle an answer."""
        server, request = self._servers.get(sender), self._requests.get(message.number)
        if server is not None:
            self._heard = now
        if isinstance(message, BatchPending):
            return []
        why = message.why if isinstance(message, BatchRejected) else _misfit(message, request)
        if why or isinstance(message, BatchRejected):
            if server is not None and (request is None or request.made is not None):
                server.owed.pop(message.number, None)
            if server is None or request is None or sender not in request.asked:
                return []
            return self._refused(sender, server, request, why, now)
        assert isinstance(message, BatchReply), "the other messages are handled above"
        self._heard = self._made = now
        if server is not None:
            self._answered(server, message.number, now)
        if request is None or request.made is not None:
            self.dropped += 1
            return []
        self.answers += 1
        if sender in request.asked:
            self._latencies.append(now - request.asked[sender])
        request.made = message
        sends: list[Send] = []
        for name in request.asked:
            other = self._servers.get(name)
            if name != sender and other is not None and self._is_called_off(other, message.number, now):
                sends.append(Send(name, CancelRequests((message.number,))))
        request.asked.clear()
        return sends + self._assign_all(now)

    def tick(self, now: float) -> list[Send]:
        """Do periodic work; call several times a second."""
        stood, self._ticked = now - self._ticked, now
        if stood > self.asking.pause_seconds:
            self._exclude_stall(stood)
        sends: list[Send] = []
        for request in self._requests.values():
            if request.made is None:
                sends += self._assign(request, now) if not request.asked else self._again(request, now)
        return sends

    def trouble(self, now: float) -> str:
        """The reason why no batch arrives, without a final period; empty if batches arrive."""
        lonely, patient = self.asking.lonely_seconds, _PATIENCE * self.asking.lonely_seconds
        if not any(request.made is None for request in self._requests.values()):
            return ""
        if self.refusal:
            return self.refusal
        names = " and ".join(sorted(self._servers))
        if now - self._heard > lonely:
            what = (
                f"{names} {'has' if len(self._servers) == 1 else 'have'} not answered"
                if names
                else "no data server has been connected"
            )
            return f"{what} for {lonely:g} s"
        if now - self._made > patient and names:
            return f"{names} sent no batches for {patient:g} s"
        return ""

    @property
    def refusal(self) -> str:
        """The reason why no connected server can make a batch; empty if one may."""
        for request in self._requests.values():
            is_left = request.made is None and not request.asked and self._servers
            if is_left and request.refused.keys() >= self._servers.keys():
                name, why = list(request.refused.items())[-1]
                return f"{name} cannot make a batch: {why}"
        return ""

    # --- the choice of servers ---

    def _assign_all(self, now: float) -> list[Send]:
        waiting = [each for each in self._requests.values() if each.made is None and not each.asked]
        return [send for each in waiting for send in self._assign(each, now)]

    def _assign(self, request: _Request, now: float) -> list[Send]:
        """Request from the server with the earliest expected answer that was not asked yet."""
        for server in self._servers.values():
            if now - server.moved > self.asking.lonely_seconds:
                self._forget_debts(server)
            server.forget(request.ask.samples, now)
        known = [server.pace for server in self._servers.values() if server.pace is not None]
        usual = median(known) if known else 1.0
        best = None
        for name, server in sorted(self._servers.items()):
            if name in request.asked or name in request.refused or now < server.full_until:
                continue
            pace = usual if server.pace is None else server.pace
            seconds = (sum(server.owed.values()) + request.ask.samples) * pace
            if server.owed:
                seconds = max(seconds, now - server.moved)
            if best is None or seconds < best[0]:
                best = (seconds, name)
        return [] if best is None else [self._send(request, best[1], now)]

    def _send(self, request: _Request, name: str, now: float) -> Send:
        server, ask = self._servers[name], request.ask
        if not server.owed:
            server.moved = now
        server.owed[ask.number] = ask.samples
        request.asked[name] = now
        return Send(name, ask)

    def _again(self, request: _Request, now: float) -> list[Send]:
        """Ask another server for a late request; if there is none, resend it."""
        asking, newest, late = self.asking, max(request.asked.values()), self._late
        if now - newest > max(late, asking.late_seconds):
            copy = self._assign(request, now)
            self.copies += len(copy)
            if copy:
                return copy
        often = max(asking.retry_seconds, asking.lonely_seconds / _QUESTIONS)
        if now - newest > min(asking.retry_seconds + late, often):
            oldest = min(request.asked, key=lambda name: (request.asked[name], name))
            self.resent += 1
            return [self._send(request, oldest, now)]
        return []

    @property
    def _late(self) -> float:
        """Seconds after which an answer is unusually late."""
        asking = self.asking
        return asking.late * median(self._latencies) if self._latencies else asking.retry_seconds

    def _is_called_off(self, server: _Server, number: int, now: float) -> bool:
        """Remove a cancelled request from a server; return True if the server should be notified.

        A late server keeps its first outstanding request. Until it answers, it gets few other requests; its
        answer shows that it is alive, and how slow it is.
        """
        if number not in server.owed:
            return False
        is_late = now - server.moved > max(self._late, self.asking.late_seconds)
        if is_late and number == next(iter(server.owed)):
            return False
        del server.owed[number]
        return True

    def _forget_debts(self, server: _Server) -> None:
        """Forget requests that are not wanted any more."""
        server.owed = {each: samples for each, samples in server.owed.items() if each in self._requests}

    def _refused(self, sender: str, server: _Server, request: _Request, why: str, now: float) -> list[Send]:
        server.owed.pop(request.ask.number, None)
        del request.asked[sender]
        if why:
            request.refused[sender] = why
        else:
            server.full_until = now + self.asking.late_seconds
        return [] if request.asked else self._assign(request, now)

    def _answered(self, server: _Server, number: int, now: float) -> None:
        server.full_until = now
        samples = server.owed.pop(number, 0)
        if samples:
            seconds, pace = (now - server.moved) / samples, server.pace
            newest = seconds if pace is None else min(seconds, _OUTLIER * pace)
            server.pace = newest if pace is None else pace + _PACE * (newest - pace)
        server.moved = now
        self._forget_debts(server)

    def _exclude_stall(self, seconds: float) -> None:
        """Do not count the trainer's own pause as silence of servers."""
        self._heard += seconds
        self._made += seconds
        for request in self._requests.values():
            request.asked = {name: since + seconds for name, since in request.asked.items()}
        for server in self._servers.values():
            server.moved += seconds


def _misfit(supplied: BatchReply, request: _Request | None) -> str:
    """The difference between a batch and its request; empty if they agree."""
    if request is None:
        return ""
    shape, targets, ask = supplied.shape, supplied.targets, request.ask
    is_formed = len(shape) == 4 and len(targets) in (1, 2) and supplied.batches == ask.batches
    if is_formed and shape[3] == targets[0] and shape[3] * ask.batches == ask.samples:
        return ""
    sent = f"samples {(supplied.batches, *shape)} and targets {(supplied.batches, *targets)}"
    return f"it sent {sent}, but the request was for {ask.samples} samples in {ask.batches} batches"
