"""The coordinator's side of a cluster: hears processes and messages, and does what the state machine answers.

Knows: the endpoint, the staff, clocks, the coordinator's state machine. Does not know: optimisers, vectors'
numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import get_args

from cotswold.cluster.messages import Finish, Peers
from cotswold.cluster.post import AnyMessage, Letter, Post
from cotswold.cluster.staff import Staff
from cotswold.cluster.transport import Lost, Ready
from cotswold.errors import MachineError
from cotswold.server import messages as m
from cotswold.server.asked import Counted, Trouble
from cotswold.server.coordinator import Coordinator
from cotswold.server.rounds import RoundDone

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Hears what is worth writing down: its kind, and more by name."""
_TICK_SECONDS = 0.1
_LATE_SECONDS = 0.5
_END_SECONDS = 1.0
"""For so long the end of a process is awaited whose connection has ended."""
_BACKLOG = 10_000
"""Messages that are heard before anything else, where nobody has listened for a while."""
_HEARD = get_args(m.FromWorker | m.FromServer)


class TroubleError(MachineError):
    """The cluster cannot go on; what its servers and checkpoints have is as it was."""


class Conversation:
    """Whatever the coordinator says and hears."""

    def __init__(
        self,
        post: Post,
        staff: Staff,
        machine: Coordinator,
        on_event: OnEvent,
        complain: Callable[[str, str], None],
    ) -> None:
        """``complain`` hears which worker could not reach which other one."""
        self.post, self.staff, self.machine, self._on_event = post, staff, machine, on_event
        self._complain = complain
        self.on_progress: Callable[[], None] | None = None
        """Called some times a second while an evaluation is awaited; what it raises ends the waiting."""
        self._shows_progress = False
        self._others: list[Callable[[AnyMessage], None]] = []
        self._ticked = 0.0
        self._cut: dict[str, tuple[float, str]] = {}
        """Peers whose connections ended while their processes seem to run: since when, and why."""
        self._given_up: set[str] = set()
        """Those of them for which no end was heard, and servers that do not answer."""

    def outcome(self) -> Counted | RoundDone:
        """What was asked for, once it is done; raises TroubleError where nothing goes on."""
        self._shows_progress = True
        try:
            self.wait(lambda: self.machine.outcome is not None)
        finally:  # whoever is told to stop reads vectors next, and is not to be told again
            self._shows_progress = False
        assert self.machine.outcome is not None, "it was awaited"
        return self.machine.outcome

    def wait(self, until: Callable[[], bool]) -> None:
        """Go on until something holds; raises TroubleError where nothing goes on."""
        while not until():
            self.step(_TICK_SECONDS)

    def hearing(self, hear: Callable[[AnyMessage], None], until: Callable[[], bool]) -> None:
        """Wait, and show every message that comes to ``hear`` as well."""
        self._others.append(hear)
        try:
            self.wait(until)
        finally:
            self._others.remove(hear)

    def step(self, timeout: float) -> None:
        """Hear a message or an event, within so many seconds, and do what is due."""
        is_late = time.monotonic() - self._ticked > _LATE_SECONDS
        self._hear(timeout)
        if is_late:  # what was said while nobody listened comes before anybody is taken for silent
            for _ in range(_BACKLOG):
                if not self._hear(0.0):
                    break
        now = time.monotonic()
        if now - self._ticked >= _TICK_SECONDS:
            self._ticked = now
            self._tick(now)

    def _hear(self, timeout: float) -> bool:
        """Whether there was anything to hear."""
        event = self.post.receive(timeout)
        match event:
            case Letter(sender, message):
                for hear in self._others:
                    hear(message)
                if isinstance(message, _HEARD):
                    self.heard(sender, message)
            case Ready(descriptor):
                self._ended(descriptor)
            case Lost(peer, why) if self.staff.is_watched(peer):
                self._cut.setdefault(peer, (time.monotonic(), why))
            case _:
                pass
        return event is not None

    def heard(self, sender: str, message: m.FromWorker | m.FromServer) -> None:
        """Let the state machine hear a message."""
        if isinstance(message, m.Aborted) and message.lost:
            self._complain(sender, message.lost)
        sends = self.machine.receive(sender, message, time.monotonic())
        if isinstance(message, m.Join):
            self.staff.joined(message.name)
            # before what it is told to do with them
            addresses = tuple((one.name, one.join.address) for one in self.machine.members)
            for name, _ in addresses:
                self.post.send(name, Peers(addresses))
        self.deliver(sends)

    def deliver(self, sends: Sequence[m.Send]) -> None:
        """Send what the state machine says."""
        for each in sends:
            self.post.send(each.to, each.message)

    def abandon(self) -> None:
        """Give up the evaluation that is on: its round ends first, if the servers live."""
        servers = [name for name, _ in self.machine.servers]
        while self.machine.is_round_under_way and not self.lost_servers(servers):
            with suppress(TroubleError):  # that of the evaluation; servers that are lost end no round
                self.step(_TICK_SECONDS)
        if not self.machine.is_round_under_way:
            self.deliver(self.machine.abandon(time.monotonic()))

    def close(self, servers: Sequence[str]) -> None:
        """Dismiss all, and end their processes."""
        for member in self.machine.members:
            self.post.send(member.name, m.Dismiss(member.session))
        for server in servers:
            self.post.send(server, Finish())
        self.post.endpoint.flush(0.5)
        self.staff.close()
        self.post.endpoint.close(0.0)

    def lost_servers(self, servers: Sequence[str]) -> str:
        """Servers that do not run any more, in words; empty where all do."""
        gone = [name for name in servers if name in self._given_up or not self.staff.is_watched(name)]
        return " and ".join(gone)

    def _ended(self, descriptor: int) -> None:
        ended = self.staff.ended(descriptor, time.monotonic())
        if ended is not None:
            self.staff.tick(time.monotonic())  # another is started at once
            self._on_event("ended", {"name": ended.name, "why": ended.why})
            self.deliver(self.machine.ended(ended.name, ended.why, time.monotonic()))

    def _give_up_lost(self, now: float) -> None:
        """Whoever was lost, and whose end is not heard of, is behind a link that was cut."""
        for name in [name for name, (since, _) in self._cut.items() if now - since > _END_SECONDS]:
            _, why = self._cut.pop(name)
            if self.staff.is_watched(name):
                self._given_up.add(name)
                self.deliver(self.machine.ended(name, f"{self.staff.machine_of(name)}: {why}", now))

    def _tick(self, now: float) -> None:
        self._give_up_lost(now)
        self.deliver(self.machine.tick(now))
        self.staff.tick(now)
        for event in self.machine.take_events():
            told = asdict(event)
            self._on_event(told.pop("kind"), told)
        trouble = self.machine.trouble(now)
        if (
            trouble is None
            and self.machine.is_busy
            and self.staff.is_hopeless
            and not len(self.machine.members)
        ):
            trouble = Trouble("lonely", "every worker is dead")
        if trouble is not None:
            self._given_up.update(self.machine.silent_servers(now))
            last = f"; the last of them: {self.staff.last_words}" if self.staff.last_words else ""
            raise TroubleError(
                f"{trouble.sentence}{last if trouble.kind == 'lonely' else ''}; resume the run"
            )
        if self.on_progress is not None and self._shows_progress:
            self.on_progress()
