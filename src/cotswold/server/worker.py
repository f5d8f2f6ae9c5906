"""A worker: what it computes next, which sums it keeps, what it says; message in, messages out.

Knows: grants, sums by number, who must have acknowledged what. Does not know: how a portion is computed,
where vectors are and how they are added (`Sums`), sockets, clocks.

Whoever runs it takes `task`, does that, and says how it went by `fetched`, `computed`, `computed_not`,
`reduced` or `broke_off`; meanwhile messages come in by `receive`, and `tick` says the beat.

    state      what happens                     next
    OUTSIDE    Welcome                          IDLE
    IDLE       Begin                            FETCHING
    FETCHING   fetched                          READY
    READY      Grant, Flush, Reduce, ...        READY
    any        Begin of a higher attempt        FETCHING    (everything older is dropped)
    any        End of this evaluation           IDLE
    any        Rejoin                           OUTSIDE
    any        Dismiss                          GONE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

from cotswold.server.messages import (
    COORDINATOR,
    Aborted,
    Apart,
    Beat,
    Begin,
    Computed,
    Dismiss,
    End,
    Failed,
    Flush,
    Grant,
    Heard,
    Held,
    Join,
    Kept,
    Leave,
    Node,
    PortionResult,
    Push,
    Pushed,
    Ready,
    Reduce,
    Refused,
    Rejoin,
    Send,
    Settled,
    ToWorker,
    Welcome,
)
from cotswold.server.tree import parent, sibling

Values = TypeVar("Values")


class Sums(Protocol[Values]):
    """Vectors as long as the parameters."""

    def zeros(self) -> Values:
        """A new sum."""
        ...

    def add(self, left: Values, right: Values) -> Values:
        """The sum, in the memory of ``left``."""
        ...

    def parts(self, values: Values, server: str) -> tuple[tuple[int, ...], tuple[object, ...]]:
        """The numbers of a server's shards, and a buffer for each; the sum does not change any more."""
        ...


@dataclass(frozen=True)
class FetchTask:
    """Get the point: the fetches in their order, then the commands."""

    begin: Begin


@dataclass(frozen=True)
class PortionTask(Generic[Values]):
    """Compute a portion, and add its gradient to ``into`` (None where none is wanted)."""

    grant: Grant
    into: Values | None


@dataclass(frozen=True)
class ReduceTask(Generic[Values]):
    """Reduce ``values`` by the plan; what the first member has then is a sum of its own."""

    reduce: Reduce
    values: Values


Task = FetchTask | PortionTask[Values] | ReduceTask[Values]


class State(Enum):
    """Where a worker is."""

    OUTSIDE = "outside"
    IDLE = "idle"
    FETCHING = "fetching"
    READY = "ready"
    GONE = "gone"


@dataclass
class _Sum(Generic[Values]):
    number: int
    values: Values | None
    """None where no gradient is wanted."""
    node: Node | None = None
    grants: list[int] = field(default_factory=list)
    results: list[PortionResult] = field(default_factory=list)
    is_flushed: bool = False
    attempt: int = 0
    """Of the reduction that made it."""
    unkept: set[str] = field(default_factory=set)
    """Servers that have not acknowledged it."""
    sent: float = 0.0
    began: float = 0.0
    """When its first portion was begun."""


@dataclass
class _Evaluation(Generic[Values]):
    """What belongs to one attempt of a beginning."""

    begin: Begin
    attempt: int
    grants: dict[int, Grant] = field(default_factory=dict)
    """That wait or are being computed."""
    apart: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    failed: dict[int, Failed] = field(default_factory=dict)
    sums: dict[int, _Sum[Values]] = field(default_factory=dict)
    """By number, until they are settled."""
    open: int | None = None
    """The sum that the next portion is added to."""
    is_flushed: bool = False
    digests: tuple[int, ...] = ()
    readied: float = 0.0
    reduce: Reduce | None = None
    """A reduction that is to be done."""
    aborted: Aborted | None = None
    """What broke off, until another attempt comes."""
    heard: set[int] = field(default_factory=set)
    """Grants that the coordinator knows are computed."""
    computing: _Sum[Values] | None = None
    """The sum that a portion is being added to."""


NODES = 16
"""A worker keeps so many sums of nodes that have not met their siblings; then it pushes them."""


class Worker(Generic[Values]):
    """One worker process, from its first `Join` to its end."""

    def __init__(self, name: str, address: str, patterns: int, size: int, sums: Sums[Values]) -> None:
        self.name, self.state = name, State.OUTSIDE
        self.welcome: Welcome | None = None
        self._sums = sums
        self._join = Join(name, 0, address, patterns, size)
        self._joined: float | None = None
        self._newest = (0, 0)
        """Evaluation and attempt of the newest `Begin`."""
        self._numbers = 0
        self._evaluation: _Evaluation[Values] | None = None
        self._busy: tuple[_Evaluation[Values], FetchTask | PortionTask[Values]] | None = None
        self._exchanging: tuple[_Evaluation[Values], ReduceTask[Values]] | None = None
        self._leaving: str | None = None
        self._beaten = 0.0

    @property
    def session(self) -> int:
        """Its session; 0 outside of one."""
        return 0 if self.welcome is None else self.welcome.session

    # --- what it hears ---

    def receive(self, sender: str, message: ToWorker, now: float) -> list[Send]:
        """A message of the coordinator or of a server."""
        if isinstance(message, Welcome):
            return self._welcomed(message, now)
        if self.welcome is None or message.session != self.session or self.state is State.GONE:
            return [] if not isinstance(message, Dismiss) or self.welcome else self._gone()
        match message:
            case Begin():
                return self._begin(message)
            case Rejoin():
                return self._outside(now)
            case Dismiss():
                return self._gone()
            case Kept() | Refused() | Settled() | End() | Grant() | Apart() | Flush() | Heard() | Reduce():
                evaluation = self._evaluation
                if evaluation is None or message.evaluation != evaluation.begin.evaluation:
                    return []
                return self._heard(evaluation, message, now)
            case _:
                return []  # shards that were pulled, and a validation, are the shell's

    def _heard(
        self,
        evaluation: _Evaluation[Values],
        message: Kept | Refused | Settled | End | Grant | Apart | Flush | Heard | Reduce,
        now: float,
    ) -> list[Send]:
        match message:
            case Kept():
                return self._kept(evaluation, message, now)
            case Refused():
                return self._refused(evaluation, message)
            case Settled():
                evaluation.sums.pop(message.number, None)
                if evaluation.open == message.number:
                    evaluation.open = None
            case End():
                self._evaluation, self.state = None, State.IDLE
            case Grant():
                return self._granted(evaluation, message)
            case Apart() if message.grant in evaluation.grants:
                evaluation.apart.add(message.grant)
            case Flush():
                evaluation.is_flushed = True
                return self._flush_all(evaluation, now)
            case Heard():
                evaluation.heard.update(message.grants)
            case Reduce() if message.attempt > evaluation.attempt:
                return self._reduce(evaluation, message)
            case _:
                pass
        return []

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each beat, while a portion is computed too."""
        if self.state is State.GONE:
            return []
        if self.welcome is None:
            if self._joined is not None and now - self._joined < 1.0:
                return []
            self._joined = now
            return [Send(COORDINATOR, self._join)]
        if now - self._beaten < self.welcome.beat_seconds:
            return []
        self._beaten = now
        sends = [Send(COORDINATOR, self._beat())]
        if self._leaving is not None:
            sends.append(Send(COORDINATOR, Leave(self.session, self._leaving)))
        evaluation = self._evaluation
        return sends if evaluation is None else sends + self._again(evaluation, now)

    def leave(self, reason: str) -> list[Send]:
        """It wants to go; it is GONE once what it holds is settled."""
        self._leaving = reason
        return [Send(COORDINATOR, Leave(self.session, reason))] if self.welcome is not None else self._gone()

    # --- what it does ---

    def task(self) -> Task[Values] | None:
        """The next thing to do; None while there is nothing, or one is being done."""
        evaluation = self._evaluation
        if evaluation is None or self._busy is not None or self._exchanging is not None:
            return None
        reduction = self.reduction()
        if reduction is not None:
            return reduction
        task = self._next(evaluation)
        if task is not None:
            self._busy = (evaluation, task)
        return task

    def reduction(self) -> ReduceTask[Values] | None:
        """A reduction that is to be done, beside the portion that is being computed; None where none is."""
        evaluation = self._evaluation
        if evaluation is None or self._exchanging is not None:
            return None
        reduce = evaluation.reduce
        if reduce is not None and self._is_computing(evaluation, reduce):
            return None
        evaluation.reduce = None
        # one that waited for the exchange before may be given up by now, and its sums settled
        if reduce is None or any(number not in evaluation.sums for number in reduce.numbers):
            return None
        total = self._sums.zeros()
        for number in reduce.numbers:
            values = evaluation.sums[number].values
            assert values is not None, "only gradients are reduced"
            total = self._sums.add(total, values)
        task = ReduceTask(reduce, total)
        self._exchanging = (evaluation, task)
        return task

    @property
    def is_outdated(self) -> bool:
        """Whether what is being fetched or computed is wanted no more: a broadcast should be broken off."""
        return self._busy is not None and self._busy[0] is not self._evaluation

    @property
    def is_reduction_outdated(self) -> bool:
        """Whether the reduction that is being done is wanted no more, and should be broken off."""
        if self._exchanging is None:
            return False
        evaluation, task = self._exchanging
        return evaluation is not self._evaluation or task.reduce.attempt != evaluation.attempt

    def fetched(self, digests: tuple[int, ...], now: float) -> list[Send]:
        """It has the point of the task."""
        evaluation, _ = self._done()
        if evaluation is None:
            return []
        self.state, evaluation.digests, evaluation.readied = State.READY, digests, now
        return [Send(COORDINATOR, self._ready(evaluation))]

    def broke_off(self, lost: str, now: float) -> list[Send]:
        """A broadcast or a reduction came to nothing; ``lost`` names who could not be reached, if known."""
        if self._exchanging is None:
            evaluation, task = self._done()
            assert isinstance(task, FetchTask), "a broadcast or a reduction was tried"
            attempt = task.begin.attempt
        else:
            (before, reduction), self._exchanging = self._exchanging, None
            evaluation = before if before is self._evaluation else None
            attempt = reduction.reduce.attempt
        if evaluation is None or attempt != evaluation.attempt:
            return []
        return self._abort(evaluation, lost)

    def computed(self, result: PortionResult, now: float) -> list[Send]:
        """The portion of the task is in its sum."""
        evaluation, task = self._done()
        if evaluation is None:
            return []
        assert isinstance(task, PortionTask), "a portion was computed"
        grant = task.grant
        del evaluation.grants[grant.number]
        sum = evaluation.computing
        assert sum is not None, "a portion goes into a sum"
        evaluation.computing = None
        if not sum.results:
            sum.began = now - result.seconds
        sum.grants.append(grant.number)
        sum.results.append(result)
        if sum.values is None:
            return self._flush(evaluation, sum, now)
        if sum.node is not None and not self._is_apart(evaluation, grant):
            sum = self._merged(evaluation, sum)
        number, sends = sum.number, []
        if self._is_due(evaluation, sum, grant, now):
            sends = self._flush(evaluation, sum, now)
        elif len(evaluation.sums) > NODES and sum.node is not None:
            sends = self._flush_all(evaluation, now)
        held = Held(grant.number, result, number, sum.is_flushed)
        if evaluation.reduce is not None:
            sends += self._reduce(evaluation, evaluation.reduce)
        return [Send(COORDINATOR, Computed(self.session, evaluation.begin.evaluation, held)), *sends]

    def computed_not(self, error: str, now: float) -> list[Send]:
        """The portion of the task cannot be computed: the sum that it went into is lost with it."""
        evaluation, task = self._done()
        if evaluation is None:
            return []
        assert isinstance(task, PortionTask), "a portion was tried"
        grant, sum = task.grant, evaluation.computing
        assert sum is not None, "a portion goes into a sum"
        evaluation.computing = None
        del evaluation.grants[grant.number]
        evaluation.sums.pop(sum.number, None)
        if evaluation.open == sum.number:
            evaluation.open = None
        for other in sum.grants:  # the beat shows that they are in no sum, and they are granted again
            evaluation.seen.discard(other)
            evaluation.heard.discard(other)
        failed = Failed(self.session, evaluation.begin.evaluation, grant.number, grant.portion, error)
        evaluation.failed[grant.number] = failed
        again = [] if evaluation.reduce is None else self._reduce(evaluation, evaluation.reduce)
        return [Send(COORDINATOR, failed), *again]

    def reduced(self, result: Values | None, now: float) -> list[Send]:
        """The reduction of the task is done; the first member has the result, others None."""
        assert self._exchanging is not None, "a reduction was being done"
        (evaluation, task), self._exchanging = self._exchanging, None
        if evaluation is not self._evaluation:
            return []
        is_first = task.reduce.plan.members[0] == self.name
        assert is_first is (result is not None), "the first member has the result"
        if result is None or task.reduce.attempt != evaluation.attempt:
            return []
        sum = self._new(evaluation, result)
        sum.attempt = task.reduce.attempt
        return self._flush(evaluation, sum, now)

    # --- joining, beginning ---

    def _welcomed(self, welcome: Welcome, now: float) -> list[Send]:
        if self.welcome is not None or (welcome.name, welcome.attempt) != (self.name, self._join.attempt):
            return []
        self.welcome, self.state, self._numbers, self._newest = welcome, State.IDLE, 0, (0, 0)
        self._beaten = now
        return []

    def _outside(self, now: float) -> list[Send]:
        self._evaluation, self.welcome = None, None
        if self._leaving is not None:
            return self._gone()
        self.state, self._joined = State.OUTSIDE, now
        self._join = replace(self._join, attempt=self._join.attempt + 1)
        return [Send(COORDINATOR, self._join)]

    def _gone(self) -> list[Send]:
        self._evaluation, self.state = None, State.GONE
        return []

    def _begin(self, begin: Begin) -> list[Send]:
        if (begin.evaluation, begin.attempt) <= self._newest:
            return []
        self._newest = (begin.evaluation, begin.attempt)
        self._evaluation, self.state = _Evaluation(begin, begin.attempt), State.FETCHING
        return []

    def _ready(self, evaluation: _Evaluation[Values]) -> Ready:
        begin = evaluation.begin
        return Ready(self.session, begin.evaluation, begin.attempt, evaluation.digests)

    # --- portions ---

    def _granted(self, evaluation: _Evaluation[Values], grant: Grant) -> list[Send]:
        if self.state is not State.READY or grant.number in evaluation.seen:
            failed = evaluation.failed.get(grant.number)
            return [] if failed is None else [Send(COORDINATOR, failed)]
        evaluation.seen.add(grant.number)
        evaluation.grants[grant.number] = grant
        return []

    def _next(self, evaluation: _Evaluation[Values]) -> FetchTask | PortionTask[Values] | None:
        if self.state is State.FETCHING:
            return FetchTask(evaluation.begin) if evaluation.aborted is None else None
        if not evaluation.grants:
            return None
        grant = next(iter(evaluation.grants.values()))
        evaluation.computing = self._sum_for(evaluation, grant)
        return PortionTask(grant, evaluation.computing.values)

    def _sum_for(self, evaluation: _Evaluation[Values], grant: Grant) -> _Sum[Values]:
        if not evaluation.begin.gradient:
            return self._new(evaluation, None)
        assert self.welcome is not None, "it is in a session"
        if self.welcome.tree:
            sum = self._new(evaluation, self._sums.zeros())
            sum.node = Node(0, grant.portion)
            return sum
        if self._is_apart(evaluation, grant):
            return self._new(evaluation, self._sums.zeros())
        if evaluation.open is None:
            evaluation.open = self._new(evaluation, self._sums.zeros()).number
        return evaluation.sums[evaluation.open]

    def _new(self, evaluation: _Evaluation[Values], values: Values | None) -> _Sum[Values]:
        self._numbers += 1
        evaluation.sums[self._numbers] = _Sum(self._numbers, values)
        return evaluation.sums[self._numbers]

    def _is_apart(self, evaluation: _Evaluation[Values], grant: Grant) -> bool:
        return grant.apart or grant.number in evaluation.apart or evaluation.is_flushed

    def _merged(self, evaluation: _Evaluation[Values], sum: _Sum[Values]) -> _Sum[Values]:
        """The largest node that the sum makes with others that are kept."""
        kept = {each.node: each for each in evaluation.sums.values() if not each.is_flushed}
        while sum.node is not None and (other := kept.get(sibling(sum.node))) is not None:
            left, right = (sum, other) if sum.node.index % 2 == 0 else (other, sum)
            assert left.values is not None and right.values is not None, "nodes are sums of gradients"
            left.values = self._sums.add(left.values, right.values)
            left.grants, left.results = left.grants + right.grants, left.results + right.results
            left.node = parent(sum.node)
            del evaluation.sums[right.number]
            sum = left
        return sum

    # --- sums ---

    def _is_due(self, evaluation: _Evaluation[Values], sum: _Sum[Values], grant: Grant, now: float) -> bool:
        assert self.welcome is not None, "it is in a session"
        if now - sum.began >= self.welcome.flush_seconds:
            return True
        return self._is_apart(evaluation, grant) if self.welcome.pushes else evaluation.is_flushed

    def _flush_all(self, evaluation: _Evaluation[Values], now: float) -> list[Send]:
        sends = []
        for sum in list(evaluation.sums.values()):
            if not sum.is_flushed and sum is not evaluation.computing and sum.results:
                sends += self._flush(evaluation, sum, now)
        return sends

    def _flush(self, evaluation: _Evaluation[Values], sum: _Sum[Values], now: float) -> list[Send]:
        """The sum is complete, and goes to the servers."""
        assert self.welcome is not None and not sum.is_flushed, "a sum is flushed once, in a session"
        sum.is_flushed, sum.sent = True, now
        if evaluation.open == sum.number:
            evaluation.open = None
        if sum.values is None:
            return [self._pushed(evaluation, sum)]
        sum.unkept = {name for name, _ in self.welcome.servers}
        return self._pushes(evaluation, sum)

    def _pushes(self, evaluation: _Evaluation[Values], sum: _Sum[Values]) -> list[Send]:
        assert sum.values is not None, "what is pushed is a gradient"
        sends = []
        for server in sorted(sum.unkept):
            shards, buffers = self._sums.parts(sum.values, server)
            push = Push(
                self.session,
                evaluation.begin.evaluation,
                sum.number,
                sum.node,
                tuple(sorted(each.portion for each in sum.results)),
                shards,
                buffers,
            )
            sends.append(Send(server, push))
        return sends

    def _pushed(self, evaluation: _Evaluation[Values], sum: _Sum[Values]) -> Send:
        number, results = evaluation.begin.evaluation, tuple(sum.results)
        return Send(COORDINATOR, Pushed(self.session, number, sum.number, results, sum.attempt))

    def _kept(self, evaluation: _Evaluation[Values], kept: Kept, now: float) -> list[Send]:
        sum = evaluation.sums.get(kept.number)
        if sum is None or kept.server not in sum.unkept:
            return []
        sum.unkept.remove(kept.server)
        if sum.unkept:
            return []
        sum.sent = now
        return [self._pushed(evaluation, sum)]

    def _refused(self, evaluation: _Evaluation[Values], refused: Refused) -> list[Send]:
        """A server will not have the sum: its portions have failed here."""
        sum = evaluation.sums.pop(refused.number, None)
        if sum is None:
            return []
        error = f"{refused.server} refuses its sum: {refused.reason}"
        if sum.attempt:
            return self._abort(evaluation, "") if sum.attempt == evaluation.attempt else []
        for grant, result in zip(sum.grants, sum.results, strict=True):
            failed = Failed(self.session, evaluation.begin.evaluation, grant, result.portion, error)
            evaluation.failed[grant] = failed
        return [Send(COORDINATOR, evaluation.failed[grant]) for grant in sum.grants]

    # --- reducing ---

    def _reduce(self, evaluation: _Evaluation[Values], reduce: Reduce) -> list[Send]:
        evaluation.attempt, evaluation.aborted, evaluation.reduce = reduce.attempt, None, None
        if self._is_computing(evaluation, reduce):
            evaluation.reduce = reduce  # looked at again once the portion is in
            return []
        has = {
            number: tuple(sorted(each.portion for each in sum.results))
            for number, sum in evaluation.sums.items()
        }
        if any(has.get(number) != each for number, each in zip(reduce.numbers, reduce.portions, strict=True)):
            evaluation.heard.clear()  # the coordinator does not know what is in them: all is said again
            return self._abort(evaluation, "")
        evaluation.reduce = reduce
        return []

    def _is_computing(self, evaluation: _Evaluation[Values], reduce: Reduce) -> bool:
        """Whether a portion is being added to one of the sums that are to be reduced."""
        return evaluation.computing is not None and evaluation.computing.number in reduce.numbers

    def _abort(self, evaluation: _Evaluation[Values], lost: str) -> list[Send]:
        number = evaluation.begin.evaluation
        evaluation.aborted = Aborted(self.session, number, evaluation.attempt, lost)
        # first what the sums hold, so that the next choice is made of what is there
        return [Send(COORDINATOR, self._beat()), Send(COORDINATOR, evaluation.aborted)]

    # --- saying it again ---

    def _beat(self) -> Beat:
        evaluation = self._evaluation
        if evaluation is None:
            return Beat(self.session, self._newest[0], self._newest[1], False, False, (), (), ())
        held, heard = [], []
        for sum in evaluation.sums.values():
            for grant, result in zip(sum.grants, sum.results, strict=True):
                if grant in evaluation.heard:
                    heard.append(grant)
                else:
                    held.append(Held(grant, result, sum.number, sum.is_flushed))
        return Beat(
            self.session,
            evaluation.begin.evaluation,
            evaluation.attempt,
            self.state is State.READY,
            evaluation.is_flushed,
            tuple(evaluation.grants),
            tuple(held),
            _runs(sorted(heard)),
        )

    def _again(self, evaluation: _Evaluation[Values], now: float) -> list[Send]:
        """What was not answered in time."""
        assert self.welcome is not None, "it is in a session"
        late = now - self.welcome.retry_seconds
        sends = []
        if self.state is State.READY and not evaluation.seen and evaluation.readied < late:
            evaluation.readied = now
            sends.append(Send(COORDINATOR, self._ready(evaluation)))
        if evaluation.aborted is not None:
            sends.append(Send(COORDINATOR, evaluation.aborted))
        for sum in evaluation.sums.values():
            if sum.is_flushed and sum.sent < late:
                sum.sent = now
                sends += self._pushes(evaluation, sum) if sum.unkept else [self._pushed(evaluation, sum)]
        return sends

    def _done(self) -> tuple[_Evaluation[Values] | None, FetchTask | PortionTask[Values]]:
        """The task that was being done, and its evaluation unless that is over."""
        assert self._busy is not None, "a task was being done"
        (evaluation, task), self._busy = self._busy, None
        return (evaluation if evaluation is self._evaluation else None), task


def _runs(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
