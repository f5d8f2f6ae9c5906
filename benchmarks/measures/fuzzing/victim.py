"""What is common to whoever is told what is wrong: a post that keeps nothing, and what must be so afterwards.

Knows: endpoints and posts as roles see them. Does not know: any role, sockets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from random import Random

from cotswold.transport import EndpointTraffic
from cotswold.transport.address import Address
from cotswold.wire import Send
from cotswold.wire.codec import AnyMessage, Packing, decode
from cotswold.wire.messenger import Received
from cotswold.wire.validation import MalformedMessageError

from .making import Making, Said, exactly

_SCENES = 0.01
"""How often several messages are said that follow from each other."""


class BrokenError(Exception):
    """Something is not as it must be."""


class StillEndpoint:
    """An endpoint whose messages go nowhere, once they are written."""

    def __init__(self, address: str) -> None:
        self.address, self.key = address, ""
        self.rejections: Counter[str] = Counter()
        self.traffic = EndpointTraffic()
        self.connected: set[str] = set()

    def connect(self, peer: str, address: str) -> None:
        """As an endpoint does with what it is told."""
        Address.parsed(address).route  # noqa: B018  # it raises
        self.connected.add(peer)

    def has(self, peer: str) -> bool:
        """Whether somebody was connected."""
        return peer in self.connected

    def reserve_name(self, peer: str) -> None:
        """Its name is its own."""

    def accept_only_answers_of(self, peer: str) -> None:
        """It calls nobody first."""

    def require_proof(self, peer: str, pair: str) -> None:
        """Nobody comes in who could prove anything."""

    def watch(self, descriptor: int) -> None:
        """Nothing comes."""

    def unread_bytes(self, peer: str) -> int:
        """Everybody reads."""
        return 0

    def send(self, *message: object) -> bool:
        """It is gone."""
        return True


class StillPost:
    """A post whose letters are written, and go nowhere."""

    def __init__(self, endpoint: StillEndpoint) -> None:
        self.endpoint = endpoint
        self.sent: Counter[str] = Counter()

    def send(self, to: str, message: AnyMessage) -> bool:
        """Write it."""
        Packing(message).packed()
        self.sent[type(message).__name__] += 1
        return True

    def deliver(self, sends: Iterable[Send]) -> None:
        """Write them."""
        for each in sends:
            self.send(each.to, each.message)

    def connect(self, peers: Iterable[tuple[str, str]]) -> None:
        """Connect to them."""
        for name, address in peers:
            self.endpoint.connect(name, address)


def _somebody(random: Random) -> str:
    """Who was never heard of."""
    return f"s{random.randrange(1 << 30)}"


class Victim(ABC):
    """Somebody who is told what is wrong."""

    words: Sequence[str]
    """That mean something to it."""
    numbers: Sequence[int] = (0, 1, 2, 3, 4, 5, 7, 32, 64)
    templates: Sequence[tuple[str, AnyMessage]]
    """Senders, and what they may say."""
    strangers: Sequence[str]
    """Who may say nothing of what changes others' things."""
    free: tuple[type, ...] = ()
    """Messages that whoever has the token may say."""
    kinds: Sequence[type]

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self._coming: deque[Said] = deque()

    def scene(self, random: Random) -> list[tuple[str, AnyMessage]]:
        """Messages that follow from each other, with something wrong deep inside."""
        return []

    def next(self, making: Making, random: Random) -> Said:
        """What it is told next."""
        if not self._coming and random.random() < _SCENES:
            self._coming.extend(exactly(*each) for each in self.scene(random))
        if self._coming:
            return self._coming.popleft()
        if random.random() < 0.6:
            sender, message = random.choice(self.templates)
            chance = random.random()
            if chance < 0.3:
                sender = _somebody(random) if chance < 0.15 else random.choice(self.words) or sender
            return making.nearly(sender, message)
        senders = [*self.strangers, *(sender for sender, _ in self.templates)]
        sender = random.choice(senders) if random.random() < 0.9 else _somebody(random)
        return making.of_kind(sender, random.choice(self.kinds))

    def hear(self, said: Said) -> None:
        """What has come; raises BrokenError, and whatever a mistake raises."""
        try:
            messages = decode({"message": said.fields}, said.buffers)
        except MalformedMessageError as error:
            self.refused[type(error).__name__] += 1
            return
        for each in messages:
            is_stranger = self.is_stranger(said.sender) and not isinstance(each, self.free)
            before = self.guarded() if is_stranger else None
            self.attend(Received(said.sender, each))
            if before is not None and self.guarded() != before:
                raise BrokenError(f"what {said.sender} says has changed what is not its own")
            self.turn()

    @abstractmethod
    def attend(self, letter: Received) -> None:
        """A message that could be read."""

    @abstractmethod
    def turn(self) -> None:
        """It goes on."""

    def is_stranger(self, sender: str) -> bool:
        """Whether somebody may change nothing that is not its own."""
        return sender in self.strangers

    @abstractmethod
    def guarded(self) -> object:
        """What no stranger may change."""

    @abstractmethod
    def check(self) -> None:
        """It does as before, and keeps no more than it may; raises BrokenError."""

    @abstractmethod
    def counts(self) -> Counter[str]:
        """What it has refused, by kind."""

    @abstractmethod
    def close(self) -> None:
        """It is needed no more."""
