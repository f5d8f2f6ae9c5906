"""The connection of a process to its supervisor, which reconnects after the token was rotated.

Knows: when the connection was lost. Does not know: why, which messages it carries.

When a supervisor exits, its processes exit. A supervisor that is unreachable for some seconds counts as
exited.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cotswold.errors import MachineError
from cotswold.transport import Endpoint
from cotswold.transport.token_rotation import TokenRotation

_CLOSED_SECONDS = 3.0
_QUIET_SECONDS = 1.0


@dataclass
class SupervisorLink:
    """The supervisor link of one process, whose supervisor is at ``address``."""

    address: str
    tokens: TokenRotation | None
    _first: float = 0.0
    _last: float = float("-inf")

    @property
    def reconnect_address(self) -> str:
        """Address that is called repeatedly; empty if it is called once."""
        return self.address if self._can_reconnect else ""

    def on_lost(self, now: float) -> bool:
        """Note a loss of the connection, perhaps repeated; return True if the link is over."""
        if not self._can_reconnect:
            return True
        if now - self._last > _QUIET_SECONDS:
            self._first = now
        self._last = now
        return now - self._first > _CLOSED_SECONDS

    def tick(self, endpoints: Iterable[Endpoint], now: float) -> list[str]:
        """Rotate tokens as `TokenRotation.tick` does; no effect if the endpoints' tokens are fixed."""
        return [] if self.tokens is None else self.tokens.tick(endpoints, now)

    def closed_error(self, name: str, why: str) -> MachineError:
        """The error with which the process called ``name`` ends after the link is over."""
        return MachineError(
            f"{name} lost its supervisor ({why}), and exits; resume the run, or start its host's "
            "'cotswold cluster' again"
        )

    @property
    def _can_reconnect(self) -> bool:
        return self.tokens is not None and self.tokens.may_change
