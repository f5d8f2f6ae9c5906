"""Portions that fail: who has tried, which may be what workers die of, and when no hope is left.

Knows: sessions, errors as sentences. Does not know: why a portion fails.

A worker that dies may have died of a portion that it had in hand (a fault in native code, memory), or of
something else (a spot machine that is taken away). So such a portion is a *suspect*: it is tried by itself,
one at a time in the whole cluster, and it is to blame only where several workers in a row died with it in
hand and nobody died without it meanwhile. Whoever computes it clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass
class Failures:
    """Of one evaluation."""

    deaths: int
    """A portion is to blame where so many workers in a row died with it in hand."""
    _errors: dict[int, dict[int, str]] = field(default_factory=dict)
    """By portion, then session."""
    _deaths: dict[int, int] = field(default_factory=dict)
    """Of suspects: how many deaths in a row there were with it in hand."""

    def failed(self, portion: int, session: int, error: str) -> None:
        """The session says that it cannot compute the portion."""
        self._errors.setdefault(portion, {})[session] = error

    def died(self, session: int, unfinished: Sequence[int], why: str) -> None:
        """The session's process ended with these portions in hand, computed or about to be."""
        for portion in self._deaths.keys() - set(unfinished):
            if not self._is_deadly(portion):
                self._deaths[portion] = 0  # one can die without it
        for portion in unfinished:
            self._deaths[portion] = self._deaths.get(portion, 0) + 1
            self.failed(portion, session, why)

    def computed(self, portion: int) -> None:
        """Somebody has computed it, and lives."""
        self._deaths.pop(portion, None)

    @property
    def portions(self) -> list[int]:
        """Those that have failed somewhere, and were not computed since."""
        return list(dict.fromkeys((*self._deaths, *self._errors)))

    def is_suspect(self, portion: int) -> bool:
        """Whether a worker died with it in hand, and nobody has computed it since."""
        return portion in self._deaths

    @property
    def suspects(self) -> list[int]:
        """Portions of which it is not known whether workers die of them, in the order of suspicion."""
        return [portion for portion in self._deaths if not self._is_deadly(portion)]

    def may_try(self, portion: int, session: int) -> bool:
        """Whether the session has not failed at it, and it is not to blame for deaths."""
        return session not in self._errors.get(portion, {}) and not self._is_deadly(portion)

    def is_poisoned(self, portion: int, sessions: Collection[int]) -> bool:
        """Whether none of these sessions, of which there is one at least, may try it."""
        return bool(sessions) and not any(self.may_try(portion, session) for session in sessions)

    def sentence(self, portion: int) -> str:
        """What is wrong with a portion that failed: its newest error, and how often."""
        errors = list(self._errors[portion].values())
        times = "" if len(errors) == 1 else f" (on {len(errors)} workers)"
        what = "kills every worker" if self._is_deadly(portion) else "fails on every worker"
        return f"portion {portion} {what}: {errors[-1]}{times}"

    def forget(self) -> None:
        """All may be tried again."""
        self._errors.clear()
        self._deaths.clear()

    def _is_deadly(self, portion: int) -> bool:
        return self._deaths.get(portion, 0) >= self.deaths
