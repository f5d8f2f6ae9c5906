"""The coordinator of clients with their own samples: receives messages and exits of servers.

Knows: the endpoint, the process group, clocks, the dispatcher, when the service cannot continue. Does not
know: how servers are started, the numbers in vectors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import get_args

from cotswold import wire as m
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.processes.coordinator_loop import ClusterFailedError, CoordinatorLoop, OnEvent
from cotswold.processes.process_group import ProcessGroup
from cotswold.wire.lifecycle import ConnectRequest, Goodbye, RunTerms
from cotswold.wire.messenger import AnyMessage, Messenger

_TICK_SECONDS = 0.05
_RECEIVED = (*get_args(m.FromReplica), m.CoordinatorStateAck)


class ServiceCoordinator(CoordinatorLoop):
    """The event loop of the coordinator of clients."""

    tick_seconds = _TICK_SECONDS

    def __init__(
        self,
        messenger: Messenger,
        process_group: ProcessGroup,
        machine: Dispatcher,
        on_event: OnEvent,
        terms: RunTerms,
    ) -> None:
        super().__init__(messenger, process_group, on_event)
        self.machine, self._terms = machine, terms
        self._whys: dict[str, str] = {}
        """Exit reasons of servers."""

    @property
    def servers(self) -> list[str]:
        """Names of the servers."""
        return [name for name, _ in self.machine.servers]

    def dismiss(self, why: str) -> None:
        """End all sessions."""
        for member in self.machine.members:
            self.machine.on_exit(member.name, "the servers end")
            self.messenger.send(member.name, Goodbye(why))
            self.messenger.send(member.name, m.Shutdown(member.session))

    def close(self) -> None:
        """End all processes."""
        self._end(self.machine.members, self.servers)

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, ConnectRequest):
            self.messenger.send(sender, self._terms)
        elif isinstance(message, _RECEIVED):
            self.deliver(self.machine.receive(sender, message, time.monotonic()))

    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        self._whys[name] = why
        return []

    def _on_client_disconnect(self, name: str, why: str) -> None:
        self.machine.on_exit(name, why)

    def _tick(self, now: float) -> None:
        self._abandon_lost(now)
        self.deliver(self.machine.tick(now))
        self._report_events(self.machine.take_events())
        self._abandoned.update(self.machine.silent_servers(now, self.machine.rules.silent_seconds))
        if lost := self.lost_servers(self.servers):
            whys = "; ".join(f"{name} {why}" for name, why in self._whys.items())
            raise ClusterFailedError(
                f"{lost} is lost ({whys or 'it is silent'}); resume from the last checkpoint"
            )
