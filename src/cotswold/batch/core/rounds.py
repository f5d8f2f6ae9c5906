"""A round: one message to every server, repeated until all have answered; each answer counts once.

Knows: numbers of rounds, servers that have answered, the order of shards. Does not know: the commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cotswold.optim.vectors.base import Command
from cotswold.wire import Close, Open, Round, RoundReply, Send


@dataclass(frozen=True)
class RoundOutcome:
    """The merged replies of all servers."""

    number: int
    dots: tuple[float, ...]
    """Each is the sum of the shards' partial sums in the order of the shards: the number of servers changes
    no bit."""
    digests: tuple[int, ...]
    """Digests in the order of the shards."""
    error: str | None
    """A failure on some server, or None."""


@dataclass
class RoundManager:
    """Consecutive rounds."""

    servers: Sequence[str]
    retry_seconds: float
    number: int = 0
    _round: Round | None = None
    _started_at: float = 0.0
    _sent_at: float = 0.0
    _answers: dict[str, RoundReply] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """True while a reply is missing."""
        return self._round is not None

    @property
    def unanswered(self) -> list[str]:
        """Servers whose reply is missing."""
        return [] if self._round is None else [name for name in self.servers if name not in self._answers]

    def unanswered_since(self, since: float) -> list[str]:
        """Return the servers that have not answered a round that began before ``since``."""
        return self.unanswered if self._started_at < since else []

    def start(
        self,
        now: float,
        commands: Sequence[Command] = (),
        *,
        close: Close | None = None,
        open: Open | None = None,
        digest: str | None = None,
    ) -> list[Send]:
        """Start the next round; the previous one must be over."""
        assert self._round is None, f"round {self.number} is not over"
        self.number += 1
        self._round = Round(self.number, close, tuple(commands), open, digest)
        self._started_at, self._sent_at, self._answers = now, now, {}
        return [Send(name, self._round) for name in self.servers]

    def tick(self, now: float) -> list[Send]:
        """Repeat the round to servers that have not answered in time, which is safe."""
        if self._round is None or now - self._sent_at < self.retry_seconds:
            return []
        self._sent_at = now
        return [Send(name, self._round) for name in self.unanswered]

    def answer(self, answer: RoundReply) -> RoundOutcome | None:
        """Record a reply; return the merged result with the last one."""
        if self._round is None or answer.number != self.number or answer.server not in self.servers:
            return None
        self._answers.setdefault(answer.server, answer)
        if self.unanswered:
            return None
        self._round = None
        answers = [self._answers[name] for name in self.servers]
        error = next((f"{each.server}: {each.error}" for each in answers if each.error is not None), None)
        if error is not None:
            return RoundOutcome(self.number, (), (), error)
        rows = {shard: row for each in answers for shard, row in zip(each.shards, each.dots, strict=True)}
        digests = {
            shard: digest
            for each in answers
            if each.digests
            for shard, digest in zip(each.shards, each.digests, strict=True)
        }
        assert len(rows) == sum(len(each.shards) for each in answers), "a shard is on two servers"
        columns = zip(*(rows[shard] for shard in sorted(rows)), strict=True)
        return RoundOutcome(
            self.number, tuple(map(_added, columns)), tuple(digests[shard] for shard in sorted(digests)), None
        )


def _added(partial_sums: Sequence[float]) -> float:
    total = 0.0
    for each in partial_sums:  # in order: sum() of newer Pythons compensates
        total += each
    return total
