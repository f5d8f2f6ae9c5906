"""Portions that fail: who has tried, whose death may be their fault, and when no hope is left.

Knows: sessions, errors as sentences. Does not know: why a portion fails.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Failures:
    """Of one evaluation."""

    deaths: int
    """A portion that as many workers died of is not tried again."""
    _errors: dict[int, dict[int, str]] = field(default_factory=dict)
    """By portion, then session."""
    _deadly: dict[int, int] = field(default_factory=dict)
    """How many workers died while they computed it."""

    def failed(self, portion: int, session: int, error: str) -> None:
        """The session says that it cannot compute the portion."""
        self._errors.setdefault(portion, {})[session] = error

    def died(self, portion: int, session: int, why: str) -> None:
        """The session's process ended while it computed the portion."""
        self.failed(portion, session, why)
        self._deadly[portion] = self._deadly.get(portion, 0) + 1

    @property
    def portions(self) -> list[int]:
        """Those that have failed somewhere."""
        return list(self._errors)

    def may_try(self, portion: int, session: int) -> bool:
        """Whether the session has not failed at it, and not too many died of it."""
        return session not in self._errors.get(portion, {}) and self._deadly.get(portion, 0) < self.deaths

    def is_poisoned(self, portion: int, sessions: Collection[int]) -> bool:
        """Whether none of these sessions, of which there is one at least, may try it."""
        return bool(sessions) and not any(self.may_try(portion, session) for session in sessions)

    def error(self, portion: int) -> str:
        """The newest error of a portion that failed, and how often."""
        errors = list(self._errors[portion].values())
        return errors[-1] if len(errors) == 1 else f"{errors[-1]} (on {len(errors)} workers)"
