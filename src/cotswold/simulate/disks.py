"""A disk that outlives processes, simulated: what was on its way when a process died is there or is not.

Knows: buckets as they are saved, one thing after the other, each in its time. Does not know: who saves, why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from cotswold.replication.replica.saved_bucket import Saved
from cotswold.simulate.loop import Loop


class SimulatedDisk:
    """That of a server, and of those that come after it."""

    def __init__(self, loop: Loop, random: Random, seconds: float) -> None:
        """``seconds``: what something takes, at most, but where it is slow."""
        self._loop, self._random, self._seconds = loop, random, seconds
        self.has: dict[str, Saved] = {}
        """What is on it for certain."""
        self.damaged: set[str] = set()
        """Buckets of which something is not what was written."""
        self.is_full = self.is_slow = False
        self._waiting: deque[tuple[Saved | None, Callable[[], None]]] = deque()
        """What is written, or None, and what is done."""
        self._owner = 0

    def begin(self) -> None:
        """Another process has it: of what the one before had under way some is there, the rest is not."""
        for _ in range(self._random.randint(0, len(self._waiting))):
            self._waiting.popleft()[1]()
        self._drop()

    @property
    def writes(self) -> str:
        """The bucket of which something is being written; empty where that is none."""
        saved = self._waiting[0][0] if self._waiting else None
        return "" if saved is None else saved.bucket

    def tear(self) -> None:
        """Its process died: of what was being written a part is there, of the rest nothing."""
        saved = self._waiting[0][0]
        assert saved is not None, "something is being written"
        numbers = list(saved.numbers.items())
        self._merge(replace(saved, numbers=dict(numbers[: len(numbers) // 2])))
        self.damaged.add(saved.bucket)
        self._drop()

    def exchange(self, has: Mapping[str, Saved]) -> None:
        """This is there instead, and nothing is on its way."""
        self._drop()
        self.has, self.damaged = dict(has), set()

    def forget(self, bucket: str) -> None:
        """Whatever is there of it is there no more, once all that is under way is done."""

        def act() -> None:
            self.has.pop(bucket, None)
            self.damaged.discard(bucket)

        self._do(act)

    def _drop(self) -> None:
        """Whatever is under way is not done."""
        self._waiting.clear()
        self._owner += 1

    def write(self, saved: Saved, done: Callable[[bool], None]) -> None:
        """Put it there, behind all that is under way; ``done`` hears whether it is."""
        owner = self._owner

        def act() -> None:
            is_there = not self.is_full
            if is_there:
                self._merge(saved)
            if owner == self._owner:
                done(is_there)

        self._do(act, saved)

    def read(self, bucket: str, done: Callable[[Saved | None], None]) -> None:
        """What is there, if it is sound."""
        self._do(lambda: done(self.sound(bucket)))

    def sound(self, bucket: str) -> Saved | None:
        """What is there; None where that is nothing, or not what was written."""
        return None if bucket in self.damaged else self.has.get(bucket)

    def _merge(self, saved: Saved) -> None:
        before = self.has.get(saved.bucket)
        numbers = {} if before is None else dict(before.numbers)
        self.has[saved.bucket] = replace(saved, numbers={**numbers, **saved.numbers})
        if len(saved.numbers) == len(self.has[saved.bucket].numbers):
            self.damaged.discard(saved.bucket)

    def _do(self, act: Callable[[], None], saved: Saved | None = None) -> None:
        self._waiting.append((saved, act))
        if len(self._waiting) == 1:
            self._loop.after(self._took(), self._next(self._owner))

    def _next(self, owner: int) -> Callable[[], None]:
        def go_on() -> None:
            if owner != self._owner:
                return
            self._waiting.popleft()[1]()
            if self._waiting:
                self._loop.after(self._took(), self._next(owner))

        return go_on

    def _took(self) -> float:
        return self._random.random() * self._seconds * (20 if self.is_slow else 1)
