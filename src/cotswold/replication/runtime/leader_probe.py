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

from cotswold.replication.client.unreachable import (
    ConnectionResults,
    other_controllers_text,
    unreachable_text,
)
from cotswold.transport import Lost

_FIRST_SECONDS, _LATER_SECONDS = 2.0, 5.0
_GROWS, _MAX_SECONDS = 5.0, 300.0
_STALL_SECONDS = 1.0
_ASKS_SECONDS, _SELDOM_SECONDS = 0.3, 1.0


class LeaderProbe:
    """Probe of one host."""

    def __init__(self, controllers: Mapping[str, str], etcd: Sequence[str], now: float) -> None:
        """``controllers``: HOST:PORT of each, by name; ``etcd``: endpoints as the user named them."""
        self._addresses, self._etcd = dict(controllers), ", ".join(etcd)
        self._controllers = ", ".join(controllers.values())
        self._unanswered_since, self._requested_at = now, float("-inf")
        """Time of a leader's last reply, or of the start; time of the last request."""
        self._is_answered = False
        self._timeout = _FIRST_SECONDS
        self._ticked_at = now
        """Time of the last check for a due sentence."""
        self._reported_at = 0.0
        """Seconds of waiting when the last sentence was due; 0 if none was."""
        self._calls = ConnectionResults()

    def should_request(self, now: float) -> bool:
        """True if a request is due; record it as sent."""
        if now - self._requested_at < (_SELDOM_SECONDS if self._is_answered else _ASKS_SECONDS):
            return False
        self._requested_at, self._is_answered = now, False
        return True

    def on_follower(self, controller: str) -> None:
        """Record the reply of a controller that does not lead."""
        self._calls.on_reply(controller, is_leader=False)

    def on_lost(self, lost: Lost) -> None:
        """Record the end of a connection attempt to a controller."""
        if lost.peer in self._addresses:
            self._calls.on_lost(lost)

    def on_reply(self, now: float) -> str:
        """Record a leader's reply; return a sentence, or an empty text."""
        waited, told = now - self._unanswered_since, self._reported_at
        self._unanswered_since, self._is_answered, self._reported_at, self._timeout = (
            now,
            True,
            0.0,
            _LATER_SECONDS,
        )
        self._calls = ConnectionResults()
        return f"reached a leading controller after {waited:.0f} s" if told else ""

    def problem_text(self, now: float) -> str:
        """Return the sentence that is due, or an empty text."""
        stood_still, self._ticked_at = now - self._ticked_at, now
        if stood_still > _STALL_SECONDS:  # this host stalled and could not receive a reply
            self._unanswered_since += stood_still
        waited = now - self._unanswered_since
        if waited < max(self._timeout, min(_GROWS * self._reported_at, self._reported_at + _MAX_SECONDS)):
            return ""
        following, lost = self._calls.followers, self._calls.lost
        self._reported_at, count = waited, len(following)
        if not count:
            why = unreachable_text(self._addresses, lost)
            return f"no controller has answered for {waited:.0f} s, retrying: {why}"
        others = other_controllers_text(self._addresses, lost, following)
        following.clear()
        if self._etcd:
            see = f"most members of the etcd at {self._etcd} are up"
        elif len(self._addresses) == 1:
            see = "its state.sqlite exists and its disk has space; with etcd, most members are up"
        else:
            see = "most members of its etcd are up"
        return (
            f"{count} of the controllers at {self._controllers} {'answers' if count == 1 else 'answer'}, and "
            f"none has led for {waited:.0f} s: check that {see}; retrying{others}"
        )
