"""The request queue of a data server: it chooses the next request.

Knows: trainers by name, request numbers. Does not know: the content of requests, threads, sockets.

    state       event                                 next
    none        `BatchRequest`, the queue has space   waiting
    none        `BatchRequest`, the trainer's queue   none: `BatchRejected`; another server may make it
                  is full
    waiting     `BatchRequest` again                  waiting: `BatchPending`
    waiting     its trainer's turn                    in progress
    waiting     `CancelRequests`, or the trainer is   none
                  lost
    in progress `BatchRequest` again                  in progress: `BatchPending`
    in progress `CancelRequests`, or the trainer is   unwanted
                  lost
    unwanted    `BatchRequest` again                  in progress: `BatchPending`
    in progress it is ready                           none: `BatchReply`, or `BatchRejected`
    unwanted    it is ready                           none

Requests of a trainer are served in order, and trainers in turn. Answered requests are forgotten: a repeated
request is answered again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cotswold.wire import BatchPending, BatchRejected, BatchRequest, CancelRequests, Send


@dataclass(frozen=True)
class BatchJob:
    """A request in progress."""

    trainer: str
    request: BatchRequest


@dataclass
class _Trainer:
    queued: dict[int, BatchRequest] = field(default_factory=dict)
    """Waiting requests by number, in order of arrival."""
    running: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    """Requests in progress that were cancelled."""


class RequestQueue:
    """The requests of all trainers to one server."""

    def __init__(self, name: str, room: int = 64) -> None:
        """``room``: waiting requests per trainer, at most."""
        if room < 1:
            raise ValueError(f"room must be at least 1 request, got {room}")
        self.name, self._room = name, room
        self._trainers: dict[str, _Trainer] = {}
        self._order: deque[str] = deque()
        """Trainers with waiting requests."""

    @property
    def queued(self) -> int:
        """Number of waiting requests."""
        return sum(len(each.queued) for each in self._trainers.values())

    @property
    def trainers(self) -> tuple[str, ...]:
        """Trainers with waiting requests or requests in progress."""
        return tuple(self._trainers)

    def receive(self, sender: str, message: BatchRequest | CancelRequests) -> list[Send]:
        """Handle a trainer's message."""
        if isinstance(message, CancelRequests):
            self._cancel(sender, message.numbers)
            return []
        trainer = self._trainers.setdefault(sender, _Trainer())
        number = message.number
        if number in trainer.running or number in trainer.queued:
            trainer.cancelled.discard(number)
            return [Send(sender, BatchPending(self.name, number))]
        if len(trainer.queued) >= self._room:
            return [Send(sender, BatchRejected(self.name, number, ""))]
        if not trainer.queued:
            self._order.append(sender)
        trainer.queued[number] = message
        return []

    def next(self) -> BatchJob | None:
        """Return the next request, which is then in progress."""
        if not self._order:
            return None
        name = self._order.popleft()
        trainer = self._trainers[name]
        number = next(iter(trainer.queued))
        job = BatchJob(name, trainer.queued.pop(number))
        trainer.running.add(number)
        if trainer.queued:
            self._order.append(name)
        return job

    def finish(self, job: BatchJob) -> bool:
        """A request is finished; return True if its trainer still wants the answer."""
        trainer, number = self._trainers[job.trainer], job.request.number
        trainer.running.remove(number)
        is_wanted = number not in trainer.cancelled
        trainer.cancelled.discard(number)
        self._forget(job.trainer, trainer)
        return is_wanted

    def on_trainer_lost(self, name: str) -> None:
        """A trainer is lost."""
        if name in self._trainers:
            trainer = self._trainers[name]
            self._cancel(name, (*trainer.queued, *trainer.running))

    def _cancel(self, name: str, numbers: tuple[int, ...]) -> None:
        trainer = self._trainers.get(name)
        if trainer is None:
            return
        for number in numbers:
            trainer.queued.pop(number, None)
            if number in trainer.running:
                trainer.cancelled.add(number)
        if not trainer.queued and name in self._order:
            self._order.remove(name)
        self._forget(name, trainer)

    def _forget(self, name: str, trainer: _Trainer) -> None:
        if not trainer.queued and not trainer.running:
            del self._trainers[name]
