"""Distribution of an evaluation's point to the workers: pulled or broadcast, completed locally, compared by
digest.

Knows: the vectors of each worker, sent instructions, digests. Does not know: portions.

    worker                                           instruction
    keeps no vectors                                 pull the point
    was ready for the previous evaluation            receive the changes by broadcast, compute the point
    was not ready (new or silent)                    pull all kept vectors, compute the point
    has another digest, or a failed broadcast        the same
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cotswold.batch.core.requests import EvaluationRequest, PlanFunction
from cotswold.shards.core.events import Event
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import Fetch, PointReady, Send, StartEvaluation


@dataclass
class PointDistribution:
    """Distribution of the point of one evaluation."""

    number: int
    request: EvaluationRequest
    members: Members
    planner: PlanFunction
    events: list[Event]
    is_suspected: Callable[[Member, float], bool]
    """True if a worker may be suspended; broadcasts do not include it."""
    attempt: int = 0
    """Newest attempt, of a start or a reduction, that was sent."""
    digests: tuple[int, ...] | None = None
    """Digests of the point on the shards, once known."""
    _messages: dict[int, StartEvaluation] = field(default_factory=dict)
    """Last instruction by session."""

    def start_all(self, now: float) -> list[Send]:
        """Send an instruction to every worker."""
        fresh = [
            member
            for member in self.members
            if self._is_current(member) and not self.is_suspected(member, now)
        ]
        plan = None
        if self.request.changed and len(fresh) > 1:
            plan = self.planner([member.name for member in fresh])
            assert set(plan.members) == {member.name for member in fresh}, (
                "the plan has other members than requested"
            )
        fetches = tuple(Fetch(name, plan) for name in self.request.changed)
        sends = []
        for member in self.members:
            member.reset_attempt()
            sends.append(self._start(member, fetches if member in fresh else self._full_fetches, now))
        return sends

    def start(self, member: Member, now: float) -> Send:
        """Instruct a worker to pull everything: it is new, or a fetch has failed."""
        return self._start(member, self._full_fetches, now)

    def resend(self, member: Member, now: float) -> list[Send]:
        """Repeat the instruction of a worker."""
        begin = self._messages.get(member.session)
        if begin is None:
            return []
        member.sent_at = now
        return [Send(member.name, begin)]

    def on_ready(self, member: Member, ready: PointReady, now: float) -> list[Send]:
        """Handle a worker's report that it has the point of this evaluation."""
        if member.is_ready or ready.attempt != self._messages[member.session].attempt:
            return []
        member.digests = ready.digests
        return self._compared([member], now)

    def on_opened(self, digests: tuple[int, ...], now: float) -> list[Send]:
        """Compare the workers' points with the digests of the shards."""
        self.digests = digests
        return self._compared([member for member in self.members if not member.is_ready], now)

    def on_disconnect(self, now: float) -> list[Send]:
        """Handle an aborted broadcast or a lost member: waiting workers pull instead."""
        sends = []
        for member in self.members:
            begin = self._messages.get(member.session)
            if begin is not None and not member.is_ready and any(fetch.plan for fetch in begin.fetches):
                sends.append(self.start(member, now))
        return sends

    def is_awaited(self, name: str) -> bool:
        """True if a worker that is not ready waits for a broadcast with this member."""
        return any(
            fetch.plan is not None and name in fetch.plan.members
            for member in self.members
            if not member.is_ready and member.session in self._messages
            for fetch in self._messages[member.session].fetches
        )

    @property
    def _full_fetches(self) -> tuple[Fetch, ...]:
        return tuple(Fetch(name, None) for name in self.request.keeps or (self.request.at,))

    def _is_current(self, member: Member) -> bool:
        return bool(self.request.keeps) and self.number > 1 and member.ready_evaluation == self.number - 1

    def _start(self, member: Member, fetches: tuple[Fetch, ...], now: float) -> Send:
        self.attempt += 1
        begin = StartEvaluation(
            member.session,
            self.number,
            self.attempt,
            self.request.at,
            self.request.gradient is not None,
            fetches,
            self.request.local,
            digests=bool(self.request.keeps),
        )
        self._messages[member.session] = begin
        member.attempt, member.sent_at, member.digests = self.attempt, now, None
        return Send(member.name, begin)

    def _compared(self, members: Sequence[Member], now: float) -> list[Send]:
        sends = []
        for member in members:
            if member.digests is None or self.digests is None:
                continue  # one of the digests is not known yet
            if member.digests == self.digests:
                member.is_ready, member.ready_evaluation, member.progress = True, self.number, now
                continue
            self.events.append(
                Event("point_mismatch", member.name, "its parameters differ from the servers'")
            )
            member.ready_evaluation = 0
            sends.append(self.start(member, now))
        return sends
