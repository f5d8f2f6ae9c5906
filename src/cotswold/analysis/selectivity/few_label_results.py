"""Results of classifiers that learn from few labelled images.

Knows: accuracies over draws, which features are best, their description in words. Does not know: how the
accuracies are measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from cotswold.ui.format import listed

PIXELS = "pixels"
"""Name of the prepared images as features."""
_CLEAR = 2.0
"""Standard errors of the mean difference over draws, above which one kind of features is clearly better."""
_MOST = 1000
"""Largest number of names and numbers in a sentence: all of them."""


@dataclass(frozen=True)
class LabelCurve:
    """Accuracy on one layer's responses, or on pixels, by the number of labelled images of each class.

    Attributes:
        origin: whose features these are: "this network", "k-means", "random filters", "control" or "pixels".
        layer: name of the layer; empty for pixels.
        values: number of values per image.
        accuracies: balanced accuracies, (number of labels, draw).
        is_candidate: True if the layer may represent its origin in the comparison.
    """

    origin: str
    layer: str
    values: int
    accuracies: tuple[tuple[float, ...], ...] = field(repr=False)
    is_candidate: bool = True

    @property
    def means(self) -> tuple[float, ...]:
        """Mean over draws, for each number of labels."""
        return tuple(map(fmean, self.accuracies))

    @property
    def spreads(self) -> tuple[float, ...]:
        """Standard deviation over draws, for each number of labels."""
        return tuple(map(stdev, self.accuracies))


@dataclass(frozen=True)
class FewLabels:
    """Accuracy of classifiers that learn from few labelled images, on features of different origin.

    Attributes:
        labels: numbers of labelled images of each class, ascending.
        draws: number of random draws of the labelled images; the same images for all features.
        positives: number of images with the object from which draws are made.
        negatives: number of images without it.
        curves: one result per layer of each origin, this network's first.
    """

    labels: tuple[int, ...]
    draws: int
    positives: int
    negatives: int
    curves: tuple[LabelCurve, ...]

    @property
    def best_curves(self) -> dict[str, LabelCurve]:
        """The candidate of each origin with the best mean accuracy over all numbers of labels."""
        found: dict[str, LabelCurve] = {}
        for curve in self.curves:
            old = found.get(curve.origin)
            if curve.is_candidate and (old is None or fmean(curve.means) > fmean(old.means)):
                found[curve.origin] = curve
        return found

    @property
    def shown(self) -> int:
        """Index of the number of labels that sentences name: the middle one."""
        return len(self.labels) // 2

    def winners(self, index: int) -> tuple[str, ...]:
        """Return the origin with the best mean accuracy, and those that are not clearly worse.

        Args:
            index: index of the number of labels.
        """
        curves = self.best_curves
        best = max(curves, key=lambda origin: curves[origin].means[index])
        ahead = curves[best].accuracies[index]
        return (
            best,
            *(
                origin
                for origin, curve in curves.items()
                if origin != best and not _is_clearly_better(ahead, curve.accuracies[index])
            ),
        )

    def sentences(self, name: str) -> list[str]:
        """Return the figures and the best features; and how few labels these need, if fewer than others.

        Args:
            name: name of the object.
        """
        at, curves = self.shown, self.best_curves
        figures = [f"{origin} {100 * curve.means[at]:.1f} %" for origin, curve in curves.items()]
        spreads = [100 * curve.spreads[at] for curve in curves.values()]
        measured = (
            f"{name}, balanced accuracy with {_labels(self.labels[at])} per class: {', '.join(figures)} "
            f"(mean of {self.draws} draws, standard deviation {min(spreads):.1f} to {max(spreads):.1f}); "
            f"{self.verdict()}"
        )
        saving = self.saving()
        return [measured, f"{name}: {saving}"] if saving else [measured]

    def verdict(self) -> str:
        """Return which features are best with which numbers of labels.

        >>> one, other = (0.9, 0.8, 0.9), (0.7, 0.7, 0.8)
        >>> curves = LabelCurve("this network", "3.pooled", 9, (one, other)), LabelCurve(
        ...     "pixels", "", 9, (other, one)
        ... )
        >>> FewLabels((1, 5), 3, 50, 150, curves).verdict()
        'best with 1 label: this network; with 5 labels: pixels'
        """
        said = []
        groups = itertools.groupby(range(len(self.labels)), key=self.winners)
        for winners, indices in groups:
            numbers = [str(self.labels[index]) for index in indices]
            labels = "label" if numbers == ["1"] else "labels"
            with_ = f"with {listed(numbers, _MOST)} {labels}"
            if len(winners) == 1:
                said.append(f"{with_}: {winners[0]}")
            else:
                said.append(f"{with_}: {listed(winners, _MOST)}, without a clear difference")
        return f"best {'; '.join(said)}"

    def saving(self) -> str:
        """Return with how few labels the best features exceed others with the most labels.

        Empty if no features are clearly best with the middle number of labels, or if they need as many.

        >>> one, two = ((0.8, 0.9), (0.9, 0.91)), ((0.6, 0.5), (0.7, 0.6))
        >>> curves = LabelCurve("k-means", "3.pooled", 9, one), LabelCurve("pixels", "", 9, two)
        >>> FewLabels((1, 5), 2, 50, 150, curves).saving()
        'k-means is better with 1 label per class than pixels with 5'
        """
        winners, curves = self.winners(self.shown), self.best_curves
        if len(winners) > 1:
            return ""
        fewest: dict[int, list[str]] = {}
        for origin, curve in curves.items():
            if origin != winners[0]:
                enough = (
                    number
                    for number, accuracies in zip(self.labels, curves[winners[0]].accuracies, strict=True)
                    if _is_clearly_better(accuracies, curve.accuracies[-1])
                )
                fewest.setdefault(next(enough, self.labels[-1]), []).append(origin)
        fewest.pop(self.labels[-1], None)
        if not fewest:
            return ""
        parts: list[str] = []
        for number in sorted(fewest):
            labels = f"{number}" if parts else f"{_labels(number)} per class"
            parts.append(f"with {labels} than {listed(fewest[number], _MOST)} with {self.labels[-1]}")
        return f"{winners[0]} is better {', and '.join(filter(None, [', '.join(parts[:-1]), parts[-1]]))}"


def _is_clearly_better(accuracies: Sequence[float], others: Sequence[float]) -> bool:
    """Return True if the mean is higher by more than two standard errors of the difference in each draw."""
    differences = [a - b for a, b in zip(accuracies, others, strict=True)]
    return fmean(differences) > _CLEAR * stdev(differences) / sqrt(len(differences))


def _labels(count: int) -> str:
    return "1 label" if count == 1 else f"{count} labels"
