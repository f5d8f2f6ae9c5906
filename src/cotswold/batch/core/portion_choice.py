"""Choice of a worker's next portion: one that failed elsewhere, a free one, or a backup copy. Choice of the
portions that an evaluation leaves out after its deadline.

Knows: the ledger, the queues, failures, speeds. Does not know: messages.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from cotswold.batch.core.portion_failures import PortionFailures
from cotswold.batch.core.portion_ledger import Claim, PortionLedger
from cotswold.batch.core.portion_queues import PortionQueues
from cotswold.batch.core.settings import EvaluationSettings
from cotswold.shards.core.membership import Member, Members

_ISOLATED_AFTER = 4
"""A worker that can compute at most this many portions in the remaining time makes each a separate sum."""
_DOUBTFUL_BEATS = 4
"""A worker that missed this many heartbeats may be suspended, and its results lost."""
_STRAGGLER_FACTOR = 1.5
"""A portion that takes this multiple of its usual time may never arrive."""


@dataclass(frozen=True)
class Assignment:
    """A portion for a worker."""

    portion: int
    is_isolated: bool
    """True if it must be a separate sum."""
    is_backup: bool


@dataclass
class Scheduler:
    """Scheduler of one evaluation."""

    rules: EvaluationSettings
    members: Members
    ledger: PortionLedger
    queues: PortionQueues
    failures: PortionFailures

    def can_take(self, member: Member) -> bool:
        """True if a worker has capacity for a portion."""
        if not member.is_ready or member.is_leaving:
            return False
        hand = self.ledger.claims_of(member.session) if self.rules.pushes else self._unfinished(member)
        unfinished = sum(claim.number is None for claim in hand)
        room = self.rules.prefetch + 1
        if member.seconds is not None:
            room = max(room, int(self.rules.queue_seconds / member.seconds))
        unsettled = sum(claim.number is not None and claim.is_isolated for claim in hand)
        return unfinished < room and (not self.rules.pushes or unsettled < self.rules.open_sums)

    def choose(self, member: Member, now: float) -> Assignment | None:
        """Choose a portion for a worker with capacity; None if there is none."""
        session = member.session
        failed = self._failed(member, now)
        if failed is not None:
            return Assignment(failed, is_isolated=True, is_backup=False)
        if self._has_suspect(member):
            return None  # if it dies, no other portion must become a suspect
        left = self.queues.queued / max(self.members.rate, 1e-9)
        own = self.members.seconds(session)
        unfinished = len(self._unfinished(member))
        if unfinished and (unfinished + 1) * own > left + self.members.least_seconds:
            return None  # others would finish it before this worker started
        apart = member.is_flushed or left < _ISOLATED_AFTER * own
        free = self.queues.next(
            session,
            self.members.seconds,
            lambda each: (
                self.ledger.is_free(each)
                and self.failures.may_try(each, session)
                and not self.failures.is_suspect(each)
            ),
        )
        if free is not None:
            return Assignment(free, apart, is_backup=False)
        copied = self._backup(member, now)
        return None if copied is None else Assignment(copied, is_isolated=True, is_backup=True)

    def unprocessable(self, sessions: Collection[int]) -> int | None:
        """Return a portion that none of these sessions may try, if nothing else is left to do."""
        waiting = [portion for portion in sorted(self.ledger.open) if not self.ledger.is_summed(portion)]
        for portion in waiting:
            if self.ledger.claims(portion) or not self.failures.is_unprocessable(portion, sessions):
                return None
        return waiting[0] if waiting else None

    @property
    def is_exhausted(self) -> bool:
        """True if only failed portions are free."""
        return self.queues.queued == 0

    def _unfinished(self, member: Member) -> list[Claim]:
        return [claim for claim in self.ledger.claims_of(member.session) if claim.number is None]

    def _failed(self, member: Member, now: float) -> int | None:
        """Return a portion that failed elsewhere. A suspect goes only to an idle worker, and only while no
        other suspect is tried."""
        is_tried = bool(self._unfinished(member)) or any(
            self._has_suspect(other) for other in self.members if not self.is_suspected(other, now)
        )
        for portion in self.failures.portions:
            if not self.ledger.is_free(portion) or not self.failures.may_try(portion, member.session):
                continue
            if not is_tried or not self.failures.is_suspect(portion):
                return portion
        return None

    def is_risky(self, member: Member, choice: Assignment) -> bool:
        """True if the portion may kill the worker and lose its unpushed sums."""
        return self.failures.is_suspect(choice.portion) and bool(self.ledger.claims_of(member.session))

    def _has_suspect(self, member: Member) -> bool:
        return any(self.failures.is_suspect(claim.portion) for claim in self._unfinished(member))

    def _backup(self, member: Member, now: float) -> int | None:
        """Return the portion that others will finish last, and later than this worker could."""
        if self.rules.backup_tasks == 0:
            return None
        own = self.members.seconds(member.session)
        latest = (len(self._unfinished(member)) + 0.5) * own
        found: int | None = None
        mean = self.members.mean_seconds
        for other in self.members:
            if other is member:
                continue
            for claim, seconds in self._expected(other, now, mean):
                if seconds > latest and self._may_copy(claim, member, now):
                    latest, found = seconds, claim.portion
        return found

    def _expected(self, member: Member, now: float, mean: float) -> list[tuple[Claim, float]]:
        """Return the claims of a worker, with the seconds until each is computed."""
        hand = self.ledger.claims_of(member.session)
        if not hand:
            return []
        if self.is_suspected(member, now):
            return [(claim, inf) for claim in hand]
        elapsed, seconds = now - member.progress, member.seconds or mean
        unfinished = [each for each in hand if each.number is None]
        late = elapsed > _STRAGGLER_FACTOR * seconds * (
            (len(unfinished) + 1) // 2
        )  # it reports half of them at once
        return [
            (claim, inf if late else (place + 1) * seconds - elapsed)
            for place, claim in enumerate(unfinished)
        ]

    def _may_copy(self, claim: Claim, member: Member, now: float) -> bool:
        claims = self.ledger.claims(claim.portion)
        if any(each.session == member.session for each in claims):
            return False
        if not self.failures.may_try(claim.portion, member.session):
            return False
        trusted = [each for each in claims if not self.is_suspected(self.members.of[each.session], now)]
        if self.failures.is_suspect(claim.portion) and (trusted or self._unfinished(member)):
            return False
        if any(each.number is not None for each in trusted):
            return False  # a responsive worker has computed it
        return len(trusted) <= self.rules.backup_tasks

    def is_suspected(self, member: Member, now: float) -> bool:
        """True if a worker may be suspended and its results lost."""
        return now - member.last_heartbeat > _DOUBTFUL_BEATS * self.rules.beat_seconds


def portions_to_leave_out(
    ledger: PortionLedger, members: Members, rules: EvaluationSettings, seconds: float
) -> list[int]:
    """Return the portions to leave out after the deadline: not computed, and not part of a worker's sum.
    Empty before it."""
    if rules.deadline_factor is None or not any(member.seconds for member in members):
        return []
    usual = len(ledger.portions) / max(members.rate, 1e-9)
    if seconds < rules.deadline_factor * usual or ledger.computed < rules.least * len(ledger.portions):
        return []
    # wait for portions that a worker may be adding to a sum with others: the whole sum would be refused
    return [
        portion
        for portion in sorted(ledger.open)
        if not ledger.is_summed(portion) and all(claim.is_isolated for claim in ledger.claims(portion))
    ]
