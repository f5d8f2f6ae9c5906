"""A rank of a replica other than the first: it sends its own numbers to servers; message in, messages out.

Knows: unanswered pulls, pulled shards that are not installed, its newest accumulations. Does not know: when
to pull or push, samples, session states, sockets, threads.

    message                                    action
    PullPart                                   forward the pull to the server, also if repeated
    PulledNewer for that pull                  keep it and notify the first rank (`PulledPart`)
    another PulledNewer, or an error           ignore: the pull is repeated
    PushPart of a kept accumulation            send its numbers to the server
    PushPart of a later accumulation           the same, once it is closed
    PushPart of an older accumulation          ignore: a server has answered it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cotswold.wire import PulledNewer, PulledPart, PullNewer, PullPart, PushPart, Send, ToRank

_PULLS_KEPT = 2
"""Number of kept accumulations: one is being pushed while the next is closed."""


class ReplicaRank:
    """One rank of ``replica``, which acts on messages of the first rank."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._requested: dict[str, PullNewer] = {}
        """Unanswered pulls by server."""
        self._pulled: dict[tuple[int, int, int], object] = {}
        """Pulled buffers by (session, shard, version)."""
        self._accumulations: dict[int, Mapping[int, object]] = {}
        """Numbers of its shards, by accumulation."""
        self._newest = 0
        """Number of the newest closed accumulation."""
        self._due: dict[str, PushPart] = {}
        """Pushes of an accumulation that is not closed yet, by server."""

    def receive(self, sender: str, message: ToRank) -> list[Send]:
        """Handle a message of the first rank or of a server."""
        match message:
            case PullPart(server, pull) if sender == self._replica:
                self._requested[server] = pull
                return [Send(server, pull)]
            case PushPart() if sender == self._replica:
                return self._push(message)
            case PulledNewer() if message.server == sender:
                return self._store(message)
            case _:
                return []

    def close_accumulation(self, accumulation: int, numbers: Mapping[int, object]) -> list[Send]:
        """Close an accumulation: keep the numbers of each of its shards until the next but one is closed."""
        assert accumulation == self._newest + 1, "accumulations must be closed in order"
        self._newest = accumulation
        self._accumulations[accumulation] = numbers
        self._accumulations.pop(accumulation - _PULLS_KEPT, None)
        due, self._due = self._due, {}
        return [send for each in due.values() for send in self._push(each)]

    def take_newer(self, session: int, versions: Mapping[int, int]) -> dict[int, object]:
        """Return the pulled buffer of each shard at this version; drop older ones."""
        found = {number: self._pulled[session, number, version] for number, version in versions.items()}
        for key in list(self._pulled):
            if key[0] < session or (key[0] == session and key[2] <= versions.get(key[1], -1)):
                del self._pulled[key]
        return found

    def _store(self, pulled: PulledNewer) -> list[Send]:
        asked = self._requested.get(pulled.server)
        if asked is None or (pulled.session, pulled.number) != (asked.session, asked.number):
            return []
        if pulled.error is not None:
            return []
        del self._requested[pulled.server]
        for number, version, buffer in zip(pulled.shards, pulled.versions, pulled.buffers, strict=True):
            self._pulled[pulled.session, number, version] = buffer
        return [Send(self._replica, PulledPart(pulled.server, replace(pulled, buffers=())))]

    def _push(self, push: PushPart) -> list[Send]:
        if push.accumulation > self._newest:
            self._due[push.server] = push
            return []
        numbers = self._accumulations.get(push.accumulation)
        if numbers is None:
            return []
        buffers = tuple(numbers[number] for number in push.update.shards)
        return [Send(push.server, replace(push.update, buffers=buffers))]
