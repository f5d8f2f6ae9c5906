"""How well single neurons tell pictures with an object from others (Coates et al. 2013, section 5.2).

Knows: accuracy over thresholds, class weights, choosing on one half of the pictures and measuring on the
other. Does not know: stacks, files, where pictures come from.

A picture is called positive where the neuron's response reaches the threshold. Thresholds are 20, equally
spaced between the neuron's least and greatest response (Le et al. 2012). The best of many neurons flatters
itself, hence the held-out accuracy: neuron and threshold are chosen on half of the pictures and measured on
the other half. The ends of the range come from all pictures, without their labels.
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

from cotswold.analysis.selectivity.histogram import GROUPS, Floats, Histogram, ResponseRanges
from cotswold.analysis.selectivity.neurons import Position, locate, rows
from cotswold.errors import DivergedError, SourceError, UserError

Respond = Callable[[Tensor], Iterable[tuple[str, Tensor]]]
"""Pictures ``(image, channel, y, x)`` to the named responses ``(image, ...)`` of one or more layers."""
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Starts a pass: pictures, and for each whether it is positive. Every pass must give the same pictures."""
Progress = Callable[[str, int], None]
"""Called with what is being done and how many pictures are done."""

_PART = 4096  # neurons whose accuracies are in memory at a time


@dataclass(frozen=True)
class ClassWeights:
    """What the two classes weigh in an accuracy; guessing gives the greater of the two."""

    positives: float
    negatives: float

    def __post_init__(self) -> None:
        if not (min(self.positives, self.negatives) > 0 and abs(self.positives + self.negatives - 1) < 1e-9):
            raise ValueError(
                f"class weights must be positive and sum to 1, not {self.positives} and {self.negatives}"
            )

    @property
    def guess(self) -> float:
        """The accuracy of calling every picture by the heavier class."""
        return max(self.positives, self.negatives)

    @classmethod
    def counted(cls, positives: int, negatives: int) -> ClassWeights:
        """Every picture weighs the same."""
        return cls(positives / (positives + negatives), negatives / (positives + negatives))


PAPER = ClassWeights(0.353, 0.647)
"""The proportions of the set of Le et al. 2012, to which the paper's footnote 6 reweights."""


@dataclass(frozen=True)
class NeuronScore:
    """A neuron's best threshold and what it gives on all pictures."""

    neuron: Position
    threshold: float
    accuracy: float


@dataclass(frozen=True)
class LayerSelectivity:
    """What the neurons of one layer can tell.

    ``best`` holds the highest-ranked neurons, the best first; ``held_out`` and ``spread`` are mean and
    standard deviation over ``measurements`` (two for each split into halves).
    """

    layer: str
    shape: tuple[int, ...]
    best: tuple[NeuronScore, ...] = field(repr=False)
    held_out: float
    spread: float
    measurements: int
    constant: int
    """Neurons that answer every picture alike."""

    @property
    def neurons(self) -> int:
        """How many neurons the layer has."""
        return int(np.prod(self.shape))


@dataclass
class PassTime:
    """Seconds of a pass: in the network, in what is done with its responses, waiting for pictures."""

    pictures: int = 0
    forward: float = 0.0
    counting: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True)
class Selectivity:
    """The layers in the order in which the network names them, the pictures, the time of both passes."""

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
    """Test every neuron of the layers that ``respond`` names, in two streamed passes over ``batches``.

    Without ``weights`` every picture weighs the same. Memory: 1.5 KB a neuron, whatever the number of
    pictures. Raises UserError for a number of ``splits`` that does not exist, DivergedError where a response
    is not finite, SourceError where a class has fewer pictures than there are groups, or the second pass is
    longer or shorter than the first.
    """
    halves = _halves(splits, seed)
    tell = progress or (lambda *_: None)
    first, second = PassTime(), PassTime()
    ranges: dict[str, ResponseRanges] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for pictures, _ in _timed(batches(), first):
        for name, responses in _layers(respond, pictures, first):
            shapes[name] = tuple(responses.shape[1:])
            with _clock(first):
                ranges.setdefault(name, ResponseRanges()).add(rows(responses))
        tell("finding the range of every neuron", first.pictures)
    if not first.pictures:
        raise SourceError("there is no picture to test neurons on; name sources with positives and negatives")
    histograms = {}
    for name, found in ranges.items():
        least, greatest = _bounds(found, name, shapes[name])
        histograms[name] = Histogram(least, greatest, thresholds, threads)
    shuffle = torch.Generator().manual_seed(seed)
    for pictures, positive in _timed(batches(), second):
        for kind in (False, True):
            chosen = torch.nonzero(positive == kind).flatten()
            if not len(chosen):
                continue
            order = chosen[torch.randperm(len(chosen), generator=shuffle)]
            for name, responses in _layers(respond, pictures[order.to(pictures.device)], second):
                with _clock(second):
                    histograms[name].add(rows(responses), kind)
        tell("counting over thresholds", second.pictures)
    if second.pictures != first.pictures:
        raise SourceError(
            f"the second pass had {second.pictures} pictures, the first {first.pictures}; "
            "pictures must not change while neurons are tested"
        )
    totals = next(iter(histograms.values())).pictures
    for label, what in enumerate(("negatives", "positives")):
        if totals[label].min() == 0:
            raise SourceError(
                f"{int(totals[label].sum())} {what} are too few to be halved; give {GROUPS} or more"
            )
    positives, negatives = int(totals[1].sum()), int(totals[0].sum())
    weights = weights or ClassWeights.counted(positives, negatives)
    scored = tuple(
        _score(name, shapes[name], histograms[name], ranges[name].bounds(), weights, halves, top)
        for name in histograms
    )
    return Selectivity(scored, positives, negatives, weights, (first, second))


def _timed(batches: Iterable[tuple[Tensor, Tensor]], into: PassTime) -> Iterator[tuple[Tensor, Tensor]]:
    iterator = iter(batches)
    while True:
        start = time.perf_counter()
        batch = next(iterator, None)
        into.waiting += time.perf_counter() - start
        if batch is None:
            return
        into.pictures += len(batch[0])
        yield batch


def _layers(respond: Respond, pictures: Tensor, into: PassTime) -> Iterator[tuple[str, Tensor]]:
    with torch.no_grad():
        iterator = iter(respond(pictures))
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
    into.counting += time.perf_counter() - start


def _bounds(found: ResponseRanges, name: str, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    bad = found.not_finite()
    if bad is not None:
        row, least, greatest = bad
        raise DivergedError(
            f"neuron {locate(row, shape)} of {name} answers between {least} and {greatest}, "
            "which no threshold divides; go back to a checkpoint with finite filters"
        )
    return found.bounds()


def _score(
    name: str,
    shape: tuple[int, ...],
    histogram: Histogram,
    bounds: tuple[Floats, Floats],
    weights: ClassWeights,
    halves: Sequence[NDArray[np.bool_]],
    top: int,
) -> LayerSelectivity:
    counts, pictures = histogram.counts(), histogram.pictures
    least, greatest = bounds
    whole = np.ones(GROUPS, np.bool_)
    highest = np.empty(len(least))
    step = np.empty(len(least), np.int64)
    for part in _parts(len(least)):
        accuracy = _accuracy(counts[:, :, part], pictures, whole, weights)
        step[part] = accuracy.argmax(0)
        highest[part] = accuracy.max(0)
    ranking = np.argsort(-highest, kind="stable")[:top]
    thresholds = least + (greatest.astype(np.float64) - least) * step / (histogram.thresholds - 1)
    best = tuple(NeuronScore(locate(int(i), shape), float(thresholds[i]), float(highest[i])) for i in ranking)
    measured = [_held_out(counts, pictures, half, weights) for one in halves for half in (one, ~one)]
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
    """Different ways of cutting the groups into two equal halves (35 exist)."""
    ways = [way for way in itertools.combinations(range(GROUPS), GROUPS // 2) if 0 in way]
    if not 1 <= splits <= len(ways):
        raise UserError(
            f"pictures are not halved in {splits} ways; give a number of splits from 1 to {len(ways)}"
        )
    chosen = random.Random(seed).sample(ways, splits)
    return [np.isin(np.arange(GROUPS), way) for way in chosen]


def _accuracy(
    counts: NDArray[np.int32], pictures: NDArray[np.int64], groups: NDArray[np.bool_], weights: ClassWeights
) -> NDArray[np.float64]:
    """Weighted accuracy ``(threshold, neuron)`` on some groups; every picture reaches the lowest."""
    reached = counts[..., groups].sum(-1)
    negatives, positives = pictures[:, groups].sum(1)
    upper = weights.positives * (reached[1] / positives) + weights.negatives * (1 - reached[0] / negatives)
    return np.concatenate([np.full((1, upper.shape[1]), weights.positives), upper])


def _held_out(
    counts: NDArray[np.int32], pictures: NDArray[np.int64], half: NDArray[np.bool_], weights: ClassWeights
) -> float:
    """Accuracy on the other half of the neuron and threshold that are best on ``half``."""
    best, measured = -1.0, 0.0
    for part in _parts(counts.shape[2]):
        accuracy = _accuracy(counts[:, :, part], pictures, half, weights)
        threshold, neuron = np.unravel_index(int(accuracy.argmax()), accuracy.shape)
        if accuracy[threshold, neuron] > best:
            best = float(accuracy[threshold, neuron])
            place = slice(part.start + int(neuron), part.start + int(neuron) + 1)
            measured = float(_accuracy(counts[:, :, place], pictures, ~half, weights)[threshold, 0])
    return measured
