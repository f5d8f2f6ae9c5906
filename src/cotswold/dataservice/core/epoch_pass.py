"""A trainer's pass over an epoch that it shares with other trainers.

Knows: the batches assigned to it, and which of them are ready, taken and delivered to its loop. Does not
know: the content of a batch, who assigns batches, clocks.

    batch     event                                                    next
    none      `EpochAssignment` lists it                               requested from data servers
    requested `EpochAssignment` no longer lists it                     none: another trainer has it
    requested it is ready, and among the next to deliver               sent repeatedly in ``taking``
    requested `EpochAssignment` says that it is taken                  taken
    taken     it is ready, and the first                               delivered; sent in ``delivered``
    delivered `EpochAssignment` acknowledges it                        none

A batch is delivered only once it is taken: then no other trainer gets it. One batch more than the loop has
is taken ahead, so that the loop does not wait for the head's answer.

    pass      event                                                            next
    active    `EpochAssignment`: the epoch is over, and no batch is left       left
    active    the loop ends earlier                                            left
    active    `EpochAssignment`: the session ended, the trainer was silent     active, in a new session
    active    `EpochAssignment` rejects it                                     an error
    left      `EpochAssignment`: the session has ended                         done
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotswold.dataservice.core.request_scheduler import RequestScheduler
from cotswold.wire import POOL, BatchReply, BatchRequest, EpochAssignment, EpochReport, Send

BATCHES_AHEAD = 2
"""Batches that are taken before the loop gets them: the one that it waits for, and one more."""
_Range = tuple[int, int]
MakeRequest = Callable[[int, int, _Range], BatchRequest]
"""The request for a batch of an epoch, given its number."""


@dataclass(frozen=True)
class SharedEpochSettings:
    """Settings of a trainer that shares epochs."""

    stream: str
    description: tuple[tuple[str, str], ...]
    """The samples and their order, as names and values; all trainers of a stream must agree."""
    samples: int
    """Samples of an epoch."""
    batch_samples: int
    """Samples of a batch, at most."""
    max_batches: int = 6
    """Batches assigned at a time, at most."""
    at_least_once: bool = False


class EpochPass:
    """One pass over one epoch."""

    def __init__(
        self,
        name: str,
        settings: SharedEpochSettings,
        epoch: int,
        session: Callable[[], int],
        requests: RequestScheduler,
        now: float,
        beat_seconds: float,
    ) -> None:
        """``name`` is the trainer's name, ``epoch`` -1 for the current epoch, ``session`` returns new
        session numbers."""
        self.epoch = epoch
        self.error = ""
        self.is_left = self.is_done = False
        """True once it wants no more batches, and once the head has acknowledged that."""
        self._name, self._settings, self._sessions, self._requests = name, settings, session, requests
        self._session, self._number, self._last_assignment = session(), 0, 0
        self._make_request: MakeRequest | None = None
        self._numbers: dict[_Range, int] = {}
        """Request numbers by batch, in the order of delivery."""
        self._assigned: tuple[_Range, ...] = ()
        self._taken: set[_Range] = set()
        self._handed: dict[_Range, int] = {}
        """Number of the first report with the delivery; 0 if there is none yet."""
        self._last: _Range | None = None
        """The loop's present batch, if it is not reported as delivered before the loop returns."""
        self._reported_takes: set[_Range] = set()
        self._is_exhausted = False
        self._beat_seconds, self._reported_at = beat_seconds, float("-inf")
        self._head_answered_at = self._server_seen_at = now
        """Time of the head's last answer, and time at which a data server was last connected."""

    @property
    def is_finished(self) -> bool:
        """True if the loop has had all batches."""
        return (
            self._is_exhausted and not self._numbers and all(each in self._handed for each in self._assigned)
        )

    def begin(self, make_request: MakeRequest, now: float) -> list[Send]:
        """The epoch is known: request batches with ``make_request``."""
        self._make_request = make_request
        return self._request_batches(now)

    def next(self, pool: str, now: float) -> tuple[BatchReply | None, list[Send]]:
        """Return the next batch, once it is ready and taken."""
        if self._last is not None:
            self._handed[self._last], self._last = 0, None
        found = None
        first = next(iter(self._numbers), None)
        if first is not None and self._can_deliver(first):
            found = self._requests.pick(self._numbers.pop(first))
            self._taken.discard(first)
            if self._settings.at_least_once:
                self._last = first
            else:
                self._handed[first] = 0
        return found, self._report_changes(pool, now)

    def leave(self, pool: str, now: float) -> list[Send]:
        """The loop wants no more batches."""
        if self._last is not None:
            self._handed[self._last], self._last = 0, None
        sends = self._cancel(list(self._numbers))
        self.is_left = True
        return [*sends, self._report(pool, now)]

    def receive(self, assignment: EpochAssignment, now: float) -> list[Send]:
        """Handle the head's assignment."""
        if (assignment.stream, assignment.session) != (self._settings.stream, self._session):
            return []
        if assignment.is_ended:
            return self._on_session_ended(assignment, now)
        if assignment.number <= self._last_assignment:
            return []
        self._last_assignment, self._head_answered_at, self.epoch = assignment.number, now, assignment.epoch
        self._handed = {each: at for each, at in self._handed.items() if not 0 < at <= assignment.last_report}
        if self.is_left:
            return []
        self._assigned, self._is_exhausted = assignment.batches, assignment.is_exhausted
        self._taken |= set(assignment.taken) & set(self._numbers)
        lost = [each for each in self._numbers if each not in assignment.batches and each not in self._taken]
        return self._cancel(lost) + self._request_batches(now)

    def tick(self, pool: str, now: float) -> list[Send]:
        """Do periodic work."""
        if self.is_done or self.error:
            return []
        if self._requests.servers:
            self._server_seen_at = now
        sends = self._request_batches(now)
        if now - self._reported_at >= self._beat_seconds:
            return [*sends, self._report(pool, now)]
        return sends + self._report_changes(pool, now)

    def exclude_stall(self, seconds: float) -> None:
        """Do not count the trainer's own pause as silence of others."""
        self._head_answered_at += seconds
        self._server_seen_at += seconds

    def failure(self, now: float) -> str:
        """The reason why the pass cannot continue; empty if it can."""
        lonely = self._requests.settings.no_server_seconds
        if self.error or self.is_left or self.is_finished:
            return self.error
        if now - self._head_answered_at > lonely:
            return f"the head of the pool of data servers has not answered for {lonely:g} s"
        if now - self._server_seen_at > lonely:
            return f"no data server has been connected for {lonely:g} s"
        return ""

    # --- reports ---

    def _report_changes(self, pool: str, now: float) -> list[Send]:
        is_news = 0 in self._handed.values() or set(self._takes()) - self._reported_takes
        return [self._report(pool, now)] if is_news and not self.is_done else []

    def _report(self, pool: str, now: float) -> Send:
        self._number, self._reported_at = self._number + 1, now
        takes = () if self.is_left else self._takes()
        self._reported_takes = set(takes)
        for each, at in self._handed.items():
            self._handed[each] = at or self._number
        drawing = self._settings
        said = EpochReport(
            self._name,
            pool,
            drawing.stream,
            drawing.description,
            drawing.samples,
            drawing.at_least_once,
            self.epoch,
            self._session,
            self._number,
            drawing.batch_samples,
            drawing.max_batches,
            takes,
            tuple(self._handed),
            self.is_left,
        )
        return Send(POOL, said)

    def _takes(self) -> tuple[_Range, ...]:
        """Batches to deliver next that are not taken yet."""
        first = list(self._numbers)[:BATCHES_AHEAD]
        return tuple(
            each for each in first if each not in self._taken and self._requests.is_ready(self._numbers[each])
        )

    def _can_deliver(self, batch: _Range) -> bool:
        return batch in self._taken and self._requests.is_ready(self._numbers[batch])

    # --- requests ---

    def _request_batches(self, now: float) -> list[Send]:
        if self._make_request is None or self.is_left:
            return []
        sends: list[Send] = []
        for batch in self._assigned:
            is_new = batch not in self._numbers and batch not in self._handed and batch != self._last
            if is_new and self._requests.room:
                self._numbers[batch] = self._requests.next_number()
                sends += self._requests.submit(
                    self._make_request(self._numbers[batch], self.epoch, batch), now
                )
        return sends

    def _cancel(self, batches: list[_Range]) -> list[Send]:
        return self._requests.cancel([self._numbers.pop(each) for each in batches]) if batches else []

    def _on_session_ended(self, dealt: EpochAssignment, now: float) -> list[Send]:
        """The head has ended this session."""
        self._head_answered_at = now
        if dealt.why:
            self.error = dealt.why
        if dealt.why or self.is_left:
            self.is_done = True
            return []
        self._session, self._number, self._last_assignment = self._sessions(), 0, 0
        self._assigned, self._is_exhausted, self._handed, self._reported_at = (), False, {}, float("-inf")
        return self._cancel([each for each in self._numbers if each not in self._taken])
