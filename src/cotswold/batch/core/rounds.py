"""A round: one message to every server, sent again until all have answered, each answer once.

Knows: numbers of rounds, who has answered, shards in their order. Does not know: what is commanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cotswold.optim.vectors.base import Command
from cotswold.wire import Answer, Close, Open, Round, Send


@dataclass(frozen=True)
class RoundDone:
    """What all servers together answered."""

    number: int
    dots: tuple[float, ...]
    """Each the shards' partial sums, added in the shards' order: the number of servers changes no bit."""
    digests: tuple[int, ...]
    """In the shards' order."""
    error: str | None
    """What could not be done on some server."""


@dataclass
class Rounds:
    """One round after another."""

    servers: Sequence[str]
    retry_seconds: float
    number: int = 0
    _round: Round | None = None
    _began: float = 0.0
    _sent: float = 0.0
    _answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def is_under_way(self) -> bool:
        """Whether an answer is waited for."""
        return self._round is not None

    @property
    def silent(self) -> list[str]:
        """The servers whose answer is waited for."""
        return [] if self._round is None else [name for name in self.servers if name not in self._answers]

    def silent_since(self, then: float) -> list[str]:
        """The servers that have not answered a round that began before ``then``."""
        return self.silent if self._began < then else []

    def start(
        self,
        now: float,
        commands: Sequence[Command] = (),
        *,
        close: Close | None = None,
        open: Open | None = None,
        digest: str | None = None,
    ) -> list[Send]:
        """The next round begins; the one before is over."""
        assert self._round is None, f"round {self.number} is not over"
        self.number += 1
        self._round = Round(self.number, close, tuple(commands), open, digest)
        self._began, self._sent, self._answers = now, now, {}
        return [Send(name, self._round) for name in self.servers]

    def tick(self, now: float) -> list[Send]:
        """Whoever has not answered in time is asked again, which does no harm."""
        if self._round is None or now - self._sent < self.retry_seconds:
            return []
        self._sent = now
        return [Send(name, self._round) for name in self.silent]

    def answer(self, answer: Answer) -> RoundDone | None:
        """What all answered, with the last answer."""
        if self._round is None or answer.number != self.number or answer.server not in self.servers:
            return None
        self._answers.setdefault(answer.server, answer)
        if self.silent:
            return None
        self._round = None
        answers = [self._answers[name] for name in self.servers]
        error = next((f"{each.server}: {each.error}" for each in answers if each.error is not None), None)
        if error is not None:
            return RoundDone(self.number, (), (), error)
        rows = {shard: row for each in answers for shard, row in zip(each.shards, each.dots, strict=True)}
        digests = {
            shard: digest
            for each in answers
            if each.digests
            for shard, digest in zip(each.shards, each.digests, strict=True)
        }
        assert len(rows) == sum(len(each.shards) for each in answers), "every shard is on one server"
        columns = zip(*(rows[shard] for shard in sorted(rows)), strict=True)
        return RoundDone(
            self.number, tuple(map(_added, columns)), tuple(digests[shard] for shard in sorted(digests)), None
        )


def _added(partial_sums: Sequence[float]) -> float:
    total = 0.0
    for each in partial_sums:  # one after the other: sum() of newer Pythons compensates
        total += each
    return total
