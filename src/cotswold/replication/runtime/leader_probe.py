"""Probe of the leading controller from a host, with sentences for when no leader replies.

Knows: when it asked and when a leader replied. Does not know: how to send.

    condition                                         sentence
    no leader has replied for two seconds (longer,    the awaited controllers, and since when
      if one replied before)
    still none                                        the same, at growing intervals
    one replies after that                            that, and how long it took
    this host itself stalled                          none: that time does not count
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.replication.client.unreachable import ConnectionResults, why_others, why_unreached
from cotswold.transport import Lost

_FIRST_SECONDS, _LATER_SECONDS = 2.0, 5.0
_GROWS, _MOST_SECONDS = 5.0, 300.0
_STILL_SECONDS = 1.0
_ASKS_SECONDS, _SELDOM_SECONDS = 0.3, 1.0


class LeaderProbe:
    """Probe of one host."""

    def __init__(self, controllers: Mapping[str, str], etcd: Sequence[str], now: float) -> None:
        """``controllers``: HOST:PORT of each, by name; ``etcd``: endpoints as the user named them."""
        self._places, self._etcd = dict(controllers), ", ".join(etcd)
        self._controllers = ", ".join(controllers.values())
        self._since, self._asked = now, float("-inf")
        """Time of a leader's last reply, or of the start; time of the last request."""
        self._is_answered = False
        self._patience = _FIRST_SECONDS
        self._seen = now
        """Time of the last check for a due sentence."""
        self._told = 0.0
        """Seconds of waiting when the last sentence was due; 0 if none was."""
        self._calls = ConnectionResults()

    def asks(self, now: float) -> bool:
        """True if a request is due; record it as sent."""
        if now - self._asked < (_SELDOM_SECONDS if self._is_answered else _ASKS_SECONDS):
            return False
        self._asked, self._is_answered = now, False
        return True

    def follows(self, controller: str) -> None:
        """Record the reply of a controller that does not lead."""
        self._calls.heard(controller, leads=False)

    def lost(self, lost: Lost) -> None:
        """Record the end of a connection attempt to a controller."""
        if lost.peer in self._places:
            self._calls.ended(lost)

    def answered(self, now: float) -> str:
        """Record a leader's reply; return a sentence, or an empty text."""
        waited, told = now - self._since, self._told
        self._since, self._is_answered, self._told, self._patience = now, True, 0.0, _LATER_SECONDS
        self._calls = ConnectionResults()
        return f"reached a leading controller after {waited:.0f} s" if told else ""

    def due(self, now: float) -> str:
        """Return the sentence that is due, or an empty text."""
        stood_still, self._seen = now - self._seen, now
        if stood_still > _STILL_SECONDS:  # this host stalled and could not receive a reply
            self._since += stood_still
        waited = now - self._since
        if waited < max(self._patience, min(_GROWS * self._told, self._told + _MOST_SECONDS)):
            return ""
        following, lost = self._calls.following, self._calls.lost
        self._told, count = waited, len(following)
        if not count:
            why = why_unreached(self._places, lost)
            return f"no controller has answered for {waited:.0f} s, retrying: {why}"
        others = why_others(self._places, lost, following)
        following.clear()
        if self._etcd:
            see = f"most members of the etcd at {self._etcd} are up"
        elif len(self._places) == 1:
            see = "its state.sqlite exists and its disk has space; with etcd, most members are up"
        else:
            see = "most members of its etcd are up"
        return (
            f"{count} of the controllers at {self._controllers} {'answers' if count == 1 else 'answer'}, and "
            f"none has led for {waited:.0f} s: check that {see}; retrying{others}"
        )
