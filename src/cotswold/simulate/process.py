"""A process on a simulated network: it can be killed, stopped and woken, and does nothing meanwhile.

Knows: what waits for it while it is stopped. Does not know: what it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cotswold.simulate.network import Network
from cotswold.wire import Send


class PlayedProcess(ABC):
    """What every player is that lives and dies by itself."""

    def __init__(self, network: Network, name: str) -> None:
        self.name, self.is_alive, self._network = name, True, network
        self._paused: list[Callable[[], None]] | None = None
        """What waits while it is stopped."""

    @property
    def is_paused(self) -> bool:
        """Whether it is stopped."""
        return self._paused is not None

    def kill(self) -> None:
        """The process is gone, whatever it did."""
        self.is_alive = False
        del self._network.players[self.name]

    def pause(self) -> None:
        """SIGSTOP."""
        if self._paused is None:
            self._paused = []

    def go_on(self) -> None:
        """SIGCONT."""
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
            self._look()

    @abstractmethod
    def _look(self) -> None:
        """Something has been done: what is next, or is it at its end?"""

    def _send(self, sends: list[Send]) -> None:
        self._network.send(self.name, sends)
