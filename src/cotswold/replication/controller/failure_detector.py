"""Who is silent to whom in a group: gathered for a while, then judged.

Knows: complaints of one term, who lives. Does not know: what becomes of the group.

    the complaints                                            what follows
    the primary is silent to all of its secondaries, or       it is fenced, and an election
      they to it, though it lives
    the primary, which lives, does not hear a copy            a group without that, for a while (`filling`),
                                                              once the primary has said that it is there
    soon after, it does not hear the others that live         it is fenced, and an election: it is to blame
    a secondary alone does not hear the primary, or there     nothing: if the primary is gone controllers miss
      is no other, and controllers hear both                    its beats, and else it says who is silent
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from cotswold.replication.controller.cluster_view import Board
from cotswold.replication.controller.election import Cause
from cotswold.replication.controller.election_manager import Elections
from cotswold.replication.controller.replication_repair import Filling
from cotswold.wire import Group, Silent, TakeOver


@dataclass
class Complaints:
    """Those of one group."""

    term: int
    began: float
    of_primary: set[str] = field(default_factory=set)
    """Copies that the primary does not hear."""
    of_secondaries: set[str] = field(default_factory=set)
    """Secondaries that do not hear the primary."""

    def hear(self, sender: str, message: Silent | TakeOver, group: Group) -> None:
        """One more, of whoever may say so."""
        if isinstance(message, Silent):
            if sender == group.primary:
                self.of_primary.add(message.copy)
        elif sender in group.secondaries:
            self.of_secondaries.add(sender)

    def is_cut_off(self, group: Group, living: set[str]) -> bool:
        """Whether it is the primary, and not one of several secondaries, that does not hear and is not heard;
        ``living``: secondaries that are there."""
        apart = (self.of_primary | self.of_secondaries) & set(group.secondaries)
        return len(living) > 1 and living <= apart  # it alone, or all of them at once

    def silent(self, group: Group) -> set[str]:
        """Copies that the primary does not hear."""
        return self.of_primary & set(group.everybody)


_SOON_SECONDS = 10.0


class Judging:
    """What a leader makes of them."""

    def __init__(self, board: Board, elections: Elections, filling: Filling) -> None:
        self._board, self._elections, self._filling = board, elections, filling
        self.of: OrderedDict[str, Complaints] = OrderedDict()
        """By bucket."""
        self._blamed: OrderedDict[str, tuple[str, float, set[str]]] = OrderedDict()
        """By bucket: a primary that was believed that it hears copies no more, when that was, and which."""

    def hear(self, sender: str, message: Silent | TakeOver, group: Group, now: float) -> None:
        """Somebody complains."""
        complaints = self.of.setdefault(group.bucket, Complaints(group.term, now))
        complaints.hear(sender, message, group)

    def noticed(self, bucket: str) -> float | None:
        """When the first complaint about a bucket was heard."""
        return self.of[bucket].began if bucket in self.of else None

    def forget(self, bucket: str) -> None:
        """Whatever was said is over."""
        self.of.pop(bucket, None)

    def tick(self, now: float) -> None:
        """Judge what was gathered for long enough."""
        while self.of:
            bucket, complaints = next(iter(self.of.items()))
            if now - complaints.began < self._board.control.judging_seconds:
                break
            del self.of[bucket]
            if bucket in self._board.groups:
                self._judge(self._board.groups[bucket], complaints, now)

    def _judge(self, group: Group, complaints: Complaints, now: float) -> None:
        servers, control = self._board.servers, self._board.control
        if complaints.term != group.term or not self._elections.is_settled(group.bucket):
            return
        living = {each for each in group.secondaries if servers.lives(each)}
        if complaints.is_cut_off(group, living):
            why = f"primary {group.primary} and its secondaries did not hear each other"
            self._elections.hold(group, Cause.CUT_OFF, why, now, complaints.began)
            return
        silent, before = complaints.silent(group), self._blamed_before(group, now)
        if before and living and living <= silent - before:
            why = f"primary {group.primary} heard one secondary after the other no more"
            self._elections.hold(group, Cause.CUT_OFF, why, now, complaints.began)
        elif silent and servers.of[group.primary].held_until - now > control.lease_seconds / 2:
            self._blamed[group.bucket] = group.primary, now, silent | before
            self._blamed.move_to_end(group.bucket)
            self._filling.silent(group, silent, now)

    def _blamed_before(self, group: Group, now: float) -> set[str]:
        """Copies of which its primary complained a moment ago."""
        while self._blamed and next(iter(self._blamed.values()))[1] < now - _SOON_SECONDS:
            self._blamed.popitem(last=False)
        primary, _, silent = self._blamed.get(group.bucket, ("", 0.0, set[str]()))
        return silent if primary == group.primary else set()
