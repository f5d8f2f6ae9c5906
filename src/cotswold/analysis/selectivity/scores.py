"""Selectivity of single neurons for images with an object (Coates et al. 2013, section 5.2).

Knows: accuracy over thresholds, class weights, choosing on one half of the images and measuring on the other.
Does not know: stacks, files, where images come from.

An image is classified as positive if the neuron's response reaches the threshold. There are 20 thresholds,
equally spaced between the neuron's smallest and largest response (Le et al. 2012). The accuracy of the best
of many neurons is biased upwards, so there is also a held-out accuracy: neuron and threshold are chosen on
half of the images and measured on the other half. The ends of the range come from all images, without their
labels.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.analysis.selectivity.histogram import (
    GROUPS,
    Floats,
    GroupAssignment,
    Histogram,
    ResponseRanges,
)
from cotswold.analysis.selectivity.neurons import Position, locate, rows
from cotswold.errors import DivergedError, SourceError, UserError

Respond = Callable[[Tensor], Iterable[tuple[str, Tensor]]]
"""Maps images ``(image, channel, y, x)`` to the named responses ``(image, ...)`` of one or more layers."""
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Starts a pass: images, and for each whether it is positive. Every pass must give the same images."""
Progress = Callable[[str, int], None]
"""Callback with the current activity and the number of images done."""

_PART = 4096  # neurons whose accuracies are computed at a time


@dataclass(frozen=True)
class ClassWeights:
    """Weights of the two classes in an accuracy; guessing gives the larger one.

    Args:
        positives: weight of the images with the object, above 0.
        negatives: weight of the images without it, above 0; the sum is 1.

    Raises:
        ValueError: if the weights are not positive, or do not sum to 1.
    """

    positives: float
    negatives: float

    def __post_init__(self) -> None:
        if not (min(self.positives, self.negatives) > 0 and abs(self.positives + self.negatives - 1) < 1e-9):
            raise ValueError(
                f"class weights must be positive and sum to 1, got {self.positives} and {self.negatives}"
            )

    @property
    def guess(self) -> float:
        """Accuracy of assigning every image to the heavier class."""
        return max(self.positives, self.negatives)

    @classmethod
    def from_counts(cls, positives: int, negatives: int) -> ClassWeights:
        """Return weights that weigh every image equally.

        Args:
            positives: number of images with the object.
            negatives: number of images without it.
        """
        return cls(positives / (positives + negatives), negatives / (positives + negatives))


PAPER = ClassWeights(0.353, 0.647)
"""Class proportions of the data set of Le et al. 2012, which the paper's footnote 6 reweights to."""


@dataclass(frozen=True)
class NeuronScore:
    """Best threshold of a neuron, and its accuracy on all images."""

    neuron: Position
    threshold: float
    accuracy: float


@dataclass(frozen=True)
class LayerSelectivity:
    """Selectivity of the neurons of one layer.

    ``best`` holds the best neurons, in order; ``held_out`` and ``spread`` are mean and standard deviation
    over ``measurements`` (two for each split into halves).
    """

    layer: str
    shape: tuple[int, ...]
    best: tuple[NeuronScore, ...] = field(repr=False)
    held_out: float
    spread: float
    measurements: int
    constant: int
    """Number of neurons whose response is the same for all images."""

    @property
    def neurons(self) -> int:
        """Number of neurons of the layer."""
        return int(np.prod(self.shape))


@dataclass
class PassTime:
    """Seconds of a pass: in the network, processing its responses, waiting for images."""

    images: int = 0
    forward: float = 0.0
    counting_seconds: float = 0.0
    waiting_seconds: float = 0.0


@dataclass(frozen=True)
class Selectivity:
    """Layers in the network's order, number of images, time of both passes."""

    layers: tuple[LayerSelectivity, ...]
    positives: int
    negatives: int
    weights: ClassWeights
    passes: tuple[PassTime, PassTime] = field(compare=False)


def selectivity(
    respond: Respond,
    batches: Batches,
    *,
    weights: ClassWeights | None = PAPER,
    thresholds: int = 20,
    splits: int = 5,
    top: int = 16,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Selectivity:
    """Test every neuron of the layers that ``respond`` yields, in two streamed passes over ``batches``.

    Without ``weights`` every image weighs the same. Memory: 1.5 KB per neuron, for any number of images.
    Raises UserError for an impossible number of ``splits``; DivergedError if a response is not finite;
    SourceError if a class has fewer images than groups, or the two passes differ in length.
    """
    halves = _halves(splits, seed)
    tell = progress or (lambda *_: None)
    first, second = PassTime(), PassTime()
    ranges: dict[str, ResponseRanges] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for images, _ in _timed(batches(), first):
        for name, responses in _layers(respond, images, first):
            shapes[name] = tuple(responses.shape[1:])
            with _clock(first):
                ranges.setdefault(name, ResponseRanges()).add(rows(responses))
        tell("finding the range of every neuron", first.images)
    if not first.images:
        raise SourceError("no images to test neurons on; give sources of positives and of negatives")
    histograms = {}
    for name, found in ranges.items():
        least, greatest = _bounds(found, name, shapes[name])
        histograms[name] = Histogram(least, greatest, thresholds, threads)
    assignment = GroupAssignment(seed)
    for images, positive in _timed(batches(), second):
        slots = assignment.assign(positive)
        for name, responses in _layers(respond, images, second):
            with _clock(second):
                histograms[name].add(rows(responses), slots)
        tell("counting over thresholds", second.images)
    if second.images != first.images:
        raise SourceError(
            f"the second pass had {second.images} images, the first {first.images}; "
            "images must not change while neurons are tested"
        )
    totals = assignment.images
    for label, what in enumerate(("negatives", "positives")):
        if totals[label].min() == 0:
            raise SourceError(
                f"{int(totals[label].sum())} {what} are too few to be halved; give at least {GROUPS}"
            )
    positives, negatives = int(totals[1].sum()), int(totals[0].sum())
    weights = weights or ClassWeights.from_counts(positives, negatives)
    scored = tuple(
        _score(name, shapes[name], histograms[name], totals, ranges[name].bounds(), weights, halves, top)
        for name in histograms
    )
    return Selectivity(scored, positives, negatives, weights, (first, second))


def _timed(batches: Iterable[tuple[Tensor, Tensor]], into: PassTime) -> Iterator[tuple[Tensor, Tensor]]:
    iterator = iter(batches)
    while True:
        start = time.perf_counter()
        batch = next(iterator, None)
        into.waiting_seconds += time.perf_counter() - start
        if batch is None:
            return
        into.images += len(batch[0])
        yield batch


def _layers(respond: Respond, images: Tensor, into: PassTime) -> Iterator[tuple[str, Tensor]]:
    with torch.no_grad():
        iterator = iter(respond(images))
        while True:
            start = time.perf_counter()
            layer = next(iterator, None)
            into.forward += time.perf_counter() - start
            if layer is None:
                return
            yield layer


@contextmanager
def _clock(into: PassTime) -> Iterator[None]:
    start = time.perf_counter()
    yield
    into.counting_seconds += time.perf_counter() - start


def _bounds(found: ResponseRanges, name: str, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    bad = found.find_nonfinite()
    if bad is not None:
        row, least, greatest = bad
        raise DivergedError(
            f"neuron {locate(row, shape)} of {name} has responses between {least} and {greatest}, "
            "which thresholds cannot divide; use a checkpoint with finite filters"
        )
    return found.bounds()


def _score(
    name: str,
    shape: tuple[int, ...],
    histogram: Histogram,
    images: NDArray[np.int64],
    bounds: tuple[Floats, Floats],
    weights: ClassWeights,
    halves: Sequence[NDArray[np.bool_]],
    top: int,
) -> LayerSelectivity:
    counts = histogram.counts()
    least, greatest = bounds
    whole = np.ones(GROUPS, np.bool_)
    highest = np.empty(len(least))
    step = np.empty(len(least), np.int64)
    for part in _parts(len(least)):
        accuracy = _accuracy(counts[:, :, part], images, whole, weights)
        step[part] = accuracy.argmax(0)
        highest[part] = accuracy.max(0)
    ranking = np.argsort(-highest, kind="stable")[:top]
    thresholds = least + (greatest.astype(np.float64) - least) * step / (histogram.thresholds - 1)
    best = tuple(NeuronScore(locate(int(i), shape), float(thresholds[i]), float(highest[i])) for i in ranking)
    measured = [_held_out(counts, images, half, weights) for one in halves for half in (one, ~one)]
    return LayerSelectivity(
        name,
        shape,
        best,
        float(np.mean(measured)),
        float(np.std(measured, ddof=1)),
        len(measured),
        int((least == greatest).sum()),
    )


def _parts(neurons: int) -> Iterator[slice]:
    return (slice(start, start + _PART) for start in range(0, neurons, _PART))


def _halves(splits: int, seed: int) -> list[NDArray[np.bool_]]:
    """Return different splits of the groups into two equal halves (35 exist)."""
    ways = [way for way in itertools.combinations(range(GROUPS), GROUPS // 2) if 0 in way]
    if not 1 <= splits <= len(ways):
        raise UserError(f"splits must be from 1 to {len(ways)}, got {splits}")
    chosen = random.Random(seed).sample(ways, splits)
    return [np.isin(np.arange(GROUPS), way) for way in chosen]


def _accuracy(
    counts: NDArray[np.int32], images: NDArray[np.int64], groups: NDArray[np.bool_], weights: ClassWeights
) -> NDArray[np.float64]:
    """Return the weighted accuracy ``(threshold, neuron)`` on some groups of images."""
    reached = counts[..., groups].sum(-1)
    negatives, positives = images[:, groups].sum(1)
    upper = weights.positives * (reached[1] / positives) + weights.negatives * (1 - reached[0] / negatives)
    return np.concatenate([np.full((1, upper.shape[1]), weights.positives), upper])


def _held_out(
    counts: NDArray[np.int32], images: NDArray[np.int64], half: NDArray[np.bool_], weights: ClassWeights
) -> float:
    """Return the accuracy on the other half of the neuron and threshold that are best on ``half``."""
    best, measured = -1.0, 0.0
    for part in _parts(counts.shape[2]):
        accuracy = _accuracy(counts[:, :, part], images, half, weights)
        threshold, neuron = np.unravel_index(int(accuracy.argmax()), accuracy.shape)
        if accuracy[threshold, neuron] > best:
            best = float(accuracy[threshold, neuron])
            place = slice(part.start + int(neuron), part.start + int(neuron) + 1)
            measured = float(_accuracy(counts[:, :, place], images, ~half, weights)[threshold, 0])
    return measured
