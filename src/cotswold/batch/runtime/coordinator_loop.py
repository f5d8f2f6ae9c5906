"""The coordinator's side of a cluster: hears processes and messages, and does what the state machine answers.

Knows: the endpoint, the staff, clocks, the coordinator's state machine. Does not know: optimisers, vectors'
numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import get_args

from cotswold import wire as m
from cotswold.batch.core.coordinator import Coordinator
from cotswold.batch.core.requests import Counted, Trouble
from cotswold.batch.core.rounds import RoundDone
from cotswold.processes.coordinator_loop import Listening, OnEvent, TroubleError
from cotswold.processes.process_group import Staff
from cotswold.wire.lifecycle import Peers
from cotswold.wire.messenger import AnyMessage, Post

_HEARD = get_args(m.FromWorker | m.FromServer)


class Conversation(Listening):
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
        super().__init__(post, staff, on_event)
        self.machine, self._complain = machine, complain
        self.on_progress: Callable[[], None] | None = None
        """Called some times a second while an evaluation is awaited; what it raises ends the waiting."""
        self._shows_progress = False

    def outcome(self) -> Counted | RoundDone:
        """What was asked for, once it is done; raises TroubleError where nothing goes on."""
        self._shows_progress = True
        try:
            self.wait(lambda: self.machine.outcome is not None)
        finally:  # whoever is told to stop reads vectors next, and is not to be told again
            self._shows_progress = False
        assert self.machine.outcome is not None, "it was awaited"
        return self.machine.outcome

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

    def abandon(self) -> None:
        """Give up the evaluation that is on: its round ends first, if the servers live."""
        servers = [name for name, _ in self.machine.servers]
        while self.machine.is_round_under_way and not self.lost_servers(servers):
            with suppress(TroubleError):  # that of the evaluation; servers that are lost end no round
                self.step(self.tick_seconds)
        if not self.machine.is_round_under_way:
            self.deliver(self.machine.abandon(time.monotonic()))

    def close(self, servers: Sequence[str]) -> None:
        """Dismiss all, and end their processes."""
        self._end(self.machine.members, servers)

    def _let_hear(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, _HEARD):
            self.heard(sender, message)

    def _let_know(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        return self.machine.ended(name, why, now)

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
