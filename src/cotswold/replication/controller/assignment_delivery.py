"""Delivery of groups to servers, with retries until each is acknowledged.

Knows: (server, bucket), when each was last sent. Does not know: the contents of a group, why it changed.

    a server and a bucket              event                              next
    idle                               a new group is committed           due
    idle                               the server acts by an older group  due, unless it was just sent
    due                                the server is alive                sent, with retries
    due                                the server is not alive            due, and skipped until it joins
    sent                               `Assigned`, of that group          idle
    due or sent                        the process exited                 idle

Buckets that servers claim to lead, and which of these claims are stale.

    heartbeat of a server         known claims                      action
    with all claims               any                               store and check them
    with a number only            of that number                    nothing to check
    with a number only            of another number, or none        request all claims

A claim is checked again when its group changes. So the cost of a heartbeat does not depend on the number of
claims.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.wire import Assign, Group, Heartbeat, Send

_MAX_UNACKNOWLEDGED = 2000
"""Messages per call, so that heartbeats are answered in between."""

ServerBucket = tuple[str, str]


class AssignmentDelivery:
    """Pending deliveries of a leader."""

    def __init__(self, view: ClusterView, epoch: int) -> None:
        self._view, self._epoch = view, epoch
        self._queue: OrderedDict[ServerBucket, None] = OrderedDict()
        self._unacknowledged: OrderedDict[ServerBucket, float] = OrderedDict()
        """Time of each delivery, in that order."""
        self._absent: dict[str, dict[str, None]] = {}
        """Due buckets, by servers that are not alive."""

    def enqueue(self, servers: Iterable[str], bucket: str) -> None:
        """Enqueue a new group for these servers."""
        for server in servers:
            self._unacknowledged.pop((server, bucket), None)
            self._queue[server, bucket] = None

    def resend(self, server: str, bucket: str) -> None:
        """Enqueue the newest group for a server that acts by an older one."""
        if (server, bucket) not in self._unacknowledged:
            self._queue[server, bucket] = None

    def acknowledged(self, server: str, bucket: str) -> None:
        """Record that the server acts by the newest group."""
        self._queue.pop((server, bucket), None)
        self._unacknowledged.pop((server, bucket), None)

    def server_joined(self, server: str, buckets: Iterable[str]) -> None:
        """Enqueue the groups of a server that has joined."""
        for bucket in sorted({*buckets, *self._absent.pop(server, {})}):
            self.enqueue((server,), bucket)

    def server_exited(self, server: str) -> None:
        """Forget a server that does not come back."""
        self._absent.pop(server, None)

    def next_messages(self, now: float) -> list[Send]:
        """Return the messages that are due: to secondaries first, who then wait for their primary."""
        late = now - self._view.control.retry_seconds
        while self._unacknowledged:
            pair, when = next(iter(self._unacknowledged.items()))
            if when > late:
                break
            del self._unacknowledged[pair]
            self._queue[pair] = None
        first, last = list[Send](), list[Send]()
        for _ in range(min(len(self._queue), _MAX_UNACKNOWLEDGED)):
            pair, _ = self._queue.popitem(last=False)
            group = self._group_to_send(*pair)
            if group is not None:
                self._unacknowledged[pair] = now
                send = Send(pair[0], Assign(self._epoch, group))
                (last if group.primary == pair[0] else first).append(send)
        return [*first, *last]

    def _group_to_send(self, server: str, bucket: str) -> Group | None:
        known, group = self._view.servers.of.get(server), self._view.groups.get(bucket)
        if known is None or known.has_exited or group is None:
            return None
        if not known.is_alive:
            self._absent.setdefault(server, {})[bucket] = None
            return None
        return group


@dataclass
class _ServerClaims:
    number: int
    terms: dict[str, int]
    stale: dict[str, None] = field(default_factory=dict)


class PrimaryClaims:
    """Claims of primaries that a leader knows."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._of: dict[str, _ServerClaims] = {}

    def heard(self, here: Heartbeat) -> Collection[str] | None:
        """Return the stale claims of a server; None if it must first send all claims."""
        known = self._of.get(here.server)
        if here.leads is None:
            return None if known is None or known.number != here.claims else known.stale
        known = self._of[here.server] = _ServerClaims(here.claims, dict(here.leads))
        for bucket in known.terms:
            self._look(here.server, known, bucket)
        return known.stale

    def changed(self, bucket: str, servers: Collection[str]) -> None:
        """Check the claims of a changed or deleted bucket; ``servers``: its primaries before and after."""
        for server in servers:
            known = self._of.get(server)
            if known is not None and bucket in known.terms:
                self._look(server, known, bucket)

    def forget(self, server: str) -> None:
        """Forget a server that exited for good or sends all claims again."""
        self._of.pop(server, None)

    def _look(self, server: str, known: _ServerClaims, bucket: str) -> None:
        if self.may_lead(server, bucket, known.terms[bucket]):
            known.stale.pop(bucket, None)
        else:
            known.stale[bucket] = None

    def may_lead(self, server: str, bucket: str, term: int) -> bool:
        """True if the claim is valid; a bucket without a group has no other primary, now or later."""
        group = self._view.groups.get(bucket)
        return group is None or (group.primary == server and term <= group.term)
