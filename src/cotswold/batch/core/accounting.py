"""Record of an evaluation: portions that count, the workers that computed them, and other events.

Knows: results of portions, sums, members. Does not know: states, messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from cotswold.batch.core.requests import EvaluationCost, EvaluationResult
from cotswold.shards.core.membership import Member
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.wire import PortionResult, SumName


@dataclass
class Accounting:
    """The record of one evaluation."""

    permutation: PortionPermutation
    started_at: float
    results: dict[tuple[int, int], PortionResult] = field(default_factory=dict)
    """Results of computed portions, by session and portion."""
    sums: dict[SumName, tuple[int, ...]] = field(default_factory=dict)
    """Accepted sums, with their portions."""
    refused_sums: set[SumName] = field(default_factory=set)
    backups: set[tuple[int, int]] = field(default_factory=set)
    """(session, portion) of each backup copy."""
    left_out: list[int] = field(default_factory=list)
    lost: int = 0
    reductions: int = 0
    _counted: dict[int, PortionResult] = field(default_factory=dict)
    _computed_by: dict[int, str] = field(default_factory=dict)
    """Name of the worker that computed each portion that counts."""
    _backups_used: int = 0

    def is_decided(self, name: SumName) -> bool:
        """True if the sum was accepted or refused."""
        return name in self.sums or name in self.refused_sums

    def mistake(self, result: PortionResult, portion: int) -> str | None:
        """Return the reason why a result cannot belong to the portion, or None."""
        if result.portion != portion or not 0 <= portion < self.permutation.portions:
            return f"it returned portion {result.portion} for portion {portion}"
        samples = self.permutation.size_of(portion)
        if result.samples != samples:
            return f"it counted {result.samples} samples in portion {portion}, which has {samples} samples"
        return None

    def mistake_of_sum(self, results: Sequence[PortionResult]) -> str | None:
        """Return the reason why results cannot form one sum, or None."""
        if len({result.portion for result in results}) < len(results):
            return "it returned a portion twice in one sum"
        mistakes = (self.mistake(result, result.portion) for result in results)
        return next((each for each in mistakes if each is not None), None)

    def count(
        self, name: SumName, results: Mapping[int, PortionResult], members: Mapping[int, Member]
    ) -> None:
        """Count an accepted sum; ``members`` maps each portion to the worker that computed it."""
        assert self._counted.keys().isdisjoint(results), "a portion counts once"
        assert not self.is_decided(name), f"{name} counts once"
        self.sums[name] = tuple(results)
        for portion, result in results.items():
            self._counted[portion] = result
            self._computed_by[portion] = members[portion].name
            self._backups_used += (members[portion].session, portion) in self.backups

    @property
    def samples(self) -> int:
        """Number of samples that count."""
        return sum(result.samples for result in self._counted.values())

    def outcome(self, number: int, dots: tuple[float, ...], now: float) -> EvaluationResult:
        """Return the result of the evaluation."""
        portions = tuple(sorted(self._counted))
        results = [self._counted[portion] for portion in portions]
        kinds = sorted({name for result in results for name, _ in result.details})
        by_name: dict[str, int] = {}
        for name in self._computed_by.values():
            by_name[name] = by_name.get(name, 0) + 1
        account = EvaluationCost(
            now - self.started_at,
            by_name,
            len(self.backups),
            self._backups_used,
            len(self.refused_sums),
            self.lost,
            tuple(sorted(self.left_out)),
            self.reductions,
        )
        return EvaluationResult(
            number,
            dots,
            exact_sum([result.value for result in results]),
            {kind: exact_sum([dict(result.details).get(kind, 0.0) for result in results]) for kind in kinds},
            portions,
            self.samples,
            self.sums,
            account,
        )


def exact_sum(values: Sequence[float]) -> float:
    """Return the correctly rounded sum, which does not depend on the order."""
    try:
        return fsum(values)
    except (OverflowError, ValueError):  # an intermediate overflow, or infinities of both signs
        return sum(values)
