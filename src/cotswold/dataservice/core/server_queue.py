"""The queue of a data server: which request is made next.

Knows: trainers by name, numbers of requests. Does not know: what is requested, threads, sockets.

    state       what happens                          next
    none        `Ask`, and there is room              waiting
    none        `Ask`, and the trainer has its most   none: `Unsupplied`, it may ask another server
    waiting     `Ask` again                           waiting: `Pending`
    waiting     it is its trainer's turn              under way
    waiting     `Cancel`, or the trainer is lost      none
    under way   `Ask` again                           under way: `Pending`
    under way   `Cancel`, or the trainer is lost      unwanted
    unwanted    `Ask` again                           under way: `Pending`
    under way   it is made                            none: `Supplied`, or `Unsupplied`
    unwanted    it is made                            none

A trainer's requests are made in the order in which they came, and trainers have turns. What was answered is
forgotten: whoever asks again is answered again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cotswold.wire import Ask, Cancel, Pending, Send, Unsupplied


@dataclass(frozen=True)
class Job:
    """A request that is made now."""

    trainer: str
    ask: Ask


@dataclass
class _Trainer:
    waiting: dict[int, Ask] = field(default_factory=dict)
    """By number, in the order in which they came."""
    under_way: set[int] = field(default_factory=set)
    unwanted: set[int] = field(default_factory=set)
    """Of those that are under way."""


class Supplying:
    """The requests of all trainers to one server."""

    def __init__(self, name: str, room: int = 64) -> None:
        """``room``: requests of a trainer that may wait."""
        if room < 1:
            raise ValueError(f"room for {room} requests; it must be at least 1")
        self.name, self._room = name, room
        self._trainers: dict[str, _Trainer] = {}
        self._turns: deque[str] = deque()
        """Trainers that have something waiting."""

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(len(each.waiting) for each in self._trainers.values())

    @property
    def trainers(self) -> tuple[str, ...]:
        """Those of which something waits or is under way."""
        return tuple(self._trainers)

    def receive(self, sender: str, message: Ask | Cancel) -> list[Send]:
        """What a trainer says."""
        if isinstance(message, Cancel):
            self._cancel(sender, message.numbers)
            return []
        trainer = self._trainers.setdefault(sender, _Trainer())
        number = message.number
        if number in trainer.under_way or number in trainer.waiting:
            trainer.unwanted.discard(number)
            return [Send(sender, Pending(self.name, number))]
        if len(trainer.waiting) >= self._room:
            return [Send(sender, Unsupplied(self.name, number, ""))]
        if not trainer.waiting:
            self._turns.append(sender)
        trainer.waiting[number] = message
        return []

    def next(self) -> Job | None:
        """The request that is to be made now; it is under way then."""
        if not self._turns:
            return None
        name = self._turns.popleft()
        trainer = self._trainers[name]
        number = next(iter(trainer.waiting))
        job = Job(name, trainer.waiting.pop(number))
        trainer.under_way.add(number)
        if trainer.waiting:
            self._turns.append(name)
        return job

    def done(self, job: Job) -> bool:
        """A request is made, or cannot be; whether its trainer still wants to hear of it."""
        trainer, number = self._trainers[job.trainer], job.ask.number
        trainer.under_way.remove(number)
        is_wanted = number not in trainer.unwanted
        trainer.unwanted.discard(number)
        self._forget(job.trainer, trainer)
        return is_wanted

    def lost(self, name: str) -> None:
        """A trainer is gone."""
        if name in self._trainers:
            trainer = self._trainers[name]
            self._cancel(name, (*trainer.waiting, *trainer.under_way))

    def _cancel(self, name: str, numbers: tuple[int, ...]) -> None:
        trainer = self._trainers.get(name)
        if trainer is None:
            return
        for number in numbers:
            trainer.waiting.pop(number, None)
            if number in trainer.under_way:
                trainer.unwanted.add(number)
        if not trainer.waiting and name in self._turns:
            self._turns.remove(name)
        self._forget(name, trainer)

    def _forget(self, name: str, trainer: _Trainer) -> None:
        if not trainer.waiting and not trainer.under_way:
            del self._trainers[name]
