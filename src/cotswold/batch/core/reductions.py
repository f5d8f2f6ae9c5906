"""Reductions of the sums that workers keep: the chosen sums, and the instructions sent.

Knows: claims, plans, attempts. Does not know: an evaluation's states, which sums count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from cotswold.batch.core.point_distribution import PointDistribution
from cotswold.batch.core.portion_choice import Scheduler
from cotswold.batch.core.portion_ledger import Claim, PortionLedger
from cotswold.batch.core.requests import PlanFunction
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import Reduce, Send, SumName


@dataclass(frozen=True)
class ReductionMembers:
    """Disjoint sums."""

    sums: dict[SumName, tuple[int, ...]]
    """Portions of each sum, ascending."""
    missing_portions: tuple[int, ...]
    """Portions in no chosen sum; they must be computed again."""


def choose_sums(
    claims: Iterable[Claim], portions: Collection[int], suspected: Collection[int] = ()
) -> ReductionMembers:
    """Choose disjoint sums from computed claims: larger sums first, because a small overlapping sum costs
    little.

    Sums of ``suspected`` sessions come last, so no reduction waits for them if others have their portions.
    """
    sums: dict[SumName, list[int]] = {}
    for claim in claims:
        assert claim.number is not None, "only computed claims can be reduced"
        sums.setdefault(SumName(claim.session, claim.number), []).append(claim.portion)
    found: dict[SumName, tuple[int, ...]] = {}
    covered: set[int] = set()
    for name, summed in sorted(
        sums.items(), key=lambda each: (each[0].session in suspected, -len(each[1]), each[0])
    ):
        if covered.isdisjoint(summed):
            found[name] = tuple(sorted(summed))
            covered.update(summed)
    return ReductionMembers(dict(sorted(found.items())), tuple(sorted(set(portions) - covered)))


@dataclass
class Reductions:
    """Reductions of one evaluation."""

    number: int
    members: Members
    ledger: PortionLedger
    scheduler: Scheduler
    distribution: PointDistribution
    """Counter of attempts, shared by starts and reductions."""
    planner: PlanFunction
    delay: float
    """Earliest time of the next reduction."""
    messages: dict[int, Reduce] = field(default_factory=dict)
    """Instructions of the newest reduction, by session."""

    def choose(self, now: float) -> ReductionMembers | None:
        """Choose the sums to add; None while a worker must be waited for.

        Missing portions are freed to be computed again.
        """
        hands = [(member, self.ledger.claims_of(member.session)) for member in self.members]
        if any(member.is_flushed and hand for member, hand in hands):
            return None  # it pushes its sums itself
        claims = [claim for _, hand in hands for claim in hand if claim.number is not None]
        doubtful = [member.session for member in self.members if self.scheduler.is_suspected(member, now)]
        choice = choose_sums(claims, self.ledger.open, doubtful)
        if any(name.session in doubtful for name in choice.sums):
            return None  # it may wake up, be lost, or have its portions copied by others
        for claim in claims:
            if claim.portion in choice.missing_portions:
                self.ledger.release(claim.session, claim.grant)
        return choice

    def start(self, choice: ReductionMembers, now: float) -> list[Send]:
        """Send the plan to all members."""
        sums: dict[int, list[SumName]] = {}
        for name in choice.sums:
            sums.setdefault(name.session, []).append(name)
        plan = self.planner([self.members.of[session].name for session in sums])
        self.distribution.attempt += 1
        self.messages, sends = {}, []
        for session, names in sums.items():
            member = self.members.of[session]
            self.messages[session] = Reduce(
                session,
                self.number,
                self.distribution.attempt,
                plan,
                tuple(name.number for name in names),
                tuple(choice.sums[name] for name in names),
            )
            member.attempt, member.sent_at = self.distribution.attempt, now
            sends.append(Send(member.name, self.messages[session]))
        return sends

    def resend(self, member: Member, now: float) -> list[Send]:
        """Repeat the instruction of a member."""
        member.sent_at = now
        return [Send(member.name, self.messages[member.session])]

    def is_current(self, member: Member, attempt: int) -> bool:
        """True if this attempt is the newest and includes the worker."""
        told = self.messages.get(member.session)
        return told is not None and told.attempt == attempt

    @property
    def contributors(self) -> dict[int, Member]:
        """Member whose sum contains each portion of the newest reduction."""
        return {
            portion: self.members.of[session]
            for session, reduce in self.messages.items()
            for portions in reduce.portions
            for portion in portions
        }
