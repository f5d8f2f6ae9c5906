"""Whether servers refuse everything that replicas push: then nothing is learnt, and a run is told so.

Knows: how many samples count and are refused. Does not know: why each was, what a run does about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotswold.cluster.messages import Counts
from cotswold.server.samples import Account

BATCHES = 20
"""So many in a row, none of which counts, are all."""


class Refusals:
    """Hears the ledger's totals, of a run whose mini-batches have ``batch`` samples."""

    def __init__(self, batch: int) -> None:
        self._least = BATCHES * batch
        self._counted = self._refused = 0

    def all_of(self, total: Account) -> int:
        """How many samples in a row were refused, none of them counted in between; 0 where some count."""
        if total.counted > self._counted or total.refused < self._refused:
            self._counted, self._refused = total.counted, total.refused
        refused = total.refused - self._refused
        return refused if refused >= self._least else 0


def kinds(counts: Sequence[Counts]) -> str:
    """Why samples were refused, without numbers, which count each server's part of a push by itself: `not
    finite, too stale`."""
    told = {"finite": "not finite", "stale": "too stale"}
    return ", ".join(told[word] for word in _found(counts) if word in told)


def _found(counts: Sequence[Counts]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for word, number in each.refused:
            if word not in ("busy", "marker"):
                found[word] = found.get(word, 0) + number
    return dict(sorted(found.items()))
