"""The coordinator of replicas: receives messages and process exits, and executes its state machine's
answers.

Knows: the endpoint, the process group, clocks, the coordinator's state machine, when the run cannot
continue. Does not know: the numbers in vectors, which samples count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import get_args

from cotswold import wire as m
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.dispatcher_state import DispatcherState
from cotswold.processes.coordinator_loop import (
    ClusterFailedError,
    CoordinatorLoop,
    OnEvent,
)
from cotswold.processes.process_group import ProcessGroup
from cotswold.replicas.monitor import ReplicaMonitor
from cotswold.wire.lifecycle import ActivityReport, CountersRequest, ServerCounters, StepMetrics
from cotswold.wire.messenger import AnyMessage, Messenger

_TICK_SECONDS = 0.02
SILENT_SERVER_SECONDS = 2.0
"""Seconds after which unanswering servers are named in the progress display."""
_NAMED = 3
_RECEIVED = (*get_args(m.FromReplica), m.CoordinatorStateAck)


class ReplicaCoordinator(CoordinatorLoop):
    """The event loop of the coordinator of replicas."""

    tick_seconds = _TICK_SECONDS

    def __init__(
        self, messenger: Messenger, process_group: ProcessGroup, machine: Dispatcher, on_event: OnEvent
    ) -> None:
        super().__init__(messenger, process_group, on_event)
        self.machine = machine
        self.learnt: list[StepMetrics] = []
        """Reports of steps since they were last taken."""
        self.monitor = ReplicaMonitor()
        self.on_tick: Callable[[], None] = lambda: None
        """Called several times a second, also while waiting; it must not block."""

    @property
    def servers(self) -> list[str]:
        """Names of the servers."""
        return [name for name, _ in self.machine.servers]

    outlived = False
    """True if the servers exist before and after the run."""

    @property
    def counters_request(self) -> CountersRequest:
        """The request for a server's counts."""
        return CountersRequest()

    def handle_again(self, sender: str, message: AnyMessage) -> None:
        """Handle a message that arrived during startup."""
        self._on_message(sender, message)

    def add_handler(self, handler: Callable[[AnyMessage], None]) -> None:
        """From now on, pass every message to ``handler`` as well."""
        self._handlers.append(handler)

    def close(self) -> None:
        """Dismiss all members, and end their processes."""
        self._end(self.machine.members, self.servers)

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, StepMetrics | ActivityReport) and message.name == sender:
            self.monitor.on_message(message, time.monotonic())
        if isinstance(message, ServerCounters) and message.server == sender:
            self.monitor.on_message(message, time.monotonic())
        elif isinstance(message, StepMetrics) and message.name == sender:
            self.learnt.append(message)
            self.process_group.mark_ready(sender)  # an exit before the first step counts as a failed start
        elif isinstance(message, _RECEIVED):
            self.deliver(self.machine.receive(sender, message, time.monotonic()))
            if self.machine.state is DispatcherState.FINISHED:  # from now on, replicas that ask are dismissed
                self.process_group.stop_restarts()

    @property
    def server_timeout(self) -> float:
        """Seconds that servers may stay silent."""
        return self.machine.rules.silent_seconds

    def silence_text(self, now: float) -> str:
        """The servers that do not answer, and for how long, in words; empty if all answer."""
        silent = {name: self.monitor.silent_seconds(name, now) for name in self.servers}
        names = [name for name, seconds in silent.items() if seconds > SILENT_SERVER_SECONDS]
        if not names:
            return ""
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        have = "has" if len(names) == 1 else "have"
        seconds = max(silent[name] for name in names)
        return f"{', '.join(names[:_NAMED])}{more} {have} said nothing for {seconds:.0f} s"

    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        self.machine.on_exit(name, why)
        self.monitor.forget(name)
        return []

    def _tick(self, now: float) -> None:
        self._abandon_lost(now)
        self.deliver(self.machine.tick(now))
        self.process_group.tick(now)
        self._report_events(self.machine.take_events())
        for server in self.servers:
            if self.monitor.should_request(server, now):
                self.messenger.send(server, self.counters_request)
        self.on_tick()
        if lost := self.lost_servers(self.servers):
            raise ClusterFailedError(f"{lost} is lost{self.exit_reasons(self.servers)}")
        if self.machine.failure:
            raise ClusterFailedError(f"{self.machine.failure}")
        seconds = self.server_timeout
        if silent := self.machine.silent_servers(now, seconds):
            raise self.unanswered(silent, seconds)
        is_alone = self.process_group.cannot_recover and not len(self.machine.members)
        if is_alone and self.machine.state is not DispatcherState.FINISHED:
            last = (
                f"; the last of them: {self.process_group.last_exit_reason}"
                if self.process_group.last_exit_reason
                else ""
            )
            raise ClusterFailedError(f"every replica has exited{last}")
