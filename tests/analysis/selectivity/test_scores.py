from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from cotswold.analysis.selectivity.scores import ClassWeights, Selectivity, selectivity
from cotswold.errors import DivergedError, SourceError, UserError

Answers = tuple[Tensor, Tensor]


def images(images: int, seed: int = 0) -> Answers:
    """Return random responses of 40 neurons, of which neuron 7 responds more to positives."""
    generator = torch.Generator().manual_seed(seed)
    answers = torch.randn(images, 40, generator=generator)
    positive = torch.rand(images, generator=generator) < 0.4
    answers[positive, 7] += 2.0
    return answers, positive


def passes(answers: Tensor, positive: Tensor, batch: int = 50) -> Callable[[], Iterator[Answers]]:
    def start() -> Iterator[Answers]:
        for first in range(0, len(answers), batch):
            yield answers[first : first + batch], positive[first : first + batch]

    return start


def examined(answers: Tensor, positive: Tensor, **options: object) -> Selectivity:
    return selectivity(lambda x: [("layer", x)], passes(answers, positive), **options)  # type: ignore[arg-type]  # any


def best_by_hand(answers: Tensor, positive: Tensor) -> tuple[int, float]:
    """Try every neuron and threshold in plain NumPy."""
    accuracies = []
    for row in answers.double().numpy().T:
        thresholds = np.linspace(row.min(), row.max(), 20)
        truth = positive.numpy()
        of = [0.353 * (row[truth] >= t).mean() + 0.647 * (row[~truth] < t).mean() for t in thresholds[:-1]]
        accuracies.append(max(of))
    return int(np.argmax(accuracies)), max(accuracies)


def test_the_best_neuron_and_its_accuracy_are_those_of_a_search_by_hand() -> None:
    answers, positive = images(600)
    found = examined(answers, positive).layers[0]
    neuron, accuracy = best_by_hand(answers, positive)
    assert found.best[0].neuron == (neuron,) == (7,)
    assert found.best[0].accuracy == pytest.approx(accuracy, abs=1e-12)


def test_the_threshold_that_is_named_gives_the_accuracy_that_is_named() -> None:
    answers, positive = images(600)
    best = examined(answers, positive).layers[0].best[0]
    above = answers[:, 7] >= best.threshold
    right = 0.353 * above[positive].double().mean() + 0.647 * (~above[~positive]).double().mean()
    assert best.accuracy == pytest.approx(float(right), abs=1e-6)


def test_neurons_that_know_nothing_flatter_themselves_and_held_out_they_do_not() -> None:
    generator = torch.Generator().manual_seed(1)
    answers, positive = torch.randn(400, 3000, generator=generator), torch.arange(400) % 2 == 0
    found = examined(answers, positive).layers[0]
    assert found.best[0].accuracy > 0.66
    assert found.held_out < 0.655
    assert found.measurements == 10


def test_a_selective_neuron_stays_selective_when_held_out() -> None:
    found = examined(*images(2000)).layers[0]
    assert found.held_out == pytest.approx(found.best[0].accuracy, abs=0.02)
    assert 0 < found.spread < 0.03


def test_a_response_counts_in_one_direction_only() -> None:
    answers, positive = images(600)
    assert examined(-answers, positive).layers[0].best[0].accuracy < 0.67


def test_constant_neurons_guess_and_are_counted() -> None:
    answers, positive = images(200)
    found = examined(torch.zeros_like(answers), positive).layers[0]
    assert found.best[0].accuracy == pytest.approx(0.647)
    assert found.constant == 40


def test_other_weights_make_another_guess() -> None:
    weights = ClassWeights(0.5, 0.5)
    answers, positive = images(200)
    found = examined(torch.zeros_like(answers), positive, weights=weights).layers[0]
    assert found.best[0].accuracy == weights.guess == 0.5


def test_the_same_seed_gives_the_same_result() -> None:
    answers, positive = images(300)
    assert examined(answers, positive, seed=3).layers == examined(answers, positive, seed=3).layers


def test_the_order_in_which_classes_come_changes_nothing_on_all_images() -> None:
    answers, positive = images(300)
    order = positive.long().argsort(stable=True)
    mixed, apart = examined(answers, positive), examined(answers[order], positive[order])
    assert mixed.layers[0].best == apart.layers[0].best


@pytest.mark.parametrize("splits", [0, 36])
def test_a_number_of_splits_that_does_not_exist_is_refused(splits: int) -> None:
    with pytest.raises(UserError, match="from 1 to 35"):
        examined(*images(100), splits=splits)


def test_maps_name_neurons_by_channel_and_place() -> None:
    answers, positive = images(600)
    maps = answers.reshape(-1, 4, 5, 2).permute(0, 3, 1, 2)  # [y][x][channel], as neurons lie in memory
    found = selectivity(lambda x: [("map", x)], passes(maps, positive)).layers[0]
    assert found.best[0].neuron == (1, 0, 3)
    channel, y, x = found.best[0].neuron
    assert torch.equal(maps[:, channel, y, x], answers[:, 7])


def test_a_neuron_that_answers_nan_is_refused_by_name() -> None:
    answers, positive = images(100)
    answers[60, 11] = float("nan")
    with pytest.raises(DivergedError, match=r"neuron \(11,\) of layer"):
        examined(answers, positive)


def test_a_class_without_enough_images_is_refused() -> None:
    answers, _ = images(100)
    with pytest.raises(SourceError, match="3 positives are too few"):
        examined(answers, torch.arange(100) < 3)


def test_no_image_at_all_is_refused() -> None:
    with pytest.raises(SourceError, match="no images"):
        selectivity(lambda x: [("layer", x)], list)


def test_images_that_change_between_the_passes_are_refused() -> None:
    answers, positive = images(100)
    lengths = iter([100, 90])

    def start() -> Iterator[Answers]:
        length = next(lengths)
        yield answers[:length], positive[:length]

    with pytest.raises(SourceError, match="second pass"):
        selectivity(lambda x: [("layer", x)], start)


def test_without_weights_guessing_gives_the_part_of_the_larger_class() -> None:
    found = examined(torch.zeros(40, 3), torch.arange(40) < 10, weights=None)
    assert found.weights == ClassWeights(0.25, 0.75)
    assert found.layers[0].best[0].accuracy == 0.75


@pytest.mark.parametrize("weights", [(0.0, 1.0), (0.4, 0.4), (float("nan"), 0.5)])
def test_weights_that_are_no_proportions_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        ClassWeights(*weights)
