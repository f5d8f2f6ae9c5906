"""Epochs that trainers share: the assignment of samples to trainers, in the head of a pool.

Knows: trainers by name, their sessions, batches as ranges of positions. Does not know: samples, the order of
positions, sockets, heartbeats.

    batch      event                                                      next
    free       a trainer has space                                        assigned
    assigned   its trainer takes it                                       taken: no other trainer gets it
    assigned   its trainer is lost, or leaves                             free
    assigned   another trainer has none left, and none is free            free: it is recalled, once
    taken      its trainer delivered it                                   delivered
    taken      its trainer leaves before delivering it to its loop        free
    taken      its trainer is lost                                        died with it; free if at least once
    free       the epoch is over                                          left out

The ledger is a `SampleLedger` with two virtual servers: one has the taken samples, one the delivered
samples. So counted samples were delivered. Torn samples had been taken by a trainer that died: its loop may
or may not have had them.

An epoch is over once a trainer has no batches left, none is free, and every assigned batch is taken (with at
least once: delivered). An epoch ends early once no trainer uses it, and a trainer uses a later one.

Each message of both sides contains the whole state, so messages may be lost, duplicated and reordered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from cotswold.shards.core.sample_ledger import SampleCounts, SampleLedger
from cotswold.wire import EpochAssignment, EpochReport, Ranges, Send
from cotswold.wire.ranges import intersection, union

_Range = tuple[int, int]
_MAX_BATCHES = 64
"""Batches assigned to a trainer at a time, at most."""
_MAX_EPOCHS = 1000
"""Epochs of a stream that are remembered."""
_TRAINERS = 10_000
"""Former trainers that are remembered, so that their late messages do not start a session."""


@dataclass(frozen=True)
class EpochCounts:
    """Sample counts of one epoch so far."""

    stream: str
    epoch: int
    samples: int
    delivered: int
    """Samples delivered to loops."""
    died: int
    """Samples taken by trainers that were lost; their loops may or may not have had them."""
    left_out: int
    """Samples left out by an early end."""
    dealt: int
    """Samples assigned to trainers now."""
    free: int
    """Samples not assigned to any trainer."""
    dealt_again: int
    """Samples that trainers returned, or had not taken when they were lost."""
    is_over: bool
    by: dict[str, int]
    """Samples delivered to the loop of each trainer."""


@dataclass(frozen=True)
class StreamTotals:
    """Sample counts of all epochs of a stream so far; fields as in `MonitoredBatches`."""

    stream: str
    epoch: int
    """The newest epoch."""
    delivered: int
    died: int
    left_out: int
    dealt_again: int
    dealt: int
    """Samples assigned to trainers now."""
    free: int
    """Unassigned samples of epochs that are not over."""


@dataclass
class _Session:
    """One pass of a trainer."""

    name: str
    number: int
    key: int
    """Key in the ledger."""
    batch_samples: int = 1
    max_batches: int = 1
    batches: dict[_Range, float] = field(default_factory=dict)
    """Batches that are assigned and not delivered, with the time of assignment."""
    taken: set[_Range] = field(default_factory=set)
    last_report: int = 0
    assignments_sent: int = 0
    end_sent: bool = False

    @property
    def recallable(self) -> list[_Range]:
        """Its batches that are not taken, in order."""
        return [each for each in self.batches if each not in self.taken]


@dataclass
class _Epoch:
    stream: _Stream
    ledger: SampleLedger
    sessions: dict[tuple[str, int], _Session] = field(default_factory=dict)
    recalled: Ranges = ()
    """Samples that were recalled once; they are not recalled again."""
    delivered_by: dict[str, int] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        return self.ledger.is_stopped

    def record(self, session: _Session, report: EpochReport) -> None:
        """Record a trainer's report."""
        session.last_report, session.batch_samples, session.max_batches = (
            report.number,
            report.batch_samples,
            report.max_batches,
        )
        handed = union([each for each in report.delivered if each in session.batches])
        session.taken.update(each for each in report.taking if each in session.batches)
        for each in report.delivered:
            if session.batches.pop(each, None) is not None:
                session.taken.discard(each)
                self.delivered_by[session.name] = self.delivered_by.get(session.name, 0) + each[1] - each[0]
        self.ledger.record_report(session.key, [(union(session.taken, handed), ()), (handed, ())])

    def end(self, session: _Session, *, is_dead: bool) -> None:
        """End a session."""
        del self.sessions[session.name, session.number]
        died = union(session.taken) if is_dead and not self.stream.at_least_once else ()
        self.ledger.end_session(session.key, [(died, ()), ((), died)])

    def assign(self, session: _Session, now: float, recall_seconds: float) -> bool:
        """Assign batches while there is space; return True if the session has news."""
        had = len(session.batches)
        while len(session.batches) < session.max_batches and not self.is_finished:
            given = self.ledger.assign(session.key, session.batch_samples)
            if given is None:
                if session.batches or not self._recall(now, recall_seconds):
                    break
                continue
            session.batches[given] = now
        if not session.batches and not self.is_finished and self._is_exhausted():
            self.ledger.stop()
        is_news = len(session.batches) > had or (self.is_finished and not session.end_sent)
        session.end_sent = self.is_finished
        return is_news

    def _is_exhausted(self) -> bool:
        if self.ledger.free:
            return False
        if self.stream.at_least_once:
            return not self.ledger.open
        return not any(each.recallable for each in self.sessions.values())

    def _recall(self, now: float, seconds: float) -> bool:
        """Free a batch that its trainer has not taken for ``seconds``; return True if there was one."""
        for session in sorted(self.sessions.values(), key=lambda each: -len(each.batches)):
            for batch in reversed(session.recallable):
                if now - session.batches[batch] >= seconds and not intersection((batch,), self.recalled):
                    del session.batches[batch]
                    self.recalled = union(self.recalled, (batch,))
                    self.ledger.recall(session.key, (batch,))
                    return True
        return False


@dataclass
class _Stream:
    name: str
    description: tuple[tuple[str, str], ...]
    samples: int
    at_least_once: bool
    epochs: dict[int, _Epoch] = field(default_factory=dict)
    forgotten: int = -1
    """Newest epoch that is no longer remembered."""
    earlier: SampleCounts = field(default_factory=SampleCounts)
    """Counts of all forgotten epochs."""

    @property
    def newest(self) -> int:
        return max(self.epochs, default=self.forgotten)

    def differs(self, report: EpochReport) -> str:
        """The trainer's conflict with the stream; empty if there is none."""
        if report.at_least_once != self.at_least_once:
            how = "at least once" if self.at_least_once else "once at most"
            return f"the stream {self.name!r} delivers each sample {how}, and this trainer requests otherwise"
        ours, theirs = ({**dict(each.description), "samples": str(each.samples)} for each in (self, report))
        apart = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        if apart:
            has, wants = (", ".join(f"{name} {each.get(name)}" for name in apart) for each in (ours, theirs))
            return (
                f"the stream {self.name!r} has {has}, but this trainer wants {wants}; use another "
                "name for another stream"
            )
        return ""

    def epoch_of(self, number: int) -> _Epoch:
        """The epoch of a number; the current one for -1."""
        if number < 0:
            on = self.epochs.get(self.newest)
            number = self.newest if on is not None and not on.is_finished else self.newest + 1
        if number not in self.epochs:
            self.epochs[number] = _Epoch(self, SampleLedger(self.samples, number))
        return self.epochs[number]

    def end_early(self) -> None:
        """End epochs that no trainer uses any more, because a later one is current."""
        for number, each in self.epochs.items():
            if number < self.newest and not each.sessions and not each.is_finished:
                each.ledger.stop()
        for number in sorted(self.epochs)[: max(0, len(self.epochs) - _MAX_EPOCHS)]:
            if self.epochs[number].sessions:
                break
            self.earlier = self.earlier + self.epochs.pop(number).ledger.total
            self.forgotten = max(self.forgotten, number)

    @property
    def totals(self) -> StreamTotals:
        """Counts of all epochs."""
        ledgers = [each.ledger for each in self.epochs.values()]
        total = sum((each.total for each in ledgers), self.earlier)
        return StreamTotals(
            self.name,
            self.newest,
            total.counted,
            total.torn,
            total.left_out,
            total.lost,
            sum(each.open for each in ledgers),
            sum(each.free for each in ledgers if not each.is_stopped),
        )


class SharedEpochs:
    """All streams of a pool."""

    def __init__(self, recall_seconds: float = 1.0) -> None:
        """``recall_seconds``: seconds until a batch that a trainer does not take may go to an idle
        trainer."""
        self._recall_seconds = recall_seconds
        self._streams: dict[str, _Stream] = {}
        self._sessions: dict[tuple[str, int], _Epoch] = {}
        self._ended_sessions: OrderedDict[str, int] = OrderedDict()
        """Newest ended session of each trainer, for a bounded number of trainers."""
        self._keys = 0

    @property
    def accounts(self) -> tuple[EpochCounts, ...]:
        """Counts of each epoch of each stream."""
        return tuple(_epoch_counts(epoch) for epoch in self._epochs())

    @property
    def totals(self) -> tuple[StreamTotals, ...]:
        """Totals of each stream."""
        return tuple(each.totals for each in self._streams.values())

    def receive(self, report: EpochReport, now: float) -> list[Send]:
        """Handle a connected trainer's report."""
        at = report.name, report.session
        if at not in self._sessions:
            if report.session <= self._ended_sessions.get(report.name, 0):
                return [_end_assignment(report)]
            why = self._join(report)
            if why:
                return [_end_assignment(report, why)]
        epoch = self._sessions[at]
        session = epoch.sessions[at]
        if report.number <= session.last_report:
            return []
        epoch.record(session, report)
        if report.is_leaving:
            self._end(at, is_dead=False)
            return [_end_assignment(report), *self._assign(epoch, now)]
        return self._assign(epoch, now, session)

    def on_trainer_lost(self, name: str, now: float) -> list[Send]:
        """A trainer is lost."""
        sends: list[Send] = []
        for at in [each for each in self._sessions if each[0] == name]:
            epoch = self._sessions[at]
            self._end(at, is_dead=True)
            sends += self._assign(epoch, now)
        return sends

    def tick(self, now: float) -> list[Send]:
        """Do periodic work."""
        return [send for epoch in self._epochs() if epoch.sessions for send in self._assign(epoch, now)]

    def _epochs(self) -> Iterator[_Epoch]:
        return (epoch for stream in self._streams.values() for epoch in stream.epochs.values())

    def _join(self, draw: EpochReport) -> str:
        """Start a session; return the reason if it is rejected."""
        if (
            draw.samples < 1
            or draw.batch_samples < 1
            or not 0 < draw.max_batches <= _MAX_BATCHES
            or draw.epoch < -1
        ):
            return (
                f"{draw.max_batches} batches of {draw.batch_samples} of {draw.samples} samples do not fit "
                f"epoch {draw.epoch}"
            )
        stream = self._streams.setdefault(
            draw.stream, _Stream(draw.stream, draw.description, draw.samples, draw.at_least_once)
        )
        why = stream.differs(draw)
        if why:
            return why
        if 0 <= draw.epoch <= stream.forgotten:
            return f"epoch {draw.epoch} is over and forgotten; {stream.newest} was the last"
        epoch = stream.epoch_of(draw.epoch)
        self._keys += 1
        epoch.sessions[draw.name, draw.session] = _Session(draw.name, draw.session, self._keys)
        self._sessions[draw.name, draw.session] = epoch
        stream.end_early()
        return ""

    def _end(self, at: tuple[str, int], *, is_dead: bool) -> None:
        epoch = self._sessions.pop(at)
        epoch.end(epoch.sessions[at], is_dead=is_dead)
        self._ended_sessions[at[0]] = max(at[1], self._ended_sessions.get(at[0], 0))
        self._ended_sessions.move_to_end(at[0])
        if len(self._ended_sessions) > _TRAINERS:
            self._ended_sessions.popitem(last=False)
        epoch.stream.end_early()

    def _assign(self, epoch: _Epoch, now: float, answered: _Session | None = None) -> list[Send]:
        """Assign batches to all sessions; ``answered`` gets a message in any case."""
        sessions = list(epoch.sessions.values())
        news = [
            each for each in sessions if epoch.assign(each, now, self._recall_seconds) or each is answered
        ]
        return [_assignment(epoch, each) for each in news]


def _assignment(epoch: _Epoch, session: _Session) -> Send:
    session.assignments_sent += 1
    said = EpochAssignment(
        epoch.stream.name,
        session.number,
        session.assignments_sent,
        session.last_report,
        epoch.ledger.epoch,
        tuple(session.batches),
        tuple(each for each in session.batches if each in session.taken),
        epoch.is_finished,
        False,
    )
    return Send(session.name, said)


def _end_assignment(draw: EpochReport, why: str = "") -> Send:
    return Send(
        draw.name,
        EpochAssignment(draw.stream, draw.session, 0, draw.number, draw.epoch, (), (), False, True, why),
    )


def _epoch_counts(epoch: _Epoch) -> EpochCounts:
    ledger = epoch.ledger
    account = ledger.total
    return EpochCounts(
        epoch.stream.name,
        ledger.epoch,
        ledger.samples,
        account.counted,
        account.torn,
        account.left_out,
        ledger.open,
        ledger.free,
        account.lost,
        ledger.is_stopped,
        dict(epoch.delivered_by),
    )
