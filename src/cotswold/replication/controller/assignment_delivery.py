"""Delivery of groups to servers, with retries until each is acknowledged.

Knows: (server, bucket), when each was last sent. Does not know: the contents of a group, why it changed.

    a server and a bucket              event                              next
    idle                               a new group is committed           due
    idle                               the server acts by an older group  due, unless it was just sent
    due                                the server is alive                sent, with retries
    due                                the server is not alive            due, and skipped until it joins
    sent                               `Assigned`, of that group          idle
    due or sent                        the process exited                 idle
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.wire import Assign, Group, Send

_AT_ONCE = 2000
"""Messages per call, so that heartbeats are answered in between."""

Pair = tuple[str, str]


class AssignmentDelivery:
    """Pending deliveries of a leader."""

    def __init__(self, board: ClusterView, epoch: int) -> None:
        self._board, self._epoch = board, epoch
        self._due: OrderedDict[Pair, None] = OrderedDict()
        self._told: OrderedDict[Pair, float] = OrderedDict()
        """Time of each delivery, in that order."""
        self._absent: dict[str, dict[str, None]] = {}
        """Due buckets, by servers that are not alive."""

    def owe(self, servers: Iterable[str], bucket: str) -> None:
        """Enqueue a new group for these servers."""
        for server in servers:
            self._told.pop((server, bucket), None)
            self._due[server, bucket] = None

    def remind(self, server: str, bucket: str) -> None:
        """Enqueue the newest group for a server that acts by an older one."""
        if (server, bucket) not in self._told:
            self._due[server, bucket] = None

    def heard(self, server: str, bucket: str) -> None:
        """Record that the server acts by the newest group."""
        self._due.pop((server, bucket), None)
        self._told.pop((server, bucket), None)

    def came(self, server: str, buckets: Iterable[str]) -> None:
        """Enqueue the groups of a server that has joined."""
        for bucket in sorted({*buckets, *self._absent.pop(server, {})}):
            self.owe((server,), bucket)

    def ended(self, server: str) -> None:
        """Forget a server that does not come back."""
        self._absent.pop(server, None)

    def say(self, now: float) -> list[Send]:
        """Return the messages that are due: to secondaries first, who then wait for their primary."""
        late = now - self._board.control.retry_seconds
        while self._told:
            pair, when = next(iter(self._told.items()))
            if when > late:
                break
            del self._told[pair]
            self._due[pair] = None
        first, last = list[Send](), list[Send]()
        for _ in range(min(len(self._due), _AT_ONCE)):
            pair, _ = self._due.popitem(last=False)
            group = self._owed(*pair)
            if group is not None:
                self._told[pair] = now
                send = Send(pair[0], Assign(self._epoch, group))
                (last if group.primary == pair[0] else first).append(send)
        return [*first, *last]

    def _owed(self, server: str, bucket: str) -> Group | None:
        known, group = self._board.servers.of.get(server), self._board.groups.get(bucket)
        if known is None or known.has_ended or group is None:
            return None
        if not known.is_living:
            self._absent.setdefault(server, {})[bucket] = None
            return None
        return group
