"""What every transport does: it moves the messages of exchanges between ranks.

Knows: the four calls of an exchange. Does not know: maps, plans, which transport serves whom (`routes`).

All ranks begin exchanges in one order, with tags that rise, and a pair of ranks has one message each way an
exchange at most. `tests/mesh/test_transports.py` is the contract that all pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Expected:
    """A message that is to come, of the shape and type of ``destination``."""

    destination: Tensor
    in_place: bool = False
    """Whether a transport may write there as soon as the message comes; it is contiguous then."""


class Transport(Protocol):
    """Messages to and from some ranks. Errors name the rank that is gone, late, or sends another size."""

    def send(self, tag: int, outgoing: Mapping[int, Tensor], expected: Mapping[int, Expected]) -> None:
        """Begin an exchange: send views of any strides to ranks, and say what is to come from which.

        What is sent must not change before the exchange is finished or abandoned.
        """
        ...

    def receive(self, tag: int, source: int) -> Tensor:
        """The message of a rank, shaped as its destination; waits for it. To be read until it is released.

        Raises ConnectionResetError or RuntimeError where the rank is gone, TimeoutError or RuntimeError where
        nothing comes, GeometryError where it is known to be of another size.
        """
        ...

    def release(self, tag: int, source: int) -> None:
        """Nobody reads the message of a rank any more."""
        ...

    def finish(self, tag: int) -> None:
        """End an exchange of which all messages were received; frees what it held."""
        ...

    def abandon(self, tag: int) -> None:
        """End an exchange whatever has come; what comes later is dropped, and its memory freed then.

        What was sent still arrives. Never raises.
        """
        ...
