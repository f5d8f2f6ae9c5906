"""Drained servers: how far each drain is, and what it waits for.

Knows: which servers are drained, since when, within how many seconds. Does not know: the next step for a
bucket (`placement`), which drains are committed (`bucket_map`).

    drained server                  action
    it has replicas                 reconcile its buckets, a few at a time: add learners, then drop it
    half of its time is over        buckets with enough members wait for no learner
    it has no replicas              commit that and say so in `DrainStatus`; its host ends it
    its process exited              drain the next server that has its disk
    an operator ends the drain      the drain is over; its host starts the server again
    its host drains it, and its     the drain is over: the host comes back without a drain
      process exited or is silent
    an operator declares it lost    it counts as exited until a heartbeat arrives; data that it alone had
                                      are lost

A drain by an operator lasts across leaders until the operator ends it. So a drained server gets no replicas
when its host starts again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.phrases import counted
from cotswold.replication.controller.bucket_map import DRAIN_DONE
from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.replication_repair import ReplicationRepair
from cotswold.replication.replica.saved_bucket import disk_of
from cotswold.wire import DrainStatus
from cotswold.wire.names import display_name

_PAUSE_SECONDS = 0.1
_MIN_SECONDS = 1.0


@dataclass
class _DrainState:
    started_at: float
    seconds: float
    is_done: bool = False
    """True once no replicas are left."""
    is_written: bool = True
    """True if an operator requested the drain; otherwise its host did, for as long as it repeats the
    request."""


class DrainManager:
    """The drains of a leader."""

    def __init__(self, view: ClusterView, repair: ReplicationRepair, now: float) -> None:
        """``view`` has the drains that are committed."""
        self._view, self._repair = view, repair
        self._of = {
            server: _DrainState(now, seconds, is_done=seconds == DRAIN_DONE)
            for server, seconds in view.map.drains.items()
        }
        self._checked_at = now

    def begin(self, server: str, seconds: float, now: float, *, by_host: bool = False) -> bool:
        """Drain a server; False if it is already drained."""
        known, seconds = self._of.get(server), max(seconds, _MIN_SECONDS)
        if known is not None and not known.is_written and not by_host:
            known.is_written = True
            self._view.map.drain(server, DRAIN_DONE if known.is_done else seconds)
        if known is not None:
            return False
        self._of[server] = _DrainState(now, seconds, is_written=not by_host)
        if not by_host:
            self._view.map.drain(server, seconds)
        self._view.servers.set_drained(server, True, now)
        return True

    def forget(self, server: str) -> bool:
        """Record that a server exited or is silent; True if a drain had left it without replicas. A drain
        requested by its host is over."""
        drain = self._of.get(server)
        if drain is not None and not drain.is_written:
            self.end(server)
        return drain is not None and drain.is_done

    def drained(self, prefix: str) -> tuple[str, ...]:
        """Return the servers with this name prefix whose drain by an operator is complete and committed."""
        written = self._view.map.drains
        return tuple(
            server
            for server, drain in self._of.items()
            if drain.is_done
            and written.get(server) == DRAIN_DONE
            and server.startswith(prefix)
            and not self._remaining(server)
        )

    def _remaining(self, server: str) -> list[str]:
        """Return the buckets of which the server has a replica, or which may be recovered from its disk."""
        servers, disk = self._view.servers, disk_of(server)
        known = [each for each in servers.of.values() if not each.is_alive and disk_of(each.name) == disk]
        return list(dict.fromkeys(bucket for each in (servers.of[server], *known) for bucket in each.copies))

    def keeps(self, server: str) -> bool:
        """True if an operator drains the server: it stays registered though it is silent."""
        drain = self._of.get(server)
        return drain is not None and drain.is_written

    def heir(self, server: str) -> str:
        """Return the live server that has the disk of a lost one; the same server if there is none."""
        servers = self._view.servers
        if servers.is_alive(server):
            return server
        return next((each.name for each in servers.live if disk_of(each.name) == disk_of(server)), server)

    def resume(self, now: float) -> list[str]:
        """Continue drains on the servers that now own the disks, and return those servers."""
        found = []
        for server, drain in list(self._of.items()):
            heir = self.heir(server)
            if heir != server:
                self.end(server)
                if drain.is_written and self.begin(heir, drain.seconds, now):
                    found.append(heir)
        return found

    def end(self, server: str) -> bool:
        """End the drain of a server; False if it is not drained."""
        is_news = self._of.pop(server, None) is not None
        self._view.map.drain(server, None)
        self._repair.overdue.pop(server, None)
        if is_news:
            self._view.servers.set_drained(server, False, float("-inf"))
            self._repair.server_available()
        return is_news

    def tick(self, now: float) -> list[str]:
        """Process the passing of time; return the servers that have just lost their last replica."""
        if not self._of or now - self._checked_at < _PAUSE_SECONDS:
            return []
        self._checked_at, done = now, []
        for server, drain in self._of.items():
            is_empty = self._view.servers.is_alive(server) and not self._remaining(server)
            if drain.is_done and not is_empty and self._view.servers.of[server].copies:
                drain.is_done = False  # a lost bucket was recovered from its disk
                if drain.is_written:
                    self._view.map.drain(server, drain.seconds or _MIN_SECONDS)
            if is_empty and not drain.is_done:
                drain.is_done = True
                done.append(server)
                if drain.is_written:
                    self._view.map.drain(server, DRAIN_DONE)
            is_late = now - drain.started_at >= drain.seconds / 2
            if is_late:
                self._repair.overdue[server] = None
            for bucket in list(self._view.servers.of[server].copies):
                if is_late or bucket not in self._view.learning:
                    self._repair.reconcile(bucket, now)
        return done

    def progress(self, server: str, now: float) -> DrainStatus:
        """Return the progress of a drain."""
        if server not in self._view.servers.of:
            return DrainStatus(server, 0, f"unknown server {server}; the cluster's status lists all servers")
        copies = self._remaining(server)
        if not copies:
            return DrainStatus(server, 0, f"{server} has no copies")
        moving = next((each for each in copies if each in self._view.learning), None)
        waits = [self._repair.postponed[each].reason for each in copies if each in self._repair.postponed]
        if waits and moving is None:
            more = f" (and {counted(len(waits) - 1, 'more bucket')})" if len(waits) > 1 else ""
            return DrainStatus(server, len(copies), waits[0] + more)
        first = (
            "" if moving is None else f"; {display_name(moving)} is copied to {_learner(self._view, moving)}"
        )
        why = f"{server} has {counted(len(copies), 'copy')}{first}"
        return DrainStatus(server, len(copies), why, copying=moving is not None)


def _learner(view: ClusterView, bucket: str) -> str:
    group = view.map.intended(bucket)
    return group.learners[0] if group is not None and group.learners else "another"
