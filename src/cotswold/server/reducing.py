"""Which sums of which workers a reduction adds, so that every portion is in it once.

Knows: claims that are computed. Does not know: plans, messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from cotswold.server.messages import SumName
from cotswold.server.portions import Claim


@dataclass(frozen=True)
class Chosen:
    """Sums that overlap nowhere."""

    sums: dict[SumName, tuple[int, ...]]
    """With their portions, ascending."""
    missing: tuple[int, ...]
    """Portions that no choice of whole sums had room for: they are to be computed again."""


def chosen(claims: Iterable[Claim], wanted: Collection[int], doubtful: Collection[int] = ()) -> Chosen:
    """Of the computed ones: larger sums first, for a small one that overlaps is no loss.

    Those of sessions that are ``doubtful`` come last: where others have all, nobody waits for them.
    """
    sums: dict[SumName, list[int]] = {}
    for claim in claims:
        assert claim.number is not None, "only what is computed is reduced"
        sums.setdefault(SumName(claim.session, claim.number), []).append(claim.portion)
    found: dict[SumName, tuple[int, ...]] = {}
    covered: set[int] = set()
    for name, portions in sorted(
        sums.items(), key=lambda each: (each[0].session in doubtful, -len(each[1]), each[0])
    ):
        if covered.isdisjoint(portions):
            found[name] = tuple(sorted(portions))
            covered.update(portions)
    return Chosen(dict(sorted(found.items())), tuple(sorted(set(wanted) - covered)))
