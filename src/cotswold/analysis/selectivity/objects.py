"""The experiment of Coates et al. 2013, section 5.2: neurons that respond to an object without supervision.

Knows: the network and its baselines, profiles of the best neurons. Does not know: the command line, how
baselines are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cotswold.analysis.filter_images import undo_whitening
from cotswold.analysis.images import jpeg_uri, png_uri, signed, thumbnail, to_image
from cotswold.analysis.layers import Layer, StackLayers
from cotswold.analysis.selectivity.neurons import Position, locate
from cotswold.analysis.selectivity.optimal_stimuli import (
    Ascent,
    Stimuli,
    correlations,
    optimal_stimuli,
    percentile,
)
from cotswold.analysis.selectivity.results import THIS_NETWORK, NeuronProfile, ObjectSelectivity, TopImage
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
from cotswold.analysis.selectivity.top_activations import Activation, strongest_means, top_activations
from cotswold.data import Transform
from cotswold.nn import StackNetwork

Unlabelled = Callable[[], Iterable[Tensor]]
"""Starts a pass over unlabelled images, in batches; every pass gives the same ones."""
OriginalLookup = Callable[[int], tuple[str, Image.Image]]
"""Returns name and original of the image at an index of the pass."""


@dataclass(frozen=True)
class SelectivitySettings:
    """Settings of a selectivity test.

    Args:
        layers: layers whose neurons are tested.
        weights: weights of the classes; None weighs every image equally.
        thresholds: number of thresholds per neuron.
        splits: number of random splits into halves for the held-out accuracy.
        profiles: number of neurons with a profile.
        exemplars: number of images at each end of a profile.
        random_stimuli: number of random neurons whose stimuli are compared with the best neuron's.
        ascent: settings of the gradient ascent.
        seed: seed of all random choices.
    """

    layers: Sequence[Layer]
    weights: ClassWeights | None = PAPER
    """Weights of the classes; None weighs every image equally."""
    thresholds: int = 20
    splits: int = 5
    profiles: int = 3
    exemplars: int = 8
    random_stimuli: int = 128
    """Number of random neurons whose stimuli are compared with the best neuron's."""
    ascent: Ascent = field(default_factory=lambda: Ascent(steps=30, angle=0.2))
    seed: int = 0


@dataclass(frozen=True)
class Control:
    """Another run as a baseline, with the test images as its own preprocessing makes them.

    Args:
        network: the network of the other run.
        batches: starts a pass over the test images.
    """

    network: StackNetwork
    batches: Batches


@dataclass(frozen=True)
class Baselines:
    """Baselines of a network.

    Args:
        random: the same network with random filters.
        dictionary: the same network with k-means filters in its last stack.
        control: another run.
    """

    random: StackNetwork | None = None
    dictionary: StackNetwork | None = None
    control: Control | None = None


def score_object(
    name: str,
    network: StackNetwork,
    baselines: Baselines,
    batches: Batches,
    settings: SelectivitySettings,
    *,
    unlabelled: Unlabelled | None = None,
    transform: Transform | None = None,
    original_of: OriginalLookup | None = None,
    progress: Progress | None = None,
) -> ObjectSelectivity:
    """Test a network and its baselines on one object, and make profiles of the best neurons.

    Args:
        name: name of the object.
        network: the network.
        baselines: networks to compare with.
        batches: starts a pass over prepared images (image, channel, y, x), with True for positives.
        settings: settings of the test.
        unlabelled: starts a pass over training images; optimal stimuli are then searched from the mean of the
            images with the largest responses.
        transform: the preprocessing, to undo whitening in stimuli.
        original_of: returns name and original of an image, for profiles.
        progress: called with the current activity and the number of images done.

    Returns:
        The results for this object.

    Raises:
        SourceError: if a class has too few images.
        DivergedError: if a response is not finite.
    """
    entries = {
        THIS_NETWORK: (network, settings.layers, batches),
        "random filters": (baselines.random, settings.layers, batches),
        "k-means": (baselines.dictionary, _layers_of_last_stack(network, settings), batches),
    }
    control = baselines.control
    if control is not None:
        there = [layer for layer in settings.layers if layer.stack < len(control.network.stacks)]
        entries["control"] = (control.network, there, control.batches)
    found = {
        what: _test(StackLayers(each.eval(), layers), own, settings, _named_progress(progress, what))
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
        oracle=_oracle(mean, batches(), settings),
        mean_positive=_to_data_uri(mean.image, transform),
        passes=ours.passes,
    )
    view = _View(mean, batches, settings, transform, original_of, unlabelled)
    return replace(row, profiles=_profiles(row, network, baselines.random, view))


@dataclass(frozen=True)
class _Mean:
    """Mean of positive images, ``(channel, y, x)``, and their number."""

    image: Tensor
    count: int


@dataclass(frozen=True)
class _View:
    """Further inputs of a profile, after the network."""

    mean: _Mean
    batches: Batches
    settings: SelectivitySettings
    transform: Transform | None
    original_of: OriginalLookup | None
    unlabelled: Unlabelled | None


def _layers_of_last_stack(network: StackNetwork, examination: SelectivitySettings) -> list[Layer]:
    last = len(network.stacks) - 1
    return [layer for layer in examination.layers if layer.stack == last]


def _named_progress(progress: Progress | None, what: str) -> Progress | None:
    return None if progress is None else lambda doing, done: progress(f"{what}: {doing}", done)


def _test(
    respond: Respond, batches: Batches, examination: SelectivitySettings, progress: Progress | None = None
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


def _mean_positive(images: Iterable[tuple[Tensor, Tensor]]) -> _Mean:
    total, count = torch.zeros(()), 0
    for batch, positive in images:
        total = total + batch.cpu()[positive.cpu()].sum(0)
        count += int(positive.sum())
    return _Mean(total / max(1, count), count)


def _oracle(
    mean: _Mean, images: Iterable[tuple[Tensor, Tensor]], examination: SelectivitySettings
) -> LayerSelectivity:
    """Test the mean positive image as a linear filter; each positive image is excluded from its own mean."""
    answers, classes = [], []
    for batch, positive in images:
        flat, truth = batch.cpu().flatten(1), positive.cpu()
        answer = flat @ mean.image.flatten()
        without = (mean.count * answer - flat.square().sum(1)) / max(1, mean.count - 1)
        answers.append(torch.where(truth, without, answer))
        classes.append(truth)
    one_batch = torch.cat(answers)[:, None], torch.cat(classes)
    tested = _test(lambda answers: [("mean image", answers)], lambda: [one_batch], examination)
    return tested.layers[0]


def _profiles(
    row: ObjectSelectivity, network: StackNetwork, random_network: StackNetwork | None, view: _View
) -> tuple[NeuronProfile, ...]:
    chosen = _most_selective(row, view.settings.profiles)
    if not chosen:
        return ()
    mean = view.mean.image
    respond = StackLayers(network, [Layer.parse(layer) for layer, _ in chosen])
    neurons = [(layer, score.neuron) for layer, score in chosen]
    seen = _Classes()
    count = view.settings.exemplars if view.original_of else 0
    found = top_activations(respond, seen.record(view.batches()), neurons, count)
    among = _random_correlations(row.best, network, view)
    random = None if random_network is None else _random_correlations(row.best, random_network, view)
    portraits = []
    for index, (layer, score) in enumerate(chosen):
        stimulus = _stimuli(network, layer, [score.neuron], view)
        correlation = float(correlations(stimulus, mean)[0])
        best = layer == row.best.layer
        portraits.append(
            NeuronProfile(
                layer=layer,
                neuron=score.neuron,
                accuracy=score.accuracy,
                image=_to_data_uri(_upright(stimulus, mean), view.transform),
                correlation=correlation,
                percentile=percentile(correlation, among) if best else None,
                percentile_random=percentile(correlation, random) if best and random is not None else None,
                compared_neurons=len(among) if best else 0,
                highest=_exemplars(found.highest[index], seen.positive, view.original_of),
                lowest=_exemplars(found.lowest[index], seen.positive, view.original_of),
            )
        )
    return tuple(portraits)


def _most_selective(row: ObjectSelectivity, count: int) -> list[tuple[str, NeuronScore]]:
    """Return the best neuron of each layer, the best layer first, then more neurons of the best layer."""
    layers = sorted(row.network, key=lambda layer: -layer.held_out)
    first = [(layer.layer, layer.best[0]) for layer in layers]
    return (first + [(row.best.layer, score) for score in row.best.best[1:]])[:count]


def _random_correlations(layer: LayerSelectivity, network: StackNetwork, view: _View) -> NDArray[np.float64]:
    """Return correlations of the stimuli of random neurons with the mean positive image."""
    examination = view.settings
    chosen = np.random.default_rng(examination.seed).choice(
        layer.neurons, min(examination.random_stimuli, layer.neurons), replace=False
    )
    places = [locate(int(row), layer.shape) for row in chosen]
    return correlations(_stimuli(network, layer.layer, places, view), view.mean.image)


def _stimuli(network: StackNetwork, layer: str, neurons: Sequence[Position], view: _View) -> Stimuli:
    respond = StackLayers(network, [Layer.parse(layer)])

    def answer(images: Tensor) -> Tensor:
        return next(responses for _, responses in respond(images))

    starts = None
    if view.unlabelled is not None:
        starts = strongest_means(respond, view.unlabelled, [(layer, neuron) for neuron in neurons])
    return optimal_stimuli(
        answer,
        view.mean.image.shape,
        neurons,
        starts=starts,
        ascent=view.settings.ascent,
        seed=view.settings.seed,
    )


def _upright(stimulus: Stimuli, wanted: Tensor) -> Tensor:
    """Return the stimulus, or its negative if signs are ignored and it resembles ``wanted`` more."""
    one = stimulus.images[0].cpu()
    return -one if stimulus.is_even and float((one * wanted).sum()) < 0 else one


def _to_data_uri(one: Tensor, transform: Transform | None) -> str:
    values = one.float().numpy()
    if transform is not None:
        values = undo_whitening(values[None], transform)[0]
    return png_uri(to_image(signed(values), least=160))


class _Classes:
    """Records which images of a pass were positive."""

    def __init__(self) -> None:
        self.positive: list[bool] = []

    def record(self, images: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
        """Yield the images, and record their classes."""
        for batch, positive in images:
            self.positive += positive.tolist()
            yield batch


def _exemplars(
    found: Sequence[Activation], positive: Sequence[bool], look: OriginalLookup | None
) -> tuple[TopImage, ...]:
    if look is None:
        return ()
    exemplars = []
    for one in found:
        name, photograph = look(one.image)
        uri = jpeg_uri(thumbnail(photograph))
        text = name.encode("utf-8", "replace").decode()  # the name of a file may not be valid text
        exemplars.append(TopImage(text, one.response, positive[one.image], uri))
    return tuple(exemplars)
