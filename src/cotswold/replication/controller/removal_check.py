"""Whether members are there at this moment: asked before a copy that lives is dropped.

Knows: which group is asked about, who has answered since. Does not know: why a copy is dropped.

A server that died just now is taken for one that lives until its lease is over. If a copy were dropped
meanwhile, the last of a bucket could be lost: so those that are to stay say first that they act by the group
as it is. An answer bears the number of its question: one to an older question counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.wire import Assign, Assigned, Group, Send

FRESH_SECONDS = 0.5
"""For which answers count; then they are asked again."""


@dataclass
class _Question:
    number: int
    group: Group
    members: tuple[str, ...]
    asked: float
    answers: dict[str, None] = field(default_factory=dict)


class Confirming:
    """That of a leader."""

    def __init__(self, epoch: int) -> None:
        self._epoch, self._number = epoch, 0
        self._of: dict[str, _Question] = {}
        self._sends: list[Send] = []

    def are_there(self, group: Group, members: Collection[str], now: float) -> bool:
        """Whether all of them have said so, just now; they are asked otherwise."""
        question = self._of.get(group.bucket)
        if question is None or question.group != group or now - question.asked > FRESH_SECONDS:
            self._number += 1
            question = _Question(self._number, group, tuple(members), now)
            self._of[group.bucket] = question
            assign = Assign(self._epoch, group, question.number)
            self._sends += [Send(name, assign) for name in members]
        return all(name in question.answers for name in members)

    def heard(self, assigned: Assigned) -> bool:
        """A server acts by a group; whether all have said so that were asked."""
        question = self._of.get(assigned.bucket)
        if question is None or assigned.number != question.number or assigned.term != question.group.term:
            return False
        question.answers[assigned.server] = None
        return all(name in question.answers for name in question.members)

    def forget(self, bucket: str) -> None:
        """It has another group, or none."""
        self._of.pop(bucket, None)

    def take(self) -> list[Send]:
        """Questions that are to be asked."""
        sends, self._sends = self._sends, []
        return sends
