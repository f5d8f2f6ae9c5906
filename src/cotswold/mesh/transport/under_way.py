"""Exchanges that were started, and how they end: finished, abandoned, or forgotten.

Knows: which transports an exchange travels by. Does not know: maps, plans, what the messages are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cotswold.mesh.transport.transport import Transport


@dataclass(frozen=True, eq=False)
class UnderWay:
    """An exchange, and the transports that have not ended it.

    ``forgotten`` collects exchanges that nobody will finish. Python frees memory in whatever thread it is,
    maybe amid a call of the same transport; so they are abandoned later, by whoever starts the next.
    """

    tag: int
    transports: list[Transport]
    forgotten: deque[UnderWay]

    def finish(self) -> None:
        """End it on every transport, once all of its messages were received."""
        while self.transports:
            self.transports[0].finish(self.tag)
            del self.transports[0]

    def abandon(self) -> None:
        """End it on those that are left, whatever has come."""
        while self.transports:
            self.transports.pop().abandon(self.tag)

    def forget(self) -> None:
        """Have it abandoned when the next exchange is started; in any thread, at any time."""
        self.forgotten.append(self)
