"""A simulated disk that outlives processes; writes in progress at a crash may be lost.

Knows: saved buckets, written in sequence, each with its duration. Does not know: the writer, the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.simulate.protocols.loop import VirtualTimeLoop


class SimulatedDisk:
    """The disk of a server and its successors."""

    def __init__(self, loop: VirtualTimeLoop, random: Random, seconds: float) -> None:
        """Create the disk; an operation takes up to ``seconds`` unless the disk is slow."""
        self._loop, self._random, self._seconds = loop, random, seconds
        self.contents: dict[str, SavedBucket] = {}
        """Buckets that are durable."""
        self.damaged: set[str] = set()
        """Buckets of which a part differs from what was written."""
        self.is_full = self.is_slow = False
        self._waiting: deque[tuple[SavedBucket | None, Callable[[], None]]] = deque()
        """Pending operations: the bucket that is written, or None, and the action."""
        self._owner = 0

    def attach(self) -> None:
        """Attach another process: a prefix of its predecessor's pending operations takes effect."""
        for _ in range(self._random.randint(0, len(self._waiting))):
            self._waiting.popleft()[1]()
        self._drop()

    @property
    def writes(self) -> str:
        """Bucket that is being written; empty if none is."""
        saved = self._waiting[0][0] if self._waiting else None
        return "" if saved is None else saved.bucket

    def crash(self) -> None:
        """Simulate a crash: a part of the current write takes effect, the rest is lost."""
        saved = self._waiting[0][0]
        assert saved is not None, "something is being written"
        numbers = list(saved.numbers.items())
        self._merge(replace(saved, numbers=dict(numbers[: len(numbers) // 2])))
        self.damaged.add(saved.bucket)
        self._drop()

    def exchange(self, has: Mapping[str, SavedBucket]) -> None:
        """Replace the contents, and drop pending operations."""
        self._drop()
        self.contents, self.damaged = dict(has), set()

    def forget(self, bucket: str) -> None:
        """Delete a bucket after all pending operations."""

        def act() -> None:
            self.contents.pop(bucket, None)
            self.damaged.discard(bucket)

        self._do(act)

    def _drop(self) -> None:
        """Drop all pending operations."""
        self._waiting.clear()
        self._owner += 1

    def write(self, saved: SavedBucket, done: Callable[[bool], None]) -> None:
        """Write a bucket after all pending operations; ``done`` receives True if it succeeded."""
        owner = self._owner

        def act() -> None:
            is_there = not self.is_full
            if is_there:
                self._merge(saved)
            if owner == self._owner:
                done(is_there)

        self._do(act, saved)

    def read(self, bucket: str, done: Callable[[SavedBucket | None], None]) -> None:
        """Read a bucket if it is undamaged."""
        self._do(lambda: done(self.intact_bucket(bucket)))

    def intact_bucket(self, bucket: str) -> SavedBucket | None:
        """Return a bucket's contents; None if they are missing or damaged."""
        return None if bucket in self.damaged else self.contents.get(bucket)

    def _merge(self, saved: SavedBucket) -> None:
        before = self.contents.get(saved.bucket)
        numbers = {} if before is None else dict(before.numbers)
        self.contents[saved.bucket] = replace(saved, numbers={**numbers, **saved.numbers})
        if len(saved.numbers) == len(self.contents[saved.bucket].numbers):
            self.damaged.discard(saved.bucket)

    def _do(self, act: Callable[[], None], saved: SavedBucket | None = None) -> None:
        self._waiting.append((saved, act))
        if len(self._waiting) == 1:
            self._loop.schedule(self._write_seconds(), self._next(self._owner))

    def _next(self, owner: int) -> Callable[[], None]:
        def go_on() -> None:
            if owner != self._owner:
                return
            self._waiting.popleft()[1]()
            if self._waiting:
                self._loop.schedule(self._write_seconds(), self._next(owner))

        return go_on

    def _write_seconds(self) -> float:
        return self._random.random() * self._seconds * (20 if self.is_slow else 1)
