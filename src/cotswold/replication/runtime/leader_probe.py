"""Whether whoever leads the controllers answers a host of a cluster, in words where it is waited for long.

Knows: when it was asked and answered, what is said when. Does not know: how they are asked.

    what is so                                        what is said
    nobody who leads has answered for two seconds     what is waited for, and since when
      (some more, where one did before)
    still nobody                                      the same, later and later
    somebody answers, after that was said             that, and how long it took
    this host itself stood still                      nothing: that time counts for nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.replication.client.unreachable import Calls, why_others, why_unreached
from cotswold.transport import Lost

_FIRST_SECONDS, _LATER_SECONDS = 2.0, 5.0
_GROWS, _MOST_SECONDS = 5.0, 300.0
_STILL_SECONDS = 1.0
_ASKS_SECONDS, _SELDOM_SECONDS = 0.3, 1.0


class Reaching:
    """That of one host."""

    def __init__(self, controllers: Mapping[str, str], etcd: Sequence[str], now: float) -> None:
        """``controllers``: HOST:PORT of each, by name; ``etcd`` as it was named."""
        self._places, self._etcd = dict(controllers), ", ".join(etcd)
        self._controllers = ", ".join(controllers.values())
        self._since, self._asked = now, float("-inf")
        """When a leader answered last, or this began; when one was asked last."""
        self._is_answered = False
        self._patience = _FIRST_SECONDS
        self._seen = now
        """When it was looked last whether anything is due."""
        self._told = 0.0
        """After how many seconds it was said last that nobody answers; 0 where it was not."""
        self._calls = Calls()

    def asks(self, now: float) -> bool:
        """Whether to ask now."""
        if now - self._asked < (_SELDOM_SECONDS if self._is_answered else _ASKS_SECONDS):
            return False
        self._asked, self._is_answered = now, False
        return True

    def follows(self, controller: str) -> None:
        """One has answered that does not lead."""
        self._calls.heard(controller, leads=False)

    def lost(self, lost: Lost) -> None:
        """A call of a controller has ended."""
        if lost.peer in self._places:
            self._calls.ended(lost)

    def answered(self, now: float) -> str:
        """One that leads has answered: what is to be said, if anything."""
        waited, told = now - self._since, self._told
        self._since, self._is_answered, self._told, self._patience = now, True, 0.0, _LATER_SECONDS
        self._calls = Calls()
        return f"a controller leads, and is reached, after {waited:.0f} s" if told else ""

    def due(self, now: float) -> str:
        """What is to be said now, if anything."""
        stood_still, self._seen = now - self._seen, now
        if stood_still > _STILL_SECONDS:  # it is this host that has heard nobody
            self._since += stood_still
        waited = now - self._since
        if waited < max(self._patience, min(_GROWS * self._told, self._told + _MOST_SECONDS)):
            return ""
        following, lost = self._calls.following, self._calls.lost
        self._told, count = waited, len(following)
        if not count:
            why = why_unreached(self._places, lost)
            return f"no controller has answered for {waited:.0f} s, and is asked again: {why}"
        others = why_others(self._places, lost, following)
        following.clear()
        if self._etcd:
            see = f"most members of the etcd at {self._etcd} are there"
        elif len(self._places) == 1:
            see = "its state.sqlite is there, and its disk has room; with etcd, most of its members"
        else:
            see = "most members of its etcd are there"
        return (
            f"{count} of the controllers at {self._controllers} {'answers' if count == 1 else 'answer'}, and "
            f"none has led for {waited:.0f} s: see whether {see}; it is asked again{others}"
        )
