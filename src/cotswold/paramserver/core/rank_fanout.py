"""A replica of several ranks towards servers: which rank says what; message in, messages out.

Knows: which rank has which shards, pulls that not all ranks have answered. Does not know: when to pull or
push (`replica`), numbers in shards, sockets.

The replica's machine has one conversation with each server, as if there were one process. What it sends is
dealt here to the ranks that have the shards in it, each of which talks to the server by itself (`rank`).
Numbers stay where they are: for the machine those of other ranks are `Elsewhere`.

    the machine sends                       what happens
    an update with shards                   each rank that has some of them is to send its part (`PushPart`)
    a pull                                  each rank is to pull the shards that it has (`PullPart`)
    the same pull again                     those that have not answered are told again
    another pull                            what ranks still say of the one before is passed over
    anything else                           it is sent as it is

    comes                                   what happens
    a server's answer, or a rank's of one   it is kept; once all ranks have one the machine hears them as one

Servers answer updates once they have all parts, and answer the replica itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotswold.wire import PulledNewer, PulledPart, PullNewer, PullPart, PushPart, Send, Update


@dataclass(frozen=True)
class Elsewhere:
    """Numbers of a shard that another rank has: in a pull, or in an accumulation."""

    rank: int
    closing: int = 0
    """Which accumulation; they are counted as they are closed."""


def name_of(replica: str, rank: int) -> str:
    """How a rank of a replica is called; the first has the replica's own name."""
    return f"{replica}/{rank}" if rank else replica


def is_of(sender: str, replica: str) -> bool:
    """Whether somebody is a rank of a replica."""
    name, _, rank = sender.rpartition("/")
    return sender == replica or (name == replica and rank.isdecimal())


def may_say(message: Update | PullNewer, sender: str, replica: str) -> bool:
    """Whether a replica, or a rank of it, says a message as itself."""
    if isinstance(message, Update):
        return sender == name_of(replica, message.part) and bool(message.parts or not message.part)
    return is_of(sender, replica)


@dataclass
class _Pull:
    """One that is not answered."""

    whole: PullNewer
    missing: dict[int, PullNewer]
    """The parts of ranks that have no answer."""
    came: list[PulledNewer] = field(default_factory=list)


class Ranks:
    """Those of one replica; this is the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rank_of: Mapping[int, int] = {}
        self._pulls: dict[str, _Pull] = {}
        """By server."""

    def enter(self, rank_of: Mapping[int, int]) -> None:
        """A session begins; of each shard by number: the rank that has it."""
        self._rank_of, self._pulls = dict(rank_of), {}

    def send(self, send: Send) -> list[Send]:
        """What to send for a message of the machine."""
        match send.message:
            case Update() as update if update.shards:
                return self._push(send.to, update)
            case PullNewer() as pull:
                return self._pull(send.to, pull)
            case _:
                return [send]

    def receive(self, sender: str, message: PulledNewer | PulledPart) -> PulledNewer | None:
        """What the machine is to hear: a pull that all ranks have answered, from its server."""
        if isinstance(message, PulledPart):
            rank = int(sender.rpartition("/")[2]) if is_of(sender, self._name) and sender != self._name else 0
            server, pulled = message.server, message.pulled
            pulled = replace(pulled, buffers=(Elsewhere(rank),) * len(pulled.shards))
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
        pull.came.append(pulled)
        if pull.missing:
            return None
        del self._pulls[server]
        return replace(
            pulled,
            shards=tuple(number for each in pull.came for number in each.shards),
            versions=tuple(version for each in pull.came for version in each.versions),
            buffers=tuple(buffer for each in pull.came for buffer in each.buffers),
        )

    def _push(self, server: str, update: Update) -> list[Send]:
        places: dict[int, list[int]] = {}
        closing = 0
        for place, buffer in enumerate(update.buffers):
            rank = 0
            if isinstance(buffer, Elsewhere):
                rank, closing = buffer.rank, buffer.closing
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
                part=rank,
                parts=ranks,
            )
            sends.append(self._told(rank, PushPart(server, closing, part)) if rank else Send(server, part))
        return sends

    def _pull(self, server: str, whole: PullNewer) -> list[Send]:
        known = self._pulls.get(server)
        if known is None or known.whole != whole:
            known = self._pulls[server] = _Pull(whole, self._dealt(whole))
        return [
            self._told(rank, PullPart(server, part)) if rank else Send(server, part)
            for rank, part in known.missing.items()
        ]

    def _dealt(self, whole: PullNewer) -> dict[int, PullNewer]:
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

    def _told(self, rank: int, message: PullPart | PushPart) -> Send:
        return Send(name_of(self._name, rank), message)
