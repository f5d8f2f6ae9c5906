"""A worker: its next task, its sums, its messages; message in, messages out.

Knows: states, attempts, the task in progress. Does not know: sums and their acknowledgements
(`batch.core.partial_sums`), the computation of a portion, sockets, clocks.

The caller takes a `task`, executes it, and reports the result by `fetched`, `computed`, `computed_not`,
`reduced` or `on_disconnect`. Meanwhile it passes messages to `receive` and calls `tick`, which sends
heartbeats.

    state      event                            next
    OUTSIDE    Welcome                          IDLE
    IDLE       StartEvaluation                  FETCHING
    FETCHING   fetched                          READY
    READY      Grants, FlushSums, Reduce, ...   READY
    any        a higher attempt                 FETCHING    (everything older is dropped)
    any        EndEvaluation of this one        IDLE
    any        SessionExpired                   OUTSIDE
    any        Shutdown                         GONE
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from typing import Generic

from cotswold.batch.core.partial_sums import PartialSums, SumArithmetic, Values
from cotswold.wire import (
    COORDINATOR,
    EndEvaluation,
    FlushSums,
    Grant,
    Grants,
    IsolatePortion,
    Join,
    Leave,
    PortionResult,
    PushAck,
    PushRejected,
    Reduce,
    ResultsAck,
    Send,
    SessionExpired,
    Shutdown,
    StartEvaluation,
    SumOutcome,
    ToWorker,
    Welcome,
    WorkerHeartbeat,
)


@dataclass(frozen=True)
class FetchTask:
    """Get the point: the fetches in order, then the commands."""

    begin: StartEvaluation


@dataclass(frozen=True)
class PortionTask(Generic[Values]):
    """Compute a portion and add its gradient to ``total`` (None without a gradient)."""

    grant: Grant
    total: Values | None


@dataclass(frozen=True)
class ReduceTask(Generic[Values]):
    """Reduce ``values`` by the plan; the first member's result becomes a new sum."""

    reduce: Reduce
    values: Values


Task = FetchTask | PortionTask[Values] | ReduceTask[Values]


class WorkerState(Enum):
    """State of a worker."""

    OUTSIDE = "outside"
    IDLE = "idle"
    FETCHING = "fetching"
    READY = "ready"
    GONE = "gone"


class BatchWorker(Generic[Values]):
    """One worker process, from its first `Join` to its end."""

    def __init__(self, name: str, address: str, samples: int, size: int, sums: SumArithmetic[Values]) -> None:
        self.name, self.state = name, WorkerState.OUTSIDE
        self.welcome: Welcome | None = None
        self._sums = sums
        self._join = Join(name, 0, address, samples, size)
        self._joined: float | None = None
        self._newest = (0, 0)
        """(evaluation, attempt) of the newest `StartEvaluation`."""
        self._numbers = count(1)
        """Numbers for the session's sums."""
        self._evaluation: PartialSums[Values] | None = None
        self._busy: tuple[PartialSums[Values], FetchTask | PortionTask[Values]] | None = None
        self._reduction: tuple[PartialSums[Values], ReduceTask[Values]] | None = None
        self._leave_reason: str | None = None
        self._beaten = 0.0

    @property
    def session(self) -> int:
        """Number of its session; 0 without one."""
        return 0 if self.welcome is None else self.welcome.session

    # --- received messages ---

    def receive(self, sender: str, message: ToWorker, now: float) -> list[Send]:
        """Handle a message of the coordinator or of a server."""
        if isinstance(message, Welcome):
            return self._welcomed(message, now)
        if self.welcome is None or message.session != self.session or self.state is WorkerState.GONE:
            return [] if not isinstance(message, Shutdown) or self.welcome else self._exit()
        match message:
            case StartEvaluation():
                return self._begin(message)
            case SessionExpired():
                return self._outside(now)
            case Shutdown():
                return self._exit()
            case (
                PushAck()
                | PushRejected()
                | SumOutcome()
                | EndEvaluation()
                | Grants()
                | IsolatePortion()
                | FlushSums()
                | ResultsAck()
                | Reduce()
            ):
                evaluation = self._evaluation
                if evaluation is None or message.evaluation != evaluation.begin.evaluation:
                    return []
                return self._on_portions(evaluation, message, now)
            case _:
                return []  # pulled shards and validations are handled by the caller

    def _on_portions(
        self,
        evaluation: PartialSums[Values],
        message: PushAck
        | PushRejected
        | SumOutcome
        | EndEvaluation
        | Grants
        | IsolatePortion
        | FlushSums
        | ResultsAck
        | Reduce,
        now: float,
    ) -> list[Send]:
        match message:
            case PushAck():
                return evaluation.on_ack(message, now)
            case PushRejected():
                return evaluation.on_rejected(message)
            case SumOutcome():
                evaluation.sums.pop(message.number, None)
                if evaluation.open == message.number:
                    evaluation.open = None
            case EndEvaluation():
                self._evaluation, self.state = None, WorkerState.IDLE
            case Grants():
                return self._granted(evaluation, message)
            case IsolatePortion() if message.grant in evaluation.grants:
                evaluation.isolated.add(message.grant)
            case FlushSums():
                evaluation.is_flushed = evaluation.is_flushed or message.lasts
                return evaluation.flush_all(now)
            case ResultsAck():
                evaluation.acknowledged.update(message.grants)
            case Reduce() if message.attempt > evaluation.attempt:
                return evaluation.start_reduction(message)
            case _:
                pass
        return []

    def tick(self, now: float) -> list[Send]:
        """Advance the time; call it a few times per heartbeat interval, also while a portion is computed."""
        if self.state is WorkerState.GONE:
            return []
        if self.welcome is None:
            if self._joined is not None and now - self._joined < 1.0:
                return []
            self._joined = now
            return [Send(COORDINATOR, self._join)]
        if now - self._beaten < self.welcome.beat_seconds:
            return []
        self._beaten = now
        evaluation = self._evaluation
        idle = WorkerHeartbeat(self.session, *self._newest, False, False, (), (), ())
        sends = [Send(COORDINATOR, idle if evaluation is None else evaluation.beat())]
        if self._leave_reason is not None:
            sends.append(Send(COORDINATOR, Leave(self.session, self._leave_reason)))
        return sends if evaluation is None else sends + evaluation.resend(now)

    def leave(self, reason: str) -> list[Send]:
        """Ask to leave; the worker is GONE once its results are settled."""
        self._leave_reason = reason
        return [Send(COORDINATOR, Leave(self.session, reason))] if self.welcome is not None else self._exit()

    # --- tasks ---

    def task(self) -> Task[Values] | None:
        """Return the next task; None if there is none, or while one is executed."""
        evaluation = self._evaluation
        if evaluation is None or self._busy is not None or self._reduction is not None:
            return None
        reduction = self.reduction()
        if reduction is not None:
            return reduction
        task = self._next(evaluation)
        if task is not None:
            self._busy = (evaluation, task)
        return task

    def reduction(self) -> ReduceTask[Values] | None:
        """Return a reduction that can run alongside the current portion; None if there is none."""
        evaluation = self._evaluation
        if evaluation is None or self._reduction is not None:
            return None
        reduce = evaluation.reduce
        if reduce is not None and evaluation.is_computing(reduce):
            return None
        evaluation.reduce = None
        # one that waited for the previous exchange may be cancelled by now, and its sums settled
        if reduce is None or any(number not in evaluation.sums for number in reduce.numbers):
            return None
        task = ReduceTask(reduce, evaluation.total_of(reduce))
        self._reduction = (evaluation, task)
        return task

    @property
    def is_outdated(self) -> bool:
        """True if the current fetch or portion is no longer needed; a broadcast should be aborted."""
        return self._busy is not None and self._busy[0] is not self._evaluation

    @property
    def is_reduction_outdated(self) -> bool:
        """True if the current reduction is no longer needed and should be aborted."""
        if self._reduction is None:
            return False
        evaluation, task = self._reduction
        return evaluation is not self._evaluation or task.reduce.attempt != evaluation.attempt

    def fetched(self, digests: tuple[int, ...], now: float) -> list[Send]:
        """Record that the worker has the point of the task."""
        evaluation, _ = self._take_finished()
        if evaluation is None:
            return []
        self.state, evaluation.is_ready = WorkerState.READY, True
        evaluation.digests, evaluation.ready_sent_at = digests, now
        return [Send(COORDINATOR, evaluation.point_ready())]

    def on_disconnect(self, peer: str, now: float) -> list[Send]:
        """Record an aborted broadcast or reduction; ``peer`` names the unreachable member, if known."""
        if self._reduction is None:
            evaluation, task = self._take_finished()
            assert isinstance(task, FetchTask), "no broadcast or reduction was in progress"
            attempt = task.begin.attempt
        else:
            (before, reduction), self._reduction = self._reduction, None
            evaluation = before if before is self._evaluation else None
            attempt = reduction.reduce.attempt
        if evaluation is None or attempt != evaluation.attempt:
            return []
        return evaluation.abort(peer)

    def computed(self, result: PortionResult, now: float) -> list[Send]:
        """Record that the portion of the task is in its sum."""
        evaluation, task = self._take_finished()
        if evaluation is None:
            return []
        assert isinstance(task, PortionTask), "no portion was in progress"
        return evaluation.add(task.grant, result, now)

    def computed_not(self, error: str, now: float) -> list[Send]:
        """Record that the portion of the task cannot be computed; its whole sum is lost."""
        evaluation, task = self._take_finished()
        if evaluation is None:
            return []
        assert isinstance(task, PortionTask), "no portion was in progress"
        return evaluation.computed_not(task.grant, error)

    def reduced(self, result: Values | None, now: float) -> list[Send]:
        """Record the end of the task's reduction; the first member has the result, others None."""
        assert self._reduction is not None, "no reduction was in progress"
        (evaluation, task), self._reduction = self._reduction, None
        if evaluation is not self._evaluation:
            return []
        is_first = task.reduce.plan.members[0] == self.name
        assert is_first is (result is not None), "only the first member has a result"
        if result is None or task.reduce.attempt != evaluation.attempt:
            return []
        sum = evaluation.new(result)
        sum.attempt = task.reduce.attempt
        return evaluation.flush(sum, now)

    # --- sessions and evaluations ---

    def _welcomed(self, welcome: Welcome, now: float) -> list[Send]:
        if self.welcome is not None or (welcome.name, welcome.attempt) != (self.name, self._join.attempt):
            return []
        self.welcome, self.state, self._numbers, self._newest = welcome, WorkerState.IDLE, count(1), (0, 0)
        self._beaten = now
        return []

    def _outside(self, now: float) -> list[Send]:
        self._evaluation, self.welcome = None, None
        if self._leave_reason is not None:
            return self._exit()
        self.state, self._joined = WorkerState.OUTSIDE, now
        self._join = replace(self._join, attempt=self._join.attempt + 1)
        return [Send(COORDINATOR, self._join)]

    def _exit(self) -> list[Send]:
        self._evaluation, self.state = None, WorkerState.GONE
        return []

    def _begin(self, begin: StartEvaluation) -> list[Send]:
        if (begin.evaluation, begin.attempt) <= self._newest:
            return []
        self._newest = (begin.evaluation, begin.attempt)
        assert self.welcome is not None, "the worker has no session"
        self._evaluation = PartialSums(self.welcome, self._sums, self._numbers, begin, begin.attempt)
        self.state = WorkerState.FETCHING
        return []

    # --- portions ---

    def _granted(self, evaluation: PartialSums[Values], grants: Grants) -> list[Send]:
        sends = []
        for grant in grants.grants:
            if self.state is WorkerState.READY and grant.number not in evaluation.received:
                evaluation.received.add(grant.number)
                evaluation.grants[grant.number] = grant
            elif (failed := evaluation.failed.get(grant.number)) is not None:
                sends.append(Send(COORDINATOR, failed))
        return sends

    def _next(self, evaluation: PartialSums[Values]) -> FetchTask | PortionTask[Values] | None:
        if self.state is WorkerState.FETCHING:
            return FetchTask(evaluation.begin) if evaluation.aborted is None else None
        if not evaluation.grants:
            return None
        grant = next(iter(evaluation.grants.values()))
        evaluation.computing = evaluation.sum_for(grant)
        return PortionTask(grant, evaluation.computing.values)

    # --- end of a task ---

    def _take_finished(self) -> tuple[PartialSums[Values] | None, FetchTask | PortionTask[Values]]:
        """Return the finished task, and its evaluation unless that is over."""
        assert self._busy is not None, "no task was in progress"
        (evaluation, task), self._busy = self._busy, None
        return (evaluation if evaluation is self._evaluation else None), task
