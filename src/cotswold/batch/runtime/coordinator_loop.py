"""Message loop of the coordinator: passes messages and process exits to its state machine, and sends the
replies.

Knows: the endpoint, the process group, clocks, the coordinator's state machine. Does not know: optimisers,
the numbers of vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import get_args

from cotswold import wire as m
from cotswold.batch.core.coordinator import Coordinator
from cotswold.batch.core.requests import EvaluationResult, Failure
from cotswold.batch.core.rounds import RoundOutcome
from cotswold.processes.coordinator_loop import (
    ClusterFailedError,
    CoordinatorLoop,
    OnEvent,
)
from cotswold.processes.process_group import ProcessGroup
from cotswold.wire.lifecycle import PeerAddresses
from cotswold.wire.messenger import AnyMessage, Messenger

_RECEIVED = get_args(m.FromWorker | m.FromServer)


class BatchCoordinator(CoordinatorLoop):
    """Message loop of one coordinator."""

    def __init__(
        self,
        messenger: Messenger,
        process_group: ProcessGroup,
        machine: Coordinator,
        on_event: OnEvent,
        complain: Callable[[str, str], None],
    ) -> None:
        """``complain`` receives the names of a worker and of a peer that it could not reach."""
        super().__init__(messenger, process_group, on_event)
        self.machine, self._complain = machine, complain
        self.on_progress: Callable[[], None] | None = None
        """Called several times per second while an evaluation is awaited; its exception ends the wait."""
        self._shows_progress = False

    def outcome(self) -> EvaluationResult | RoundOutcome:
        """Wait for the result of the last request; raise ClusterFailedError if it is stalled."""
        self._shows_progress = True
        try:
            self.wait(lambda: self.machine.outcome is not None)
        finally:  # an interrupted caller reads vectors next and must not be interrupted again
            self._shows_progress = False
        assert self.machine.outcome is not None, "the request has no result"
        return self.machine.outcome

    def on_worker_message(self, sender: str, message: m.FromWorker | m.FromServer) -> None:
        """Pass a message to the state machine."""
        if isinstance(message, m.Aborted) and message.unreachable:
            self._complain(sender, message.unreachable)
        sends = self.machine.receive(sender, message, time.monotonic())
        if isinstance(message, m.Join):
            self.process_group.mark_ready(message.name)
            # before the instructions that need them
            addresses = tuple((one.name, one.join.address) for one in self.machine.members)
            for name, _ in addresses:
                self.messenger.send(name, PeerAddresses(addresses))
        self.deliver(sends)

    def abandon(self) -> None:
        """Cancel the current evaluation; its round ends first if the servers are alive."""
        servers = [name for name, _ in self.machine.servers]
        while self.machine.is_round_active and not self.lost_servers(servers):
            with suppress(ClusterFailedError):  # of the evaluation; the round cannot end without its servers
                self.step(self.tick_seconds)
        if not self.machine.is_round_active:
            self.deliver(self.machine.abandon(time.monotonic()))

    def close(self, servers: Sequence[str]) -> None:
        """Shut down all members and stop their processes."""
        self._end(self.machine.members, servers)

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, _RECEIVED):
            self.on_worker_message(sender, message)

    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        return self.machine.on_exit(name, why, now)

    def _tick(self, now: float) -> None:
        self._abandon_lost(now)
        self.deliver(self.machine.tick(now))
        self.process_group.tick(now)
        self._report_events(self.machine.take_events())
        trouble = self.machine.failure(now)
        if (
            trouble is None
            and self.machine.is_busy
            and self.process_group.cannot_recover
            and not len(self.machine.members)
        ):
            trouble = Failure("lonely", "every worker is dead")
        if trouble is not None:
            self._abandoned.update(self.machine.silent_servers(now))
            last = (
                f"; the last one: {self.process_group.last_exit_reason}"
                if self.process_group.last_exit_reason
                else ""
            )
            raise ClusterFailedError(f"{trouble.sentence}{last if trouble.kind == 'lonely' else ''}")
        if self.on_progress is not None and self._shows_progress:
            self.on_progress()
