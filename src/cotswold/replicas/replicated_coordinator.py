"""The coordinator's side of replicas whose servers keep copies: a server's end ends nothing.

Knows: buckets, that servers and controllers may be replaced. Does not know: who has which bucket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cotswold import wire as m
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.processes.coordinator_loop import OnEvent, TroubleError
from cotswold.processes.process_group import Staff
from cotswold.replicas.coordinator_loop import UNHEARD_SECONDS, ReplicaConversation
from cotswold.replicas.restored_versions import Restoring, told
from cotswold.replicas.run_metrics import SinceBegun
from cotswold.replication.client.standalone_cluster import StandingServers
from cotswold.replication.controller.event_text import GATHERED
from cotswold.replication.runtime.run_cluster import Keepers
from cotswold.wire.lifecycle import Count, Counts, Happened, Serving
from cotswold.wire.messenger import AnyMessage
from cotswold.words import counted

USUAL_SECONDS = 1.5
"""Of what is waited for longer than that somebody is told."""
_TELL_SECONDS = 10.0
"""After which it is said again that servers are waited for."""
_AGAIN_SECONDS = 0.5
"""After which what was not answered is sent again."""


class BucketConversation(ReplicaConversation):
    """Whatever the coordinator of such replicas hears."""

    def __init__(
        self,
        staff: Staff,
        machine: Dispatcher,
        on_event: OnEvent,
        keepers: Keepers | StandingServers,
        patience: float,
    ) -> None:
        """``patience``: seconds for which servers that are not the run's own may say nothing: whoever keeps
        them starts them again."""
        super().__init__(keepers.post, staff, machine, on_event)
        self._keepers = keepers
        self.outlived = isinstance(keepers, StandingServers)
        self._since = SinceBegun()
        self._restoring = Restoring(machine.shards)
        self._patience = patience

    @property
    def servers(self) -> list[str]:
        """Processes that keep copies, by name."""
        return self._keepers.servers

    @property
    def servers_patience(self) -> float:
        """For how many seconds servers may not answer."""
        return max(self._patience, super().servers_patience) if self.outlived else super().servers_patience

    @property
    def counting(self) -> Count:
        """What they are asked, to say what they have done."""
        return self._keepers.counting

    def close(self) -> None:
        """Dismiss all, and end their processes."""
        if isinstance(self._keepers, StandingServers):
            self._keepers.close()
        super().close()

    def lost_servers(self, servers: Sequence[str]) -> str:
        """Nobody: a bucket that has no server says nothing, for a while or for ever."""
        return ""

    def hearing_servers(
        self,
        hear: Callable[[AnyMessage], None],
        owing: Callable[[], Sequence[str]],
        heard: Callable[[], float],
        silent_seconds: float,
        again: Callable[[], Sequence[m.Send]],
    ) -> None:
        """As for servers that keep no copies; what is not answered is sent again: whoever has a bucket
        now may not have heard it."""
        sent = time.monotonic()

        def owing_again() -> Sequence[str]:
            nonlocal sent
            owed = owing()
            if owed and time.monotonic() - sent > _AGAIN_SECONDS:
                sent = time.monotonic()
                self.deliver(again())
            return owed

        seconds = max(silent_seconds, self.servers_patience) if self.outlived else silent_seconds
        super().hearing_servers(hear, owing_again, heard, seconds, again)

    def unheard(self, now: float) -> str:
        """As for servers that keep no copies; else buckets that no server speaks for, and controllers."""
        said = super().unheard(now)
        if not said and (buckets := self.machine.silent_servers(now, UNHEARD_SECONDS)):
            said = f"no server has answered for {counted(len(buckets), 'bucket')} of the parameters"
        return ", and ".join(filter(None, (said, self._keepers.unheard(now))))

    def unanswered(self, servers: Sequence[str], seconds: float) -> TroubleError:
        """What is said of buckets of which no copy has answered for so long."""
        many = "one bucket" if len(servers) == 1 else f"{len(servers)} buckets"
        if unknown := self._keepers.unknown:
            return TroubleError(
                f"{unknown}, and {many} said nothing for {seconds:g} s; see cotswold cluster status whether "
                "servers are there, and resume the run"
            )
        return TroubleError(
            f"{many} of the parameters said nothing for {seconds:g} s: no server that lives has a copy, or "
            "none is reached; resume the run"
        )

    def _of_this_run(self, message: AnyMessage) -> AnyMessage:
        return self._since.of(message) if self.outlived and isinstance(message, Counts) else message

    def _let_hear(self, sender: str, message: AnyMessage) -> None:
        match message:
            case Serving(name) if name == sender and self._keepers.is_one(name):
                self._keepers.heard(message, self.post.endpoint.peers)
            case m.Join():  # it may have begun before a controller was started again
                self._keepers.tell(sender)
                super()._let_hear(sender, message)
            case m.Looked() if isinstance(self._keepers, StandingServers):
                for each in self._keepers.happened(message):
                    about = {"name": each.name, "what": each.kind, "sentence": each.sentence}
                    self._on_event("copies", about | ({"servers": dict(each.servers)} if each.run else {}))
            case m.Removed(run) if isinstance(self._keepers, StandingServers):
                if sender in self._keepers.controllers:
                    self._keepers.removed(run)
            case Counts() if message.server == sender:
                if rows := self._restoring.hear(message, self._keepers.post.groups):
                    self._on_event("restored", told(rows))
                super()._let_hear(sender, message)
            case Happened("disk", name, sentence) if self._keepers.is_one(sender):
                self._on_event("disk", {"name": name, "sentence": sentence})
            case Happened(kind, name, sentence) if self._keepers.is_one(sender) and kind != GATHERED:
                self._on_event("copies", {"name": name, "what": kind, "sentence": sentence})
            case _:
                super()._let_hear(sender, message)

    def _let_know(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        if not self._keepers.is_one(name):
            return super()._let_know(name, why, now)
        self.watching.forget(name)
        if not self.staff.is_watched(name):  # else it is cut off, and may act: its lease decides
            self._keepers.ended(name, why, now, is_seen=not self.staff.is_lost(name))
            self._start_due(now)
        return []

    def _start_due(self, now: float) -> None:
        """Servers and controllers of the run that are to be there again."""
        if isinstance(self._keepers, Keepers):
            for name, sentence in self._keepers.start_due(now):
                self._on_event("copies", {"name": name, "what": "failed", "sentence": sentence})

    def _tick(self, now: float) -> None:
        if isinstance(self._keepers, StandingServers):
            self._keepers.look(now)
            if trouble := self._keepers.trouble(now):
                self._on_event("waiting", {"name": self._keepers.run, "sentence": trouble})
        self._start_due(now)
        super()._tick(now)

    def _peer_moved(self, name: str) -> None:
        self.deliver(self.machine.again(name))

    def create(self, wanted: m.Create, seconds: float) -> None:
        """Have buckets made, and wait until each has a primary; raises TroubleError after so long."""
        began, due = time.monotonic(), USUAL_SECONDS
        while unknown := self._keepers.post.unknown:
            waited = time.monotonic() - began
            if waited > seconds:
                raise self._unmade(unknown, seconds)
            if waited > due:
                due += _TELL_SECONDS
                said = (
                    f"waiting for servers for {len(unknown)} of {counted(len(wanted.buckets), 'part')} of "
                    f"the parameters, for {seconds - waited:.0f} s more; nothing is trained yet, and Ctrl-C, "
                    "and again after a moment, leaves at once"
                )
                self._on_event("waiting", {"name": wanted.run, "sentence": said})
            self._keepers.create(wanted)
            self.step(self.tick_seconds)

    def _unmade(self, buckets: Sequence[str], seconds: float) -> TroubleError:
        """What is said of buckets that no server has been given for so long."""
        if not self.outlived:
            return self.unanswered(buckets, seconds)
        return TroubleError(
            f"{counted(len(buckets), 'part')} of the parameters {'has' if len(buckets) == 1 else 'have'} "
            f"been given to no server for {seconds:g} s: none lives, or the controllers refuse this run; see "
            "cotswold cluster status"
        )
