"""What happened to a bucket, in a sentence for people.

Knows: groups, words. Does not know: why anything is done; it is told.
"""

from __future__ import annotations

from cotswold.server.control.electing import Cause, Election
from cotswold.server.messages import Group
from cotswold.server.names import spoken


def changed(old: Group, new: Group, why: str) -> tuple[str, str, str] | None:
    """Kind, server and sentence of a change that no election made; None where nothing is different."""
    bucket = spoken(new.bucket)
    caught = [each for each in new.secondaries if each not in old.secondaries]
    came = [each for each in new.learners if each not in old.everybody]
    left = [each for each in old.everybody if each not in new.everybody]
    if caught:
        return (
            "caught-up",
            caught[0],
            f"{bucket}: {caught[0]} has caught up, and is a secondary, term {new.term}",
        )
    if left:
        names = ", ".join(left)
        return "left-out", left[0], f"{bucket}: {names} has no copy any more, term {new.term}: {why}"
    if came:
        return "copied", came[0], f"{bucket}: {came[0]} learns what {new.primary} has, term {new.term}: {why}"
    return None


def elected(new: Group, election: Election, now: float) -> tuple[str, str, str]:
    """Kind, server and sentence of what an election has made."""
    bucket, old = spoken(new.bucket), election.group
    took = f"term {new.term}, in {1000 * (now - election.noticed):.0f} ms"
    if new.life != old.life:
        return (
            "revived",
            new.primary,
            f"{bucket}: every copy was lost; {new.primary} goes on from its disk, {took}",
        )
    if new.primary == old.primary:
        return "elected", new.primary, f"{bucket}: {election.why}; {new.primary} stays its primary, {took}"
    if election.cause is Cause.EVEN:
        kind, verb = "balanced", "leads now"
    elif election.cause is Cause.DRAINED:
        kind, verb = "handed-over", "took over"
    else:
        kind, verb = "elected", "took over"
    return kind, new.primary, f"{bucket}: {election.why}; secondary {new.primary} {verb}, {took}"
