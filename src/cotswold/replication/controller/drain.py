"""Servers that are to have no copies: how far each is, and what it waits for.

Knows: which are drained, since when, within how many seconds. Does not know: what is next for a bucket
(`placing`), which are written down (`map`).

    a server that is drained        what happens
    it has copies                   they are looked at, a few at a time: learners elsewhere, then without it
    half of its time is over        a bucket with members enough waits for no learner any more
    it has none                     that is written down, and `Draining` says so; its host ends it
    its process has ended           the next server that has its disk is drained instead
    an operator takes it back       it is drained no more; its host starts it again
    its host drains it, and its     it is drained no more: the host comes back without a drain
      process has ended, or is
      silent
    an operator says that it is     its process has ended, unless it is heard: what it alone had is lost
      lost

What an operator drains stays drained, whoever leads next, until the operator takes it back. So a server that
was drained gets no copies when its host starts again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.replication.controller.bucket_map import DONE
from cotswold.replication.controller.cluster_view import Board
from cotswold.replication.controller.replication_repair import Filling
from cotswold.replication.replica.saved_bucket import disk_of
from cotswold.wire import Draining
from cotswold.wire.names import spoken
from cotswold.words import counted

_PAUSE_SECONDS = 0.1
_LEAST_SECONDS = 1.0
UNDER_WAY = " is copied to "
"""What `Draining` says of a server of whose copies one is on its way to another."""


@dataclass
class _Drain:
    since: float
    seconds: float
    is_done: bool = False
    """Whether nothing was left."""
    is_written: bool = True
    """Whether an operator wants it; otherwise its host does, as long as it says so."""


class Drains:
    """Those that a leader knows."""

    def __init__(self, board: Board, filling: Filling, now: float) -> None:
        """``board`` knows those that were written down before."""
        self._board, self._filling = board, filling
        self._of = {
            server: _Drain(now, seconds, is_done=seconds == DONE)
            for server, seconds in board.map.drains.items()
        }
        self._looked = now

    def begin(self, server: str, seconds: float, now: float, *, by_host: bool = False) -> bool:
        """It is to have no copies; whether that is news."""
        known, seconds = self._of.get(server), max(seconds, _LEAST_SECONDS)
        if known is not None and not known.is_written and not by_host:
            known.is_written = True
            self._board.map.drain(server, DONE if known.is_done else seconds)
        if known is not None:
            return False
        self._of[server] = _Drain(now, seconds, is_written=not by_host)
        if not by_host:
            self._board.map.drain(server, seconds)
        self._board.servers.drained(server, True, now)
        return True

    def ended(self, server: str) -> bool:
        """The process of a server has ended or is silent: whether it had no copies any more, for it was
        drained. A drain that its host wanted is over."""
        drain = self._of.get(server)
        if drain is not None and not drain.is_written:
            self.end(server)
        return drain is not None and drain.is_done

    def done(self, prefix: str) -> tuple[str, ...]:
        """Servers, of those whose names begin so, of which it is written down that an operator drains them
        and that they have no copies any more."""
        written = self._board.map.drains
        return tuple(
            server
            for server, drain in self._of.items()
            if drain.is_done
            and written.get(server) == DONE
            and server.startswith(prefix)
            and not self._left(server)
        )

    def _left(self, server: str) -> list[str]:
        """Buckets of which it has a copy, or of which the next life may begin with its disk."""
        servers, disk = self._board.servers, disk_of(server)
        known = [each for each in servers.of.values() if not each.is_living and disk_of(each.name) == disk]
        return list(dict.fromkeys(bucket for each in (servers.of[server], *known) for bucket in each.copies))

    def keeps(self, server: str) -> bool:
        """Whether an operator drains a server: it is known, though nothing is heard of it."""
        drain = self._of.get(server)
        return drain is not None and drain.is_written

    def heir(self, server: str) -> str:
        """The server that has the disk of one that does not live; the same server where there is none."""
        servers = self._board.servers
        if servers.lives(server):
            return server
        return next((each.name for each in servers.living if disk_of(each.name) == disk_of(server)), server)

    def take_over(self, now: float) -> list[str]:
        """Servers that are drained from now on, since the one that had the disk before was to be."""
        found = []
        for server, drain in list(self._of.items()):
            heir = self.heir(server)
            if heir != server:
                self.end(server)
                if drain.is_written and self.begin(heir, drain.seconds, now):
                    found.append(heir)
        return found

    def end(self, server: str) -> bool:
        """It may have copies, or its process has ended; whether that is news."""
        is_news = self._of.pop(server, None) is not None
        self._board.map.drain(server, None)
        self._filling.late.pop(server, None)
        if is_news:
            self._board.servers.drained(server, False, float("-inf"))
            self._filling.came()
        return is_news

    def tick(self, now: float) -> list[str]:
        """Time has passed; those that have no copies any more, since this moment."""
        if not self._of or now - self._looked < _PAUSE_SECONDS:
            return []
        self._looked, done = now, []
        for server, drain in self._of.items():
            is_empty = self._board.servers.lives(server) and not self._left(server)
            if drain.is_done and not is_empty and self._board.servers.of[server].copies:
                drain.is_done = False  # a bucket that was lost goes on from its disk
                if drain.is_written:
                    self._board.map.drain(server, drain.seconds or _LEAST_SECONDS)
            if is_empty and not drain.is_done:
                drain.is_done = True
                done.append(server)
                if drain.is_written:
                    self._board.map.drain(server, DONE)
            is_late = now - drain.since >= drain.seconds / 2
            if is_late:
                self._filling.late[server] = None
            for bucket in list(self._board.servers.of[server].copies):
                if is_late or bucket not in self._board.learning:
                    self._filling.look(bucket, now)
        return done

    def answer(self, server: str, now: float) -> Draining:
        """How far it is."""
        if server not in self._board.servers.of:
            return Draining(server, 0, f"no server is called {server}; the cluster's status names all")
        copies = self._left(server)
        if not copies:
            return Draining(server, 0, f"{server} has no copies")
        moving = next((each for each in copies if each in self._board.learning), None)
        waits = [self._filling.waiting[each].why for each in copies if each in self._filling.waiting]
        if waits and moving is None:
            more = f" (and {counted(len(waits) - 1, 'more bucket')})" if len(waits) > 1 else ""
            return Draining(server, len(copies), waits[0] + more)
        first = "" if moving is None else f"; {spoken(moving)}{UNDER_WAY}{_learner(self._board, moving)}"
        return Draining(server, len(copies), f"{server} has {counted(len(copies), 'copy')}{first}")


def _learner(board: Board, bucket: str) -> str:
    group = board.map.intended(bucket)
    return group.learners[0] if group is not None and group.learners else "another"
