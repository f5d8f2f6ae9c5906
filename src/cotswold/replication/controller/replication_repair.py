"""Buckets that are looked at: whether each has the copies that it is to have.

Knows: which are to be looked at, which wait for a server or a moment, which servers are avoided for a while.
Does not know: what is next for one (`placing`), how a primary is elected.

    a bucket                                        what happens to it
    its group was written down                      it is looked at
    nothing is to be done, or something is begun    it is looked at when that is written down
    it waits for a server                           it is looked at when one comes
    it waits for a moment                           it is looked at then
    its primary does not hear a copy                a group without that, and it gets none again for a while
    a member that lives is to be dropped            the others say first that they are there (`confirming`)
    its primary is gone                             an election
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace

from cotswold.replication.controller.cluster_view import Board
from cotswold.replication.controller.election import Cause
from cotswold.replication.controller.election_manager import Elections
from cotswold.replication.controller.placement import Add, Drop, HandOver, Wait, next_step
from cotswold.replication.controller.removal_check import FRESH_SECONDS, Confirming
from cotswold.wire import Group

_AT_ONCE = 500
"""So many are looked at in a tick: heartbeats are answered meanwhile."""
_WAIT_SECONDS = 1.0


class Filling:
    """That of a leader."""

    def __init__(self, board: Board, elections: Elections, confirming: Confirming) -> None:
        self._board, self._elections, self._confirming = board, elections, confirming
        self._due: OrderedDict[str, None] = OrderedDict()
        self.waiting: dict[str, Wait] = {}
        """Buckets that wait for a server, or a moment."""
        self._later: list[tuple[float, str]] = []
        self._avoided: dict[str, dict[str, float]] = {}
        """Servers by bucket, and until when."""
        self._silent: dict[str, tuple[Group, frozenset[str], float]] = {}
        """Of a group those who are to be taken out, for its primary does not hear them, and until when that
        counts, by bucket."""
        self._rests: dict[str, float] = {}
        """Until when no other primary is chosen, though one could."""
        self.late: dict[str, None] = {}
        """Servers that are drained, and wait no more for learners."""

    def look_at(self, buckets: Iterable[str]) -> None:
        """These are to be looked at."""
        self._due.update(dict.fromkeys(buckets))

    def came(self) -> None:
        """A server may have more copies."""
        self.look_at(self.waiting)

    def forget(self, bucket: str) -> None:
        """It is not there any more."""
        for each in (self._due, self.waiting, self._avoided, self._silent, self._rests):
            each.pop(bucket, None)

    def silent(self, group: Group, servers: set[str], now: float) -> None:
        """These were silent to the primary: they are taken out, once it is sure that others are there, and
        get no copy for a while."""
        self._silent[group.bucket] = group, frozenset(servers), now + self._board.control.lease_seconds
        self.look(group.bucket, now)

    def _leave_out(self, group: Group, now: float) -> bool:
        """Take those out who were silent; whether there are any."""
        of, servers, until = self._silent.get(group.bucket, (None, frozenset[str](), 0.0))
        if of is None:
            return False
        if of != group or now >= until:  # if that is still so it is said again
            del self._silent[group.bucket]
            return False
        if self._may_drop(group, servers, now):
            del self._silent[group.bucket]
            end = now + self._board.control.avoid_seconds
            self._avoided.setdefault(group.bucket, {}).update(dict.fromkeys(sorted(servers), end))
            self.drop(group, servers, f"{group.primary} did not hear it")
        else:
            heapq.heappush(self._later, (now + FRESH_SECONDS, group.bucket))
        return True

    def drop(self, group: Group, names: Iterable[str], why: str) -> None:
        """A group without these, if nothing else is under way; it is looked at again otherwise."""
        if not self._elections.is_settled(group.bucket):
            self._due[group.bucket] = None
            return
        secondaries = tuple(each for each in group.secondaries if each not in names)
        learners = tuple(each for each in group.learners if each not in names)
        term = group.term + 1
        self._board.put(replace(group, term=term, secondaries=secondaries, learners=learners), why)

    def rest(self, bucket: str, until: float) -> None:
        """No other primary is chosen until then: that one was not, though it could."""
        self._rests[bucket] = until
        heapq.heappush(self._later, (until, bucket))

    def is_resting(self, bucket: str, now: float) -> bool:
        """Whether that is so."""
        if self._rests.get(bucket, now) <= now:
            self._rests.pop(bucket, None)
        return bucket in self._rests

    def tick(self, now: float) -> None:
        """Time has passed."""
        while self._later and self._later[0][0] <= now:
            self._due[heapq.heappop(self._later)[1]] = None
        for _ in range(min(len(self._due), _AT_ONCE)):
            self.look(self._due.popitem(last=False)[0], now)

    def look(self, bucket: str, now: float) -> None:
        """Begin what is next for it."""
        board, servers, group = self._board, self._board.servers, self._board.groups.get(bucket)
        if group is None or not self._elections.is_settled(bucket):
            return
        self.waiting.pop(bucket, None)
        if not servers.lives(group.primary):
            if not servers.may_act(group.primary, now):
                self._elections.hold(group, Cause.LOST, f"primary {group.primary} is gone", now)
            return
        if self._leave_out(group, now):
            return
        is_late = bool(self.late) and any(each in self.late for each in group.everybody)
        match next_step(group, servers, board.control, self._avoid(group, now), is_late):
            case Add(server, is_urgent) if is_urgent or len(board.learning) < 4 * board.control.moves:
                term, count = group.term + 1, len(group.members)
                has = f"it has {count} {'copy' if count == 1 else 'copies'}"
                board.put(replace(group, term=term, learners=(server,)), has)
            case Drop(names, why) if self._may_drop(group, names, now):
                self.drop(group, names, why)
            case Drop():
                heapq.heappush(self._later, (now + FRESH_SECONDS, bucket))
            case HandOver(why) if not self.is_resting(bucket, now):
                self._elections.hold(group, Cause.DRAINED, why, now)
            case Wait() as wait:
                if wait.until != "learner":
                    self.waiting[bucket] = wait
                if wait.until == "time":
                    heapq.heappush(self._later, (now + _WAIT_SECONDS, bucket))
            case _:
                pass

    def _may_drop(self, group: Group, names: Collection[str], now: float) -> bool:
        """Whether others have what is lost with these: who lives, and is to stay, says that it is there."""
        servers = self._board.servers
        if not any(each in group.members and servers.lives(each) for each in names):
            return True
        staying = [each for each in group.members if each not in names and servers.lives(each)]
        return self._confirming.are_there(group, staying, now)

    def avoided(self, bucket: str) -> list[str]:
        """Servers that get no copy of it."""
        return list(self._avoided.get(bucket, ()))

    def is_avoided(self, bucket: str, server: str) -> bool:
        """Whether a server is one of them."""
        return bucket in self._avoided and server in self._avoided[bucket]

    def _avoid(self, group: Group, now: float) -> list[str]:
        """The same, after those that are so no more were taken out; a bucket that has too few members, or one
        alone, and can have no other server, avoids them for a moment only."""
        bucket, control, servers = group.bucket, self._board.control, self._board.servers
        avoided = self._avoided.get(bucket)
        if avoided is None:
            return []
        is_needy = len(group.members) < min(control.copies, max(control.least, 2))
        if is_needy and servers.place(group.everybody, avoided) is None:
            now += control.avoid_seconds - control.again_seconds
        left = {server: until for server, until in avoided.items() if until > now}
        self._avoided[bucket] = left
        if not left:
            del self._avoided[bucket]
        return list(left)
