"""Invariants of an evaluation, derived only from the definition of a portion, independent of the state
machines.

Portion p at the point x is a vector of whole numbers. Except by rare chance, no two sets of portions share
their sum. So a portion that is lost, counted twice, or computed at another point shows in the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from cotswold.batch.core.requests import EvaluationResult
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.shards.core.sum_tree import leaves_of
from cotswold.wire import Node, PortionResult


class Truth:
    """The right sums of portions."""

    def __init__(self, dealing: PortionPermutation, size: int, seed: int, *, whole: bool = True) -> None:
        random = Random(seed)
        self.dealing, self.size = dealing, size
        self._rows = [
            [float(random.getrandbits(36)) if whole else random.gauss(0, 1) for _ in range(size)]
            for _ in range(dealing.portions)
        ]
        self.failing: set[int] = set()
        """Portions that cannot be computed."""

    def gradient(self, portion: int, point: Sequence[float]) -> list[float]:
        return [each + place * portion for each, place in zip(self._rows[portion], point, strict=True)]

    def value(self, portion: int, point: Sequence[float]) -> float:
        return self._rows[portion][0] * 0.1 + sum(point)

    def __call__(self, portion: int, point: Sequence[float]) -> tuple[PortionResult, list[float]]:
        if portion in self.failing:
            raise ValueError(f"portion {portion} is unreadable")
        samples = self.dealing.size_of(portion)
        details = (("right", float(portion % 3)),)
        return PortionResult(portion, samples, self.value(portion, point), details, 0.1), self.gradient(
            portion, point
        )

    def tree_sum(self, portions: Sequence[int], point: Sequence[float]) -> list[float]:
        """Return the sum along the tree by recursion from its root."""
        present = set(portions)

        def total(node: Node) -> list[float] | None:
            if present.isdisjoint(leaves_of(node)):
                return None
            if node.level == 0:
                return self.gradient(node.index, point)
            left = total(Node(node.level - 1, 2 * node.index))
            right = total(Node(node.level - 1, 2 * node.index + 1))
            if left is None or right is None:
                return left if right is None else right
            return [one + other for one, other in zip(left, right, strict=True)]

        found = total(Node(self.dealing.portions.bit_length(), 0))
        assert found is not None
        return found


def check(
    truth: Truth,
    wanted: Sequence[int],
    point: Sequence[float],
    counted: EvaluationResult,
    gradient: Sequence[float] | None,
    *,
    tree: bool,
) -> None:
    """Check that every requested portion counts once, at this point, and nothing else."""
    in_sums = sorted(portion for portions in counted.sums.values() for portion in portions)
    assert in_sums == list(counted.portions), "each portion is in exactly one sum that counts"
    left_out = counted.account.left_out
    assert sorted([*counted.portions, *left_out]) == sorted(wanted), "what does not count is known"
    samples = [sample for each in counted.portions for sample in truth.dealing.samples_of(each)]
    assert len(set(samples)) == len(samples) == counted.samples, "each sample counts once"
    values = [truth.value(each, point) for each in counted.portions]
    assert abs(counted.total - sum(values)) <= 1e-9 * sum(map(abs, values)), "so do the values"
    assert counted.details["right"] == sum(each % 3 for each in counted.portions)
    assert sum(counted.account.by_name.values()) == len(counted.portions)
    if gradient is None:
        return
    rows = [truth.gradient(each, point) for each in counted.portions]
    total = (
        truth.tree_sum(counted.portions, point)
        if tree
        else [sum(column) for column in zip(*rows, strict=True)]
    )
    assert list(gradient) == [each * (1 / counted.samples) for each in total], "the gradient is theirs"
