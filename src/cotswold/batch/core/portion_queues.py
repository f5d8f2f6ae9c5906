"""Choice of the next portion for a free worker: first portions whose data it has, then others'.

Knows: the home of each portion, the order within an evaluation, the speed of sessions. Does not know: current
claims (`batch.core.portion_ledger`), messages.

The home of a portion is the session that computed it last, so its data stay there. If a session is too slow,
others take portions from the end of its queue and become their new home. So homes adapt to speeds: after one
or two evaluations each session has a matching share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class PortionHomes:
    """Homes of the portions, kept between evaluations."""

    of: dict[int, int] = field(default_factory=dict)
    """Session by portion."""

    def shares(self, portions: Sequence[int], sessions: Sequence[int]) -> dict[int, list[int]]:
        """Return the portions of each session; portions without a connected home are split into equal
        ranges."""
        found: dict[int, list[int]] = {session: [] for session in sessions}
        homeless: list[int] = []
        for portion in portions:
            home = found.get(self.of.get(portion, 0))
            (homeless if home is None else home).append(portion)
        takers = [session for session in sessions if not found[session]] or list(sessions)  # new ones first
        for place, session in enumerate(takers):
            start, stop = (len(homeless) * each // len(takers) for each in (place, place + 1))
            found[session] = sorted(found[session] + homeless[start:stop])
        return found


@dataclass
class PortionQueues:
    """Portions that no session has claimed yet."""

    common: deque[int]
    """Portions for any session."""
    by_session: dict[int, deque[int]] = field(default_factory=dict)
    """Portions by home session."""

    @classmethod
    def shared(cls, portions: Sequence[int], homes: PortionHomes, sessions: Sequence[int]) -> PortionQueues:
        """Return queues by home; without sessions, all portions are common."""
        if not sessions:
            return cls(deque(portions))
        shares = homes.shares(portions, sessions)
        return cls(deque(), {session: deque(share) for session, share in shares.items()})

    def next(
        self, session: int, seconds: Callable[[int], float], is_free: Callable[[int], bool]
    ) -> int | None:
        """Return the next free portion for this session and remove it from its queue; None if there is none.

        Its own portions come first, then the common ones, then the last of the session whose queue will take
        longest; ``seconds`` returns a session's time per portion.
        """
        while (queue := self.by_session.get(session)) or (queue := self.common):
            portion = queue.popleft()
            if is_free(portion):
                return portion
        while others := [each for each, queue in self.by_session.items() if queue]:
            longest = max(others, key=lambda each: (len(self.by_session[each]) * seconds(each), each))
            portion = self.by_session[longest].pop()
            if is_free(portion):
                return portion
        return None

    def clear(self) -> None:
        """Remove all portions."""
        self.common.clear()
        for queue in self.by_session.values():
            queue.clear()

    def requeue(self, portions: Sequence[int]) -> None:
        """Put freed portions in front of the common ones."""
        self.common.extendleft(reversed(portions))

    def end(self, session: int) -> None:
        """End a session's queue: its portions become common."""
        self.common.extend(self.by_session.pop(session, ()))

    @property
    def queued(self) -> int:
        """Upper bound of the number of free portions."""
        return len(self.common) + sum(map(len, self.by_session.values()))
