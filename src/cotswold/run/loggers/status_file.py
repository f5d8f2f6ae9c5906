"""Current status of a run, in a file written every second: `status.json`.

Knows: which events it contains, that the file is removed when the run ends. Does not know: their meaning, its
readers. A run that was killed leaves the file, with its last status.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cotswold.errors import MachineError
from cotswold.files import MalformedError, read_object, writing_whole

WRITE_SECONDS = 1.0
_BYTES_MAX = 1 << 26
_PROCESS_EVENTS_MAX = 10
_LATEST_KINDS = ("start", "step", "validation", "checkpoint", "replicas", "portions", "resumed", "warning")
"""Kinds of events of which the newest is saved."""
_PROCESS_KINDS = (
    *("cluster_exited", "cluster_lost", "cluster_left", "cluster_refused", "cluster_joined"),
    *("cluster_recovered", "cluster_samples_lost", "cluster_restored", "cluster_disk", "cluster_waiting"),
)
"""Kinds of events of which the last few are saved."""


class StatusFile:
    """An observer of an EventLog that writes the status file; `read_status` reads it."""

    name = "status.json"

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._latest: dict[str, object] = {}
        self._process_events: list[object] = []
        self._written = float("-inf")

    def write(self, event: Mapping[str, object]) -> None:
        """Save an event, and write the file at most once per second."""
        kind = str(event["kind"])
        if kind in _LATEST_KINDS:
            self._latest[kind] = event
        elif kind in _PROCESS_KINDS:
            self._process_events = [*self._process_events[1 - _PROCESS_EVENTS_MAX :], event]
        else:
            return
        if self._clock() - self._written < WRITE_SECONDS:
            return
        self._written = self._clock()
        content = {
            "time": time.time(),
            "latest": self._latest,
            "process_events": self._process_events,
        }
        with writing_whole(self._path) as file:
            file.write(json.dumps(content, separators=(",", ":")).encode())

    def close(self) -> None:
        """Remove the file: the events state how the run ended."""
        self._path.unlink(missing_ok=True)


def read_status(path: Path) -> dict[str, object] | None:
    """Return the content of a `StatusFile`, or None if it does not exist.

    The keys are ``time`` (unix seconds of the last write), ``latest`` (events by kind) and
    ``process_events``. Raises MachineError for an invalid file.
    """
    try:
        found = read_object(path, bytes_max=_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}; read it as the run's user") from error
    except MalformedError as error:
        raise MachineError(f"{path} {error}; remove it, a running run writes it again") from error
    if not isinstance(found.get("time"), int | float) or not isinstance(found.get("latest"), dict):
        raise MachineError(f"{path} is not the status of a run; remove it, a running run writes it again")
    return found
