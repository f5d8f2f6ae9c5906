"""A simulated network: messages take time, and may be lost, late, or duplicated.

Knows: names, transfer times, seeded randomness. Does not know: the messages' contents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.wire import Message, Send


class SimulatedNode(Protocol):
    """A node of the network."""

    name: str

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        ...


@dataclass(frozen=True)
class Faults:
    """Faults of the network; none if all are 0."""

    lost_fraction: float = 0.0
    """Fraction of messages that are lost."""
    duplicated_fraction: float = 0.0
    """Fraction of messages that are delivered a second time, later."""
    delayed_fraction: float = 0.0
    """Fraction of messages that are late, so that others overtake them."""
    late_seconds: float = 1.0
    """Maximum delay of a late message in seconds."""


class SimulatedNetwork:
    """A network in which every node can send to every other; messages queue at the sender's port."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        random: Random,
        faults: Faults | None = None,
        *,
        latency_seconds: float = 1e-4,
        bytes_per_second: float = float("inf"),
        size: Callable[[Message], int] = lambda message: 0,
    ) -> None:
        self.loop, self.random, self.faults = loop, random, faults or Faults()
        self.latency_seconds, self.bytes_per_second, self.size = latency_seconds, bytes_per_second, size
        self.endpoints: dict[str, SimulatedNode] = {}
        self.messages = 0
        self.bytes: dict[str, int] = {}
        """Bytes sent by each node."""
        self.cut_links: set[tuple[str, str]] = set()
        """Pairs (sender, receiver) whose messages are dropped in this direction."""
        self.extra_seconds: Callable[[str, str], float] | None = None
        """Function that returns additional seconds of a message between two nodes."""
        self.on_send: Callable[[str, Send], None] | None = None
        """Called with every sent message and its sender; may do anything except send."""
        self.on_transmit: Callable[[str, Send], None] | None = None
        """Called with every sent message and its sender; must have no effect."""
        self._free: dict[str, float] = {}
        """Time at which each sender's port is free."""

    def send(self, sender: str, sends: list[Send]) -> None:
        """Send messages."""
        for send in sends:
            self.messages += 1
            if self.on_send is not None:
                self.on_send(sender, send)
            if self.on_transmit is not None:
                self.on_transmit(sender, send)
            size = self.size(send.message)
            self.bytes[sender] = self.bytes.get(sender, 0) + size
            start = max(self.loop.now, self._free.get(sender, 0.0))
            self._free[sender] = start + size / self.bytes_per_second
            seconds = self._free[sender] - self.loop.now + self.latency_seconds
            if self.extra_seconds is not None:
                seconds += self.extra_seconds(sender, send.to)
            faults = self.faults
            if faults.lost_fraction and self.random.random() < faults.lost_fraction:
                continue
            if faults.delayed_fraction and self.random.random() < faults.delayed_fraction:
                seconds += self.random.random() * faults.late_seconds
            self._deliver(sender, send, seconds)
            if faults.duplicated_fraction and self.random.random() < faults.duplicated_fraction:
                self._deliver(sender, send, seconds + self.random.random() * faults.late_seconds)

    def _deliver(self, sender: str, send: Send, seconds: float) -> None:
        def arrive() -> None:
            player = self.endpoints.get(send.to)
            if player is not None and (sender, send.to) not in self.cut_links:
                player.receive(sender, send.message)

        self.loop.schedule(seconds, arrive)
