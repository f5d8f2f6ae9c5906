"""A worker's state of one evaluation: grants, sums by number, missing acknowledgements.

Knows: when a sum is complete, the servers that hold it. Does not know: the next task, the addition of vectors
(`SumArithmetic`), sockets, clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from cotswold.shards.core.sum_tree import parent, sibling
from cotswold.wire import (
    COORDINATOR,
    Aborted,
    ComputedPortion,
    Grant,
    Node,
    PointReady,
    PortionFailed,
    PortionResult,
    PortionsComputed,
    Push,
    PushAck,
    PushRejected,
    Reduce,
    Send,
    StartEvaluation,
    SumPushed,
    Welcome,
    WorkerHeartbeat,
)

Values = TypeVar("Values")

NODES = 16
"""Maximum number of nodes without their siblings that a worker keeps; beyond it, it pushes them."""


class SumArithmetic(Protocol[Values]):
    """Operations on vectors of the parameters' length."""

    def zeros(self) -> Values:
        """Return a new sum of zeros."""

    def add(self, left: Values, right: Values) -> Values:
        """Add in place: return the sum in the memory of ``left``."""

    def by_shard(self, values: Values, server: str) -> tuple[tuple[int, ...], tuple[object, ...]]:
        """Return the numbers of a server's shards, and a buffer for each; the sum must not change
        afterwards."""


@dataclass
class PartialSum(Generic[Values]):
    """The sum of some portions on this worker."""

    number: int
    values: Values | None
    """None without a gradient."""
    node: Node | None = None
    grants: list[int] = field(default_factory=list)
    results: list[PortionResult] = field(default_factory=list)
    is_flushed: bool = False
    attempt: int = 0
    """Attempt of the reduction that produced it; 0 for a sum of this worker alone."""
    unacknowledged: set[str] = field(default_factory=set)
    """Servers that have not acknowledged it."""
    sent_at: float = 0.0
    opened_at: float = 0.0
    """Start time of its first portion."""


@dataclass
class PartialSums(Generic[Values]):
    """State of one attempt of an evaluation."""

    welcome: Welcome
    arithmetic: SumArithmetic[Values]
    numbers: Iterator[int]
    """Numbers for the session's next sums."""
    begin: StartEvaluation
    attempt: int
    grants: dict[int, Grant] = field(default_factory=dict)
    """Grants that are queued or being computed."""
    isolated: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    failed: dict[int, PortionFailed] = field(default_factory=dict)
    sums: dict[int, PartialSum[Values]] = field(default_factory=dict)
    """Sums by number, until they are settled."""
    open: int | None = None
    """Number of the sum that receives the next portion."""
    is_ready: bool = False
    """True if the worker has the point."""
    is_flushed: bool = False
    digests: tuple[int, ...] = ()
    ready_sent_at: float = 0.0
    reduce: Reduce | None = None
    """Requested reduction."""
    aborted: Aborted | None = None
    """The abort to repeat until another attempt arrives."""
    acknowledged: set[int] = field(default_factory=set)
    """Grants that the coordinator knows to be computed."""
    unreported: set[int] = field(default_factory=set)
    """Computed grants that were not reported to the coordinator."""
    computing: PartialSum[Values] | None = None
    """Sum to which a portion is being added."""

    def sum_for(self, grant: Grant) -> PartialSum[Values]:
        """Return the sum that will receive a portion."""
        if not self.begin.gradient:
            return self.new(None)
        if self.welcome.tree:
            sum = self.new(self.arithmetic.zeros())
            sum.node = Node(0, grant.portion)
            return sum
        if self.is_isolated(grant):
            return self.new(self.arithmetic.zeros())
        if self.open is None:
            self.open = self.new(self.arithmetic.zeros()).number
        return self.sums[self.open]

    def new(self, values: Values | None) -> PartialSum[Values]:
        """Create a sum."""
        number = next(self.numbers)
        self.sums[number] = PartialSum(number, values)
        return self.sums[number]

    def is_isolated(self, grant: Grant) -> bool:
        """True if its portion must be a separate sum."""
        return grant.is_isolated or grant.number in self.isolated or self.is_flushed

    def merge(self, sum: PartialSum[Values]) -> PartialSum[Values]:
        """Merge the sum with kept siblings into the largest possible node."""
        kept = {each.node: each for each in self.sums.values() if not each.is_flushed}
        while sum.node is not None and (other := kept.get(sibling(sum.node))) is not None:
            left, right = (sum, other) if sum.node.index % 2 == 0 else (other, sum)
            assert left.values is not None and right.values is not None, "nodes are sums of gradients"
            left.values = self.arithmetic.add(left.values, right.values)
            left.grants, left.results = left.grants + right.grants, left.results + right.results
            left.node = parent(sum.node)
            del self.sums[right.number]
            sum = left
        return sum

    def add(self, grant: Grant, result: PortionResult, now: float) -> list[Send]:
        """Record that the portion of a grant is in its sum.

        The coordinator receives a report once half of the granted portions are computed: messages stay few
        for short portions, and new grants arrive before the last portion starts.
        """
        del self.grants[grant.number]
        sum = self._take_sum()
        if not sum.results:
            sum.opened_at = now - result.seconds
        sum.grants.append(grant.number)
        sum.results.append(result)
        if sum.values is None:
            return self.flush(sum, now)
        if sum.node is not None and not self.is_isolated(grant):
            sum = self.merge(sum)
        sends = []
        if self.is_due(sum, grant, now):
            sends = self.flush(sum, now)
        elif len(self.sums) > NODES and sum.node is not None:
            sends = self.flush_all(now)
        self.unreported.add(grant.number)
        if sends or self.is_isolated(grant) or len(self.grants) <= len(self.unreported):
            sends.insert(0, self._report())
        return [*sends, *self._resend_reduction()]

    def _report(self) -> Send:
        """Report computed portions that were not reported yet."""
        held = tuple(
            ComputedPortion(grant, result, sum.number, sum.is_flushed)
            for sum in self.sums.values()
            for grant, result in zip(sum.grants, sum.results, strict=True)
            if grant in self.unreported
        )
        self.unreported.clear()
        return Send(COORDINATOR, PortionsComputed(self.welcome.session, self.begin.evaluation, held))

    def computed_not(self, grant: Grant, error: str) -> list[Send]:
        """Record that the portion of a grant cannot be computed; its whole sum is lost."""
        sum = self._take_sum()
        del self.grants[grant.number]
        self.sums.pop(sum.number, None)
        if self.open == sum.number:
            self.open = None
        for other in sum.grants:  # the heartbeat shows that they are in no sum, and they are granted again
            self.received.discard(other)
            self.acknowledged.discard(other)
            self.unreported.discard(other)
        failed = PortionFailed(
            self.welcome.session, self.begin.evaluation, grant.number, grant.portion, error
        )
        self.failed[grant.number] = failed
        told = [self._report()] if self.unreported and len(self.grants) <= len(self.unreported) else []
        return [*told, Send(COORDINATOR, failed), *self._resend_reduction()]

    def _take_sum(self) -> PartialSum[Values]:
        sum, self.computing = self.computing, None
        assert sum is not None, "no sum is being computed"
        return sum

    def _resend_reduction(self) -> list[Send]:
        """Retry a reduction that may have waited for the portion."""
        return [] if self.reduce is None else self.start_reduction(self.reduce)

    # --- push sums ---

    def is_due(self, sum: PartialSum[Values], grant: Grant, now: float) -> bool:
        """True if a sum must be pushed after the portion of ``grant`` was added."""
        if now - sum.opened_at >= self.welcome.flush_seconds:
            return True
        return self.is_isolated(grant) if self.welcome.pushes else self.is_flushed

    def flush_all(self, now: float) -> list[Send]:
        """Push all sums except the one that is being computed."""
        sends = []
        for sum in list(self.sums.values()):
            if not sum.is_flushed and sum is not self.computing and sum.results:
                sends += self.flush(sum, now)
        return sends

    def flush(self, sum: PartialSum[Values], now: float) -> list[Send]:
        """Close a sum and push it to the servers."""
        assert not sum.is_flushed, "a sum is flushed once"
        sum.is_flushed, sum.sent_at = True, now
        if self.open == sum.number:
            self.open = None
        if sum.values is None:
            return [self._pushed(sum)]
        sum.unacknowledged = {name for name, _ in self.welcome.servers}
        return self._pushes(sum)

    def _pushes(self, sum: PartialSum[Values]) -> list[Send]:
        assert sum.values is not None, "a sum without a gradient cannot be pushed"
        sends = []
        for server in sorted(sum.unacknowledged):
            shards, buffers = self.arithmetic.by_shard(sum.values, server)
            push = Push(
                self.welcome.session,
                self.begin.evaluation,
                sum.number,
                sum.node,
                tuple(sorted(each.portion for each in sum.results)),
                shards,
                buffers,
            )
            sends.append(Send(server, push))
        return sends

    def _pushed(self, sum: PartialSum[Values]) -> Send:
        number, results = self.begin.evaluation, tuple(sum.results)
        return Send(COORDINATOR, SumPushed(self.welcome.session, number, sum.number, results, sum.attempt))

    def on_ack(self, ack: PushAck, now: float) -> list[Send]:
        """Record a server's acknowledgement of a sum."""
        sum = self.sums.get(ack.number)
        if sum is None or ack.server not in sum.unacknowledged:
            return []
        sum.unacknowledged.remove(ack.server)
        if sum.unacknowledged:
            return []
        sum.sent_at = now
        return [self._pushed(sum)]

    def on_rejected(self, rejected: PushRejected) -> list[Send]:
        """Record a server's rejection of a sum: its portions have failed on this worker."""
        sum = self.sums.pop(rejected.number, None)
        if sum is None:
            return []
        error = f"{rejected.server} rejected the sum: {rejected.reason}"
        if sum.attempt:
            return self.abort("") if sum.attempt == self.attempt else []
        for grant, result in zip(sum.grants, sum.results, strict=True):
            failed = PortionFailed(self.welcome.session, self.begin.evaluation, grant, result.portion, error)
            self.failed[grant] = failed
        return [Send(COORDINATOR, self.failed[grant]) for grant in sum.grants]

    # --- reduce ---

    def total_of(self, reduce: Reduce) -> Values:
        """Return the total of the sums to reduce; do not modify it."""
        parts = [self.sums[number].values for number in reduce.numbers]
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        total = self.arithmetic.zeros()
        for values in parts:
            assert values is not None, "only gradients are reduced"
            total = self.arithmetic.add(total, values)
        return total

    def start_reduction(self, reduce: Reduce) -> list[Send]:
        """Request a reduction, which runs once its sums are complete."""
        self.attempt, self.aborted, self.reduce = reduce.attempt, None, None
        if self.is_computing(reduce):
            self.reduce = reduce  # checked again once the portion is added
            return []
        has = {
            number: tuple(sorted(each.portion for each in sum.results)) for number, sum in self.sums.items()
        }
        if any(has.get(number) != each for number, each in zip(reduce.numbers, reduce.portions, strict=True)):
            self.acknowledged.clear()  # the coordinator does not know the contents: report everything again
            return self.abort("")
        self.reduce = reduce
        return []

    def is_computing(self, reduce: Reduce) -> bool:
        """True if a portion is being added to one of the sums to reduce."""
        return self.computing is not None and self.computing.number in reduce.numbers

    def abort(self, lost: str) -> list[Send]:
        """Abort a broadcast or reduction."""
        number = self.begin.evaluation
        self.aborted = Aborted(self.welcome.session, number, self.attempt, lost)
        # first report the contents of the sums, so that the next choice uses them
        return [Send(COORDINATOR, self.beat()), Send(COORDINATOR, self.aborted)]

    # --- messages ---

    def point_ready(self) -> PointReady:
        """Return the report that the worker has the point."""
        begin = self.begin
        return PointReady(self.welcome.session, begin.evaluation, begin.attempt, self.digests)

    def beat(self) -> WorkerHeartbeat:
        """Return the heartbeat with the worker's state."""
        held, heard = [], []
        for sum in self.sums.values():
            for grant, result in zip(sum.grants, sum.results, strict=True):
                if grant in self.acknowledged:
                    heard.append(grant)
                else:
                    held.append(ComputedPortion(grant, result, sum.number, sum.is_flushed))
        return WorkerHeartbeat(
            self.welcome.session,
            self.begin.evaluation,
            self.attempt,
            self.is_ready,
            self.is_flushed,
            tuple(self.grants),
            tuple(held),
            _runs(sorted(heard)),
        )

    def resend(self, now: float) -> list[Send]:
        """Repeat the messages that were not answered in time."""
        late = now - self.welcome.retry_seconds
        sends = []
        if self.is_ready and not self.received and self.ready_sent_at < late:
            self.ready_sent_at = now
            sends.append(Send(COORDINATOR, self.point_ready()))
        if self.aborted is not None:
            sends.append(Send(COORDINATOR, self.aborted))
        for sum in self.sums.values():
            if sum.is_flushed and sum.sent_at < late:
                sum.sent_at = now
                sends += self._pushes(sum) if sum.unacknowledged else [self._pushed(sum)]
        return sends


def _runs(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
