"""Parts that all targets share: a messenger that keeps nothing, and the protected state.

Knows: endpoints and messengers as roles see them. Does not know: any role, sockets.
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

from .messages import EncodedMessage, MessageGenerator, exactly

_SCENES = 0.01
"""Probability of a scene: several messages that depend on each other."""


class BrokenError(Exception):
    """A target violates an invariant."""


class NullEndpoint:
    """An endpoint that encodes messages and drops them."""

    def __init__(self, address: str) -> None:
        self.address, self.key = address, ""
        self.rejections: Counter[str] = Counter()
        self.traffic = EndpointTraffic()
        self.connected: set[str] = set()

    def connect(self, peer: str, address: str) -> None:
        """Check the address and record the peer."""
        Address.parsed(address).route  # noqa: B018  # raises
        self.connected.add(peer)

    def has(self, peer: str) -> bool:
        """True if a peer was connected."""
        return peer in self.connected

    def reserve_name(self, peer: str) -> None:
        """Do nothing: names are not reused."""

    def accept_only_answers_of(self, peer: str) -> None:
        """Do nothing: no peer calls first."""

    def require_proof(self, peer: str, pair: str) -> None:
        """Do nothing: no peer proves its identity."""

    def watch(self, descriptor: int) -> None:
        """Do nothing: no messages arrive."""

    def unread_bytes(self, peer: str) -> int:
        """Return 0: every peer reads."""
        return 0

    def send(self, *message: object) -> bool:
        """Drop a message."""
        return True


class NullMessenger:
    """A messenger that encodes messages and drops them."""

    def __init__(self, endpoint: NullEndpoint) -> None:
        self.endpoint = endpoint
        self.sent: Counter[str] = Counter()

    def send(self, to: str, message: AnyMessage) -> bool:
        """Encode a message."""
        Packing(message).packed()
        self.sent[type(message).__name__] += 1
        return True

    def deliver(self, sends: Iterable[Send]) -> None:
        """Encode messages."""
        for each in sends:
            self.send(each.to, each.message)

    def connect(self, peers: Iterable[tuple[str, str]]) -> None:
        """Connect to peers."""
        for name, address in peers:
            self.endpoint.connect(name, address)


def _somebody(random: Random) -> str:
    """Return an unknown name."""
    return f"s{random.randrange(1 << 30)}"


class Target(ABC):
    """A target of invalid messages."""

    words: Sequence[str]
    """Words that mean something to the target."""
    numbers: Sequence[int] = (0, 1, 2, 3, 4, 5, 7, 32, 64)
    templates: Sequence[tuple[str, AnyMessage]]
    """Senders, and messages that they may send."""
    strangers: Sequence[str]
    """Senders that may not change protected state."""
    free: tuple[type, ...] = ()
    """Messages that every holder of the token may send."""
    kinds: Sequence[type]

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self._coming: deque[EncodedMessage] = deque()

    def scene(self, random: Random) -> list[tuple[str, AnyMessage]]:
        """Return messages that depend on each other, with an error deep inside."""
        return []

    def next(self, making: MessageGenerator, random: Random) -> EncodedMessage:
        """Return the next message."""
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

    def hear(self, said: EncodedMessage) -> None:
        """Deliver a message; raises BrokenError, or any error of the target."""
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
                raise BrokenError(f"a message of {said.sender} changed protected state")
            self.turn()

    @abstractmethod
    def attend(self, letter: Received) -> None:
        """Handle a message that was decoded."""

    @abstractmethod
    def turn(self) -> None:
        """Advance the target."""

    def is_stranger(self, sender: str) -> bool:
        """True if a sender may not change protected state."""
        return sender in self.strangers

    @abstractmethod
    def guarded(self) -> object:
        """Return the protected state."""

    @abstractmethod
    def check(self) -> None:
        """Check that the target works and keeps no more data than allowed; raise BrokenError otherwise."""

    @abstractmethod
    def counts(self) -> Counter[str]:
        """Return the refused messages by kind."""

    @abstractmethod
    def close(self) -> None:
        """Release the target's resources."""
