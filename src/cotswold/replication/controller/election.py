"""An election: who has the most of a bucket, of those who take part in no lower term any more.

Knows: who was asked, what each has. Does not know: why there is an election, what becomes of its result.

    what is so                                                     what follows
    all whom it waits for have answered                            decided
    somebody has answered, and the others are silent for long      decided without them
    the same, and it alone would be left of several that live      decided after as long as a lease
    a member that lives has nothing                                it is asked again, for it may not know yet
                                                                   that it is one
    the primary before may still act                               not decided
    nobody who has anything has answered                           not decided
    the primary was well, and of the others not all answer         the group as it was, in the next term
    it was well, is to lead no more, and has what is elected has   it is a secondary of the next term
    the same, and has more                                         a learner, or, of two, the group as it was

A primary that is well is asked first, and the others a moment later: what it has sent comes to them, and all
have the same.

The longest is elected, for it has all that was acknowledged and, of the rest, the most. What it has beyond
the others they are told. Whoever has not answered is in the group no longer, and so cannot be asked for what
it may have more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from cotswold.replication.controller.disk_recovery import Revival
from cotswold.wire import Fence, Fenced, Group, Send

_SETTLE_SECONDS = 0.05


class Cause(Enum):
    """Why there is another primary."""

    LOST = "lost"
    """It is gone, or has ended."""
    CUT_OFF = "cut off"
    """It lives and is to be one no more, unless nobody else is there."""
    DRAINED = "drained"
    """It lives and is to have no copy any more, if others can do without it."""
    EVEN = "even"
    """It lives and leads more buckets than others."""

    @property
    def is_planned(self) -> bool:
        """Whether all may stay as it is."""
        return self in (Cause.DRAINED, Cause.EVEN)


@dataclass
class Election:
    """That of the primary of a bucket's next term."""

    group: Group
    """As it is."""
    began: float
    cause: Cause = Cause.LOST
    why: str = ""
    """The same in words."""
    noticed: float = 0.0
    """When it was first known that there must be one."""
    preferred: str = ""
    """Who is to be elected, of those that have as much."""
    lightest: str = ""
    """Who leads the fewest buckets: the next that is."""
    answers: dict[str, Fenced] = field(default_factory=dict)
    revival: Revival | None = None
    """Once every member is gone."""
    elected: Group | None = None
    """The next group, while it is not written down."""
    _asked: float = float("-inf")
    _stopped: float | None = None
    """When the primary, which was well, was known to do nothing any more."""

    @property
    def removed(self) -> str:
        """The primary, where it lives and is to be one no more."""
        return "" if self.cause is Cause.LOST else self.group.primary

    @property
    def term(self) -> int:
        """That which begins."""
        return self.group.term + 1

    def ask(self, living: list[str], epoch: int, now: float, retry_seconds: float) -> list[Send]:
        """Fences, for whoever has not answered."""
        wanted = [name for name in living if name not in self.answers or self.answers[name].index < 0]
        if self.cause.is_planned and self.group.primary in wanted:
            wanted = [self.group.primary]
        elif self.cause.is_planned:
            if self._stopped is None:
                self._stopped, self._asked = now, float("-inf")
            if now - self._stopped < _SETTLE_SECONDS:
                return []
        if now - self._asked < retry_seconds:
            return []
        self._asked = now
        fence = Fence(epoch, self.group.bucket, self.term)
        return [Send(name, fence) for name in wanted]

    def answered(self, fenced: Fenced) -> None:
        """A member has answered."""
        if fenced.term == self.term and fenced.server in self.group.members:
            self.answers[fenced.server] = fenced

    def have_nothing(self, living: list[str]) -> bool:
        """Whether all members that live say so."""
        return all(name in self.answers and self.answers[name].index < 0 for name in living)

    def decided(
        self, living: list[str], may_act: bool, now: float, patience: tuple[float, float]
    ) -> Group | None:
        """The group of the next term; None while that is not known.

        ``living``: members that are there; ``may_act``: whether the primary before may hold a lease;
        ``patience``: how long those who say nothing are waited for, and how long where one alone would be
        left.
        """
        group, primary = self.group, self.group.primary
        if may_act and primary not in self.answers:
            return None
        able = {name: each.index for name, each in self.answers.items() if each.index >= 0 and name in living}
        is_complete = all(name in self.answers for name in living)
        began = self.began if self._stopped is None else self._stopped + _SETTLE_SECONDS
        is_alone = len(able) < min(2, len(living)) and not self.cause.is_planned
        if not able or (now - began < patience[is_alone] and not is_complete):
            return None
        if self.cause.is_planned and primary in able and not (is_complete and len(able) > 1):
            return replace(group, term=self.term)
        ranked = sorted(able, key=lambda name: self._rank(name, able[name]), reverse=True)
        others = tuple(name for name in ranked[1:] if name != primary)
        learners: tuple[str, ...] = ()
        if self.cause is Cause.EVEN and primary in able:
            if able[primary] == able[ranked[0]]:
                others = (*others, primary)
            elif not others:
                return replace(group, term=self.term)
            else:
                learners = (primary,)
        return Group(group.bucket, self.term, ranked[0], others, learners, group.life)

    def _rank(self, name: str, index: int) -> tuple[bool, int, bool, bool, str]:
        return name != self.removed, index, name == self.preferred, name == self.lightest, name
