"""Vectors of a worker: kept ones, and pulls from parameter servers.

Knows: missing shards of a vector, servers to ask again. Does not know: the purpose of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

import numpy as np

from cotswold.optim import Combine, Command, Dot, Drop, Multiply
from cotswold.shards.runtime.arithmetic import Array, combine, multiply
from cotswold.wire import Message, Pull, Pulled, Shard

SendMessage = Callable[[str, Message], object]
"""Sends a message to a peer by its name."""


@dataclass
class _PendingPull:
    session: int
    evaluation: int
    target: Array
    missing_shards: dict[str, set[int]]
    """Missing shards by server."""
    requested_at: float
    on_complete: Callable[[Array], None]
    failed: Callable[[str], None]


class VectorPulls:
    """Current pulls, by evaluation and name."""

    def __init__(self, shards: Sequence[Shard], dtype: np.dtype[np.floating], send: SendMessage) -> None:
        self._shards = {one.number: one for one in shards}
        self._size = max(one.stop for one in shards)
        self._dtype, self._send = dtype, send
        self._pending: dict[tuple[int, str], _PendingPull] = {}

    def fetch(
        self,
        *,
        session: int,
        evaluation: int,
        name: str,
        now: float,
        on_complete: Callable[[Array], None],
        failed: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Pull a vector (as of an evaluation) from the servers, and call ``on_complete`` with it.

        ``failed`` receives a server's reason for a rejection; without it, the coordinator starts another
        attempt.
        """
        missing: dict[str, set[int]] = {}
        for one in self._shards.values():
            missing.setdefault(one.server, set()).add(one.number)
        target = np.empty(self._size, self._dtype)
        key = evaluation, name
        self._pending[key] = _PendingPull(session, evaluation, target, missing, now, on_complete, failed)
        self._request(key)

    def on_pulled(self, message: Pulled) -> None:
        """Handle received shards; unexpected ones are ignored."""
        key = message.evaluation, message.name
        wanted = self._pending.get(key)
        if wanted is None or wanted.session != message.session:
            return
        if message.error is not None:
            del self._pending[key]
            wanted.failed(message.error)
            return
        for number, buffer in zip(message.shards, message.buffers, strict=True):
            shard = self._shards[number]
            missing = wanted.missing_shards.get(shard.server, set())
            if number in missing:
                assert isinstance(buffer, bytes | bytearray | memoryview)
                wanted.target[shard.start : shard.stop] = np.frombuffer(buffer, self._dtype)
                missing.discard(number)
                if not missing:
                    del wanted.missing_shards[shard.server]
        if not wanted.missing_shards:
            del self._pending[key]
            wanted.on_complete(wanted.target)

    def resend(self, now: float, after_seconds: float) -> None:
        """Repeat pulls that have waited for this time."""
        for key, wanted in self._pending.items():
            if now - wanted.requested_at >= after_seconds:
                wanted.requested_at = now
                self._request(key)

    def clear(self) -> None:
        """Drop the pulls for evaluations."""
        self._pending = {key: wanted for key, wanted in self._pending.items() if wanted.evaluation == 0}

    def _request(self, key: tuple[int, str]) -> None:
        wanted, name = self._pending[key], key[1]
        for server, shards in wanted.missing_shards.items():
            self._send(server, Pull(wanted.session, wanted.evaluation, name, tuple(sorted(shards))))


class WorkerVectors:
    """Vectors that a worker keeps, by name."""

    def __init__(self, size: int, dtype: np.dtype[np.floating]) -> None:
        self._size, self._dtype = size, dtype
        self._named: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        """Return a vector; raise KeyError if it does not exist."""
        return self._named[name]

    def __setitem__(self, name: str, vector: Array) -> None:
        self._named[name] = vector

    def run(self, commands: Sequence[Command], fetched: Container[str] = ()) -> None:
        """Run commands with the same bits as the shards. Commands that produce ``fetched`` vectors, and dot
        products, are skipped."""
        for command in commands:
            match command:
                case Combine(out, _) if out in fetched:
                    continue
                case Combine(out, terms):
                    given = [(factor, self._named[name]) for factor, name in terms]
                    combine(self._allocate(out), given)
                case Multiply(out, left, right):
                    multiply(self._allocate(out), self._named[left], self._named[right])
                case Drop(name):
                    self._named.pop(name, None)
                case Dot():
                    continue

    def _allocate(self, name: str) -> Array:
        if name not in self._named:
            self._named[name] = np.empty(self._size, self._dtype)
        return self._named[name]
