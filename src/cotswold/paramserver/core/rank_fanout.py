"""Split the messages of a replica with several ranks between its ranks; message in, messages out.

Knows: the shards of each rank, pulls that not all ranks have answered. Does not know: when to pull or push
(`paramserver.core.replica`), the numbers in shards, sockets.

The replica's state machine communicates with each server as if it were one process. Its messages are split
between the ranks that have the shards, and each rank sends its part to the server itself
(`paramserver.core.rank`). Numbers are not moved: for the state machine those of other ranks are
`RemoteBuffers`.

    the state machine sends                 action
    an update with shards                   each rank that has some of them sends its part (`PushPart`)
    a pull                                  each rank pulls its own shards (`PullPart`)
    the same pull again                     repeat it to the ranks that have not answered
    another pull                            ignore later replies to the previous pull
    any other message                       send it unchanged

    received                                action
    a server's reply, or a rank's           keep it; pass one merged reply on when all ranks have one

A server answers an update once it has all parts, and sends the reply to the replica itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotswold.wire import PulledNewer, PulledPart, PullNewer, PullPart, PushPart, Send, Update


@dataclass(frozen=True)
class RemoteBuffers:
    """Placeholder for numbers of a shard that another rank has, in a pull or in an accumulation."""

    rank: int
    accumulation: int = 0
    """Number of the accumulation, counted as they close."""


def rank_name(replica: str, rank: int) -> str:
    """Return the name of a rank of a replica; the first rank has the replica's own name."""
    return f"{replica}/{rank}" if rank else replica


def is_rank_of(sender: str, replica: str) -> bool:
    """True if the sender is a rank of the replica."""
    name, _, rank = sender.rpartition("/")
    return sender == replica or (name == replica and rank.isdecimal())


def is_from_named_rank(message: Update | PullNewer, sender: str, replica: str) -> bool:
    """True if the sender is the rank of the replica that the message names."""
    if isinstance(message, Update):
        return sender == rank_name(replica, message.rank) and bool(message.ranks or not message.rank)
    return is_rank_of(sender, replica)


@dataclass
class _Pull:
    """An unanswered pull."""

    pull: PullNewer
    missing: dict[int, PullNewer]
    """Parts of ranks without a reply."""
    received: list[PulledNewer] = field(default_factory=list)


class RankFanout:
    """The ranks of one replica, seen from the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rank_of: Mapping[int, int] = {}
        self._pulls: dict[str, _Pull] = {}
        """Unanswered pulls by server."""

    def enter(self, rank_of: Mapping[int, int]) -> None:
        """Begin a session; ``rank_of`` maps each shard's number to its rank."""
        self._rank_of, self._pulls = dict(rank_of), {}

    def send(self, send: Send) -> list[Send]:
        """Return the messages to send for one of the state machine."""
        match send.message:
            case Update() as update if update.shards:
                return self._push(send.to, update)
            case PullNewer() as pull:
                return self._pull(send.to, pull)
            case _:
                return [send]

    def receive(self, sender: str, message: PulledNewer | PulledPart) -> PulledNewer | None:
        """Return a pull's merged reply once all ranks have answered, as from its server."""
        if isinstance(message, PulledPart):
            rank = (
                int(sender.rpartition("/")[2])
                if is_rank_of(sender, self._name) and sender != self._name
                else 0
            )
            server, pulled = message.server, message.pulled
            pulled = replace(pulled, buffers=(RemoteBuffers(rank),) * len(pulled.shards))
            if not rank:
                return None
        else:
            rank, server, pulled = 0, sender, message
        pull = self._pulls.get(server)
        part = None if pull is None else pull.missing.get(rank)
        if pull is None or part is None or pulled.error is not None or pulled.server != server:
            return None
        if (pulled.session, pulled.number) != (part.session, part.number):
            return None
        del pull.missing[rank]
        pull.received.append(pulled)
        if pull.missing:
            return None
        del self._pulls[server]
        return replace(
            pulled,
            shards=tuple(number for each in pull.received for number in each.shards),
            versions=tuple(version for each in pull.received for version in each.versions),
            buffers=tuple(buffer for each in pull.received for buffer in each.buffers),
        )

    def _push(self, server: str, update: Update) -> list[Send]:
        places: dict[int, list[int]] = {}
        closing = 0
        for place, buffer in enumerate(update.buffers):
            rank = 0
            if isinstance(buffer, RemoteBuffers):
                rank, closing = buffer.rank, buffer.accumulation
            places.setdefault(rank, []).append(place)
        if list(places) == [0]:
            return [Send(server, update)]
        ranks, sends = tuple(sorted(places)), []
        for rank in ranks:
            part = replace(
                update,
                shards=tuple(update.shards[place] for place in places[rank]),
                versions=tuple(update.versions[place] for place in places[rank]),
                buffers=() if rank else tuple(update.buffers[place] for place in places[rank]),
                rank=rank,
                ranks=ranks,
            )
            sends.append(self._forward(rank, PushPart(server, closing, part)) if rank else Send(server, part))
        return sends

    def _pull(self, server: str, whole: PullNewer) -> list[Send]:
        known = self._pulls.get(server)
        if known is None or known.pull != whole:
            known = self._pulls[server] = _Pull(whole, self._by_rank(whole))
        return [
            self._forward(rank, PullPart(server, part)) if rank else Send(server, part)
            for rank, part in known.missing.items()
        ]

    def _by_rank(self, whole: PullNewer) -> dict[int, PullNewer]:
        places: dict[int, list[int]] = {}
        for place, number in enumerate(whole.shards):
            places.setdefault(self._rank_of[number], []).append(place)
        return {
            rank: replace(
                whole,
                shards=tuple(whole.shards[place] for place in own),
                versions=tuple(whole.versions[place] for place in own),
            )
            for rank, own in sorted(places.items())
        }

    def _forward(self, rank: int, message: PullPart | PushPart) -> Send:
        return Send(rank_name(self._name, rank), message)
