"""An election: who has the most of a bucket, of those who take part in no lower term any more.

Knows: who was asked, what each has. Does not know: why there is an election, what becomes of its result.

    what is so                                                     what follows
    all whom it waits for have answered                            decided
    somebody has answered, and the others are silent for long      decided without them
    the primary before may still act                               not decided
    nobody who has anything has answered                           not decided

The longest is elected, for it has all that was acknowledged and, of the rest, the most. What it has beyond
the others they are told. Whoever has not answered is in the group no longer, and so cannot be asked for what
it may have more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cotswold.server.control.reviving import Revival
from cotswold.server.messages import Fence, Fenced, Group, Send


@dataclass
class Election:
    """That of the primary of a bucket's next term."""

    group: Group
    """As it is."""
    began: float
    removed: str = ""
    """A primary that lives and is to be one no more, unless nobody else is there."""
    answers: dict[str, Fenced] = field(default_factory=dict)
    revival: Revival | None = None
    """Once every member is gone."""
    _asked: float = float("-inf")

    @property
    def term(self) -> int:
        """That which begins."""
        return self.group.term + 1

    def ask(self, living: list[str], epoch: int, now: float, retry_seconds: float) -> list[Send]:
        """Fences, for whoever has not answered."""
        if now - self._asked < retry_seconds:
            return []
        self._asked = now
        fence = Fence(epoch, self.group.bucket, self.term)
        return [Send(name, fence) for name in living if name not in self.answers]

    def answered(self, fenced: Fenced) -> None:
        """A member has answered."""
        if fenced.term == self.term and fenced.server in self.group.members:
            self.answers[fenced.server] = fenced

    def decided(self, living: list[str], may_act: bool, now: float, patience: float) -> Group | None:
        """The group of the next term; None while that is not known.

        ``living``: members that are there; ``may_act``: whether the primary before may hold a lease.
        """
        if may_act and self.group.primary not in self.answers:
            return None
        able = {name: each.index for name, each in self.answers.items() if each.index >= 0 and name in living}
        if not able or (now - self.began < patience and any(name not in self.answers for name in living)):
            return None
        ranked = sorted(able, key=lambda name: (name != self.removed, able[name], name), reverse=True)
        others = tuple(name for name in ranked[1:] if name != self.group.primary)
        return Group(self.group.bucket, self.term, ranked[0], others, life=self.group.life)
