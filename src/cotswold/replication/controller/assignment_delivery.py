"""Who has not heard of which group yet.

Knows: (server, bucket), when each was told last. Does not know: what a group is, why it is another one.

    a server and a bucket              what happens                       next
    nothing is owed                    another group is written down      owed
    nothing is owed                    the server acts by an older one    owed, unless it was told just now
    owed                               the server lives                   told, again and again
    owed                               it does not                        owed, and left out until it comes
    told                               `Assigned`, of that group          nothing is owed
    owed or told                       the process has ended              nothing is owed
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cotswold.replication.controller.cluster_view import Board
from cotswold.wire import Assign, Group, Send

_AT_ONCE = 2000
"""So many are said at once: heartbeats are answered meanwhile."""

Pair = tuple[str, str]


class Telling:
    """That of a leader."""

    def __init__(self, board: Board, epoch: int) -> None:
        self._board, self._epoch = board, epoch
        self._due: OrderedDict[Pair, None] = OrderedDict()
        self._told: OrderedDict[Pair, float] = OrderedDict()
        """In the order in which they were told."""
        self._absent: dict[str, dict[str, None]] = {}
        """Buckets, by servers that are not there."""

    def owe(self, servers: Iterable[str], bucket: str) -> None:
        """There is another group."""
        for server in servers:
            self._told.pop((server, bucket), None)
            self._due[server, bucket] = None

    def remind(self, server: str, bucket: str) -> None:
        """It does not act by the newest."""
        if (server, bucket) not in self._told:
            self._due[server, bucket] = None

    def heard(self, server: str, bucket: str) -> None:
        """It does."""
        self._due.pop((server, bucket), None)
        self._told.pop((server, bucket), None)

    def came(self, server: str, buckets: Iterable[str]) -> None:
        """A server is there, and may not know what it has."""
        for bucket in sorted({*buckets, *self._absent.pop(server, {})}):
            self.owe((server,), bucket)

    def ended(self, server: str) -> None:
        """It does not come back."""
        self._absent.pop(server, None)

    def say(self, now: float) -> list[Send]:
        """What is owed, to whom does not know it: secondaries first, who then wait for their primary."""
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
