"""Results of classifiers that learn from few labelled images.

Knows: accuracies over draws, which features are best, their description in words. Does not know: how the
accuracies are measured.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from cotswold.ui.format import listed

PIXELS = "pixels"
"""Name of the prepared images as features."""
_CLEAR = 2.0
"""Standard errors by which the mean accuracies of two kinds of features differ clearly."""
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

        A mean is clearly worse if its difference over the same draws exceeds two standard errors.

        Args:
            index: index of the number of labels.
        """
        best_curves = self.best_curves
        best = max(best_curves, key=lambda origin: best_curves[origin].means[index])
        ahead = best_curves[best].accuracies[index]
        equal = [best]
        for origin, curve in best_curves.items():
            if origin != best:
                differences = [a - b for a, b in zip(ahead, curve.accuracies[index], strict=True)]
                if fmean(differences) <= _CLEAR * stdev(differences) / sqrt(self.draws):
                    equal.append(origin)
        return tuple(equal)

    def sentence(self, name: str) -> str:
        """Return a sentence about the figures: accuracies with the middle number of labels, and the best.

        Args:
            name: name of the object.
        """
        at, best_curves = self.shown, self.best_curves
        figures = [f"{origin} {100 * curve.means[at]:.1f} %" for origin, curve in best_curves.items()]
        spreads = [100 * curve.spreads[at] for curve in best_curves.values()]
        return (
            f"{name}, with {_labels(self.labels[at])} a class: {', '.join(figures)} (mean of {self.draws} "
            f"draws, standard deviation {min(spreads):.1f} to {max(spreads):.1f}); {self.verdict()}"
        )

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


def _labels(count: int) -> str:
    return "1 label" if count == 1 else f"{count} labels"
