"""The interface of transports, which move the messages of exchanges between ranks.

Knows: the calls of an exchange. Does not know: maps, plans, the choice of a transport (`routes`).

All ranks begin exchanges in the same order, with rising tags, and a pair of ranks has at most one message in
each direction per exchange. `tests/mesh/test_transports.py` is the contract that all implementations pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Expected:
    """An expected message, with the shape and type of ``destination``."""

    destination: Tensor
    in_place: bool = False
    """True if a transport may write into the (contiguous) destination as soon as the message arrives."""


class Transport(Protocol):
    """Messages to and from some ranks. Errors name the rank that is lost, late, or sends another size."""

    def send(self, tag: int, outgoing: Mapping[int, Tensor], expected: Mapping[int, Expected]) -> None:
        """Begin an exchange: send views of any strides to ranks, and declare the expected messages by sender.

        The sent values must not change before the exchange is finished or abandoned.
        """
        ...

    def receive(self, tag: int, source: int) -> Tensor:
        """Wait for the message of a rank, shaped as its destination; it is valid until `release`.

        Raises ConnectionResetError or RuntimeError if the rank is lost, TimeoutError or RuntimeError if
        nothing arrives, GeometryError if the message has another size.
        """
        ...

    def release(self, tag: int, source: int) -> None:
        """Release the message of a rank."""
        ...

    def finish(self, tag: int) -> None:
        """End an exchange after all its messages were received, and free its resources."""
        ...

    def abandon(self, tag: int) -> None:
        """End an exchange at any time; late messages are dropped, and their memory is freed then.

        Sent messages still arrive. Never raises.
        """
        ...
