"""Samples that are in no memory any more, as people are told of them.

Knows: places, how many an epoch has. Does not know: why they are lost, the ledger.
"""

from __future__ import annotations

from cotswold.server.asked import Event
from cotswold.server.messages import Ranges
from cotswold.server.ranges import common, size

_NAMED_MOST = 6
"""Ranges that a sentence has; the event has all."""


def loss(lost: Ranges, samples: int, epoch: int, of: str) -> Event:
    """These places are lost; ``samples``: of an epoch; ``epoch``: the one that is on; ``of``: what they were.

    >>> loss(((3, 7), (12, 13)), samples=10, epoch=1, of="that counted").sentence
    '5 samples that counted are in no memory any more: epoch 1: 3 to 6; epoch 2: 2; those of epoch 2 are \
handed out again, 4 of epochs before are left out'
    """
    line = ((epoch * samples, (epoch + 1) * samples),)
    again = size(common(lost, line))
    left_out = size(lost) - again
    what = [f"those of epoch {epoch + 1} are handed out again"] if again and left_out else []
    what += [f"{left_out} of epochs before are left out"] if left_out else []
    told = ", ".join(what) or ("they are handed out again" if lost else "nothing is handed out again")
    named = "; ".join(_named(lost, samples)) or "none"
    sentence = f"{size(lost)} samples {of} are in no memory any more: {named}; {told}"
    return Event("recalled", "", sentence, places=lost)


def _named(lost: Ranges, samples: int) -> list[str]:
    found: list[str] = []
    for start, stop in lost[:_NAMED_MOST]:
        epoch = start // samples
        first, last = start - epoch * samples, stop - 1 - epoch * samples
        found.append(f"epoch {epoch + 1}: {first}{f' to {last}' if last > first else ''}")
    more = len(lost) - _NAMED_MOST
    return [*found, f"and {more} ranges more"] if more > 0 else found
