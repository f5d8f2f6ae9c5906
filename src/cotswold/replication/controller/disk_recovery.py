"""Recovery of a bucket that has lost every member: find the most recent data, in memory or on a disk.

Knows: which servers were asked, the data of each. Does not know: disks, whether a member comes back.

    condition                                                      result
    all servers have replied, including the disks of all           decided
      members, and one of these disks has data
    every disk of the cluster was reported, no member is alive     decided
    a server has data saved in the newest term, and all            decided without the others, after a while
      members have exited
    the same, but no data of the newest term                       decided after a longer while
    the process of a member may be alive, but is silent            undecided without limit; an operator may
                                                                     declare it lost (`drain`)
    the disk of a process that exited since has newer data         undecided for as long: it may come back
    no server has data, or none has replied                        undecided: another may come
    a server has no data                                           ask it again after a while
    the metadata was rebuilt from disks (`is_restored`)            wait longer for all disks named there, and
                                                                     those that the best of them names: the
                                                                     newest may come late

A silent member may be alive and have every acknowledged change, so the recovery waits for it. Acknowledged
changes are given up only when no member can have them. A member whose disk belongs to another process is not
alive.

The next incarnation of the bucket begins in the next term; after a restore in a much later one
(`RESTORED_TERMS`).

Servers other than members are asked too. Members may be so new that their disks are empty, and a former
member or learner may have all data in memory. The data of the latest incarnation and term are the most
recent: all changes reported to the coordinator as durable were saved in that term on the disks of all its
members. For older data, the coordinator decides by its own records whether they suffice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.replication.replica.saved_bucket import disk_of, is_restored
from cotswold.wire import DiskStateReply, DiskStateRequest, Group, Send

RESTORED_TERMS = 1000
"""Terms that a bucket may have had without a trace in metadata that was rebuilt from disks. A server that
was the primary in one of them accepts only a group of a later term."""
_REPEAT_RETRIES = 4
"""Retries after which a server without data is asked again."""


@dataclass
class DiskRecovery:
    """Recovery of one bucket."""

    group: Group
    """The last group."""
    started_at: float
    answers: dict[str, DiskStateReply] = field(default_factory=dict)
    _disks: dict[str, tuple[float, DiskStateReply]] = field(default_factory=dict)
    """The data of each disk that was reported, with the time of the last report."""
    reported: set[tuple[bool, bool]] = field(default_factory=set)
    """States that were shown to people: whether it waits for members, and `is_empty`."""
    _requested_at: float = float("-inf")
    _repeated_at: float = float("-inf")

    @property
    def _of_members(self) -> set[str]:
        """Disks that may have the most recent data."""
        disks = {disk_of(each) for each in self.group.members}
        if is_restored(self.group.primary) and self._disks:
            best = max((found for _, found in self._disks.values()), key=_recency)
            disks |= {disk_of(each) for each in best.members}
        return disks

    @property
    def silent_members(self) -> list[str]:
        """Disks that rebuilt metadata requires and that were not reported."""
        return sorted(self._of_members - self._disks.keys()) if is_restored(self.group.primary) else []

    @property
    def is_empty(self) -> bool:
        """True if the disk that was restored was reported and has no data of the bucket."""
        found = self._disks.get(disk_of(self.group.primary))
        return is_restored(self.group.primary) and found is not None and found[1].index < 0

    def disk_requests(
        self, living: Collection[str], epoch: int, now: float, retry_seconds: float
    ) -> list[Send]:
        """Return requests for the servers that have not replied."""
        if now - self._requested_at < retry_seconds:
            return []
        self._requested_at = now
        wanted = {name for name in living if name not in self.answers}
        if now - self._repeated_at >= _REPEAT_RETRIES * retry_seconds:
            self._repeated_at = now
            wanted |= {name for name in living if name in self.answers and self.answers[name].index < 0}
        question = DiskStateRequest(epoch, self.group.bucket)
        return [Send(name, question) for name in sorted(wanted)]

    def record_reply(self, found: DiskStateReply, now: float) -> None:
        """Record the reply of a server."""
        self.answers[found.server] = found
        self._disks[disk_of(found.server)] = now, found

    def unanswered(self, living: Collection[str], ended: Collection[str]) -> list[str]:
        """Return the members that may be alive."""
        disks = {disk_of(each) for each in self._live_replies(living)}
        return [each for each in self.group.members if each not in ended and disk_of(each) not in disks]

    def _live_replies(self, living: Collection[str]) -> dict[str, DiskStateReply]:
        return {name: each for name, each in self.answers.items() if name in living}

    def _is_elsewhere(self, most: DiskStateReply, since: float) -> bool:
        """True if a disk with more recent data was reported not long ago."""
        return any(
            when >= since and each.index >= 0 and _recency(each) > _recency(most)
            for when, each in self._disks.values()
        )

    def result(
        self,
        living: Collection[str],
        ended: Collection[str],
        now: float,
        timeouts: tuple[float, float],
        known: Collection[str] = (),
    ) -> Group | None:
        """Return the group that begins the next incarnation; None while it is undecided.

        ``ended``: servers whose processes were seen to exit; ``timeouts``: seconds to wait for other disks if
        one was saved in the newest term, and if none was; ``known``: all servers that ever existed, if known.
        """
        answers = self._live_replies(living)
        able = {name: each for name, each in answers.items() if each.index >= 0}
        has_answered = {disk_of(each) for each in answers}
        are_dead = not self.unanswered(living, ended)
        is_newest = any(each.index >= 0 and each.term == self.group.term for each in answers.values())
        is_late = are_dead and now - self.started_at >= timeouts[0 if is_newest else 1]
        # if no member's disk has data, a server that was dropped a moment ago may have all of it
        is_of_member = any(disk_of(name) in self._of_members for name in able)
        is_complete = answers.keys() == set(living) and has_answered >= self._of_members and is_of_member
        everywhere = self._of_members | {disk_of(each) for each in known}
        is_complete |= are_dead and bool(known) and self._disks.keys() >= everywhere
        if not able or not (is_complete or is_late):
            return None
        most = max(able.values(), key=lambda each: (*_recency(each), each.server))
        if self._is_elsewhere(most, now - timeouts[1]):
            return None
        more = RESTORED_TERMS if is_restored(self.group.primary) else 1
        term = max(self.group.term, most.term) + more
        return Group(self.group.bucket, term, most.server, incarnation=term)


def _recency(found: DiskStateReply) -> tuple[int, int, int]:
    return found.incarnation, found.term, found.index
