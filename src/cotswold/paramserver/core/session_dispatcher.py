"""Sessions of replicas and their assigned samples: the part of the dispatcher that talks to replicas.

Knows: sessions, assignments, the ledger, the newest coordinator state that all servers know. Does not know:
acknowledgements of servers, checkpoints, the end of epochs (`paramserver.core.dispatcher`).
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.paramserver.core.checkpoint_ledger import CheckpointLedger
from cotswold.paramserver.core.dispatcher_state import Assignments, DispatcherState
from cotswold.paramserver.core.settings import DispatcherCounters, DispatcherSettings
from cotswold.shards.core.events import Event
from cotswold.shards.core.membership import Member, Members
from cotswold.shards.core.sample_ledger import SampleLedger
from cotswold.wire import (
    CoordinatorState,
    Join,
    ReplicaHeartbeat,
    ReplicaInstructions,
    Send,
    SessionExpired,
    SessionOpened,
    Shard,
    Shutdown,
)


class SessionDispatcher:
    """Sessions of replicas, and the samples assigned to them."""

    def __init__(
        self,
        rules: DispatcherSettings,
        shards: Sequence[Shard],
        servers: Sequence[tuple[str, str]],
        ledger: SampleLedger | None,
        counters: DispatcherCounters | None,
    ) -> None:
        self.rules, self.shards, self.servers = rules, tuple(shards), tuple(servers)
        self.state = DispatcherState.WARMING if rules.warm_samples else DispatcherState.RUNNING
        counters = counters or DispatcherCounters()
        self.members = Members(counters.session)
        self.ledger = ledger or SampleLedger(rules.samples)
        self.events: list[Event] = []
        """Events that have not been taken yet."""
        self.is_paused = False
        """While True, replicas receive no samples except those that some servers lack, so all assigned
        samples are settled soon."""
        self._checkpoint_ledger: CheckpointLedger | None = None
        """Ledger of the checkpoint that servers are recording."""
        self._assignments: dict[int, Assignments] = {}
        self._rates = dict(counters.rates) or {1: rules.rate}
        self._newest_state = CoordinatorState(0, (), (), 0, 0)
        """Newest coordinator state that was sent."""
        self._acknowledged_state = self._newest_state
        """Newest coordinator state that all servers have acknowledged."""
        self._voided: dict[int, str] = {}
        """Names by session, of void sessions that are not settled yet."""

    @property
    def _is_finished(self) -> bool:
        return self.state is DispatcherState.FINISHED

    def _join(self, join: Join, now: float) -> list[Send]:
        session = self.members.session(join.name)
        if self.members.is_known(join):
            if session is None:  # its session ended before the replica learned of it
                return [Send(join.name, SessionExpired(0))]
            member = self.members.of[session]
            member.last_heartbeat = now
            return [self._session_opened(member)] if member.join == join and session in self._live else []
        if session is not None:
            self._expire(self.members.of[session], "it joined again")
        if self._is_finished:
            return [Send(join.name, Shutdown(0))]
        problem = self._misfit(join)
        if problem is not None:
            self.events.append(Event("refused", join.name, problem))
            return [Send(join.name, Shutdown(0))]
        member = self.members.add(join, now)
        self._assignments[member.session] = Assignments()
        self.events.append(Event("joined", member.name, f"session {member.session}"))
        return []

    def _misfit(self, join: Join) -> str | None:
        if join.samples != self.rules.samples:
            return f"it has {join.samples} samples, but the run has {self.rules.samples}"
        if join.size != self.rules.size:
            return f"it has {join.size} parameters, but the run has {self.rules.size}"
        return None

    @property
    def _live(self) -> frozenset[int]:
        """Sessions that all servers know and that are not void."""
        return frozenset(number for number, _ in self._acknowledged_state.sessions) & self.members.of.keys()

    def _session_opened(self, member: Member) -> Send:
        rules = self.rules
        admitted = SessionOpened(
            member.name,
            member.join.attempt,
            member.session,
            rules.run,
            self.shards,
            self.servers,
            rules.beat_seconds,
            rules.retry_seconds,
            rules.settings,
        )
        return Send(member.name, admitted)

    def _on_heartbeat(self, member: Member, alive: ReplicaHeartbeat) -> list[Send]:
        if self._is_finished:
            self._end_session(member)
            return [Send(member.name, Shutdown(member.session))]
        if member.session not in self._live:
            return []
        hands = self._assignments[member.session]
        hands.unacknowledged = [each for each in hands.unacknowledged if each[0] > alive.assignment]
        hands.exclusive = {number for number in hands.exclusive if number > alive.assignment}
        hands.needs_samples = (
            alive.assignment == hands.newest and alive.remaining_samples < self.rules.assignments_ahead
        )
        self._assign(member, hands)
        return [self._instructions(member, hands)]

    def _assign(self, member: Member, assignments: Assignments) -> bool:
        """Assign samples to a replica that wants some; return True if any were assigned."""
        if not assignments.needs_samples or member.session not in self._live or not self._may_receive(member):
            return False
        given = self.ledger.assign(member.session, self.rules.assignment_samples, only_divided=self.is_paused)
        if given is None:
            return False
        if self._checkpoint_ledger is not None:
            self._checkpoint_ledger.record_assignment(member.session, given)
        assignments.newest, assignments.needs_samples = assignments.newest + 1, False
        assignments.unacknowledged.append((assignments.newest, *given))
        if self.ledger.is_divided(given[0]):
            assignments.exclusive.add(assignments.newest)
        return True

    def _instructions(self, member: Member, hands: Assignments) -> Send:
        version, rate = self._acknowledged_state.rates[-1]
        checkpoint, alone = self._acknowledged_state.checkpoint, tuple(sorted(hands.exclusive))
        directions = ReplicaInstructions(
            member.session, tuple(hands.unacknowledged), version, rate, checkpoint, alone
        )
        return Send(member.name, directions)

    def _may_receive(self, member: Member) -> bool:
        """True if the replica may receive more samples."""
        if member.is_leaving or self.state not in (DispatcherState.WARMING, DispatcherState.RUNNING):
            return False
        return self.state is DispatcherState.RUNNING or member.session == min(self._live)

    def _leave(self, member: Member, reason: str) -> list[Send]:
        if not member.is_leaving:
            member.is_leaving = True
            self.events.append(Event("left", member.name, reason))
        if self.ledger.open_of(member.session):
            return []  # it leaves once its samples count
        self._end_session(member)
        return [Send(member.name, Shutdown(member.session))]

    def _expire(self, member: Member, why: str) -> list[Send]:
        self.events.append(Event("lost", member.name, why))
        self._end_session(member)
        return [Send(member.name, SessionExpired(member.session))]

    def _end_session(self, member: Member) -> None:
        self.members.end(member.session)
        del self._assignments[member.session]
        self._voided[member.session] = member.name
