"""A bucket of which every member is gone: who has lost the least, in memory or on a disk.

Knows: who was asked, what each has. Does not know: what is on a disk, whether a member comes back.

    what is so                                                     what follows
    all servers have answered, the disks of all members too,       decided
      one of which has something
    every disk of the cluster was heard of, no member lives        decided
    one has what was saved in the newest term, and the             decided without the others, after a while
      processes of all members have ended
    the same, but none of the newest term                          decided after a longer while
    the process of a member may live, though nothing is heard      not decided, for however long: an operator
                                                                     may say that it is lost (`draining`)
    the disk of a process that has ended since has more            not decided for as long: it may come again
    nobody has anything, or nobody has answered                    not decided: more may come
    somebody has nothing                                           it is asked again, after a while
    the controllers' state was made from disks                     all disks that it names are waited for, and
      (`is_restored`)                                                those that the best of them names, for a
                                                                     longer while: the newest may come late

A member of which nothing is heard may live, with all that was acknowledged: so it is waited for, and nothing
that was acknowledged is given up while it may be had. One whose disk another process has does not live.

The next life begins in the next term; after a restored state in a much later one (`RESTORED_TERMS`).

Others are asked too: members may be so new that their disks have nothing, and whoever was a member before,
or learned to be one, may have all of it in memory. What is of the latest life and term has the most: whatever
the coordinator was told to be on disks was put in that term on those of all who were members then. So what
was saved in the newest has all of that; of anything else the coordinator judges by what it was told whether
it is enough.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.replication.replica.saved_bucket import disk_of, is_restored
from cotswold.wire import FindSaved, FoundSaved, Group, Send

RESTORED_TERMS = 1000
"""Terms that a bucket may have had of which a state that was made from disks knows nothing. A server that was
the primary in one of them takes a group of a later term only."""
_AGAIN_RETRIES = 4
"""After so many whoever has nothing is asked again."""


@dataclass
class Revival:
    """That of one bucket."""

    group: Group
    """As it was."""
    began: float
    answers: dict[str, FoundSaved] = field(default_factory=dict)
    _disks: dict[str, tuple[float, FoundSaved]] = field(default_factory=dict)
    """What each disk had that was heard of, and when that was last."""
    told: set[tuple[bool, bool]] = field(default_factory=set)
    """What people were told: whether it waits for members, whether `is_empty`."""
    _asked: float = float("-inf")
    _asked_again: float = float("-inf")

    @property
    def _of_members(self) -> set[str]:
        """Disks that may have more than others."""
        disks = {disk_of(each) for each in self.group.members}
        if is_restored(self.group.primary) and self._disks:
            best = max((found for _, found in self._disks.values()), key=_rank)
            disks |= {disk_of(each) for each in best.members}
        return disks

    @property
    def missing(self) -> list[str]:
        """Disks that a state made from disks waits for, of which nothing was heard."""
        return sorted(self._of_members - self._disks.keys()) if is_restored(self.group.primary) else []

    @property
    def is_empty(self) -> bool:
        """Whether the disk on which this was restored was heard of, and has nothing of it."""
        found = self._disks.get(disk_of(self.group.primary))
        return is_restored(self.group.primary) and found is not None and found[1].index < 0

    def ask(self, living: Collection[str], epoch: int, now: float, retry_seconds: float) -> list[Send]:
        """Questions, for whoever has not answered."""
        if now - self._asked < retry_seconds:
            return []
        self._asked = now
        wanted = {name for name in living if name not in self.answers}
        if now - self._asked_again >= _AGAIN_RETRIES * retry_seconds:
            self._asked_again = now
            wanted |= {name for name in living if name in self.answers and self.answers[name].index < 0}
        question = FindSaved(epoch, self.group.bucket)
        return [Send(name, question) for name in sorted(wanted)]

    def heard(self, found: FoundSaved, now: float) -> None:
        """A server has read what it has."""
        self.answers[found.server] = found
        self._disks[disk_of(found.server)] = now, found

    def silent(self, living: Collection[str], ended: Collection[str]) -> list[str]:
        """Members that may live."""
        disks = {disk_of(each) for each in self._of_living(living)}
        return [each for each in self.group.members if each not in ended and disk_of(each) not in disks]

    def _of_living(self, living: Collection[str]) -> dict[str, FoundSaved]:
        return {name: each for name, each in self.answers.items() if name in living}

    def _is_elsewhere(self, most: FoundSaved, since: float) -> bool:
        """Whether a disk had more, when it was heard of not long ago."""
        return any(
            when >= since and each.index >= 0 and _rank(each) > _rank(most)
            for when, each in self._disks.values()
        )

    def decided(
        self,
        living: Collection[str],
        ended: Collection[str],
        now: float,
        patience: tuple[float, float],
        known: Collection[str] = (),
    ) -> Group | None:
        """The group with which another life begins; None while that is not known.

        ``ended``: servers whose processes were seen to end; ``patience``: how long other disks are waited
        for where one was saved in the newest term, and where none was; ``known``: all servers that there ever
        were, if that is known.
        """
        answers = self._of_living(living)
        able = {name: each for name, each in answers.items() if each.index >= 0}
        has_answered = {disk_of(each) for each in answers}
        are_dead = not self.silent(living, ended)
        is_newest = any(each.index >= 0 and each.term == self.group.term for each in answers.values())
        is_late = are_dead and now - self.began >= patience[0 if is_newest else 1]
        # where no member's disk has anything, that of one that was left out a moment ago may have all
        is_of_member = any(disk_of(name) in self._of_members for name in able)
        is_complete = answers.keys() == set(living) and has_answered >= self._of_members and is_of_member
        everywhere = self._of_members | {disk_of(each) for each in known}
        is_complete |= are_dead and bool(known) and self._disks.keys() >= everywhere
        if not able or not (is_complete or is_late):
            return None
        most = max(able.values(), key=lambda each: (*_rank(each), each.server))
        if self._is_elsewhere(most, now - patience[1]):
            return None
        more = RESTORED_TERMS if is_restored(self.group.primary) else 1
        term = max(self.group.term, most.term) + more
        return Group(self.group.bucket, term, most.server, life=term)


def _rank(found: FoundSaved) -> tuple[int, int, int]:
    return found.life, found.term, found.index
