"""The coordinator of a seeded life, and its ledger, which records the contents of each bucket.

Knows: the changes that servers report as applied. Does not know: faults, the truth of reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from tests.chaos.invariants import BrokenError

from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.shards.core.sample_ledger import SampleLedger, SampleReport
from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.wire import COORDINATOR, CoordinatorStateAck, Join, Message, Ranges, Send, Write, WriteAck
from cotswold.wire.ranges import difference, intersection, union


class RecordedLedger(SampleLedger):
    """A ledger that records the samples of each bucket."""

    def __init__(self, samples: int, buckets: int) -> None:
        super().__init__(samples)
        self.has: list[list[tuple[int, Ranges]]] = [[] for _ in range(buckets)]
        """Samples of each bucket, by session."""
        self.revoked_places: list[Ranges] = []
        """Samples lost by servers, one entry per loss."""

    def record_report(self, session: int, servers: Sequence[SampleReport]) -> None:
        """Record the servers' reports about a live session."""
        before = union(self.open_of(session))
        super().record_report(session, servers)
        gone = difference(before, union(self.open_of(session)))
        for own, (applied, _) in zip(self.has, servers, strict=True):
            own.append((session, intersection(gone, applied)))

    def end_session(self, session: int, servers: Sequence[SampleReport], back: Ranges = ()) -> Ranges:
        """Record the servers' reports about a session that is over."""
        self.record_report(session, servers)
        left = union(self.open_of(session))
        lost = super().end_session(session, servers, back)
        self.revoked_places += [lost] if back else []
        for own, (applied, _) in zip(self.has, servers, strict=True):
            own.append((session, intersection(left, applied)))
        return lost

    def revoke(self, has: Mapping[int, Ranges]) -> Ranges:
        """Record that a server lost its memory."""
        lost = super().revoke(has)
        self.revoked_places.append(lost)
        return lost

    def revived(self, bucket: int, has: Mapping[int, Ranges], settled: Ranges) -> None:
        """Record that a revived bucket has only these unsettled samples."""
        self.has[bucket] = [
            (session, union(intersection(ranges, settled), intersection(ranges, has.get(session, ()))))
            for session, ranges in self.has[bucket]
        ]


def _unwatched(bucket: str, life: int, settled: Ranges, has: Mapping[int, Ranges]) -> None:
    """Ignore the event."""


class RecordedDispatcher(Dispatcher):
    """A dispatcher whose ledger records the samples of each bucket.

    Raises BrokenError for a torn checkpoint without an ended session.
    """

    watch_revived: Callable[[str, int, Ranges, Mapping[int, Ranges]], None] = staticmethod(_unwatched)
    """Called with a bucket, its life, the settled places, and its other samples by session."""

    def _finish_checkpoint(self, ledger: SampleLedger) -> None:
        if ledger.divided and len(self.members) == self.members.newest:
            raise BrokenError(f"checkpoint {self.checkpoint} is torn, of living sessions: {ledger.divided}")
        super()._finish_checkpoint(ledger)

    def _on_restarts(self, answers: Sequence[CoordinatorStateAck]) -> list[Send]:
        assert isinstance(self.ledger, RecordedLedger), "it was given such"
        for number, each in enumerate(answers):
            if each.incarnation > self._incarnations.get(each.server, 0):
                has = {session: applied for session, applied, _ in each.samples} | dict(each.earlier_sessions)
                self.ledger.revived(number, has, self._newest_state.settled)
                self.watch_revived(each.server, each.incarnation, self._newest_state.settled, has)
        return super()._on_restarts(answers)


class SimulatedCoordinator:
    """Coordinator that writes the initial weights, and then dispatches."""

    name = COORDINATOR

    def __init__(
        self, network: SimulatedNetwork, dispatcher: Dispatcher, buckets: Sequence[str], numbers: int
    ) -> None:
        self.dispatcher, self._network = dispatcher, network
        self._unwritten = dict.fromkeys(buckets, numbers)
        self._wrote = float("-inf")
        network.endpoints[self.name] = self
        self._tick()

    @property
    def has_begun(self) -> bool:
        """True if all weights are written."""
        return not self._unwritten

    def receive(self, sender: str, message: Message) -> None:
        """Handle a message."""
        if isinstance(message, WriteAck):
            self._unwritten.pop(sender, None)
        elif self.has_begun:
            self._network.send(
                self.name,
                self.dispatcher.receive(sender, cast(Join, message), self._network.loop.now),
            )

    def _tick(self) -> None:
        loop = self._network.loop
        if self.has_begun:
            self._network.send(self.name, self.dispatcher.tick(loop.now))
        elif loop.now - self._wrote > 0.5:
            self._wrote = loop.now
            for name, numbers in self._unwritten.items():
                of = [each.number for each in self.dispatcher.shards if each.server == name]
                zeros = (0.0,) * numbers
                self._network.send(
                    self.name, [Send(name, Write(1, "weights", tuple(of), (zeros,) * len(of)))]
                )
        loop.schedule(0.1, self._tick)
