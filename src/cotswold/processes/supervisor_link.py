"""The connection of a process to whoever started it, which is made anew where its token was followed by
another.

Knows: when it was lost. Does not know: why, what is said on it.

A supervisor that has ended takes its processes with it; one whose socket is gone for some seconds has ended,
too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cotswold.errors import MachineError
from cotswold.transport import Endpoint
from cotswold.transport.token_rotation import Rotating

_OVER_SECONDS = 3.0
_CALM_SECONDS = 1.0


@dataclass
class Bond:
    """That of one process, which is at ``address``."""

    address: str
    tokens: Rotating | None
    _first: float = 0.0
    _last: float = float("-inf")

    @property
    def to_call(self) -> str:
        """Where it is called again and again; empty where it is called once."""
        return self.address if self._may_be_made_anew else ""

    def lost(self, now: float) -> bool:
        """It was lost, perhaps again: whether it is over."""
        if not self._may_be_made_anew:
            return True
        if now - self._last > _CALM_SECONDS:
            self._first = now
        self._last = now
        return now - self._first > _OVER_SECONDS

    def tick(self, endpoints: Iterable[Endpoint], now: float) -> list[str]:
        """As `Rotating.tick`; nothing happens where there are no tokens but those of the endpoints."""
        return [] if self.tokens is None else self.tokens.tick(endpoints, now)

    def over(self, name: str, why: str) -> MachineError:
        """What the process called ``name`` ends with, as the connection was lost."""
        return MachineError(
            f"{name} lost whoever started it ({why}), and ends; resume the run, or start its host's "
            "'cotswold cluster' again"
        )

    @property
    def _may_be_made_anew(self) -> bool:
        return self.tokens is not None and self.tokens.may_change
