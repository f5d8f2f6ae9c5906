"""Confirmation that members are alive, before the replica of a live server is dropped.

Knows: the group in question, who has replied since. Does not know: why a replica is dropped.

A server that has just died counts as alive until its lease expires. If a replica were dropped meanwhile, the
last copy of a bucket could be lost. So the members that stay first confirm the current group. A reply carries
the number of its request: replies to older requests are ignored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.wire import Assign, Assigned, Group, Send

FRESH_SECONDS = 0.5
"""Seconds for which replies are valid; then the members are asked again."""


@dataclass
class _Question:
    number: int
    group: Group
    members: tuple[str, ...]
    asked: float
    answers: dict[str, None] = field(default_factory=dict)


class RemovalCheck:
    """Removal checks of a leader."""

    def __init__(self, epoch: int) -> None:
        self._epoch, self._number = epoch, 0
        self._of: dict[str, _Question] = {}
        self._sends: list[Send] = []

    def are_there(self, group: Group, members: Collection[str], now: float) -> bool:
        """True if all of these members have confirmed the group just now; otherwise ask them."""
        question = self._of.get(group.bucket)
        if question is None or question.group != group or now - question.asked > FRESH_SECONDS:
            self._number += 1
            question = _Question(self._number, group, tuple(members), now)
            self._of[group.bucket] = question
            assign = Assign(self._epoch, group, question.number)
            self._sends += [Send(name, assign) for name in members]
        return all(name in question.answers for name in members)

    def heard(self, assigned: Assigned) -> bool:
        """Record a reply; True if all members of the request have confirmed."""
        question = self._of.get(assigned.bucket)
        if question is None or assigned.number != question.number or assigned.term != question.group.term:
            return False
        question.answers[assigned.server] = None
        return all(name in question.answers for name in question.members)

    def forget(self, bucket: str) -> None:
        """Forget a bucket whose group has changed or was deleted."""
        self._of.pop(bucket, None)

    def take(self) -> list[Send]:
        """Return the requests to send."""
        sends, self._sends = self._sends, []
        return sends
