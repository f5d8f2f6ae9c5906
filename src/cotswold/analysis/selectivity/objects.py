"""The experiment of Coates et al. 2013, section 5.2: which neurons answer to an object nobody taught them.

Knows: the network beside its baselines, and portraits of the neurons that do best. Does not know: the command
line, how a baseline is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cotswold.analysis.images import jpeg_uri, picture, png_uri, signed, thumbnail
from cotswold.analysis.layers import Layer, StackLayers
from cotswold.analysis.selectivity.neurons import Position, locate
from cotswold.analysis.selectivity.optimal_stimuli import (
    Ascent,
    Stimuli,
    correlations,
    optimal_stimuli,
    percentile,
)
from cotswold.analysis.selectivity.results import THIS_NETWORK, Exemplar, ObjectSelectivity, Portrait
from cotswold.analysis.selectivity.scores import (
    PAPER,
    Batches,
    ClassWeights,
    LayerSelectivity,
    NeuronScore,
    Progress,
    Respond,
    Selectivity,
    selectivity,
)
from cotswold.analysis.selectivity.top_activations import Extreme, extremes, strongest_means
from cotswold.analysis.unwhiten import unwhitened
from cotswold.data import Transform
from cotswold.nn import StackNetwork

Unlabelled = Callable[[], Iterable[Tensor]]
"""Starts a pass over pictures without labels, in batches; every pass gives the same ones."""
Look = Callable[[int], tuple[str, Image.Image]]
"""Name and photograph of the picture at a place of the pass."""


@dataclass(frozen=True)
class Examination:
    """What is measured, and how thoroughly."""

    layers: Sequence[Layer]
    weights: ClassWeights | None = PAPER
    """None: every picture weighs the same."""
    thresholds: int = 20
    splits: int = 5
    portraits: int = 3
    exemplars: int = 8
    random_stimuli: int = 128
    """Random neurons whose stimuli are compared with that of the best one."""
    ascent: Ascent = field(default_factory=lambda: Ascent(steps=30, angle=0.2))
    seed: int = 0


@dataclass(frozen=True)
class Control:
    """Another run, and the test pictures as its own preparation makes them."""

    network: StackNetwork
    batches: Batches


@dataclass(frozen=True)
class Baselines:
    """What a network is compared with: random filters, k-means in its last stack, another run (control)."""

    random: StackNetwork | None = None
    dictionary: StackNetwork | None = None
    control: Control | None = None


def examine(
    name: str,
    network: StackNetwork,
    baselines: Baselines,
    batches: Batches,
    examination: Examination,
    *,
    unlabelled: Unlabelled | None = None,
    transform: Transform | None = None,
    look: Look | None = None,
    progress: Progress | None = None,
) -> ObjectSelectivity:
    """Test a network and its baselines on one object, and portray the best neurons.

    ``batches`` starts a pass over pictures, prepared as the network wants them, and whether each is positive;
    ``look`` gives the photographs for the strips, ``transform`` takes whitening back from stimuli.
    ``unlabelled`` starts a pass over training pictures: an optimal stimulus is then sought from the mean of
    those that excite the neuron most.
    """
    entries = {
        THIS_NETWORK: (network, examination.layers, batches),
        "random filters": (baselines.random, examination.layers, batches),
        "k-means": (baselines.dictionary, _of_last_stack(network, examination), batches),
    }
    control = baselines.control
    if control is not None:
        there = [layer for layer in examination.layers if layer.stack < len(control.network.stacks)]
        entries["control"] = (control.network, there, control.batches)
    found = {
        what: _test(StackLayers(each.eval(), layers), own, examination, _told(progress, what))
        for what, (each, layers, own) in entries.items()
        if each is not None and layers
    }
    mean = _mean_positive(batches())
    ours = found[THIS_NETWORK]
    row = ObjectSelectivity(
        name=name,
        positives=ours.positives,
        negatives=ours.negatives,
        guess=ours.weights.guess,
        weights=ours.weights,
        network=ours.layers,
        random=found["random filters"].layers if "random filters" in found else (),
        dictionary=found["k-means"].layers if "k-means" in found else (),
        control=found["control"].layers if "control" in found else (),
        oracle=_oracle(mean, batches(), examination),
        mean_positive=_shown(mean.picture, transform),
        passes=ours.passes,
    )
    view = _View(mean, batches, examination, transform, look, unlabelled)
    return replace(row, portraits=_portraits(row, network, baselines.random, view))


@dataclass(frozen=True)
class _Mean:
    """The mean of so many positive pictures, ``(channel, y, x)``."""

    picture: Tensor
    count: int


@dataclass(frozen=True)
class _View:
    """What a portrait is made from beside the network."""

    mean: _Mean
    batches: Batches
    examination: Examination
    transform: Transform | None
    look: Look | None
    unlabelled: Unlabelled | None


def _of_last_stack(network: StackNetwork, examination: Examination) -> list[Layer]:
    last = len(network.stacks) - 1
    return [layer for layer in examination.layers if layer.stack == last]


def _told(progress: Progress | None, what: str) -> Progress | None:
    return None if progress is None else lambda doing, done: progress(f"{what}: {doing}", done)


def _test(
    respond: Respond, batches: Batches, examination: Examination, progress: Progress | None = None
) -> Selectivity:
    return selectivity(
        respond,
        batches,
        weights=examination.weights,
        thresholds=examination.thresholds,
        splits=examination.splits,
        seed=examination.seed,
        progress=progress,
    )


def _mean_positive(pictures: Iterable[tuple[Tensor, Tensor]]) -> _Mean:
    total, count = torch.zeros(()), 0
    for batch, positive in pictures:
        total = total + batch.cpu()[positive.cpu()].sum(0)
        count += int(positive.sum())
    return _Mean(total / max(1, count), count)


def _oracle(
    mean: _Mean, pictures: Iterable[tuple[Tensor, Tensor]], examination: Examination
) -> LayerSelectivity:
    """The mean positive picture as a linear filter; a positive picture is left out of its own mean."""
    answers, classes = [], []
    for batch, positive in pictures:
        flat, truth = batch.cpu().flatten(1), positive.cpu()
        answer = flat @ mean.picture.flatten()
        without = (mean.count * answer - flat.square().sum(1)) / max(1, mean.count - 1)
        answers.append(torch.where(truth, without, answer))
        classes.append(truth)
    one_batch = torch.cat(answers)[:, None], torch.cat(classes)
    tested = _test(lambda answers: [("mean picture", answers)], lambda: [one_batch], examination)
    return tested.layers[0]


def _portraits(
    row: ObjectSelectivity, network: StackNetwork, random_network: StackNetwork | None, view: _View
) -> tuple[Portrait, ...]:
    chosen = _most_selective(row, view.examination.portraits)
    if not chosen:
        return ()
    mean = view.mean.picture
    respond = StackLayers(network, [Layer.named(layer) for layer, _ in chosen])
    neurons = [(layer, score.neuron) for layer, score in chosen]
    seen = _Classes()
    count = view.examination.exemplars if view.look else 0
    found = extremes(respond, seen.noted(view.batches()), neurons, count)
    among = _compared(row.best, network, view)
    random = None if random_network is None else _compared(row.best, random_network, view)
    portraits = []
    for index, (layer, score) in enumerate(chosen):
        stimulus = _stimuli(network, layer, [score.neuron], view)
        correlation = float(correlations(stimulus, mean)[0])
        best = layer == row.best.layer
        portraits.append(
            Portrait(
                layer=layer,
                neuron=score.neuron,
                accuracy=score.accuracy,
                image=_shown(_upright(stimulus, mean), view.transform),
                correlation=correlation,
                percentile=percentile(correlation, among) if best else None,
                percentile_random=percentile(correlation, random) if best and random is not None else None,
                compared=len(among) if best else 0,
                most=_exemplars(found.most[index], seen.positive, view.look),
                least=_exemplars(found.least[index], seen.positive, view.look),
            )
        )
    return tuple(portraits)


def _most_selective(row: ObjectSelectivity, count: int) -> list[tuple[str, NeuronScore]]:
    """The best neuron of the best layer, then those of the other layers, then more of the best layer."""
    layers = sorted(row.network, key=lambda layer: -layer.held_out)
    first = [(layer.layer, layer.best[0]) for layer in layers]
    return (first + [(row.best.layer, score) for score in row.best.best[1:]])[:count]


def _compared(layer: LayerSelectivity, network: StackNetwork, view: _View) -> NDArray[np.float64]:
    """Correlations of the stimuli of randomly chosen neurons with the mean positive picture."""
    examination = view.examination
    chosen = np.random.default_rng(examination.seed).choice(
        layer.neurons, min(examination.random_stimuli, layer.neurons), replace=False
    )
    places = [locate(int(row), layer.shape) for row in chosen]
    return correlations(_stimuli(network, layer.layer, places, view), view.mean.picture)


def _stimuli(network: StackNetwork, layer: str, neurons: Sequence[Position], view: _View) -> Stimuli:
    respond = StackLayers(network, [Layer.named(layer)])

    def answer(pictures: Tensor) -> Tensor:
        return next(responses for _, responses in respond(pictures))

    starts = None
    if view.unlabelled is not None:
        starts = strongest_means(respond, view.unlabelled, [(layer, neuron) for neuron in neurons])
    return optimal_stimuli(
        answer,
        view.mean.picture.shape,
        neurons,
        starts=starts,
        ascent=view.examination.ascent,
        seed=view.examination.seed,
    )


def _upright(stimulus: Stimuli, wanted: Tensor) -> Tensor:
    """The stimulus, or its negative if the neuron cannot tell and that is more like ``wanted``."""
    one = stimulus.pictures[0].cpu()
    return -one if stimulus.even and float((one * wanted).sum()) < 0 else one


def _shown(one: Tensor, transform: Transform | None) -> str:
    values = one.float().numpy()
    if transform is not None:
        values = unwhitened(values[None], transform)[0]
    return png_uri(picture(signed(values), least=160))


class _Classes:
    """Remembers which pictures of a pass were positive."""

    def __init__(self) -> None:
        self.positive: list[bool] = []

    def noted(self, pictures: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
        """The pictures alone."""
        for batch, positive in pictures:
            self.positive += positive.tolist()
            yield batch


def _exemplars(found: Sequence[Extreme], positive: Sequence[bool], look: Look | None) -> tuple[Exemplar, ...]:
    if look is None:
        return ()
    exemplars = []
    for one in found:
        name, photograph = look(one.picture)
        uri = jpeg_uri(thumbnail(photograph))
        text = name.encode("utf-8", "replace").decode()  # a file may bear a name that is no text
        exemplars.append(Exemplar(text, one.response, positive[one.picture], uri))
    return tuple(exemplars)
