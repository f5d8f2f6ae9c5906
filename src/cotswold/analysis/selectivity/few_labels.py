"""Classifiers that learn from few labelled images, on the responses of a network and of its baselines.

Knows: draws of labelled images, the classifier, its balanced accuracy. Does not know: how baselines are made,
files.

The classifier assigns an image to the class whose mean features are nearest (Euclidean distance). It is
linear and has nothing to tune, so it works with one label of each class and treats all features equally. A
draw labels the same number of images of each class. All other images are classified. The balanced accuracy is
the mean of the accuracies on both classes, so that guessing gives 0.5. Distances follow from inner products
of images, which are computed once for each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.analysis.layers import Layer, StackLayers
from cotswold.analysis.selectivity.few_label_results import PIXELS, FewLabels, LabelCurve
from cotswold.analysis.selectivity.objects import Baselines
from cotswold.analysis.selectivity.results import THIS_NETWORK
from cotswold.analysis.selectivity.scores import Batches, Progress
from cotswold.errors import SourceError, UserError
from cotswold.nn import StackNetwork

DRAWS = 50
"""Default of the number of draws."""
IMAGES_MAX = 1000
"""Largest number of images of each class; of more, a random part is used."""

Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class FewLabelSettings:
    """Settings of a test with few labels.

    Args:
        labels: numbers of labelled images of each class.
        draws: number of random draws, at least 2.
        layers: layers whose responses are features.
        images_max: largest number of images of each class.
        seed: seed of all draws.

    Raises:
        UserError: if a number is too small.
    """

    labels: Sequence[int]
    layers: Sequence[Layer]
    draws: int = DRAWS
    images_max: int = IMAGES_MAX
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise UserError(f"draws must be at least 2, got {self.draws}")
        if min(self.labels, default=1) < 1:
            raise UserError(f"numbers of labels must be at least 1, got {min(self.labels)}")

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of labels, ascending."""
        return tuple(sorted({*self.labels}))

    def is_answered_by(self, found: FewLabels | None) -> bool:
        """True if a result is of these settings.

        Args:
            found: an earlier result for the same network and images; None if there is none.
        """
        if found is None or (found.labels, found.draws) != (self.numbers, self.draws):
            return False
        layers = {curve.layer for curve in found.curves if curve.origin == THIS_NETWORK}
        return layers == {*map(str, self.layers)}

    def require_images(self, positives: int, negatives: int) -> None:
        """Raise UserError if a class has too few images.

        Args:
            positives: number of images with the object.
            negatives: number of images without it.
        """
        most = min(positives, negatives, self.images_max)
        if self.numbers[-1] >= most:
            raise UserError(
                f"{self.numbers[-1]} labels of each class leave no image to classify, because there are "
                f"{positives} positives and {negatives} negatives; use fewer than {most} labels"
            )


def few_labels(
    network: StackNetwork,
    baselines: Baselines,
    batches: Batches,
    settings: FewLabelSettings,
    *,
    progress: Progress | None = None,
) -> FewLabels:
    """Measure the accuracy of classifiers that learn from few labelled images.

    Their features are the responses of a network and of its baselines, and pixels. The last stack represents
    this network and the k-means dictionary, which differ only in it. The best stack represents random filters
    and the control.

    Args:
        network: the network.
        baselines: networks to compare with.
        batches: starts a pass over prepared images (image, channel, y, x), with True for positives; every
            pass must give the same images.
        settings: settings of the test.
        progress: called with the current activity and the number of images done.

    Returns:
        The accuracies.

    Raises:
        UserError: if a class has too few images.
        SourceError: if passes differ in length.
    """
    positive = np.concatenate([kinds.numpy() for _, kinds in batches()])
    settings.require_images(int(positive.sum()), int((~positive).sum()))
    chosen = _chosen(positive, settings)
    truth = positive[chosen]
    draws = _draws(truth, settings)
    last = len(network.stacks) - 1
    entries = {
        THIS_NETWORK: (network, batches),
        "k-means": (baselines.dictionary, batches),
        "random filters": (baselines.random, batches),
    }
    if baselines.control is not None:
        entries["control"] = (baselines.control.network, baselines.control.batches)
    curves = []
    for origin, (each, own) in entries.items():
        if each is None:
            continue
        there = last if origin == "k-means" else 0
        layers = [layer for layer in settings.layers if there <= layer.stack < len(each.stacks)]
        tested = max((layer.stack for layer in layers), default=0)
        found = _inner_products(StackLayers(each.eval(), layers), own, chosen, _named(progress, origin))
        for name, (products, values) in found.items():
            represents = origin != THIS_NETWORK or Layer.parse(name).stack == tested
            accuracies = _accuracies(products, truth, draws)
            curves.append(LabelCurve(origin, name, values, accuracies, represents))
    found = _inner_products(lambda images: [("", images)], batches, chosen, _named(progress, PIXELS))
    products, values = found[""]
    curves.append(LabelCurve(PIXELS, "", values, _accuracies(products, truth, draws)))
    images = len(truth)
    positives = int(truth.sum())
    return FewLabels(settings.numbers, settings.draws, positives, images - positives, tuple(curves))


def _named(progress: Progress | None, what: str) -> Callable[[int], None]:
    return lambda done: None if progress is None else progress(f"{what}: features for few labels", done)


def _chosen(positive: NDArray[np.bool_], settings: FewLabelSettings) -> Indices:
    """Return the indices of the images of a pass that are used, ascending."""
    random = np.random.default_rng(settings.seed)
    parts = []
    for kind in (False, True):
        there = np.flatnonzero(positive == kind)
        if len(there) > settings.images_max:
            there = random.choice(there, settings.images_max, replace=False)
        parts.append(there)
    return np.sort(np.concatenate(parts))


def _draws(truth: NDArray[np.bool_], settings: FewLabelSettings) -> list[list[tuple[Indices, Indices]]]:
    """Return labelled negatives and positives, ``[number of labels][draw]``.

    Of one draw, more labels include fewer ones.
    """
    most = settings.numbers[-1]
    random = np.random.default_rng(settings.seed)
    kinds = [np.flatnonzero(truth == kind) for kind in (False, True)]
    orders = [[random.permutation(kind)[:most] for kind in kinds] for _ in range(settings.draws)]
    return [[(one[:number], other[:number]) for one, other in orders] for number in settings.numbers]


def _inner_products(
    respond: Callable[[Tensor], Iterable[tuple[str, Tensor]]],
    batches: Batches,
    chosen: Indices,
    progress: Callable[[int], None],
) -> dict[str, tuple[Doubles, int]]:
    """Return the inner products ``(image, image)`` of each layer's responses, and their number per image."""
    rows: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for images in _selected(batches, chosen, progress):
            for name, responses in respond(images):
                rows.setdefault(name, []).append(responses.flatten(1).float().cpu())
    found = {}
    for name in list(rows):
        features = torch.cat(rows.pop(name))
        features -= features.mean(0)  # distances stay the same, and inner products become more accurate
        found[name] = (features @ features.T).double().numpy(), features.shape[1]
    return found


def _selected(batches: Batches, chosen: Indices, progress: Callable[[int], None]) -> Iterator[Tensor]:
    """Yield the chosen images of a pass. Raises SourceError if the pass is shorter than an earlier one."""
    done = 0
    for images, _ in batches():
        inside = chosen[(chosen >= done) & (chosen < done + len(images))] - done
        done += len(images)
        if len(inside):
            yield (
                images
                if len(inside) == len(images)
                else images[torch.as_tensor(inside, device=images.device)]
            )
        progress(done)
    if done <= chosen[-1]:
        raise SourceError(
            f"a pass had {done} images, an earlier one more; images must not change while features are "
            "computed"
        )


def _accuracies(
    products: Doubles, truth: NDArray[np.bool_], draws: Sequence[Sequence[tuple[Indices, Indices]]]
) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(round(_accuracy(products, truth, labelled), 4) for labelled in several) for several in draws
    )


def _accuracy(products: Doubles, truth: NDArray[np.bool_], labelled: tuple[Indices, Indices]) -> float:
    """Return the balanced accuracy of the nearest class mean on the images without labels."""
    # squared distance to a mean, without the image's own square, which is equal for both classes
    away = [products[np.ix_(one, one)].mean() - 2 * products[:, one].mean(1) for one in labelled]
    is_right = np.where(away[1] < away[0], truth, ~truth)
    rest = np.ones(len(truth), np.bool_)
    rest[np.concatenate(labelled)] = False
    return float(np.mean([is_right[rest & (truth == kind)].mean() for kind in (False, True)]))
