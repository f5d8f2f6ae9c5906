from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from cotswold.analysis.layers import Layer, StackLayers, top_layers
from cotswold.analysis.selectivity.few_label_results import FewLabels, LabelCurve
from cotswold.analysis.selectivity.few_labels import FewLabelSettings, few_labels
from cotswold.analysis.selectivity.objects import Baselines, Control
from cotswold.errors import SourceError, UserError
from cotswold.nn import StackNetwork

ORIGINS = ("this network", "k-means", "random filters", "pixels")


@pytest.fixture
def noise() -> torch.Tensor:
    return torch.randn(60, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def kinds(images: torch.Tensor) -> torch.Tensor:
    """Every third image is positive."""
    return torch.arange(len(images)) % 3 == 0


def measured(
    network: StackNetwork,
    images: torch.Tensor,
    settings: FewLabelSettings,
    baselines: Baselines | None = None,
    batch: int = 25,
) -> FewLabels:
    batches = list(zip(torch.split(images, batch), torch.split(kinds(images), batch), strict=True))
    return few_labels(network, baselines or Baselines(), lambda: batches, settings)


def test_an_image_joins_the_class_whose_labelled_images_have_the_nearest_mean(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    noise[::3] += 0.15
    layer = Layer(1, "pooled")
    found = measured(network, noise, FewLabelSettings([1, 4], [layer], draws=6))
    with torch.no_grad():
        maps = StackLayers(network, [layer]).first(noise).flatten(1).double().numpy()
    truth = kinds(noise).numpy()
    random = np.random.default_rng(0)
    classes = [np.flatnonzero(~truth), np.flatnonzero(truth)]
    orders = [[random.permutation(each)[:4] for each in classes] for _ in range(6)]
    for curve, features in zip(found.curves, (maps, noise.flatten(1).double().numpy()), strict=True):
        for number, accuracies in zip(found.labels, curve.accuracies, strict=True):
            for order, accuracy in zip(orders, accuracies, strict=True):
                means = [features[each[:number]].mean(0) for each in order]
                away = [np.square(features - mean).sum(1) for mean in means]
                right = (away[1] < away[0]) == truth
                labelled = np.concatenate([each[:number] for each in order])
                rest = ~np.isin(np.arange(len(truth)), labelled)
                wanted = np.mean([right[rest & truth].mean(), right[rest & ~truth].mean()])
                assert accuracy == pytest.approx(wanted, abs=1e-4)


def test_labelled_images_are_not_classified(network: StackNetwork, noise: torch.Tensor) -> None:
    found = measured(network, noise, FewLabelSettings([15], [Layer(0, "pooled")], draws=40))
    # in noise of 768 dimensions an image is nearest to the mean that contains it, but no other image is
    assert abs(found.best_curves["pixels"].means[0] - 0.5) < 0.1


def test_more_labels_make_an_object_that_all_positives_share_clearer(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    noise[::3] += 0.3 * torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))
    pixels = measured(network, noise, FewLabelSettings([1, 4, 15], [Layer(0, "pooled")])).best_curves[
        "pixels"
    ]
    assert pixels.means[0] < pixels.means[1] < pixels.means[2]
    assert pixels.means[2] > 0.95


def test_the_last_stack_represents_the_network_and_k_means_and_any_stack_random_filters(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    layers = top_layers(network)
    control = StackNetwork(list(network.stacks)[:1]).eval()
    compared = Baselines(
        random=network,
        dictionary=network,
        control=Control(control, lambda: [(noise, kinds(noise))]),
    )
    found = measured(network, noise, FewLabelSettings([3], layers, draws=4), compared)
    by_origin = {
        origin: [(curve.layer, curve.is_candidate) for curve in curves]
        for origin, curves in itertools.groupby(found.curves, lambda curve: curve.origin)
    }
    assert by_origin == {
        "this network": [("1.pooled", False), ("2.pooled", True)],
        "k-means": [("2.pooled", True)],
        "random filters": [("1.pooled", True), ("2.pooled", True)],
        "control": [("1.pooled", True)],
        "pixels": [("", True)],
    }
    one, two = (curve for curve in found.curves if curve.origin == "random filters")
    better = one if one.means[0] > two.means[0] else two
    assert found.best_curves["random filters"] == better
    assert found.best_curves["this network"].accuracies == two.accuracies  # the same images for all


def test_the_best_map_of_a_stack_represents_it(network: StackNetwork, noise: torch.Tensor) -> None:
    layers = [Layer(1, "filters"), Layer(1, "pooled")]
    found = measured(network, noise, FewLabelSettings([2, 5], layers, draws=4))
    best = max(found.curves[:2], key=lambda curve: sum(curve.means))
    assert found.best_curves["this network"] == best


def test_of_many_images_the_same_part_is_used_for_all_features(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    settings = FewLabelSettings([2], [Layer(0, "pooled")], draws=3, images_max=10)
    found = measured(network, noise, settings, batch=7)
    assert (found.positives, found.negatives) == (10, 10)
    assert found == measured(network, noise, settings, batch=60)
    assert found != measured(network, noise, FewLabelSettings([2], [Layer(0, "pooled")], draws=3))


def test_labels_that_leave_no_image_are_refused_with_the_number_of_images(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    with pytest.raises(UserError, match="20 positives and 40 negatives; use fewer than 20 labels"):
        measured(network, noise, FewLabelSettings([1, 20], [Layer(0, "pooled")]))
    measured(network, noise, FewLabelSettings([19], [Layer(0, "pooled")], draws=2))
    for labels, draws, message in (([0, 3], 5, "at least 1, got 0"), ([3], 1, "draws must be at least 2")):
        with pytest.raises(UserError, match=message):
            FewLabelSettings(labels, [Layer(0, "pooled")], draws)


def test_images_that_disappear_between_passes_are_an_error(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    passes = iter([noise, noise[:30], noise])

    def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
        images = next(passes)
        return [(images, kinds(images))]

    with pytest.raises(SourceError, match="a pass had 30 images, an earlier one more"):
        few_labels(network, Baselines(), batches, FewLabelSettings([2], [Layer(0, "pooled")]))


def result(labels: Sequence[int], **means: Sequence[float]) -> FewLabels:
    """Return results whose accuracies vary equally over four draws."""
    curves = [
        LabelCurve(
            origin.replace("_", " ").replace("kmeans", "k-means"),
            "",
            9,
            tuple(tuple(mean + shift for shift in (-0.01, 0.01, 0.02, -0.02)) for mean in row),
        )
        for origin, row in means.items()
    ]
    return FewLabels(tuple(labels), 4, 50, 150, tuple(curves))


@pytest.mark.parametrize("order", [*itertools.permutations(ORIGINS)], ids="-".join)
def test_the_sentence_names_whichever_features_are_best(order: Sequence[str]) -> None:
    accuracies = {origin: 0.9 - 0.1 * place for place, origin in enumerate(order)}
    rows = {
        origin.replace("k-means", "kmeans").replace(" ", "_"): [accuracies[origin] - 0.2, accuracies[origin]]
        for origin in ORIGINS
    }
    found = result([1, 5], **rows)
    figures = ", ".join(f"{origin} {100 * accuracies[origin]:.1f} %" for origin in ORIGINS)
    better = [origin for origin in ORIGINS if accuracies[origin] < accuracies[order[0]] - 0.2]
    assert found.sentences("faces") == [
        f"faces, balanced accuracy with 5 labels per class: {figures} (mean of 4 draws, standard deviation "
        f"1.8 to 1.8); best with 1 and 5 labels: {order[0]}",
        f"faces: {order[0]} is better with 1 label per class than {better[0]} with 5",
    ]


def test_numbers_of_labels_with_the_same_winner_are_one_part_of_the_sentence() -> None:
    found = result([1, 2, 5, 10], this_network=[0.9, 0.9, 0.9, 0.9], kmeans=[0.8, 0.8, 0.95, 0.8])
    assert found.verdict() == (
        "best with 1 and 2 labels: this network; with 5 labels: k-means; with 10 labels: this network"
    )
    assert result([1], this_network=[0.5], kmeans=[0.8]).verdict() == "best with 1 label: k-means"


def test_fewer_labels_on_the_best_features_are_compared_with_the_most_on_the_others() -> None:
    found = result(
        [1, 2, 5, 10],
        this_network=[0.6, 0.9, 0.97, 0.99],
        kmeans=[0.6, 0.8, 0.9, 0.95],
        random_filters=[0.5, 0.6, 0.7, 0.8],
        pixels=[0.5, 0.6, 0.7, 0.85],
    )
    assert found.saving() == (
        "this network is better with 2 labels per class than random filters and pixels with 10, "
        "and with 5 than k-means with 10"
    )
    found = result(
        [1, 2, 5, 10],
        this_network=[0.5, 0.6, 0.7, 0.8],
        kmeans=[0.75, 0.92, 0.97, 0.99],
        random_filters=[0.6, 0.7, 0.8, 0.9],
        pixels=[0.7, 0.8, 0.9, 0.95],
    )
    assert found.saving() == (
        "k-means is better with 2 labels per class than this network and random filters with 10, "
        "and with 5 than pixels with 10"
    )
    found = result([1, 2, 5], this_network=[0.8, 0.9, 0.99], kmeans=[0.6, 0.7, 0.85], pixels=[0.5, 0.6, 0.7])
    assert found.saving() == (
        "this network is better with 1 label per class than pixels with 5, and with 2 than k-means with 5"
    )
    assert len(found.sentences("faces")) == 2
    level = result([1, 5], this_network=[0.7, 0.8], kmeans=[0.6, 0.79])
    assert level.saving() == ""  # it needs as many labels
    assert len(level.sentences("faces")) == 1
    tied = result([1, 5], this_network=[0.9, 0.9], kmeans=[0.9, 0.9], pixels=[0.5, 0.5])
    assert tied.saving() == ""  # none is the best


def test_a_difference_within_two_standard_errors_is_not_called_clear() -> None:
    one = LabelCurve("this network", "", 9, ((0.90, 0.80, 0.90, 0.80),))
    other = LabelCurve("pixels", "", 9, ((0.80, 0.90, 0.80, 0.88),))
    found = FewLabels((3,), 4, 50, 50, (one, other))
    assert found.winners(0) == ("this network", "pixels")
    assert found.verdict() == "best with 3 labels: this network and pixels, without a clear difference"
    # the same means, but every draw agrees
    paired = LabelCurve("pixels", "", 9, ((0.895, 0.795, 0.894, 0.796),))
    assert FewLabels((3,), 4, 50, 50, (one, paired)).winners(0) == ("this network",)
    equal = LabelCurve("pixels", "", 9, one.accuracies)
    assert FewLabels((3,), 4, 50, 50, (one, equal)).winners(0) == ("this network", "pixels")
