"""Supervision of the data servers that this machine has started, for a local or a remote pool.

Knows: the endpoint, the process group, clocks. Does not know: the data, the trainers, the location of the
head.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from cotswold.processes.coordinator_loop import CoordinatorLoop, OnEvent
from cotswold.processes.process_group import ProcessGroup
from cotswold.wire.messenger import Messenger

_PAUSE_SECONDS = 1.0


class ServerSupervision(CoordinatorLoop):
    """The event loop of a process that starts data servers; it kills hanging servers, which are then
    restarted."""

    def __init__(
        self,
        messenger: Messenger,
        process_group: ProcessGroup,
        start_seconds: float,
        silent_seconds: float,
        on_event: OnEvent,
    ) -> None:
        """A server hangs if its first message takes longer than ``start_seconds``, or a later one longer
        than ``silent_seconds``."""
        super().__init__(messenger, process_group, on_event)
        self._start_seconds, self._silent_seconds = start_seconds, silent_seconds
        self._started_at: dict[str, float] = {}
        """Time at which each server started that has sent no message yet."""
        self._reported_at: dict[str, float] = {}
        """Time of the last message of each other server."""
        self._last = time.monotonic()

    def _serves(self, name: str, now: float) -> None:
        """Handle the status of a server of this machine."""
        if name not in self._reported_at:
            self.process_group.mark_ready(name)
            self._on_event("serving", {"name": name})
        self._reported_at[name] = now

    def _check_servers(self, now: float) -> float:
        """Kill hanging servers; return the seconds for which this process was paused, which count for
        none."""
        stood, self._last = now - self._last, now
        stood = stood if stood > _PAUSE_SECONDS else 0.0
        self._abandon_lost(now)
        there = self.process_group.workers
        self._reported_at = {
            name: min(now, since + stood) for name, since in self._reported_at.items() if name in there
        }
        begun = {name: since + stood for name, since in self._started_at.items()}
        self._started_at = {name: begun.get(name, now) for name in there if name not in self._reported_at}
        for name in there:
            since, most = self._reported_at.get(name), self._silent_seconds
            if since is None:
                since, most = self._started_at[name], self._start_seconds
            if now - since > most:
                self.process_group.kill(name, f"said nothing for {most:g} s, and was ended")
        return stood


def event_text(kind: str, more: Mapping[str, object]) -> str:
    """An event of data servers, in words."""
    return f"{more['name']} serves" if kind == "serving" else f"{more['name']} {more['reason']}"
