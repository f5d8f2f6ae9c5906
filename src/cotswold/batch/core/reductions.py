"""Reductions of the sums that workers keep: which are added, and who was told what.

Knows: claims, plans, attempts. Does not know: an evaluation's states, what counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from cotswold.batch.core.chunk_ledger import Claim, Ledger
from cotswold.batch.core.point_distribution import Beginning
from cotswold.batch.core.requests import Planner
from cotswold.batch.core.scheduling import Granting
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import Reduce, Send, SumName


@dataclass(frozen=True)
class Chosen:
    """Sums that overlap nowhere."""

    sums: dict[SumName, tuple[int, ...]]
    """With their portions, ascending."""
    missing: tuple[int, ...]
    """Portions that no choice of whole sums had room for: they are to be computed again."""


def chosen(claims: Iterable[Claim], wanted: Collection[int], doubtful: Collection[int] = ()) -> Chosen:
    """Of the computed ones: larger sums first, for a small one that overlaps is no loss.

    Those of sessions that are ``doubtful`` come last: where others have all, nobody waits for them.
    """
    sums: dict[SumName, list[int]] = {}
    for claim in claims:
        assert claim.number is not None, "only what is computed is reduced"
        sums.setdefault(SumName(claim.session, claim.number), []).append(claim.portion)
    found: dict[SumName, tuple[int, ...]] = {}
    covered: set[int] = set()
    for name, portions in sorted(
        sums.items(), key=lambda each: (each[0].session in doubtful, -len(each[1]), each[0])
    ):
        if covered.isdisjoint(portions):
            found[name] = tuple(sorted(portions))
            covered.update(portions)
    return Chosen(dict(sorted(found.items())), tuple(sorted(set(wanted) - covered)))


@dataclass
class Reductions:
    """Of one evaluation."""

    number: int
    members: Members
    ledger: Ledger
    granting: Granting
    beginning: Beginning
    """Counts attempts: those of reductions follow those of beginnings."""
    planner: Planner
    after: float
    """When the next may start."""
    told: dict[int, Reduce] = field(default_factory=dict)
    """What each member of the newest was told, by session."""

    def choose(self, now: float) -> Chosen | None:
        """Which sums are to be added; None while somebody is waited for.

        What is missing then is free to be computed again.
        """
        hands = [(member, self.ledger.hand(member.session)) for member in self.members]
        if any(member.is_flushed and hand for member, hand in hands):
            return None  # it pushes its sums by itself
        claims = [claim for _, hand in hands for claim in hand if claim.number is not None]
        doubtful = [member.session for member in self.members if self.granting.is_doubtful(member, now)]
        choice = chosen(claims, self.ledger.open, doubtful)
        if any(name.session in doubtful for name in choice.sums):
            return None  # it wakes up, or others copy what it has, or it is lost
        for claim in claims:
            if claim.portion in choice.missing:
                self.ledger.release(claim.session, claim.grant)
        return choice

    def start(self, choice: Chosen, now: float) -> list[Send]:
        """Tell all who have a part in it."""
        sums: dict[int, list[SumName]] = {}
        for name in choice.sums:
            sums.setdefault(name.session, []).append(name)
        plan = self.planner([self.members.of[session].name for session in sums])
        self.beginning.attempt += 1
        self.told, sends = {}, []
        for session, names in sums.items():
            member = self.members.of[session]
            self.told[session] = Reduce(
                session,
                self.number,
                self.beginning.attempt,
                plan,
                tuple(name.number for name in names),
                tuple(choice.sums[name] for name in names),
            )
            member.attempt, member.told = self.beginning.attempt, now
            sends.append(Send(member.name, self.told[session]))
        return sends

    def again(self, member: Member, now: float) -> list[Send]:
        """A member has not heard what it was told."""
        member.told = now
        return [Send(member.name, self.told[member.session])]

    def is_told(self, member: Member, attempt: int) -> bool:
        """Whether this attempt is the newest, and the worker is in it."""
        told = self.told.get(member.session)
        return told is not None and told.attempt == attempt

    @property
    def who(self) -> dict[int, Member]:
        """Whose sum each portion of the newest is in."""
        return {
            portion: self.members.of[session]
            for session, reduce in self.told.items()
            for portions in reduce.portions
            for portion in portions
        }
