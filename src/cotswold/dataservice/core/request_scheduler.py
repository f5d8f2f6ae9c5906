"""The requests of a trainer: which server makes which batch, and the order in which batches are handed out.

Knows: numbers of requests, servers by name, how long each takes. Does not know: what is requested, clocks,
sockets, where servers come from.

    state      what happens                                         next
    wanted     there is a server                                    asked
    wanted     no server has been there for too long                an error: `trouble`
    asked      an answer                                            made; others hear `Cancel`, but a late one
    asked      its last server is lost, or has too much to do       wanted
    asked      it is late, and another server is there              asked of both
    asked      all that are there were asked, and say nothing       asked again
    wanted     every server that is there refuses it                an error: `trouble`
    made       everything before it is handed out                   handed out
    any        `cancel`                                             none

An answer to what is made, handed out or cancelled is dropped. What is asked ahead is bounded by `room`: all
that is wanted, asked or made. A request goes to the server that will have answered it first, by what it owes
and by its pace; a server that says nothing is as slow as it has been silent, also where others have answered
what it owes: its first debt stays until it answers. One that had too much to do is left in peace for
`late_seconds`.

No request is given up while servers say anything, `Pending` or that they have too much to do, unless for
ten times as long nothing is made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from cotswold.wire import Ask, Cancel, Pending, Send, Supplied, Unsupplied

_PACE = 0.3
"""The weight of the newest answer in a server's pace."""
_PATIENCE = 10
"""For so many times `lonely_seconds` it is waited for servers that answer and make nothing."""
_QUESTIONS = 6
"""A server of which nothing is heard is asked so often at least within `lonely_seconds`."""
_FORGOTTEN = 50
"""A server that has been idle for so many times the seconds of a request is tried again: what made it slow,
such as shards that it read first, may be over."""
_OUTLIER = 10.0
"""An answer counts for as many times as slow as its server was, at most: it may have stood still."""
_LATENCIES = 33
"""Answers by which it is known what is usual."""


@dataclass(frozen=True)
class Asking:
    """How a trainer asks."""

    window: int = 8
    """Requests that are under way, or made and not handed out, at most."""
    together: int = 8
    """Batches of a request, at most; they are asked for together because a request costs as much as the
    transforms of a hundred small pictures."""
    together_bytes: int = 2 << 20
    """Of a request of more than one batch, at most."""
    late: float = 3.0
    """After so many times the usual a request is late."""
    late_seconds: float = 0.25
    """And not before."""
    retry_seconds: float = 2.0
    """After which a request of which nothing is heard is sent again."""
    lonely_seconds: float = 30.0
    """For so long it is waited where no server says anything."""
    pause_seconds: float = 1.0
    """A time between two ticks above which the trainer itself stood still, which makes nobody late."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a window of {self.window} requests; it must be at least 1")
        for name in ("late", "late_seconds", "retry_seconds", "lonely_seconds", "pause_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be above 0")


@dataclass
class _Request:
    ask: Ask
    asked: dict[str, float] = field(default_factory=dict)
    """When each server was asked for it, last."""
    refused: dict[str, str] = field(default_factory=dict)
    """Servers that cannot make it, and why."""
    made: Supplied | None = None


@dataclass
class _Server:
    owed: dict[int, int] = field(default_factory=dict)
    """Samples of each request that it was asked for."""
    pace: float | None = None
    """Seconds a sample; None as long as it has not answered."""
    moved: float = 0.0
    """When it last answered, or was asked while it owed nothing."""
    full_until: float = float("-inf")
    """It had too much to do, and is asked nothing until then."""

    def forget(self, samples: int, now: float) -> None:
        """Its pace is not known any more where it has been idle for too long."""
        if not self.owed and now - self.moved > _FORGOTTEN * samples * (self.pace or 0.0):
            self.pace = None


class Requests:
    """All requests of one trainer."""

    def __init__(self, asking: Asking, now: float) -> None:
        self.asking = asking
        self.answers = self.copies = self.dropped = self.resent = 0
        """How many came, were asked of a further server, came in vain, and were asked again."""
        self._requests: dict[int, _Request] = {}
        """In the order in which they are handed out."""
        self._servers: dict[str, _Server] = {}
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._heard = self._made = self._ticked = now
        """When anything was said, and made, by a server, or asked while nothing was awaited."""
        self._number = 0

    @property
    def servers(self) -> Mapping[str, float | None]:
        """Those that are there, and their seconds a sample."""
        return {name: server.pace for name, server in self._servers.items()}

    @property
    def room(self) -> int:
        """How many may be asked for now."""
        return max(0, self.asking.window - len(self._requests))

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that are not handed out."""
        return tuple(self._requests)

    # --- what the trainer wants ---

    def fresh(self) -> int:
        """A number that no request has had."""
        self._number += 1
        return self._number

    def ask(self, ask: Ask, now: float) -> list[Send]:
        """Want a batch, to be handed out after those that were asked for before."""
        assert ask.number not in self._requests, f"request {ask.number} is wanted twice"
        assert self.room, "more is asked for than the window has room for"
        if all(request.made for request in self._requests.values()):
            self._heard = self._made = now
        self._requests[ask.number] = _Request(ask)
        return self._assign(self._requests[ask.number], now)

    def take(self) -> Supplied | None:
        """The next batch, once it is made."""
        number = next(iter(self._requests), None)
        if number is None or self._requests[number].made is None:
            return None
        return self._requests.pop(number).made

    def made(self, number: int) -> bool:
        """Whether a request that is not handed out is made."""
        return self._requests[number].made is not None

    def pick(self, number: int) -> Supplied:
        """A batch that is made, out of order."""
        made = self._requests.pop(number).made
        assert made is not None, f"request {number} is not made"
        return made

    def cancel(self, numbers: Iterable[int] | None = None) -> list[Send]:
        """Want these no more, or nothing that was asked for."""
        dropped: dict[str, list[int]] = {}
        for number in self.numbers if numbers is None else numbers:
            self._requests.pop(number, None)
            for name, server in self._servers.items():
                if self._is_called_off(server, number, self._ticked):
                    dropped.setdefault(name, []).append(number)
        return [Send(name, Cancel(tuple(each))) for name, each in dropped.items()]

    # --- what befalls servers ---

    def roster(self, names: Iterable[str], now: float) -> list[Send]:
        """These servers are there, and no others."""
        there = set(names)
        sends: list[Send] = []
        for name in there - set(self._servers):
            self._servers[name] = _Server(moved=now)
        for name in set(self._servers) - there:
            sends += self.lost(name, now)
        return sends + self._assign_all(now)

    def lost(self, name: str, now: float) -> list[Send]:
        """A server is gone; what it was asked for is asked of others."""
        if self._servers.pop(name, None) is None:
            return []
        for request in self._requests.values():
            request.asked.pop(name, None)
            request.refused.pop(name, None)
        return self._assign_all(now)

    # --- what it hears ---

    def receive(self, sender: str, message: Supplied | Unsupplied | Pending, now: float) -> list[Send]:
        """An answer."""
        server, request = self._servers.get(sender), self._requests.get(message.number)
        if server is not None:
            self._heard = now
        if isinstance(message, Pending):
            return []
        why = message.why if isinstance(message, Unsupplied) else _misfit(message, request)
        if why or isinstance(message, Unsupplied):
            if server is not None and (request is None or request.made is not None):
                server.owed.pop(message.number, None)
            if server is None or request is None or sender not in request.asked:
                return []
            return self._refused(sender, server, request, why, now)
        assert isinstance(message, Supplied), "the others are dealt with"
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
                sends.append(Send(name, Cancel((message.number,))))
        request.asked.clear()
        return sends + self._assign_all(now)

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called some times a second."""
        stood, self._ticked = now - self._ticked, now
        if stood > self.asking.pause_seconds:
            self._forgive(stood)
        sends: list[Send] = []
        for request in self._requests.values():
            if request.made is None:
                sends += self._assign(request, now) if not request.asked else self._again(request, now)
        return sends

    def trouble(self, now: float) -> str:
        """Why nothing goes on, in a sentence without its end; empty where it does."""
        lonely, patient = self.asking.lonely_seconds, _PATIENCE * self.asking.lonely_seconds
        if not any(request.made is None for request in self._requests.values()):
            return ""
        if self.refusal:
            return self.refusal
        names = " and ".join(sorted(self._servers))
        if now - self._heard > lonely:
            what = f"{names} answered nothing" if names else "no data server has been there"
            return f"{what} for {lonely:g} s"
        if now - self._made > patient and names:
            return f"{names} made nothing for {patient:g} s"
        return ""

    @property
    def refusal(self) -> str:
        """Why nobody who is there makes what is wanted; empty where somebody may."""
        for request in self._requests.values():
            is_left = request.made is None and not request.asked and self._servers
            if is_left and request.refused.keys() >= self._servers.keys():
                name, why = list(request.refused.items())[-1]
                return f"{name} cannot make a batch: {why}"
        return ""

    # --- who is asked ---

    def _assign_all(self, now: float) -> list[Send]:
        waiting = [each for each in self._requests.values() if each.made is None and not each.asked]
        return [send for each in waiting for send in self._assign(each, now)]

    def _assign(self, request: _Request, now: float) -> list[Send]:
        """Ask the server that will have answered first, and was not asked yet."""
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
        """Ask another server for what is late, or the same ones where there is no other."""
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
        """Seconds after which an answer is late by what is usual."""
        asking = self.asking
        return asking.late * median(self._latencies) if self._latencies else asking.retry_seconds

    def _is_called_off(self, server: _Server, number: int, now: float) -> bool:
        """What it was asked for is not wanted any more: whether it is to hear so.

        A late server keeps what it owes first. As long as it does not answer, little else is asked of it; and
        its answer says that it lives, and how slow it is.
        """
        if number not in server.owed:
            return False
        is_late = now - server.moved > max(self._late, self.asking.late_seconds)
        if is_late and number == next(iter(server.owed)):
            return False
        del server.owed[number]
        return True

    def _forget_debts(self, server: _Server) -> None:
        """Of what nobody wants any more."""
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

    def _forgive(self, seconds: float) -> None:
        """The trainer stood still for so long: that was nobody's fault."""
        self._heard += seconds
        self._made += seconds
        for request in self._requests.values():
            request.asked = {name: since + seconds for name, since in request.asked.items()}
        for server in self._servers.values():
            server.moved += seconds


def _misfit(supplied: Supplied, request: _Request | None) -> str:
    """What a batch has that was not asked for; empty where it is what was."""
    if request is None:
        return ""
    shape, targets, ask = supplied.shape, supplied.targets, request.ask
    is_formed = len(shape) == 4 and len(targets) in (1, 2) and supplied.batches == ask.batches
    if is_formed and shape[3] == targets[0] and shape[3] * ask.batches == ask.samples:
        return ""
    sent = f"samples {(supplied.batches, *shape)} and targets {(supplied.batches, *targets)}"
    return f"it sent {sent} where {ask.samples} samples were asked for in batches: {ask.batches}"
