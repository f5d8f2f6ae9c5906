"""Hears processes and messages, for whoever coordinates a cluster: nothing that comes is passed over.

Knows: the endpoint, the staff, clocks. Does not know: what is coordinated.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.processes.process_group import Staff
from cotswold.shards.core.membership import Member
from cotswold.shards.runtime.chunked_read import Pieces
from cotswold.transport import Lost, Ready
from cotswold.wire.lifecycle import Finish
from cotswold.wire.messenger import AnyMessage, Letter, Moved, Post

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Hears what is worth writing down: its kind, and more by name."""
_TICK_SECONDS = 0.1
_LATE_SECONDS = 0.5
_END_SECONDS = 1.0
"""For so long the end of a process is awaited whose connection has ended."""
_BACKLOG = 10_000
"""Messages that are heard before anything else, where nobody has listened for a while."""


class TroubleError(MachineError):
    """The cluster cannot go on; what its servers and checkpoints have is as it was."""


class Listening(ABC):
    """Whatever a coordinator hears."""

    tick_seconds = _TICK_SECONDS
    """How often `_tick` is called."""

    def __init__(self, post: Post, staff: Staff, on_event: OnEvent) -> None:
        self.post, self.staff, self._on_event = post, staff, on_event
        self._others: list[Callable[[AnyMessage], None]] = []
        self._ticked = 0.0
        self._cut: dict[str, tuple[float, str]] = {}
        """Peers whose connections ended while their processes seem to run: since when, and why."""
        self._given_up: set[str] = set()
        """Those of them for which no end was heard, and servers that do not answer."""
        self._ends: dict[str, str] = {}
        """Why processes have ended."""

    @abstractmethod
    def _let_hear(self, sender: str, message: AnyMessage) -> None:
        """A message has come."""

    @abstractmethod
    def _let_know(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        """A process has ended, or is behind a link that was cut."""

    def _visitor_lost(self, name: str, why: str) -> None:  # noqa: B027  # most have no visitors
        """The connection to a process has ended that is none of the staff, or none any more."""

    def _of_this_run(self, message: AnyMessage) -> AnyMessage:
        """What a message says, but for what is of other runs."""
        return message

    def _peer_moved(self, name: str) -> None:  # noqa: B027  # most have none that do
        """A peer is somewhere else now, and has not heard what was sent to it last."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Do what is due; raises TroubleError where nothing goes on."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Go on until something holds; raises TroubleError where nothing goes on."""
        while not until():
            self.step(self.tick_seconds)

    def hearing(self, hear: Callable[[AnyMessage], None], until: Callable[[], bool]) -> None:
        """Wait, and show every message that comes to ``hear`` as well."""
        self._others.append(hear)
        try:
            self.wait(until)
        finally:
            self._others.remove(hear)

    def read(self, pieces: Pieces, silent_seconds: float) -> None:
        """Hear until a vector is whole. Raises MachineError where a server does not give it, TroubleError
        where one is gone, or says nothing of it for so long."""
        heard = time.monotonic()

        def hear(message: AnyMessage) -> None:
            nonlocal heard
            owed = pieces.owing
            sends = pieces.hear(message)
            if sends or pieces.owing != owed:
                heard = time.monotonic()
            self.deliver(sends)

        self.deliver(pieces.asking())
        self.hearing_servers(hear, lambda: pieces.owing, lambda: heard, silent_seconds, pieces.asking)

    def hearing_servers(
        self,
        hear: Callable[[AnyMessage], None],
        owing: Callable[[], Sequence[str]],
        heard: Callable[[], float],
        silent_seconds: float,
        again: Callable[[], Sequence[m.Send]],
    ) -> None:
        """Wait until no server owes an answer; ``heard``: when one was heard last; ``again``: what was asked
        and is not answered, for whom it may not have come to. Raises TroubleError where one is gone, or is
        silent for so long."""

        def is_silent() -> bool:
            return time.monotonic() - heard() > silent_seconds

        self.hearing(hear, lambda: bool(not owing() or self.lost_servers(owing()) or is_silent()))
        if lost := self.lost_servers(owing()):
            raise TroubleError(f"{lost} is gone{self.why_ended(owing())}; resume the run")
        if silent := owing():
            raise self.unanswered(silent, silent_seconds)

    def unanswered(self, servers: Sequence[str], seconds: float) -> TroubleError:
        """What is said of servers that run, and have not answered for so long."""
        is_one = len(servers) == 1
        stopped = [name for name in servers if self.staff.is_stopped(name)]
        known = ", ".join(f"{name} is stopped: process {self.staff.pid_of(name)}" for name in stopped)
        return TroubleError(
            f"{' and '.join(servers)} {'has' if is_one else 'have'} not answered for {seconds:g} s"
            f"{f' ({known})' if known else ''}, and nothing goes on without the parameters that "
            f"{'it keeps' if is_one else 'they keep'}; resume the run"
        )

    def step(self, timeout: float) -> None:
        """Hear a message or an event, within so many seconds, and do what is due."""
        is_late = time.monotonic() - self._ticked > _LATE_SECONDS
        self._hear(timeout)
        if is_late:  # what was said while nobody listened comes before anybody is taken for silent
            for _ in range(_BACKLOG):
                if not self._hear(0.0):
                    break
        now = time.monotonic()
        if now - self._ticked >= self.tick_seconds:
            self._ticked = now
            self._tick(now)

    def _hear(self, timeout: float) -> bool:
        """Whether there was anything to hear."""
        event = self.post.receive(timeout)
        match event:
            case Letter(sender, said):
                message = self._of_this_run(said)
                for hear in self._others:
                    hear(message)
                self._let_hear(sender, message)
            case Moved(peer):
                self._peer_moved(peer)
            case Ready(descriptor):
                self._ended(descriptor)
            case Lost(peer, why) if self.staff.is_watched(peer):
                self._cut.setdefault(peer, (time.monotonic(), why))
            case Lost(peer, why):
                self._visitor_lost(peer, why)
            case _:
                pass
        return event is not None

    def deliver(self, sends: Sequence[m.Send]) -> None:
        """Send what the state machine says."""
        self.post.deliver(sends)

    def _end(self, members: Iterable[Member], servers: Sequence[str]) -> None:
        """Dismiss all, and end their processes."""
        for member in members:
            self.post.send(member.name, m.Dismiss(member.session))
        for server in servers:
            self.post.send(server, Finish())
        self.post.endpoint.flush(0.5)
        self.staff.close()
        self.post.endpoint.close(0.0)

    def end(self, name: str, why: str) -> None:
        """Kill a process that is no worker, and say ``why``, in words that follow its name."""
        self.staff.end(name)
        self._tell_end(name, why)

    def lost_servers(self, servers: Sequence[str]) -> str:
        """Servers that do not run any more, in words; empty where all do."""
        gone = [name for name in servers if name in self._given_up or not self.staff.is_watched(name)]
        return " and ".join(gone)

    def why_of(self, name: str) -> str:
        """Why a process is not there, in words that follow its name."""
        return self._ends.get(name, "is not there")

    def why_ended(self, names: Sequence[str]) -> str:
        """Why those of them ended that did, in words that follow others; empty where none did."""
        found = [f"{name} {self._ends[name]}" for name in names if name in self._ends]
        return f" ({' and '.join(found)})" if found else ""

    def _ended(self, descriptor: int) -> None:
        ended = self.staff.ended(descriptor, time.monotonic())
        if ended is not None:
            self.staff.tick(time.monotonic())  # another is started at once
            self._tell_end(ended.name, ended.why)
            self.deliver(self._let_know(ended.name, ended.why, time.monotonic()))

    def _tell_end(self, name: str, why: str) -> None:
        self._ends[name] = why
        self._on_event("ended", {"name": name, "why": why})

    def _give_up_lost(self, now: float) -> None:
        """Whoever was lost, and whose end is not heard of, is behind a link that was cut."""
        for name in [name for name, (since, _) in self._cut.items() if now - since > _END_SECONDS]:
            _, why = self._cut.pop(name)
            if self.staff.is_watched(name):
                self._given_up.add(name)
                self.deliver(self._let_know(name, f"{self.staff.machine_of(name)}: {why}", now))
