"""Messages between players: each takes its time, and may be lost, late, or come twice.

Knows: names, how long messages take, chance with a seed. Does not know: what messages say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from cotswold.simulate.loop import Loop
from cotswold.wire import Message, Send


class Player(Protocol):
    """Somebody on the network."""

    name: str

    def receive(self, sender: str, message: Message) -> None:
        """A message has come."""
        ...


@dataclass(frozen=True)
class Faults:
    """What goes wrong on the way; nothing where all are 0."""

    lost: float = 0.0
    """The share of messages that never come."""
    twice: float = 0.0
    """The share that comes a second time, later."""
    late: float = 0.0
    """The share that is late, so that others overtake it."""
    late_seconds: float = 1.0
    """By at most so much."""


class Network:
    """Everybody can send to everybody; what one sends leaves its port one after the other."""

    def __init__(
        self,
        loop: Loop,
        random: Random,
        faults: Faults | None = None,
        *,
        latency_seconds: float = 1e-4,
        bytes_per_second: float = float("inf"),
        size: Callable[[Message], int] = lambda message: 0,
    ) -> None:
        self.loop, self.random, self.faults = loop, random, faults or Faults()
        self.latency_seconds, self.bytes_per_second, self.size = latency_seconds, bytes_per_second, size
        self.players: dict[str, Player] = {}
        self.messages = 0
        self.bytes: dict[str, int] = {}
        """That each has sent."""
        self.cut: set[tuple[str, str]] = set()
        """(sender, receiver) between whom nothing comes through, one way."""
        self.takes: Callable[[str, str], float] | None = None
        """How many seconds more a message takes from one to another."""
        self.sent: Callable[[str, Send], None] | None = None
        """Told of whatever is sent, by whom; may do anything but send."""
        self.carried: Callable[[str, Send], None] | None = None
        """Told of the same, and does nothing."""
        self._free: dict[str, float] = {}
        """When each one's port is free."""

    def send(self, sender: str, sends: list[Send]) -> None:
        """Hand over messages."""
        for send in sends:
            self.messages += 1
            if self.sent is not None:
                self.sent(sender, send)
            if self.carried is not None:
                self.carried(sender, send)
            size = self.size(send.message)
            self.bytes[sender] = self.bytes.get(sender, 0) + size
            start = max(self.loop.now, self._free.get(sender, 0.0))
            self._free[sender] = start + size / self.bytes_per_second
            seconds = self._free[sender] - self.loop.now + self.latency_seconds
            if self.takes is not None:
                seconds += self.takes(sender, send.to)
            faults = self.faults
            if faults.lost and self.random.random() < faults.lost:
                continue
            if faults.late and self.random.random() < faults.late:
                seconds += self.random.random() * faults.late_seconds
            self._carry(sender, send, seconds)
            if faults.twice and self.random.random() < faults.twice:
                self._carry(sender, send, seconds + self.random.random() * faults.late_seconds)

    def _carry(self, sender: str, send: Send, seconds: float) -> None:
        def arrive() -> None:
            player = self.players.get(send.to)
            if player is not None and (sender, send.to) not in self.cut:
                player.receive(sender, send.message)

        self.loop.after(seconds, arrive)
