"""The event loop of a coordinator: receives messages and process exits, and runs periodic work.

Knows: the endpoint, the process group, clocks. Does not know: what is coordinated.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from cotswold import wire as m
from cotswold.errors import ResumableError
from cotswold.processes.process_group import ProcessGroup
from cotswold.shards.core.events import Event
from cotswold.shards.core.membership import Member
from cotswold.shards.runtime.chunked_read import ChunkedRead
from cotswold.transport import Lost, Ready
from cotswold.wire.lifecycle import StopProcess
from cotswold.wire.messenger import AnyMessage, Messenger, PeerMoved, Received

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Called with the kind of an event and its fields by name."""
_TICK_SECONDS = 0.1
_LATE_SECONDS = 0.5
_END_SECONDS = 1.0
"""Seconds to wait for the exit of a process whose connection has ended."""
_BACKLOG = 10_000
"""Messages that are read first, at most, after the loop was not running for a while."""


class ClusterFailedError(ResumableError):
    """The cluster cannot continue; its servers and checkpoints are unchanged."""


class CoordinatorLoop(ABC):
    """Base class of coordinators' event loops."""

    tick_seconds = _TICK_SECONDS
    """Seconds between two calls of `_tick`."""

    def __init__(self, messenger: Messenger, process_group: ProcessGroup, on_event: OnEvent) -> None:
        self.messenger, self.process_group, self._on_event = messenger, process_group, on_event
        self._handlers: list[Callable[[AnyMessage], None]] = []
        self._ticked = 0.0
        self._disconnected: dict[str, tuple[float, str]] = {}
        """Peers whose connections ended while their processes seem to run: the time, and the reason."""
        self._abandoned: set[str] = set()
        """Lost peers whose processes never exited, and servers that do not answer."""
        self._exit_reasons: dict[str, str] = {}
        """Reasons of the processes' exits."""

    @abstractmethod
    def _on_message(self, sender: str, message: AnyMessage) -> None:
        """Handle a message."""

    @abstractmethod
    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        """Handle a process that exited or is unreachable."""

    def _on_client_disconnect(self, name: str, why: str) -> None:  # noqa: B027  # most have no visitors
        """Handle the end of a connection to a process outside the process group."""

    def _normalize(self, message: AnyMessage) -> AnyMessage:
        """Return the message without the parts that belong to other runs."""
        return message

    def _on_primary_changed(self, name: str) -> None:  # noqa: B027  # most have none that do
        """Handle a peer that moved: it has not received what was sent to it last."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Do periodic work; raise ClusterFailedError if the cluster cannot continue."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Run until a condition holds; raise ClusterFailedError if the cluster cannot continue."""
        while not until():
            self.step(self.tick_seconds)

    def handle_until(self, handler: Callable[[AnyMessage], None], until: Callable[[], bool]) -> None:
        """Wait, and pass each message to ``handler`` as well."""
        self._handlers.append(handler)
        try:
            self.wait(until)
        finally:
            self._handlers.remove(handler)

    def read(self, pieces: ChunkedRead, silent_seconds: float) -> None:
        """Receive until a vector is complete.

        Raises MachineError if a server refuses, ClusterFailedError if one is lost, or silent for
        ``silent_seconds``.
        """
        heard = time.monotonic()

        def hear(message: AnyMessage) -> None:
            nonlocal heard
            owed = pieces.owing
            sends = pieces.on_message(message)
            if sends or pieces.owing != owed:
                heard = time.monotonic()
            self.deliver(sends)

        self.deliver(pieces.requests())
        self.wait_for_servers(hear, lambda: pieces.owing, lambda: heard, silent_seconds, pieces.requests)

    def wait_for_servers(
        self,
        handler: Callable[[AnyMessage], None],
        owing: Callable[[], Sequence[str]],
        last_answer: Callable[[], float],
        silent_seconds: float,
        unanswered_requests: Callable[[], Sequence[m.Send]],
    ) -> None:
        """Wait until no server owes an answer. Raises ClusterFailedError if a server is lost, or all are
        silent for ``silent_seconds``.

        Args:
            handler: Called with each message.
            owing: Returns the servers that owe an answer.
            last_answer: Returns the time of the last answer.
            silent_seconds: Longest time without an answer.
            unanswered_requests: Returns the unanswered requests, for servers that may not have received them.
        """

        def is_silent() -> bool:
            return time.monotonic() - last_answer() > silent_seconds

        self.handle_until(handler, lambda: bool(not owing() or self.lost_servers(owing()) or is_silent()))
        if lost := self.lost_servers(owing()):
            raise ClusterFailedError(f"{lost} is lost{self.exit_reasons(owing())}")
        if silent := owing():
            raise self.unanswered(silent, silent_seconds)

    def unanswered(self, servers: Sequence[str], seconds: float) -> ClusterFailedError:
        """The error for servers that run, but have not answered for ``seconds``."""
        is_one = len(servers) == 1
        stopped = [name for name in servers if self.process_group.is_stopped(name)]
        known = ", ".join(f"{name} is stopped: process {self.process_group.pid_of(name)}" for name in stopped)
        return ClusterFailedError(
            f"{' and '.join(servers)} {'has' if is_one else 'have'} not answered for {seconds:g} s"
            f"{f' ({known})' if known else ''}, and the run needs the parameters that "
            f"{'it holds' if is_one else 'they hold'}"
        )

    def step(self, timeout: float) -> None:
        """Receive one message or event within ``timeout`` seconds, and do the work that is due."""
        is_late = time.monotonic() - self._ticked > _LATE_SECONDS
        self._receive_event(timeout)
        if is_late:  # read queued messages first: no peer counts as silent because the loop was not running
            for _ in range(_BACKLOG):
                if not self._receive_event(0.0):
                    break
        now = time.monotonic()
        if now - self._ticked >= self.tick_seconds:
            self._ticked = now
            self._tick(now)

    def _receive_event(self, timeout: float) -> bool:
        """Receive one event; return False if there was none."""
        event = self.messenger.receive(timeout)
        match event:
            case Received(sender, said):
                message = self._normalize(said)
                for hear in self._handlers:
                    hear(message)
                self._on_message(sender, message)
            case PeerMoved(peer):
                self._on_primary_changed(peer)
            case Ready(descriptor):
                self._on_descriptor_ready(descriptor)
            case Lost(peer, why) if self.process_group.is_watched(peer):
                self._disconnected.setdefault(peer, (time.monotonic(), why))
            case Lost(peer, why):
                self._on_client_disconnect(peer, why)
            case _:
                pass
        return event is not None

    def deliver(self, sends: Sequence[m.Send]) -> None:
        """Send the messages of a state machine."""
        self.messenger.deliver(sends)

    def _end(self, members: Iterable[Member], servers: Sequence[str]) -> None:
        """Dismiss all members, and end their processes."""
        for member in members:
            self.messenger.send(member.name, m.Shutdown(member.session))
        for server in servers:
            self.messenger.send(server, StopProcess())
        self.messenger.endpoint.flush(0.5)
        self.process_group.close()
        self.messenger.endpoint.close(0.0)

    def end(self, name: str, why: str) -> None:
        """Kill a process that is no worker; ``why`` is the reason, in words that follow its name."""
        self.process_group.end(name)
        self._report_exit(name, why)

    def lost_servers(self, servers: Sequence[str]) -> str:
        """Servers that no longer run, in words; empty if all run."""
        gone = [
            name for name in servers if name in self._abandoned or not self.process_group.is_watched(name)
        ]
        return " and ".join(gone)

    def exit_reason(self, name: str) -> str:
        """The reason why a process is missing, in words that follow its name."""
        return self._exit_reasons.get(name, "does not run")

    def exit_reasons(self, names: Sequence[str]) -> str:
        """The reasons of those that exited, in words that follow others; empty if none did."""
        found = [f"{name} {self._exit_reasons[name]}" for name in names if name in self._exit_reasons]
        return f" ({' and '.join(found)})" if found else ""

    def _on_descriptor_ready(self, descriptor: int) -> None:
        ended = self.process_group.reap(descriptor, time.monotonic())
        if ended is not None:
            self.process_group.tick(time.monotonic())  # restarts at once
            self._report_exit(ended.name, ended.why, ended.code)
            self.deliver(self._on_process_exit(ended.name, ended.why, time.monotonic()))

    def _report_exit(self, name: str, why: str, code: int | None = None) -> None:
        self._exit_reasons[name] = why
        known = {} if code is None else {"exit_code": code}
        self._on_event("exited", {"name": name, "reason": why, **known})

    def _report_events(self, events: Iterable[Event]) -> None:
        """Report events of the state machine; a member that joins has its process number and its host."""
        for event in events:
            fields = asdict(event)
            kind, name = fields.pop("kind"), event.name
            if kind == "joined" and self.process_group.is_watched(name):
                fields |= {
                    "process": self.process_group.pid_of(name),
                    "host": self.process_group.machine_of(name),
                }
            self._on_event(kind, fields)

    def _abandon_lost(self, now: float) -> None:
        """Report peers that were lost but never exited: their network link was cut."""
        for name in [name for name, (since, _) in self._disconnected.items() if now - since > _END_SECONDS]:
            _, why = self._disconnected.pop(name)
            if self.process_group.is_watched(name):
                self._abandoned.add(name)
                self.deliver(
                    self._on_process_exit(name, f"{self.process_group.machine_of(name)}: {why}", now)
                )
