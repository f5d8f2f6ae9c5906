"""Started exchanges and their end: finished, abandoned, or forgotten.

Knows: which transports an exchange uses. Does not know: maps, plans, the messages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cotswold.mesh.transport.transport import Transport


@dataclass(frozen=True, eq=False)
class InFlightExchange:
    """An exchange, and the transports that have not ended it.

    ``forgotten`` collects exchanges that will not be finished. Python may delete objects in any thread, even
    during a call of the same transport. So these exchanges are abandoned later, when the next one starts.
    """

    tag: int
    transports: list[Transport]
    forgotten: deque[InFlightExchange]

    def finish(self) -> None:
        """End the exchange on every transport, once all of its messages were received."""
        while self.transports:
            self.transports[0].finish(self.tag)
            del self.transports[0]

    def abandon(self) -> None:
        """End the exchange on the remaining transports, regardless of arrived messages."""
        while self.transports:
            self.transports.pop().abandon(self.tag)

    def forget(self) -> None:
        """Queue the exchange to be abandoned when the next one starts; allowed in any thread, at any time."""
        self.forgotten.append(self)
