"""Which portion a worker is given: one that failed elsewhere, one that is free, or a backup copy.

Knows: the ledger, the queues, failures, speeds. Does not know: messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from cotswold.server.failures import Failures
from cotswold.server.members import Member, Members
from cotswold.server.portions import Claim, Ledger
from cotswold.server.queues import Queues
from cotswold.server.rules import Rules

_ALONE = 4
"""A worker that could compute only as many portions in the time that is left sums each by itself."""
_DOUBTFUL_BEATS = 4
"""A worker that was not heard for as many beats may be stopped: what it has computed may be lost, too."""
_LATE = 1.5
"""A portion that takes as many times its usual seconds may never come."""


@dataclass(frozen=True)
class Choice:
    """A portion for a worker."""

    portion: int
    apart: bool
    """Whether it is to be a sum of its own."""
    is_backup: bool


@dataclass
class Granting:
    """Of one evaluation."""

    rules: Rules
    members: Members
    ledger: Ledger
    queues: Queues
    failures: Failures
    gives: bool = True
    """Whether free portions are still given; not after a deadline."""

    def may_take(self, member: Member) -> bool:
        """Whether a worker has room for a portion."""
        if not member.is_ready or member.is_leaving:
            return False
        hand = self.ledger.hand(member.session) if self.rules.pushes else self._unfinished(member)
        unfinished = sum(claim.number is None for claim in hand)
        unsettled = sum(claim.number is not None and claim.apart for claim in hand)
        return unfinished <= self.rules.prefetch and (
            not self.rules.pushes or unsettled < self.rules.unsettled
        )

    def choose(self, member: Member, now: float) -> Choice | None:
        """What a worker with room for it gets."""
        session = member.session
        for portion in self.failures.portions:
            if self.ledger.is_free(portion) and self.failures.may_try(portion, session):
                return Choice(portion, apart=True, is_backup=False)
        if not self.gives:
            return None
        apart = member.is_flushed or self._ends_soon(member)
        free = self.queues.next(
            session,
            self.members.seconds,
            lambda each: self.ledger.is_free(each) and self.failures.may_try(each, session),
        )
        if free is not None:
            return Choice(free, apart, is_backup=False)
        copied = self._backup(member, now)
        return None if copied is None else Choice(copied, apart=True, is_backup=True)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is free, but for what failed."""
        return self.queues.waiting == 0

    def _ends_soon(self, member: Member) -> bool:
        left = self.queues.waiting / max(self.members.rate, 1e-9)
        return left < _ALONE * self.members.seconds(member.session)

    def _unfinished(self, member: Member) -> list[Claim]:
        return [claim for claim in self.ledger.hand(member.session) if claim.number is None]

    def _backup(self, member: Member, now: float) -> int | None:
        """What others will finish last, and later than this worker could."""
        own = self.members.seconds(member.session)
        latest = 0.5 * own
        found: int | None = None
        for other in self.members:
            if other is member:
                continue
            for claim, seconds in self._expected(other, now):
                if seconds > latest and self._may_copy(claim, member, now):
                    latest, found = seconds, claim.portion
        return found

    def _expected(self, member: Member, now: float) -> list[tuple[Claim, float]]:
        """What is in a worker's hand, and in how many seconds it will be computed."""
        if self._is_doubtful(member, now):
            return [(claim, inf) for claim in self.ledger.hand(member.session)]
        elapsed, seconds = now - member.progress, self.members.seconds(member.session)
        late = elapsed > _LATE * seconds
        return [
            (claim, inf if late else (place + 1) * seconds - elapsed)
            for place, claim in enumerate(self._unfinished(member))
        ]

    def _may_copy(self, claim: Claim, member: Member, now: float) -> bool:
        claims = self.ledger.claims(claim.portion)
        if any(each.session == member.session for each in claims):
            return False
        if not self.failures.may_try(claim.portion, member.session):
            return False
        trusted = [each for each in claims if not self._is_doubtful(self.members.of[each.session], now)]
        if any(each.number is not None for each in trusted):
            return False  # somebody has computed it, and is well
        return len(trusted) < self.rules.copies and self.rules.copies > 1

    def _is_doubtful(self, member: Member, now: float) -> bool:
        return now - member.heard > _DOUBTFUL_BEATS * self.rules.beat_seconds
