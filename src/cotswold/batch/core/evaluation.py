"""One evaluation: grant portions, compute and count them, until all wanted portions count.

Knows: the ledger, ready workers, the location of sums. Does not know: sockets, clocks (callers pass the
time), the addition of vectors.

    state       event                                                 next
    OPENING     the servers have opened it                            COMPUTING
    COMPUTING   every portion is in some sum                          DRAINING
    DRAINING    a portion is wanted again: a death, a refusal         COMPUTING
    DRAINING    sums are to be reduced; the plan is sent              REDUCING
    REDUCING    a member is lost, or the reduction was aborted        DRAINING
    any of these but OPENING: all portions count                      CLOSING
    CLOSING     the servers have closed it                            FINISHED

A grant names one portion. The portion becomes a separate sum (*isolated*) if another worker has it too, or if
its worker is slow for the remaining time; so no other portion depends on it. When no portion is free, the
portions that will finish last are granted a second time, as backup tasks. The first sum that all servers hold
counts; a sum that names a counted portion is refused whole. If sums stay with the workers, the coordinator
chooses disjoint sums at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.batch.core.evaluation_state import NEXT, EvaluationState
from cotswold.batch.core.portion_granter import PortionGranter
from cotswold.batch.core.portion_ledger import Claim
from cotswold.batch.core.requests import EvaluationResult, Failure
from cotswold.shards.core.events import Event
from cotswold.shards.core.membership import Member
from cotswold.wire import (
    Aborted,
    AcceptSums,
    Close,
    ComputedPortion,
    EndEvaluation,
    FlushSums,
    PointReady,
    PortionResult,
    ResultsAck,
    Send,
    SumName,
    SumOutcome,
    SumPushed,
    WorkerHeartbeat,
)


class EvaluationRun(PortionGranter):
    """One evaluation on the coordinator."""

    @property
    def reduces(self) -> bool:
        """True if sums stay with the workers until the end."""
        return not self.rules.pushes and self.request.gradient is not None

    # --- events ---

    def begin(self, now: float) -> list[Send]:
        """Start all workers, while the servers open the evaluation."""
        return self.distribution.start_all(now)

    def on_opened(self, digests: tuple[int, ...], now: float) -> list[Send]:
        """Handle the servers' report that the evaluation is open."""
        self._move(EvaluationState.COMPUTING)
        return self.distribution.on_opened(digests, now) + self.advance(now)

    def joined(self, member: Member, now: float) -> list[Send]:
        """Include a worker that joined during the evaluation."""
        member.reset_attempt()
        return (
            [self.distribution.start(member, now)]
            if self.state not in (EvaluationState.CLOSING, EvaluationState.FINISHED)
            else []
        )

    def on_ready(self, member: Member, ready: PointReady, now: float) -> list[Send]:
        """Handle a worker's report that it has the point."""
        return self.distribution.on_ready(member, ready, now) + self.advance(now, member)

    def computed(self, member: Member, portions: Sequence[ComputedPortion], now: float) -> list[Send]:
        """Record portions that are in a worker's sums."""
        sends: list[Send] = []
        for each in portions:
            claim = self.ledger.claim_of(member.session, each.grant)
            if claim is None or claim.number == each.number:
                continue
            mistake = self.accounting.mistake(each.result, claim.portion)
            if mistake is None:
                self._record(member, claim, each.result, each.number, now)
            else:
                sends += self.failed(member, each.grant, mistake, now)
        return sends + self.advance(now, member)

    def _record(self, member: Member, claim: Claim, result: PortionResult, number: int, now: float) -> None:
        if claim.number is None:
            member.timed(result.seconds)
            member.progress = now
            self.scheduler.failures.computed(claim.portion)
        self.ledger.compute(member.session, claim.grant, number)
        self.accounting.results[member.session, claim.portion] = result

    def failed(self, member: Member, grant: int, error: str, now: float) -> list[Send]:
        """Record that a worker cannot compute a portion."""
        claim = self.ledger.claim_of(member.session, grant)
        if claim is None:
            return []
        self.ledger.release(member.session, grant)
        self.scheduler.failures.failed(claim.portion, member.session, error)
        self.events.append(Event("failed", member.name, error, (claim.portion,)))
        return self.advance(now)

    def pushed(self, member: Member, pushed: SumPushed, now: float) -> list[Send]:
        """Count or refuse a sum that all servers hold, as a whole."""
        if pushed.attempt:
            return self._reduced(member, pushed, now)
        if self.state is EvaluationState.REDUCING:
            return []  # all portions are in the reduction; if it is aborted, the worker repeats the message
        name = SumName(member.session, pushed.number)
        results = {result.portion: result for result in pushed.results}
        for claim in self.ledger.claims_of(member.session):
            if claim.portion in results:
                self._record(member, claim, results[claim.portion], name.number, now)
        sends: list[Send] = []
        feeds: Member | None = member
        if not self.accounting.is_decided(name):
            mistake = self.accounting.mistake_of_sum(pushed.results)
            if mistake is None and self.ledger.offer(name, tuple(results)):
                sends += self._count(name, results)
            else:
                self._refuse(member, name, tuple(results), mistake)
                feeds = None
        settled = SumOutcome(
            member.session, self.number, pushed.number, accepted=name in self.accounting.sums
        )
        return [*sends, Send(member.name, settled), *self.advance(now, feeds)]

    def aborted(self, member: Member, aborted: Aborted, now: float) -> list[Send]:
        """Handle an aborted broadcast or reduction of a worker."""
        if self._is_reducing(member, aborted.attempt):
            self.events.append(
                Event("aborted", member.name, f"{aborted.unreachable or 'its sums'} broke the reduction")
            )
            # a lost peer may send a heartbeat soon; the contents of the sums were reported just now
            self.reductions.delay = now + self.rules.beat_seconds if aborted.unreachable else now
            self._move(EvaluationState.DRAINING)
        elif not member.is_ready and aborted.attempt == member.attempt:
            self.events.append(
                Event("aborted", member.name, f"{aborted.unreachable or 'it'} broke the broadcast")
            )
            return [*self.distribution.on_disconnect(now), self.distribution.start(member, now)]
        return self.advance(now)

    def on_lost(self, member: Member, why: str | None, now: float) -> list[Send]:
        """End a session; ``why`` its process exited, None for a silent one."""
        hand = self.ledger.claims_of(member.session)
        if why is not None:
            unfinished = [claim.portion for claim in hand if claim.number is None]
            self.scheduler.failures.record_death(member.session, unfinished, why)
        freed = self.ledger.drop_session(member.session)
        self.accounting.lost += len(freed)
        queues = self.scheduler.queues
        queues.requeue(freed)
        queues.end(member.session)
        sends = self.distribution.on_disconnect(now) if self.distribution.is_awaited(member.name) else []
        if self.request.gradient is not None and self.state is not EvaluationState.OPENING:
            sends += self._accept_messages(
                AcceptSums(self.number, len(self.ledger.log), (), (member.session,))
            )
        if self.state is EvaluationState.REDUCING and member.session in self.reductions.messages:
            self.reductions.delay = now
            self._move(EvaluationState.DRAINING)
        return sends + self.advance(now)

    def retry(self, now: float) -> list[Send]:
        """Let all workers try failed portions again."""
        self.scheduler.failures.forget()
        self.scheduler.queues.clear()
        self.scheduler.queues.requeue(
            [each for each in sorted(self.ledger.open) if self.ledger.is_free(each)]
        )
        return self.advance(now)

    def on_leaving(self, member: Member, now: float) -> list[Send]:
        """Let a worker leave: others take its share, and it pushes its sums."""
        self.scheduler.queues.end(member.session)
        return self.advance(now)

    def may_go(self, member: Member) -> bool:
        """True if a leaving worker has no unsettled results."""
        return self.state in (EvaluationState.CLOSING, EvaluationState.FINISHED) or not self.ledger.claims_of(
            member.session
        )

    def beat(self, member: Member, beat: WorkerHeartbeat, now: float) -> list[Send]:
        """Compare a worker's heartbeat with its expected state: repeat what it has not received, acknowledge
        what it reports."""
        if self.state in (EvaluationState.CLOSING, EvaluationState.FINISHED):
            return []
        is_late = now - member.sent_at > self.rules.retry_seconds
        if beat.evaluation != self.number or (not member.is_ready and beat.attempt < member.attempt):
            return self.distribution.resend(member, now) if is_late else []
        sends: list[Send] = []
        if self._is_reducing(member, member.attempt) and beat.attempt < member.attempt and is_late:
            sends += self.reductions.resend(member, now)
        if beat.computed:
            sends += self.computed(member, beat.computed, now)
            heard = ResultsAck(member.session, self.number, tuple(held.grant for held in beat.computed))
            sends.append(Send(member.name, heard))
        has = {*beat.granted, *(held.grant for held in beat.computed)}
        has.update(grant for first, last in beat.acknowledged for grant in range(first, last + 1))
        missing = [
            claim
            for claim in self.ledger.claims_of(member.session)
            if claim.grant not in has and now - claim.since > self.rules.retry_seconds
        ]
        for claim in missing:
            self.ledger.restart(member.session, claim.grant, now)
        sends += self._grants(member, missing)
        if member.is_flushed and not beat.is_flushed:
            sends.append(Send(member.name, FlushSums(member.session, self.number, lasts=True)))
        return sends + self.advance(now, member)

    def tick(self, now: float) -> list[Send]:
        """Advance the time: stop waiting for workers that may be suspended."""
        sends: list[Send] = []
        for member in self.members:
            if not self.scheduler.is_suspected(member, now):
                continue
            if self.distribution.is_awaited(member.name):
                sends += self.distribution.on_disconnect(now)
            if self.state is EvaluationState.REDUCING and member.session in self.reductions.messages:
                self._move(EvaluationState.DRAINING)
        return sends + self.advance(now)

    # --- consequences ---

    def advance(self, now: float, member: Member | None = None) -> list[Send]:
        """Do everything that is due. If only ``member`` can have capacity for portions, grant only to it."""
        if self.state in (EvaluationState.OPENING, EvaluationState.CLOSING, EvaluationState.FINISHED):
            return []
        self._skip_late(now)
        if self.state is EvaluationState.COMPUTING and self.ledger.is_computed:
            self._move(EvaluationState.DRAINING)
        if self.state is EvaluationState.DRAINING and not self.ledger.is_computed:
            self._move(EvaluationState.COMPUTING)
        if self.ledger.is_complete:
            if self.state is EvaluationState.COMPUTING:
                self._move(EvaluationState.DRAINING)
            self._move(EvaluationState.CLOSING)
            return [Send(each.name, EndEvaluation(each.session, self.number)) for each in self.members]
        sends = []
        if self.state is EvaluationState.DRAINING and self.reduces and now >= self.reductions.delay:
            sends = self._reduce(now)
        return sends + self._grant(now, member) + self._flush()

    # --- counting ---

    def _count(self, name: SumName, results: Mapping[int, PortionResult]) -> list[Send]:
        """Count an accepted sum."""
        self.accounting.count(name, results, dict.fromkeys(results, self.members.of[name.session]))
        for portion in results:
            self.homes.of[portion] = name.session
        if self.request.gradient is None:
            return []
        assert self.ledger.log[-1] == name, "the sum is not the newest of the log"
        return self._accept_messages(AcceptSums(self.number, len(self.ledger.log) - 1, (name,), ()))

    def _refuse(self, member: Member, name: SumName, portions: Sequence[int], mistake: str | None) -> None:
        """Refuse a sum, and grant those of its portions again that do not count."""
        self.accounting.refused_sums.add(name)
        self.events.append(
            Event("portions_refused", member.name, mistake or "its portions already count", tuple(portions))
        )
        for claim in self.ledger.claims_of(member.session):
            if claim.portion in portions and claim.number == name.number:
                self.ledger.release(claim.session, claim.grant)
                if mistake is not None:
                    self.scheduler.failures.failed(claim.portion, member.session, mistake)
        self.scheduler.queues.requeue([each for each in portions if self.ledger.is_free(each)])

    def _accept_messages(self, accept: AcceptSums) -> list[Send]:
        return [Send(name, accept) for name in self.servers]

    # --- reducing ---

    def _reduce(self, now: float) -> list[Send]:
        """Start the reduction of the workers' sums, unless they overlap."""
        choice = self.reductions.choose(now)
        if choice is None:
            return []
        if choice.missing_portions:
            self.scheduler.queues.requeue(choice.missing_portions)
            self._move(EvaluationState.COMPUTING)
            return []
        sends = self.reductions.start(choice, now)
        self.accounting.reductions += 1
        self.events.append(Event("reduction", sends[0].to, f"{len(sends)} workers"))
        self._move(EvaluationState.REDUCING)
        return sends

    def _reduced(self, member: Member, pushed: SumPushed, now: float) -> list[Send]:
        """Count the sum of a reduction that all servers hold."""
        name = SumName(member.session, pushed.number)
        if name in self.accounting.sums:
            return [Send(member.name, SumOutcome(member.session, self.number, pushed.number, accepted=True))]
        if not self._is_reducing(member, pushed.attempt):
            return []
        who = self.reductions.contributors
        accepted = self.ledger.offer(name, tuple(sorted(who)))
        assert accepted, f"reduction {pushed.attempt} has portions that already count"
        results = {
            portion: self.accounting.results[by.session, portion] for portion, by in sorted(who.items())
        }
        self.accounting.count(name, results, who)
        self.homes.of.update({portion: by.session for portion, by in who.items()})
        sends = self._accept_messages(AcceptSums(self.number, len(self.ledger.log) - 1, (name,), ()))
        settled = [
            (session, number) for session, each in self.reductions.messages.items() for number in each.numbers
        ]
        for session, number in [*settled, (member.session, pushed.number)]:
            message = SumOutcome(session, self.number, number, accepted=True)
            sends.append(Send(self.members.of[session].name, message))
        return sends + self.advance(now)

    def _is_reducing(self, member: Member, attempt: int) -> bool:
        return self.state is EvaluationState.REDUCING and self.reductions.is_current(member, attempt)

    # --- the end ---

    @property
    def close(self) -> Close:
        """The message with which the servers close the evaluation."""
        assert self.state is EvaluationState.CLOSING, "the evaluation is not complete"
        log = tuple(self.ledger.log) if self.request.gradient is not None else ()
        return Close(self.number, log, 1 / self.accounting.samples, self.request.gradient)

    def finish(self, dots: tuple[float, ...], now: float) -> EvaluationResult:
        """Return the result after the servers have closed the evaluation."""
        self._move(EvaluationState.FINISHED)
        counted = self.accounting.outcome(self.number, dots, now)
        left = set(self.ledger.portions) - set(counted.account.left_out)
        assert set(counted.portions) == left, "counted portions differ from the wanted ones"
        return counted

    @property
    def unprocessable(self) -> Failure | None:
        """The failure of a portion that no worker can compute, once everything else is done; None
        otherwise."""
        sessions = [member.session for member in self.members if member.is_ready]
        portion = self.scheduler.unprocessable(sessions) if self.state is EvaluationState.COMPUTING else None
        if portion is None:
            return None
        why = self.scheduler.failures.sentence(portion)
        return Failure("poisoned", f"{why}; all other results are kept", portion)

    def _move(self, state: EvaluationState) -> None:
        assert state in NEXT[self.state], f"an evaluation cannot change from {self.state} to {state}"
        self.state = state
