"""A process on a simulated network, which can be killed, stopped and resumed.

Knows: actions that wait while it is stopped. Does not know: what it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.wire import Send


class SimulatedProcess(ABC):
    """Base of nodes that can crash independently."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.name, self.is_alive, self._network = name, True, network
        self._paused: list[Callable[[], None]] | None = None
        """Actions that wait while the process is stopped."""

    @property
    def is_paused(self) -> bool:
        """True if the process is stopped."""
        return self._paused is not None

    def kill(self) -> None:
        """Kill the process, regardless of what it does."""
        self.is_alive = False
        del self._network.endpoints[self.name]

    def pause(self) -> None:
        """Stop the process (SIGSTOP)."""
        if self._paused is None:
            self._paused = []

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        waiting, self._paused = self._paused or [], None
        for each in waiting:
            self._do(each)

    def _do(self, action: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self._paused is not None:
            self._paused.append(action)
            return
        action()
        if self.is_alive:
            self._advance()

    @abstractmethod
    def _advance(self) -> None:
        """Continue after an action: begin the next task, or end."""

    def _send(self, sends: list[Send]) -> None:
        self._network.send(self.name, sends)
