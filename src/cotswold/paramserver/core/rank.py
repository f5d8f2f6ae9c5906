"""Another rank of a replica than the first: it sends servers its own numbers; message in, messages out.

Knows: pulls that are not answered, what it has pulled and not put in its place, its newest accumulations.
Does not know: when to pull or push, samples, sessions' states, sockets, threads.

    comes                                      what happens
    PullPart                                   the server is asked; also when it was asked before
    PulledNewer, as was asked                  it is kept, and the first rank hears of it (`PulledPart`)
    PulledNewer, another, or an error          nothing: it is asked for again
    PushPart of an accumulation that it has    its numbers go to the server
    PushPart of one that it has not closed     the same, once it has
    PushPart of one before the newest two      nothing: a server has answered that
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cotswold.wire import PulledNewer, PulledPart, PullNewer, PullPart, PushPart, Send, ToRank

_KEPT = 2
"""Accumulations: one is being pushed while the next is closed."""


class Rank:
    """One rank of the replica called ``replica``, whose first rank tells it what to do."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._asked: dict[str, PullNewer] = {}
        """By server."""
        self._pulled: dict[tuple[int, int, int], object] = {}
        """By session, shard and version."""
        self._closed: dict[int, Mapping[int, object]] = {}
        """The numbers of its shards, by closing."""
        self._newest = 0
        """Closing."""
        self._due: dict[str, PushPart] = {}
        """Of an accumulation that is not closed yet, by server."""

    def receive(self, sender: str, message: ToRank) -> list[Send]:
        """A message of the first rank or of a server."""
        match message:
            case PullPart(server, pull) if sender == self._replica:
                self._asked[server] = pull
                return [Send(server, pull)]
            case PushPart() if sender == self._replica:
                return self._push(message)
            case PulledNewer() if message.server == sender:
                return self._keep(message)
            case _:
                return []

    def closed(self, closing: int, numbers: Mapping[int, object]) -> list[Send]:
        """An accumulation is closed: the numbers of each shard that it has, which stay until the next but one
        is."""
        assert closing == self._newest + 1, "accumulations are counted one by one"
        self._newest = closing
        self._closed[closing] = numbers
        self._closed.pop(closing - _KEPT, None)
        due, self._due = self._due, {}
        return [send for each in due.values() for send in self._push(each)]

    def take(self, session: int, versions: Mapping[int, int]) -> dict[int, object]:
        """What it has pulled: of each shard, by number, this version. Nothing older is kept."""
        found = {number: self._pulled[session, number, version] for number, version in versions.items()}
        for key in list(self._pulled):
            if key[0] < session or (key[0] == session and key[2] <= versions.get(key[1], -1)):
                del self._pulled[key]
        return found

    def _keep(self, pulled: PulledNewer) -> list[Send]:
        asked = self._asked.get(pulled.server)
        if asked is None or (pulled.session, pulled.number) != (asked.session, asked.number):
            return []
        if pulled.error is not None:
            return []
        del self._asked[pulled.server]
        for number, version, buffer in zip(pulled.shards, pulled.versions, pulled.buffers, strict=True):
            self._pulled[pulled.session, number, version] = buffer
        return [Send(self._replica, PulledPart(pulled.server, replace(pulled, buffers=())))]

    def _push(self, push: PushPart) -> list[Send]:
        if push.closing > self._newest:
            self._due[push.server] = push
            return []
        numbers = self._closed.get(push.closing)
        if numbers is None:
            return []
        buffers = tuple(numbers[number] for number in push.update.shards)
        return [Send(push.server, replace(push.update, buffers=buffers))]
