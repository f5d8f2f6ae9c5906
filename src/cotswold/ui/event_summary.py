"""Messages about changes among a run's processes: joined, left, lost, ended.

Knows: events of a cluster, limits on the rate of lines. Does not know: where lines are shown, the processes.

Events within a short time are combined to one line per kind, so that a thousand replicas that join or die
take a few lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cotswold.ui.format import listed
from cotswold.words import counted

ENDED_WELL = "ended with exit code 0"
"""Reason of a normal exit, for which no line is shown."""
GATHER_SECONDS = 1.0
"""Seconds within which events are combined."""
PAUSE_SECONDS = 5.0
"""Minimum seconds between messages."""
LINES_MOST = 4
"""Maximum lines per message; the rest is counted."""
_KINDS = ("cluster_joined", "cluster_left", "cluster_lost", "cluster_refused", "cluster_ended")
_ELECTED = "cluster_copies"
_SENTENCES = ("cluster_recalled", "cluster_restored", "cluster_disk")
"""Kinds whose sentences are shown unchanged."""


class EventSummary:
    """Converts events to lines; ``clock`` is a monotonic clock in seconds."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._names: dict[tuple[str, str], list[str]] = {}
        """Unreported process names, by kind and reason."""
        self._since = self._told = float("-inf")
        self._ended: dict[str, str] = {}
        """Reasons of exits of processes that were not yet lost."""
        self._lost: set[str] = set()

    def take(self, event: Mapping[str, object]) -> list[str]:
        """Record an event about processes, and return the lines that are due."""
        kind, name = str(event["kind"]), str(event.get("name"))
        if kind in _KINDS and not event.get(
            "portions"
        ):  # portions are refused to one worker in favour of another
            self._note(kind, name, str(event.get("why") or event.get("sentence") or ""))
        if kind == "cluster_revived":
            self._note(kind, name, "")
        if kind in _SENTENCES:
            self._note(kind, name, str(event.get("sentence")))
        if kind == _ELECTED and event.get("what") == "elected":
            servers = event.get("servers")
            for server, parts in (servers if isinstance(servers, Mapping) else {name: 1}).items():
                for _ in range(parts):
                    self._note(kind, server, "")
        if kind == "cluster_waiting":
            return [str(event.get("sentence"))]
        now = self._clock()
        if kind in ("end", "start_failed"):
            return self._lines()
        is_due = now - self._since >= GATHER_SECONDS and now - self._told >= PAUSE_SECONDS
        return self._lines() if self._names and is_due else []

    def _note(self, kind: str, name: str, why: str) -> None:
        if kind == "cluster_ended":
            self._ended[name] = why
            if why == ENDED_WELL:
                return
        elif kind == "cluster_lost":
            self._lost.add(name)
            if self._ended.pop(name, None) == why:
                return  # its exit was reported
        elif kind == "cluster_joined":
            why = " again" if name in self._lost else ""
        if not self._names:
            self._since = self._clock()
        self._names.setdefault((kind, why), []).append(name)

    def _lines(self) -> list[str]:
        found = [_line(kind, why, names) for (kind, why), names in self._names.items()]
        left = sum(len(names) for names in list(self._names.values())[LINES_MOST:])
        self._names, self._told = {}, self._clock()
        more = [f"and {counted(left, 'more event')} of processes, see events.jsonl"] if left else []
        return found[:LINES_MOST] + more


def _line(kind: str, why: str, names: list[str]) -> str:
    """Return one line for processes with the same kind and reason."""
    who, is_one = listed(names), len(names) == 1
    said = f" ({why})" if why else ""
    match kind:
        case "cluster_copies":
            count = "one part" if is_one else f"{len(names)} parts"
            return f"{listed(sorted(set(names)))} took over {count} of the parameters from replicas"
        case "cluster_revived":
            count = "one part" if is_one else f"{len(names)} parts"
            return f"every server with {count} of the parameters is lost; disks have an earlier state"
        case "cluster_recalled":
            return why
        case "cluster_restored":
            return f"{who} resumes from its disk with {why}"
        case "cluster_disk":
            return f"{who}: {why}"
        case "cluster_joined":
            return f"{who} {'has' if is_one else 'have'} joined{why}"
        case "cluster_left":
            return f"{who} {'leaves' if is_one else 'leave'}{said}"
        case "cluster_lost":
            given_up = "is lost" if is_one else "are lost"
            return f"{who} {given_up}{said}; others take over the work in progress"
        case "cluster_refused":
            return f"{who} {'is' if is_one else 'are'} refused{said}"
        case _:
            return f"{who} {why}" if is_one else f"{who}, each: {why}"
