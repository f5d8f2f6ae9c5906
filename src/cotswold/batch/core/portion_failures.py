"""Portions that fail: the workers that tried, portions that may kill workers, and when to give up.

Knows: sessions, errors as sentences. Does not know: why a portion fails.

A portion may kill the worker that computes it (a fault in native code, memory). A worker may also exit for
another reason (a preempted spot machine). So each portion of a lost worker is a *suspect*: it is tried alone,
one suspect at a time in the whole cluster. It is blamed only if several workers in a row died while it was
assigned to them and no worker died without it meanwhile. A worker that computes it clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass
class PortionFailures:
    """Failures of one evaluation."""

    deaths: int
    """Number of consecutive deaths after which a portion is blamed."""
    _errors: dict[int, dict[int, str]] = field(default_factory=dict)
    """Errors by portion, then session."""
    _deaths: dict[int, int] = field(default_factory=dict)
    """Consecutive deaths with each suspect assigned."""

    def failed(self, portion: int, session: int, error: str) -> None:
        """Record that the session cannot compute the portion."""
        self._errors.setdefault(portion, {})[session] = error

    def record_death(self, session: int, unfinished: Sequence[int], why: str) -> None:
        """Record that the session's process exited with these assigned portions unfinished."""
        for portion in self._deaths.keys() - set(unfinished):
            if not self._is_deadly(portion):
                self._deaths[portion] = 0  # a worker can die without it
        for portion in unfinished:
            self._deaths[portion] = self._deaths.get(portion, 0) + 1
            self.failed(portion, session, why)

    def computed(self, portion: int) -> None:
        """Clear a portion that a live worker has computed."""
        self._deaths.pop(portion, None)

    @property
    def portions(self) -> list[int]:
        """Portions that failed on some worker and were not computed since."""
        return list(dict.fromkeys((*self._deaths, *self._errors)))

    def is_suspect(self, portion: int) -> bool:
        """True if a worker died while it was assigned and no worker has computed it since."""
        return portion in self._deaths

    def may_try(self, portion: int, session: int) -> bool:
        """True if the session has not failed at the portion, and the portion is not blamed for deaths."""
        return session not in self._errors.get(portion, {}) and not self._is_deadly(portion)

    def is_unprocessable(self, portion: int, sessions: Collection[int]) -> bool:
        """True if none of these sessions (at least one) may try the portion."""
        return bool(sessions) and not any(self.may_try(portion, session) for session in sessions)

    def sentence(self, portion: int) -> str:
        """Return the failure of a portion as a sentence: its newest error and the number of workers."""
        errors = list(self._errors[portion].values())
        times = "" if len(errors) == 1 else f" (on {len(errors)} workers)"
        what = "kills every worker" if self._is_deadly(portion) else "fails on every worker"
        return f"portion {portion} {what}: {errors[-1]}{times}"

    def forget(self) -> None:
        """Allow all portions to be tried again."""
        self._errors.clear()
        self._deaths.clear()

    def _is_deadly(self, portion: int) -> bool:
        return self._deaths.get(portion, 0) >= self.deaths
