"""A bucket of which every member is gone: whose disk has lost the least.

Knows: whose disks were asked, what each has. Does not know: what is on a disk, whether a member comes back.

    what is so                                                     what follows
    the disks of all members have answered                         decided
    some have, and the processes of all members have ended         decided without the others, after a while
    some have, and a member is silent                              decided without it, after a longer while
    nobody has anything, or nobody has answered                    not decided: more may come

A member of which nothing is heard may live, with all that was acknowledged: so it is waited for. One whose
disk another process has does not live.

Only disks of members count: whatever the coordinator was told to be on disks is on each of theirs, and on no
other for certain. The others of the group are left out, for what they have is not what the bucket goes on
with.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.server.copies.saved import disk_of
from cotswold.server.messages import FindSaved, FoundSaved, Group, Send


@dataclass
class Revival:
    """That of one bucket."""

    group: Group
    """As it was."""
    began: float
    answers: dict[str, FoundSaved] = field(default_factory=dict)
    _asked: float = float("-inf")

    @property
    def _disks(self) -> set[str]:
        return {disk_of(each) for each in self.group.members}

    def asks(self, living: Collection[str]) -> list[str]:
        """Servers that have a member's disk now."""
        disks = self._disks
        return sorted(each for each in living if disk_of(each) in disks)

    def ask(self, living: Collection[str], epoch: int, now: float, retry_seconds: float) -> list[Send]:
        """Questions, for whoever has not answered."""
        if now - self._asked < retry_seconds:
            return []
        self._asked = now
        question = FindSaved(epoch, self.group.bucket)
        return [Send(name, question) for name in self.asks(living) if name not in self.answers]

    def heard(self, found: FoundSaved) -> None:
        """A server has read what it has."""
        if disk_of(found.server) in self._disks:
            self.answers[found.server] = found

    def decided(
        self, living: Collection[str], ended: Collection[str], now: float, patience: tuple[float, float]
    ) -> Group | None:
        """The group with which another life begins; None while that is not known.

        ``ended``: servers whose processes were seen to end; ``patience``: how long disks are waited for, and
        members that may live.
        """
        there = self.asks(living)
        able = {
            name: (each.life, each.term, each.index, name)
            for name, each in self.answers.items()
            if name in there and each.index >= 0
        }
        has_answered = {disk_of(each) for each in self.answers if each in there}
        are_dead = all(each in ended or disk_of(each) in has_answered for each in self.group.members)
        is_late = now - self.began >= (patience[0] if are_dead else patience[1])
        if not able or not (has_answered == self._disks or is_late):
            return None
        term = self.group.term + 1
        return Group(self.group.bucket, term, max(able, key=able.__getitem__), life=term)
