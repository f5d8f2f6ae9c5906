from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image

from cotswold.analysis.layers import top_layers
from cotswold.analysis.selectivity.objects import Baselines, Control, SelectivitySettings, score_object
from cotswold.analysis.selectivity.optimal_stimuli import Ascent
from cotswold.analysis.selectivity.results import Evaluation, ObjectSelectivity
from cotswold.nn import StackNetwork


def examined(
    network: StackNetwork, images: torch.Tensor, baselines: Baselines | None = None
) -> ObjectSelectivity:
    positive = torch.arange(len(images)) % 2 == 0
    return score_object(
        "object",
        network,
        baselines or Baselines(),
        lambda: [(images, positive)],
        SelectivitySettings(top_layers(network), profiles=0),
    )


@pytest.fixture
def noise() -> torch.Tensor:
    return torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_mean_image_does_not_know_the_images_that_it_is_the_mean_of(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    oracle = examined(network, noise).oracle
    assert oracle is not None
    assert oracle.best[0].accuracy < 0.75  # 1.0 where an image is not left out of its mean


def test_the_mean_image_tells_an_object_that_all_positives_share(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    noise[::2] += 0.5 * torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))
    oracle = examined(network, noise).oracle
    assert oracle is not None
    assert oracle.held_out > 0.95


def test_an_evaluation_is_kept_even_where_a_image_bears_a_name_that_is_no_text(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    row = score_object(
        "object",
        network,
        Baselines(),
        lambda: [(noise, torch.arange(64) % 2 == 0)],
        SelectivitySettings(
            top_layers(network), profiles=1, exemplars=1, random_stimuli=1, ascent=Ascent(steps=1)
        ),
        original_of=lambda _: ("caf\udce9.png", Image.new("L", (4, 4))),
    )
    again = Evaluation.from_json(Evaluation(0).with_object(row).to_json())
    assert again.objects[0].profiles[0].highest[0].name == "caf?.png"


def test_a_dictionary_competes_in_the_last_stack_alone(network: StackNetwork, noise: torch.Tensor) -> None:
    row = examined(network, noise, Baselines(random=network, dictionary=network))
    assert [layer.layer for layer in row.random] == ["1.pooled", "2.pooled"]
    assert [layer.layer for layer in row.dictionary] == ["2.pooled"]
    assert row.random == row.network


def test_a_control_is_tested_on_its_own_images(network: StackNetwork, noise: torch.Tensor) -> None:
    positive = torch.arange(len(noise)) % 2 == 0
    others = noise.flip(3) * 3
    row = examined(network, noise, Baselines(control=Control(network, lambda: [(others, positive)])))
    assert row.control == examined(network, others).network != row.network


def test_a_control_of_fewer_stacks_competes_in_those_that_it_has(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    small = StackNetwork(list(network.stacks)[:1]).eval()
    positive = torch.arange(len(noise)) % 2 == 0
    row = examined(network, noise, Baselines(control=Control(small, lambda: [(noise, positive)])))
    assert [layer.layer for layer in row.control] == ["1.pooled"]


def test_the_best_model_has_the_best_held_out_accuracy_and_is_no_oracle(
    network: StackNetwork, noise: torch.Tensor
) -> None:
    row = examined(network, noise)
    better = replace(row.network[0], held_out=0.99)
    assert row.best_model == "this network"
    assert replace(row, dictionary=(better,)).best_model == "k-means"
    assert replace(row, oracle=better).best_model == "this network"
