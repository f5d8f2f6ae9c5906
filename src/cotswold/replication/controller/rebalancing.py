"""Servers have as many copies as others, and lead as many buckets.

Knows: who has what, when something happened last. Does not know: what is next for a bucket (`placing`), how a
primary is elected.

    what is so                                                  what follows
    something has just happened, or a bucket is being moved     nothing
    a server has two copies more than another                   the other learns one of them; then a member is
                                                                dropped, if all are well (`placing`)
    two copies are on one host, another has a server            the same
    copies are so, nothing has happened for long, a server      one of its secondaries leads that, and this
      leads two buckets more than one of its secondaries          one is a secondary (`electing`)
    the same, by way of a third server                          the last of them first

A few copies are on their way at once, and a primary is changed twice a second: training is not disturbed.
Nothing of it is written down: whoever leads next sees what there is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

from cotswold.replication.controller.cluster_view import Board
from cotswold.replication.controller.election import Cause
from cotswold.replication.controller.election_manager import Elections
from cotswold.replication.controller.placement import surplus
from cotswold.replication.controller.replication_repair import Filling
from cotswold.wire import Group
from cotswold.words import counted

_PAUSE_SECONDS = 0.25
_TRIED = 8
"""So many servers that have much, and that have little, are looked at."""
_VISITED = 64
"""Servers that are looked at for a way by which leads are evened."""
_SWEPT = 200
"""Buckets whose hosts are looked at each time."""


class Balancing:
    """That of a leader."""

    def __init__(self, board: Board, elections: Elections, filling: Filling, now: float) -> None:
        self._board, self._elections, self._filling = board, elections, filling
        self._shaken = self._moved = self._looked = self._handed = now
        """When a server came or went or a copy was lost, a copy was moved, this was looked at, a lead was."""
        self._is_even = self._is_led_evenly = False
        """Whether nothing was found to do, and nothing has happened since."""
        self._sweep: list[str] = []

    def shaken(self, now: float) -> None:
        """A server came or went, or a bucket lost a copy."""
        self._shaken = now
        self.changed()

    def changed(self) -> None:
        """A bucket has another group."""
        self._is_even = self._is_led_evenly = False

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now - self._looked < _PAUSE_SECONDS:
            return
        self._looked, control = now, self._board.control
        if now - self._shaken < control.settle_seconds or not self._board.map.is_still:
            return
        while len(self._board.learning) < control.moves and (self._spread() or self._move()):
            self._moved = now
        is_calm = now - max(self._shaken, self._moved) >= control.calm_seconds
        if is_calm and self._is_even and now - self._handed >= control.handover_seconds:
            self._even_leads(now)

    # --- copies ---

    def _move(self) -> bool:
        """Begin to move a copy to a server that has fewer; whether there was one."""
        if self._is_even:
            return False
        loads = {name: load for load, name in self._board.servers.loads.ascending}
        for name, left in self._leaving().items():
            if name in loads:
                loads[name] -= left
        ascending = sorted(loads, key=lambda name: (loads[name], name))
        for most in islice(reversed(ascending), _TRIED):
            for least in islice(ascending, _TRIED):
                if loads[most] - loads[least] < 2:
                    break
                if self._move_between(most, least, loads):
                    return True
        self._is_even = True
        return False

    def _leaving(self) -> Counter[str]:
        """How many copies each server is about to be rid of."""
        groups = map(self._board.map.intended, self._board.learning)
        return Counter(
            surplus(_with(group), self._board.servers)
            for group in groups
            if group is not None and len(group.members) >= self._board.control.copies
        )

    def _move_between(self, most: str, least: str, loads: dict[str, int]) -> bool:
        known = self._board.servers.of[most]
        for bucket in sorted(known.copies, key=lambda name: name in known.leads):  # rather not the primary's
            group = self._whole(bucket)
            if group is None or least in group.everybody or self._filling.is_avoided(bucket, least):
                continue
            grown = replace(group, secondaries=(*group.secondaries, least))
            dropped = surplus(grown, self._board.servers)
            is_better = dropped in loads and loads[dropped] - loads[least] >= 2
            if is_better and self._hosts(grown, dropped) >= self._hosts(group):
                self._learn(group, least, f"{dropped} has more copies")
                return True
        return False

    def _spread(self) -> bool:
        """Begin to move a copy to a host that has none of its bucket; whether there was one."""
        self._sweep = self._sweep or list(self._board.groups)
        for _ in range(min(_SWEPT, len(self._sweep))):
            bucket = self._sweep.pop()
            group = self._whole(bucket)
            if group is None or self._hosts(group) == len(group.members):
                continue
            place = self._board.servers.place(group.members, self._filling.avoided(bucket))
            grown = group if place is None else replace(group, secondaries=(*group.secondaries, place))
            if place is not None and self._hosts(grown) > self._hosts(group):
                self._learn(group, place, "two copies are on one host")
                return True
        return False

    def _learn(self, group: Group, server: str, why: str) -> None:
        self._board.put(replace(group, term=group.term + 1, learners=(server,)), why)

    def _whole(self, bucket: str) -> Group | None:
        """Its group, if that has all members, all live, and nothing is under way."""
        group, of = self._board.groups.get(bucket), self._board.servers.of
        if group is None or group.learners or len(group.members) != self._board.control.copies:
            return None
        if not self._elections.is_settled(bucket):
            return None
        return group if all(of[each].may_have_more for each in group.members) else None

    def _hosts(self, group: Group, without: str = "") -> int:
        return len({self._board.servers.of[each].host for each in group.members if each != without})

    # --- leads ---

    def _even_leads(self, now: float) -> None:
        if self._is_led_evenly or self._elections.of or self._board.learning:
            return
        leads = {
            name: len(self._board.servers.of[name].leads) for _, name in self._board.servers.loads.ascending
        }
        for most in sorted(leads, key=lambda name: (-leads[name], name))[:_TRIED]:
            found = self._way(most, leads)
            if found is not None:
                group, to = found
                self._handed = now
                many = counted(leads[group.primary], "bucket")
                why = f"{group.primary} leads {many}, and {to} {leads[to]}"
                self._elections.hold(group, Cause.EVEN, why, now, preferred=to)
                return
        self._is_led_evenly = True

    def _way(self, most: str, leads: dict[str, int]) -> tuple[Group, str] | None:
        """The last step of a way from a server to one that leads two buckets fewer: each step is a bucket of
        which one is the primary, and the next a secondary."""
        seen, ring = {most: None}, [most]
        while ring and len(seen) < _VISITED:
            steps: dict[str, Group] = {}
            for name in ring:
                for group in self._led(name):
                    for each in group.secondaries:
                        if each in leads and each not in seen:
                            steps.setdefault(each, group)
            if steps:
                least = min(steps, key=lambda name: (leads[name], name))
                if leads[most] - leads[least] >= 2:
                    return steps[least], least
            seen.update(dict.fromkeys(steps))
            ring = list(steps)
        return None

    def _led(self, name: str) -> list[Group]:
        """Groups of buckets that a server leads, and may hand over."""
        now = self._looked
        found = (self._whole(bucket) for bucket in self._board.servers.of[name].leads)
        return [each for each in found if each and not self._filling.is_resting(each.bucket, now)]


def _with(group: Group) -> Group:
    """The group once its learners have caught up."""
    return replace(group, secondaries=(*group.secondaries, *group.learners))
