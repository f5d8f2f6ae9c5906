"""One election: find the most complete replica among the members that are fenced below the new term.

Knows: which members were asked, the index of each. Does not know: the reason beyond its kind, the use of the
result.

    condition                                                      result
    all awaited members have replied                               decided
    some have replied, the others are silent for long              decided without the silent ones
    the same, but only one of several live members would be left   decided after the length of a lease
    a live member has no data                                      ask it again: it may not know the group yet
    the old primary may still act                                  undecided
    no member with data has replied                                undecided
    the primary was healthy, and not all others reply              the old group, in the next term
    it was healthy and hands over; it has the elected index        it becomes a secondary
    it was healthy and hands over; it has a higher index           a learner, or, of two, the old group

A healthy primary is fenced first, and the others a moment later: in between they receive what it has sent, so
all have the same index.

The member with the highest index is elected, for it has all acknowledged changes and the most of the others.
The other members then receive its additional changes. A member that has not replied leaves the group, so its
additional changes are never needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from cotswold.replication.controller.disk_recovery import DiskRecovery
from cotswold.wire import Fence, FenceReply, Group, Send

_SETTLE_SECONDS = 0.05


class ElectionReason(Enum):
    """Reasons for an election."""

    LOST = "lost"
    """The primary is lost or has exited."""
    CUT_OFF = "cut off"
    """The primary is alive but partitioned: it is replaced unless it is the only member."""
    DRAINED = "drained"
    """The primary is alive and drained: it leaves if others can replace it."""
    EVEN = "even"
    """The primary is alive and leads more buckets than others."""

    @property
    def is_planned(self) -> bool:
        """True if the group may also stay as it is."""
        return self in (ElectionReason.DRAINED, ElectionReason.EVEN)


@dataclass
class Election:
    """Election of the primary of a bucket's next term."""

    group: Group
    """The current group."""
    began: float
    cause: ElectionReason = ElectionReason.LOST
    why: str = ""
    """The reason in words."""
    noticed: float = 0.0
    """Time at which the cause was first known."""
    preferred: str = ""
    """Server to elect among those with the same index."""
    lightest: str = ""
    """Server with the fewest primaries; the second choice."""
    answers: dict[str, FenceReply] = field(default_factory=dict)
    revival: DiskRecovery | None = None
    """Recovery from disks, once every member is lost."""
    elected: Group | None = None
    """The proposed group, until it is committed."""
    _asked: float = float("-inf")
    _stopped: float | None = None
    """Time at which the healthy primary was known to be fenced."""

    @property
    def removed(self) -> str:
        """The primary, if it is alive and loses its role."""
        return "" if self.cause is ElectionReason.LOST else self.group.primary

    @property
    def term(self) -> int:
        """The new term."""
        return self.group.term + 1

    def ask(self, living: list[str], epoch: int, now: float, retry_seconds: float) -> list[Send]:
        """Return fence requests for the members that have not replied."""
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

    def answered(self, fenced: FenceReply) -> None:
        """Record the reply of a member."""
        if fenced.term == self.term and fenced.server in self.group.members:
            self.answers[fenced.server] = fenced

    def have_nothing(self, living: list[str]) -> bool:
        """True if every live member has replied that it has no data."""
        return all(name in self.answers and self.answers[name].index < 0 for name in living)

    def decided(
        self, living: list[str], may_act: bool, now: float, patience: tuple[float, float]
    ) -> Group | None:
        """Return the group of the next term; None while it is undecided.

        ``living``: live members; ``may_act``: True if the old primary may have a lease; ``patience``: seconds
        to wait for silent members, and seconds to wait if only one member would be left.
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
        if self.cause is ElectionReason.EVEN and primary in able:
            if able[primary] == able[ranked[0]]:
                others = (*others, primary)
            elif not others:
                return replace(group, term=self.term)
            else:
                learners = (primary,)
        return Group(group.bucket, self.term, ranked[0], others, learners, group.life)

    def _rank(self, name: str, index: int) -> tuple[bool, int, bool, bool, str]:
        return name != self.removed, index, name == self.preferred, name == self.lightest, name
