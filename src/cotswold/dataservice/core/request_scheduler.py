"""The requests of a trainer: the choice of servers, and the order of delivery.

Knows: request numbers, servers by name, the speed of each. Does not know: the content of requests, clocks,
sockets, how servers are found.

    state      event                                                next
    queued     a server is connected                                requested
    queued     no server has been connected for too long            an error: `failure`
    requested  an answer                                            ready; others are cancelled, unless late
    requested  its last server is lost, or overloaded               queued
    requested  it is late, and another server is connected          requested from both
    requested  all connected servers were asked, and are silent     requested again
    queued     every connected server rejects it                    an error: `failure`
    ready      everything before it is delivered                    delivered
    any        `cancel`                                             none

An answer to a ready, delivered or cancelled request is dropped. `room` bounds the requests that are queued,
requested or ready. A request goes to the server with the earliest expected answer, given its outstanding
requests and its speed. A silent server counts as slow as its silence is long, even if others have answered
its requests: its first outstanding request stays until it answers. An overloaded server gets no requests for
`straggler_seconds`.

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
_PATIENCE_FACTOR = 10
"""Longest wait for servers that answer but send no batches, as a multiple of `no_server_seconds`."""
_QUESTIONS = 6
"""Number of times that a silent server is asked within `no_server_seconds`, at least."""
_FORGOTTEN = 50
"""Idle time after which a slow server is tried again, as a multiple of the seconds of a request. The cause
may be over, such as reading new shards."""
_OUTLIER = 10.0
"""Slowest pace that an answer counts for, as a multiple of the previous one: the server may have paused."""
_LATENCIES = 33
"""Number of answers from which the usual latency is computed."""


@dataclass(frozen=True)
class RequestSettings:
    """Settings of a trainer's requests."""

    window: int = 8
    """Requests that are outstanding, or ready and not delivered, at most."""
    batches_per_request: int = 8
    """Batches per request, at most; a request costs as much as a transform of a hundred small images."""
    request_bytes: int = 2 << 20
    """Bytes of a request of several batches, at most."""
    straggler_factor: float = 3.0
    """A request is late after this multiple of the usual latency."""
    straggler_seconds: float = 0.25
    """Seconds before which no request is late."""
    retry_seconds: float = 2.0
    """Seconds after which an unanswered request is resent."""
    no_server_seconds: float = 30.0
    """Seconds to wait while all servers are silent."""
    pause_seconds: float = 1.0
    """Seconds between two ticks from which on the trainer itself was paused, so that no server is late."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 request, got {self.window}")
        for name in (
            "straggler_factor",
            "straggler_seconds",
            "retry_seconds",
            "no_server_seconds",
            "pause_seconds",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass
class _Request:
    request: BatchRequest
    sent_at: dict[str, float] = field(default_factory=dict)
    """Time of the last request to each server."""
    rejections: dict[str, str] = field(default_factory=dict)
    """Servers that cannot make it, and the reasons."""
    reply: BatchReply | None = None


@dataclass
class _Server:
    outstanding: dict[int, int] = field(default_factory=dict)
    """Samples of each outstanding request."""
    pace: float | None = None
    """Seconds per sample; None before the first answer."""
    active_at: float = 0.0
    """Time of its last answer, or of a request while none was outstanding."""
    overloaded_until: float = float("-inf")
    """Time until which an overloaded server gets no requests."""

    def forget(self, samples: int, now: float) -> None:
        """Forget its pace if it has been idle for too long."""
        if not self.outstanding and now - self.active_at > _FORGOTTEN * samples * (self.pace or 0.0):
            self.pace = None


class RequestScheduler:
    """All requests of one trainer."""

    def __init__(self, settings: RequestSettings, now: float) -> None:
        self.settings = settings
        self.answers = self.copies = self.dropped = self.resent = 0
        """Numbers of answers, requests sent to a further server, dropped answers, and resent requests."""
        self._requests: dict[int, _Request] = {}
        """Requests in the order of delivery."""
        self._servers: dict[str, _Server] = {}
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._message_at = self._batch_at = self._ticked = now
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
        return max(0, self.settings.window - len(self._requests))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of all requests that are not delivered."""
        return tuple(self._requests)

    # --- the trainer's calls ---

    def next_number(self) -> int:
        """Return an unused request number."""
        self._number += 1
        return self._number

    def submit(self, request: BatchRequest, now: float) -> list[Send]:
        """Request a batch, to be delivered after those requested before."""
        assert request.number not in self._requests, f"request {request.number} is a duplicate"
        assert self.room, "the window is full"
        if all(each.reply for each in self._requests.values()):
            self._message_at = self._batch_at = now
        self._requests[request.number] = _Request(request)
        return self._assign(self._requests[request.number], now)

    def take_next(self) -> BatchReply | None:
        """Return the next batch, once it is ready."""
        number = next(iter(self._requests), None)
        if number is None or self._requests[number].reply is None:
            return None
        return self._requests.pop(number).reply

    def is_ready(self, number: int) -> bool:
        """True if an undelivered request is ready."""
        return self._requests[number].reply is not None

    def pick(self, number: int) -> BatchReply:
        """Return a ready batch, out of order."""
        made = self._requests.pop(number).reply
        assert made is not None, f"request {number} is not ready"
        return made

    def cancel(self, numbers: Iterable[int] | None = None) -> list[Send]:
        """Cancel these requests; by default all."""
        dropped: dict[str, list[int]] = {}
        for number in self.numbers if numbers is None else numbers:
            self._requests.pop(number, None)
            for name, server in self._servers.items():
                if self._cancel_on(server, number, self._ticked):
                    dropped.setdefault(name, []).append(number)
        return [Send(name, CancelRequests(tuple(each))) for name, each in dropped.items()]

    # --- changes of servers ---

    def set_servers(self, names: Iterable[str], now: float) -> list[Send]:
        """Exactly these servers are connected."""
        there = set(names)
        sends: list[Send] = []
        for name in there - set(self._servers):
            self._servers[name] = _Server(active_at=now)
        for name in set(self._servers) - there:
            sends += self.on_server_lost(name, now)
        return sends + self._assign_all(now)

    def on_server_lost(self, name: str, now: float) -> list[Send]:
        """A server is lost; request its batches from others."""
        if self._servers.pop(name, None) is None:
            return []
        for request in self._requests.values():
            request.sent_at.pop(name, None)
            request.rejections.pop(name, None)
        return self._assign_all(now)

    # --- answers ---

    def receive(
        self, sender: str, message: BatchReply | BatchRejected | BatchPending, now: float
    ) -> list[Send]:
        """Handle an answer."""
        server, request = self._servers.get(sender), self._requests.get(message.number)
        if server is not None:
            self._message_at = now
        if isinstance(message, BatchPending):
            return []
        why = message.why if isinstance(message, BatchRejected) else _mismatch(message, request)
        if why or isinstance(message, BatchRejected):
            if server is not None and (request is None or request.reply is not None):
                server.outstanding.pop(message.number, None)
            if server is None or request is None or sender not in request.sent_at:
                return []
            return self._on_rejected(sender, server, request, why, now)
        assert isinstance(message, BatchReply), "the other messages are handled above"
        self._message_at = self._batch_at = now
        if server is not None:
            self._on_answer(server, message.number, now)
        if request is None or request.reply is not None:
            self.dropped += 1
            return []
        self.answers += 1
        if sender in request.sent_at:
            self._latencies.append(now - request.sent_at[sender])
        request.reply = message
        sends: list[Send] = []
        for name in request.sent_at:
            other = self._servers.get(name)
            if name != sender and other is not None and self._cancel_on(other, message.number, now):
                sends.append(Send(name, CancelRequests((message.number,))))
        request.sent_at.clear()
        return sends + self._assign_all(now)

    def tick(self, now: float) -> list[Send]:
        """Do periodic work; call several times a second."""
        stood, self._ticked = now - self._ticked, now
        if stood > self.settings.pause_seconds:
            self._exclude_stall(stood)
        sends: list[Send] = []
        for request in self._requests.values():
            if request.reply is None:
                sends += self._assign(request, now) if not request.sent_at else self._retry(request, now)
        return sends

    def failure(self, now: float) -> str:
        """The reason why no batch arrives, without a final period; empty if batches arrive."""
        lonely, patient = self.settings.no_server_seconds, _PATIENCE_FACTOR * self.settings.no_server_seconds
        if not any(request.reply is None for request in self._requests.values()):
            return ""
        if self.refusal:
            return self.refusal
        names = " and ".join(sorted(self._servers))
        if now - self._message_at > lonely:
            what = (
                f"{names} {'has' if len(self._servers) == 1 else 'have'} not answered"
                if names
                else "no data server has been connected"
            )
            return f"{what} for {lonely:g} s"
        if now - self._batch_at > patient and names:
            return f"{names} sent no batches for {patient:g} s"
        return ""

    @property
    def refusal(self) -> str:
        """The reason why no connected server can make a batch; empty if one may."""
        for request in self._requests.values():
            is_left = request.reply is None and not request.sent_at and self._servers
            if is_left and request.rejections.keys() >= self._servers.keys():
                name, why = list(request.rejections.items())[-1]
                return f"{name} cannot make a batch: {why}"
        return ""

    # --- the choice of servers ---

    def _assign_all(self, now: float) -> list[Send]:
        waiting = [each for each in self._requests.values() if each.reply is None and not each.sent_at]
        return [send for each in waiting for send in self._assign(each, now)]

    def _assign(self, request: _Request, now: float) -> list[Send]:
        """Request from the server with the earliest expected answer that was not asked yet."""
        for server in self._servers.values():
            if now - server.active_at > self.settings.no_server_seconds:
                self._drop_obsolete(server)
            server.forget(request.request.samples, now)
        known = [server.pace for server in self._servers.values() if server.pace is not None]
        usual = median(known) if known else 1.0
        best = None
        for name, server in sorted(self._servers.items()):
            if name in request.sent_at or name in request.rejections or now < server.overloaded_until:
                continue
            pace = usual if server.pace is None else server.pace
            seconds = (sum(server.outstanding.values()) + request.request.samples) * pace
            if server.outstanding:
                seconds = max(seconds, now - server.active_at)
            if best is None or seconds < best[0]:
                best = (seconds, name)
        return [] if best is None else [self._send(request, best[1], now)]

    def _send(self, request: _Request, name: str, now: float) -> Send:
        server, ask = self._servers[name], request.request
        if not server.outstanding:
            server.active_at = now
        server.outstanding[ask.number] = ask.samples
        request.sent_at[name] = now
        return Send(name, ask)

    def _retry(self, request: _Request, now: float) -> list[Send]:
        """Ask another server for a late request; if there is none, resend it."""
        asking, newest, late = self.settings, max(request.sent_at.values()), self._straggler_seconds
        if now - newest > max(late, asking.straggler_seconds):
            copy = self._assign(request, now)
            self.copies += len(copy)
            if copy:
                return copy
        often = max(asking.retry_seconds, asking.no_server_seconds / _QUESTIONS)
        if now - newest > min(asking.retry_seconds + late, often):
            oldest = min(request.sent_at, key=lambda name: (request.sent_at[name], name))
            self.resent += 1
            return [self._send(request, oldest, now)]
        return []

    @property
    def _straggler_seconds(self) -> float:
        """Seconds after which an answer is unusually late."""
        asking = self.settings
        return asking.straggler_factor * median(self._latencies) if self._latencies else asking.retry_seconds

    def _cancel_on(self, server: _Server, number: int, now: float) -> bool:
        """Remove a cancelled request from a server; return True if the server should be notified.

        A late server keeps its first outstanding request. Until it answers, it gets few other requests; its
        answer shows that it is alive, and how slow it is.
        """
        if number not in server.outstanding:
            return False
        is_late = now - server.active_at > max(self._straggler_seconds, self.settings.straggler_seconds)
        if is_late and number == next(iter(server.outstanding)):
            return False
        del server.outstanding[number]
        return True

    def _drop_obsolete(self, server: _Server) -> None:
        """Forget requests that are not wanted any more."""
        server.outstanding = {
            each: samples for each, samples in server.outstanding.items() if each in self._requests
        }

    def _on_rejected(
        self, sender: str, server: _Server, request: _Request, why: str, now: float
    ) -> list[Send]:
        server.outstanding.pop(request.request.number, None)
        del request.sent_at[sender]
        if why:
            request.rejections[sender] = why
        else:
            server.overloaded_until = now + self.settings.straggler_seconds
        return [] if request.sent_at else self._assign(request, now)

    def _on_answer(self, server: _Server, number: int, now: float) -> None:
        server.overloaded_until = now
        samples = server.outstanding.pop(number, 0)
        if samples:
            seconds, pace = (now - server.active_at) / samples, server.pace
            newest = seconds if pace is None else min(seconds, _OUTLIER * pace)
            server.pace = newest if pace is None else pace + _PACE * (newest - pace)
        server.active_at = now
        self._drop_obsolete(server)

    def _exclude_stall(self, seconds: float) -> None:
        """Do not count the trainer's own pause as silence of servers."""
        self._message_at += seconds
        self._batch_at += seconds
        for request in self._requests.values():
            request.sent_at = {name: since + seconds for name, since in request.sent_at.items()}
        for server in self._servers.values():
            server.active_at += seconds


def _mismatch(supplied: BatchReply, request: _Request | None) -> str:
    """The difference between a batch and its request; empty if they agree."""
    if request is None:
        return ""
    shape, targets, ask = supplied.shape, supplied.targets, request.request
    is_formed = len(shape) == 4 and len(targets) in (1, 2) and supplied.batches == ask.batches
    if is_formed and shape[3] == targets[0] and shape[3] * ask.batches == ask.samples:
        return ""
    sent = f"samples {(supplied.batches, *shape)} and targets {(supplied.batches, *targets)}"
    return f"it sent {sent}, but the request was for {ask.samples} samples in {ask.batches} batches"
