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
    CLOSING     the servers have closed it                            OVER

A grant names one portion. The portion becomes a separate sum (*apart*) if another worker has it too, or if
its worker is slow for the remaining time; so no other portion depends on it. When no portion is free, the
portions that will finish last are granted a second time, as backup tasks. The first sum that all servers hold
counts; a sum that names a counted portion is refused whole. If sums stay with the workers, the coordinator
chooses disjoint sums at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.batch.core.chunk_ledger import Claim
from cotswold.batch.core.evaluation_state import NEXT, EvaluationState
from cotswold.batch.core.portion_granter import PortionGranter
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


class Evaluation(PortionGranter):
    """One evaluation on the coordinator."""

    @property
    def reduces(self) -> bool:
        """True if sums stay with the workers until the end."""
        return not self.rules.pushes and self.request.gradient is not None

    # --- events ---

    def begin(self, now: float) -> list[Send]:
        """Start all workers, while the servers open the evaluation."""
        return self.beginning.all(now)

    def opened(self, digests: tuple[int, ...], now: float) -> list[Send]:
        """Handle the servers' report that the evaluation is open."""
        self._move(EvaluationState.COMPUTING)
        return self.beginning.opened(digests, now) + self.advance(now)

    def joined(self, member: Member, now: float) -> list[Send]:
        """Include a worker that joined during the evaluation."""
        member.entered()
        return (
            [self.beginning.one(member, now)]
            if self.state not in (EvaluationState.CLOSING, EvaluationState.OVER)
            else []
        )

    def ready(self, member: Member, ready: PointReady, now: float) -> list[Send]:
        """Handle a worker's report that it has the point."""
        return self.beginning.ready(member, ready, now) + self.advance(now, member)

    def computed(self, member: Member, held: Sequence[ComputedPortion], now: float) -> list[Send]:
        """Record portions that are in a worker's sums."""
        sends: list[Send] = []
        for each in held:
            claim = self.ledger.claim_of(member.session, each.grant)
            if claim is None or claim.number == each.number:
                continue
            mistake = self.counting.mistake(each.result, claim.portion)
            if mistake is None:
                self._heard(member, claim, each.result, each.number, now)
            else:
                sends += self.failed(member, each.grant, mistake, now)
        return sends + self.advance(now, member)

    def _heard(self, member: Member, claim: Claim, result: PortionResult, number: int, now: float) -> None:
        if claim.number is None:
            member.timed(result.seconds)
            member.progress = now
            self.granting.failures.computed(claim.portion)
        self.ledger.compute(member.session, claim.grant, number)
        self.counting.results[member.session, claim.portion] = result

    def failed(self, member: Member, grant: int, error: str, now: float) -> list[Send]:
        """Record that a worker cannot compute a portion."""
        claim = self.ledger.claim_of(member.session, grant)
        if claim is None:
            return []
        self.ledger.release(member.session, grant)
        self.granting.failures.failed(claim.portion, member.session, error)
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
        for claim in self.ledger.hand(member.session):
            if claim.portion in results:
                self._heard(member, claim, results[claim.portion], name.number, now)
        sends: list[Send] = []
        feeds: Member | None = member
        if not self.counting.is_settled(name):
            mistake = self.counting.mistake_of_sum(pushed.results)
            if mistake is None and self.ledger.offer(name, tuple(results)):
                sends += self._count(name, results)
            else:
                self._refuse(member, name, tuple(results), mistake)
                feeds = None
        settled = SumOutcome(member.session, self.number, pushed.number, accepted=name in self.counting.sums)
        return [*sends, Send(member.name, settled), *self.advance(now, feeds)]

    def aborted(self, member: Member, aborted: Aborted, now: float) -> list[Send]:
        """Handle an aborted broadcast or reduction of a worker."""
        if self._is_reducing(member, aborted.attempt):
            self.events.append(
                Event("aborted", member.name, f"{aborted.lost or 'its sums'} broke the reduction")
            )
            # a lost peer may send a heartbeat soon; the contents of the sums were reported just now
            self.reductions.after = now + self.rules.beat_seconds if aborted.lost else now
            self._move(EvaluationState.DRAINING)
        elif not member.is_ready and aborted.attempt == member.attempt:
            self.events.append(Event("aborted", member.name, f"{aborted.lost or 'it'} broke the broadcast"))
            return [*self.beginning.broken(now), self.beginning.one(member, now)]
        return self.advance(now)

    def lost(self, member: Member, why: str | None, now: float) -> list[Send]:
        """End a session; ``why`` its process exited, None for a silent one."""
        hand = self.ledger.hand(member.session)
        if why is not None:
            unfinished = [claim.portion for claim in hand if claim.number is None]
            self.granting.failures.died(member.session, unfinished, why)
        freed = self.ledger.lose(member.session)
        self.counting.lost += len(freed)
        queues = self.granting.queues
        queues.give_back(freed)
        queues.end(member.session)
        sends = self.beginning.broken(now) if self.beginning.is_awaited(member.name) else []
        if self.request.gradient is not None and self.state is not EvaluationState.OPENING:
            sends += self._to_servers(AcceptSums(self.number, len(self.ledger.log), (), (member.session,)))
        if self.state is EvaluationState.REDUCING and member.session in self.reductions.told:
            self.reductions.after = now
            self._move(EvaluationState.DRAINING)
        return sends + self.advance(now)

    def retry(self, now: float) -> list[Send]:
        """Let all workers try failed portions again."""
        self.granting.failures.forget()
        self.granting.queues.clear()
        self.granting.queues.give_back(
            [each for each in sorted(self.ledger.open) if self.ledger.is_free(each)]
        )
        return self.advance(now)

    def leaving(self, member: Member, now: float) -> list[Send]:
        """Let a worker leave: others take its share, and it pushes its sums."""
        self.granting.queues.end(member.session)
        return self.advance(now)

    def may_go(self, member: Member) -> bool:
        """True if a leaving worker has no unsettled results."""
        return self.state in (EvaluationState.CLOSING, EvaluationState.OVER) or not self.ledger.hand(
            member.session
        )

    def beat(self, member: Member, beat: WorkerHeartbeat, now: float) -> list[Send]:
        """Compare a worker's heartbeat with its expected state: repeat what it has not received, acknowledge
        what it reports."""
        if self.state in (EvaluationState.CLOSING, EvaluationState.OVER):
            return []
        is_late = now - member.told > self.rules.retry_seconds
        if beat.evaluation != self.number or (not member.is_ready and beat.attempt < member.attempt):
            return self.beginning.again(member, now) if is_late else []
        sends: list[Send] = []
        if self._is_reducing(member, member.attempt) and beat.attempt < member.attempt and is_late:
            sends += self.reductions.again(member, now)
        if beat.held:
            sends += self.computed(member, beat.held, now)
            heard = ResultsAck(member.session, self.number, tuple(held.grant for held in beat.held))
            sends.append(Send(member.name, heard))
        has = {*beat.granted, *(held.grant for held in beat.held)}
        has.update(grant for first, last in beat.heard for grant in range(first, last + 1))
        missing = [
            claim
            for claim in self.ledger.hand(member.session)
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
            if not self.granting.is_doubtful(member, now):
                continue
            if self.beginning.is_awaited(member.name):
                sends += self.beginning.broken(now)
            if self.state is EvaluationState.REDUCING and member.session in self.reductions.told:
                self._move(EvaluationState.DRAINING)
        return sends + self.advance(now)

    # --- consequences ---

    def advance(self, now: float, member: Member | None = None) -> list[Send]:
        """Do everything that is due. If only ``member`` can have capacity for portions, grant only to it."""
        if self.state in (EvaluationState.OPENING, EvaluationState.CLOSING, EvaluationState.OVER):
            return []
        self._leave_out(now)
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
        if self.state is EvaluationState.DRAINING and self.reduces and now >= self.reductions.after:
            sends = self._reduce(now)
        return sends + self._feed(now, member) + self._flush()

    # --- counting ---

    def _count(self, name: SumName, results: Mapping[int, PortionResult]) -> list[Send]:
        """Count an accepted sum."""
        self.counting.count(name, results, dict.fromkeys(results, self.members.of[name.session]))
        for portion in results:
            self.homes.of[portion] = name.session
        if self.request.gradient is None:
            return []
        assert self.ledger.log[-1] == name, "the sum is not the newest of the log"
        return self._to_servers(AcceptSums(self.number, len(self.ledger.log) - 1, (name,), ()))

    def _refuse(self, member: Member, name: SumName, portions: Sequence[int], mistake: str | None) -> None:
        """Refuse a sum, and grant those of its portions again that do not count."""
        self.counting.refused.add(name)
        self.events.append(
            Event("portions_refused", member.name, mistake or "its portions already count", tuple(portions))
        )
        for claim in self.ledger.hand(member.session):
            if claim.portion in portions and claim.number == name.number:
                self.ledger.release(claim.session, claim.grant)
                if mistake is not None:
                    self.granting.failures.failed(claim.portion, member.session, mistake)
        self.granting.queues.give_back([each for each in portions if self.ledger.is_free(each)])

    def _to_servers(self, accept: AcceptSums) -> list[Send]:
        return [Send(name, accept) for name in self.servers]

    # --- reducing ---

    def _reduce(self, now: float) -> list[Send]:
        """Start the reduction of the workers' sums, unless they overlap."""
        choice = self.reductions.choose(now)
        if choice is None:
            return []
        if choice.missing:
            self.granting.queues.give_back(choice.missing)
            self._move(EvaluationState.COMPUTING)
            return []
        sends = self.reductions.start(choice, now)
        self.counting.reductions += 1
        self.events.append(Event("reduction", sends[0].to, f"{len(sends)} workers"))
        self._move(EvaluationState.REDUCING)
        return sends

    def _reduced(self, member: Member, pushed: SumPushed, now: float) -> list[Send]:
        """Count the sum of a reduction that all servers hold."""
        name = SumName(member.session, pushed.number)
        if name in self.counting.sums:
            return [Send(member.name, SumOutcome(member.session, self.number, pushed.number, accepted=True))]
        if not self._is_reducing(member, pushed.attempt):
            return []
        who = self.reductions.who
        accepted = self.ledger.offer(name, tuple(sorted(who)))
        assert accepted, f"reduction {pushed.attempt} has portions that already count"
        results = {portion: self.counting.results[by.session, portion] for portion, by in sorted(who.items())}
        self.counting.count(name, results, who)
        self.homes.of.update({portion: by.session for portion, by in who.items()})
        sends = self._to_servers(AcceptSums(self.number, len(self.ledger.log) - 1, (name,), ()))
        settled = [
            (session, number) for session, each in self.reductions.told.items() for number in each.numbers
        ]
        for session, number in [*settled, (member.session, pushed.number)]:
            message = SumOutcome(session, self.number, number, accepted=True)
            sends.append(Send(self.members.of[session].name, message))
        return sends + self.advance(now)

    def _is_reducing(self, member: Member, attempt: int) -> bool:
        return self.state is EvaluationState.REDUCING and self.reductions.is_told(member, attempt)

    # --- the end ---

    @property
    def close(self) -> Close:
        """The message with which the servers close the evaluation."""
        assert self.state is EvaluationState.CLOSING, "the evaluation is not complete"
        log = tuple(self.ledger.log) if self.request.gradient is not None else ()
        return Close(self.number, log, 1 / self.counting.samples, self.request.gradient)

    def closed(self, dots: tuple[float, ...], now: float) -> EvaluationResult:
        """Return the result after the servers have closed the evaluation."""
        self._move(EvaluationState.OVER)
        counted = self.counting.outcome(self.number, dots, now)
        left = set(self.ledger.portions) - set(counted.account.left_out)
        assert set(counted.portions) == left, "counted portions differ from the wanted ones"
        return counted

    @property
    def poisoned(self) -> Failure | None:
        """The failure of a portion that no worker can compute, once everything else is done; None
        otherwise."""
        sessions = [member.session for member in self.members if member.is_ready]
        portion = self.granting.poisoned(sessions) if self.state is EvaluationState.COMPUTING else None
        if portion is None:
            return None
        why = self.granting.failures.sentence(portion)
        return Failure("poisoned", f"{why}; all other results are kept", portion)

    def _move(self, state: EvaluationState) -> None:
        assert state in NEXT[self.state], f"an evaluation cannot change from {self.state} to {state}"
        self.state = state
