"""Grants of an evaluation: which portions workers receive now, and which sums they must push.

Knows: the ledger, the scheduler, ready workers. Does not know: results, reductions, the end of an evaluation
(`batch.core.evaluation`).
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.batch.core.accounting import Accounting
from cotswold.batch.core.evaluation_state import EvaluationState
from cotswold.batch.core.point_distribution import PointDistribution
from cotswold.batch.core.portion_choice import Assignment, Scheduler, portions_to_leave_out
from cotswold.batch.core.portion_failures import PortionFailures
from cotswold.batch.core.portion_ledger import Claim, PortionLedger
from cotswold.batch.core.portion_queues import PortionHomes, PortionQueues
from cotswold.batch.core.reductions import Reductions
from cotswold.batch.core.requests import EvaluationRequest, PlanFunction
from cotswold.batch.core.settings import EvaluationSettings
from cotswold.shards.core.events import Event
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import (
    FlushSums,
    Grant,
    Grants,
    IsolatePortion,
    Send,
)


class PortionGranter:
    """The portions of one evaluation, and their grants."""

    def __init__(
        self,
        number: int,
        request: EvaluationRequest,
        rules: EvaluationSettings,
        members: Members,
        homes: PortionHomes,
        planner: PlanFunction,
        servers: Sequence[str],
        now: float,
    ) -> None:
        self.number, self.request, self.state = number, request, EvaluationState.OPENING
        self.rules, self.members, self.homes, self.planner = rules, members, homes, planner
        self.servers = servers
        drawn = request.portions
        if drawn is None:
            drawn = rules.permutation.draw(request.cycle, request.fraction)
        if not drawn or min(drawn) < 0 or max(drawn) >= rules.permutation.portions:
            raise ValueError(f"portions must be in 0 to {rules.permutation.portions - 1}, got {list(drawn)}")
        self.ledger = PortionLedger(drawn)
        self.may_leave_out = request.portions is None and rules.deadline_factor is not None
        if self.may_leave_out:  # a deadline must not leave out the portions of slow workers
            queues = PortionQueues.shared(rules.permutation.shuffled(request.cycle, drawn), homes, ())
        else:
            sessions = [member.session for member in members if not member.is_leaving]
            queues = PortionQueues.shared(drawn, homes, sessions)
        self.scheduler = Scheduler(rules, members, self.ledger, queues, PortionFailures(rules.deaths))
        self.events: list[Event] = []
        self.distribution = PointDistribution(
            number, request, members, planner, self.events, self.scheduler.is_suspected
        )
        self.accounting = Accounting(rules.permutation, now)
        self.reductions = Reductions(
            number, members, self.ledger, self.scheduler, self.distribution, planner, now
        )

    def _grant(self, now: float, only: Member | None) -> list[Send]:
        if self.state is EvaluationState.REDUCING:
            return []
        sends = []
        for member in self.members if only is None else (only,):
            claims = []
            while self.scheduler.can_take(member):
                choice = self.scheduler.choose(member, now)
                if choice is None:
                    break
                sends += self._cancel_backups(member, choice, now)
                claims.append(self._claim(member, choice, now))
            sends += self._grants(member, claims)
        return sends

    def _cancel_backups(self, member: Member, choice: Assignment, now: float) -> list[Send]:
        """Return the messages that workers must receive before a portion is granted."""
        sends = []
        if all(claim.number is not None for claim in self.ledger.claims_of(member.session)):
            member.progress = now
        if self.scheduler.is_risky(member, choice):
            sends.append(Send(member.name, FlushSums(member.session, self.number, lasts=False)))
        if choice.is_backup:
            self.accounting.backups.add((member.session, choice.portion))
            self.events.append(Event("backup_task", member.name, portions=(choice.portion,)))
            for other in self.ledger.claims(choice.portion):
                if other.number is None and not other.is_isolated:
                    apart = IsolatePortion(other.session, self.number, other.grant)
                    sends.append(Send(self.members.of[other.session].name, apart))
        return sends

    def _claim(self, member: Member, choice: Assignment, now: float) -> Claim:
        member.grants += 1
        self.ledger.claim(
            choice.portion, member.session, member.grants, is_isolated=choice.is_isolated, now=now
        )
        claim = self.ledger.claim_of(member.session, member.grants)
        assert claim is not None, "the claim is missing"
        return claim

    def _grants(self, member: Member, claims: Sequence[Claim]) -> list[Send]:
        grants = tuple(Grant(each.grant, each.portion, each.is_isolated) for each in claims)
        return [Send(member.name, Grants(member.session, self.number, grants))] if grants else []

    def _flush(self) -> list[Send]:
        """Request sums: from leaving workers, and from all once no portion is free."""
        if self.state is EvaluationState.REDUCING:
            return []
        all_of_them = self.rules.pushes and self.scheduler.is_exhausted
        sends = []
        for member in self.members:
            if member.is_ready and not member.is_flushed and (all_of_them or member.is_leaving):
                member.is_flushed = True
                sends.append(Send(member.name, FlushSums(member.session, self.number, lasts=True)))
        return sends

    def _skip_late(self, now: float) -> None:
        """Leave out portions after the deadline that are not computed and not part of a worker's sum."""
        if not self.may_leave_out or self.ledger.is_computed:
            return
        left = portions_to_leave_out(self.ledger, self.members, self.rules, now - self.accounting.started_at)
        if not left:
            return
        self.ledger.withdraw(left)
        self.scheduler.queues.clear()
        self.accounting.left_out += left
        self.events.append(Event("deadline", "", f"{len(left)} portions are left out", tuple(left)))
