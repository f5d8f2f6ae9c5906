"""Whether servers refuse what replicas push: the end of a run that learns nothing, and a warning before it.

Knows: how many samples count, are refused or torn. Does not know: why each was, what a run does about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotswold.shards.core.sample_ledger import Account
from cotswold.wire.lifecycle import Counts

BATCHES = 20
"""So many in a row, none of which counts, are all."""


class Refusals:
    """Hears the ledger's totals, of a run whose mini-batches have ``batch`` samples.

    A torn sample is refused by some of the servers, so it is refused here.
    """

    def __init__(self, batch: int) -> None:
        self._least = BATCHES * batch
        self._counted = self._refused = 0
        self._has_warned = False

    def all_of(self, total: Account) -> int:
        """How many samples in a row were refused, none of them counted in between; 0 where some count."""
        now = total.refused + total.torn
        if total.counted > self._counted or now < self._refused:
            self._counted, self._refused = total.counted, now
        refused = now - self._refused
        return refused if refused >= self._least else 0

    def warning(self, total: Account, count: Callable[[], Sequence[Counts]]) -> str:
        """The warning of a run that goes on and has lost `BATCHES` mini-batches, some of them not finite.

        Empty before that, and after the first time. ``count`` asks the servers.
        """
        if self._has_warned or total.refused + total.torn < self._least:
            return ""
        counts = count()
        self._has_warned = "finite" in _found(counts)
        return said(total, counts) if self._has_warned else ""


def said(total: Account, counts: Sequence[Counts]) -> str:
    """How many samples were refused or torn, and why; empty where none was."""
    why = kinds(counts)
    parts = [f"servers refused {total.refused:,} samples"] if total.refused else []
    if total.torn:
        parts.append(f"{total.torn:,} samples are torn: some servers applied them, others did not")
    return "; ".join(parts) + (f" ({why})" if parts and why else "")


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
