"""Who is silent to whom in a group: gathered for a while, then judged.

Knows: complaints of one term. Does not know: who lives, what becomes of the group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cotswold.server.messages import Group, Silent, TakeOver


@dataclass
class Complaints:
    """Those of one group."""

    term: int
    began: float
    of_primary: set[str] = field(default_factory=set)
    """Copies that the primary does not hear."""
    of_secondaries: set[str] = field(default_factory=set)
    """Secondaries that do not hear the primary."""

    def hear(self, sender: str, message: Silent | TakeOver, group: Group) -> None:
        """One more, of whoever may say so."""
        if isinstance(message, Silent):
            if sender == group.primary:
                self.of_primary.add(message.copy)
        elif sender in group.secondaries:
            self.of_secondaries.add(sender)

    def is_cut_off(self, group: Group, living: set[str]) -> bool:
        """Whether it is the primary, and not one of several secondaries, that does not hear and is not heard;
        ``living``: secondaries that are there."""
        apart = (self.of_primary | self.of_secondaries) & set(group.secondaries)
        return len(living) > 1 and living <= apart  # it alone, or all of them at once

    def silent(self, group: Group) -> set[str]:
        """Copies that the primary does not hear."""
        return self.of_primary & set(group.everybody)
