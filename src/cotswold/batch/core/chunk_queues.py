"""Which portion a free worker gets next: first those whose data it has, then others'.

Knows: where portions are at home, the order within an evaluation, how fast sessions are. Does not know: who
has which in hand (`portions`), messages.

A portion is at home with the session that computed it last, so its data stay there; what a session cannot do
in time others take from the end of its queue, and from then on it is at home with them. So homes follow
speeds: after an evaluation or two each session has the share that suits it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Homes:
    """Where portions are at home, from one evaluation to the next."""

    of: dict[int, int] = field(default_factory=dict)
    """The session of each portion."""

    def shares(self, portions: Sequence[int], sessions: Sequence[int]) -> dict[int, list[int]]:
        """The portions of each session; those at home with nobody there are dealt in equal runs."""
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
class Queues:
    """Portions that nobody has yet."""

    common: deque[int]
    """For whoever comes."""
    own: dict[int, deque[int]] = field(default_factory=dict)
    """By session."""

    @classmethod
    def shared(cls, portions: Sequence[int], homes: Homes, sessions: Sequence[int]) -> Queues:
        """Each session has those that are at home with it; all are common where there is no session."""
        if not sessions:
            return cls(deque(portions))
        shares = homes.shares(portions, sessions)
        return cls(deque(), {session: deque(share) for session, share in shares.items()})

    def next(
        self, session: int, seconds: Callable[[int], float], is_free: Callable[[int], bool]
    ) -> int | None:
        """The next free portion for this session, taken out of its queue; None where there is none.

        Its own first, then the common ones, then the last of the session whose queue will last longest, where
        a session takes ``seconds`` for a portion.
        """
        while (queue := self.own.get(session)) or (queue := self.common):
            portion = queue.popleft()
            if is_free(portion):
                return portion
        while others := [each for each, queue in self.own.items() if queue]:
            longest = max(others, key=lambda each: (len(self.own[each]) * seconds(each), each))
            portion = self.own[longest].pop()
            if is_free(portion):
                return portion
        return None

    def clear(self) -> None:
        """Nothing is free any more."""
        self.common.clear()
        for queue in self.own.values():
            queue.clear()

    def give_back(self, portions: Sequence[int]) -> None:
        """These are free again, and come before all other common ones."""
        self.common.extendleft(reversed(portions))

    def end(self, session: int) -> None:
        """The session takes no more: what it would have had is common."""
        self.common.extend(self.own.pop(session, ()))

    @property
    def waiting(self) -> int:
        """At most how many portions are free."""
        return len(self.common) + sum(map(len, self.own.values()))
