"""The recipe of Chilimbi et al. 2014, section 4."""

from __future__ import annotations

from cotswold.recipe import load
from cotswold.training.models import planned_layers


def test_the_papers_network_is_used_with_padded_convolutions_and_1_732_000_connections() -> None:
    plans = planned_layers(load("adam-mnist"), 10)
    connected = [plan for plan in plans if plan.forward_flops]
    assert [(plan.name, plan.output) for plan in plans if plan.name not in ("relu", "dropout")] == [
        ("convolution", (10, 28, 28)),
        ("pool", (10, 14, 14)),
        ("convolution", (20, 14, 14)),
        ("pool", (20, 7, 7)),
        ("linear", (400,)),
        ("linear", (400,)),
        ("linear", (10,)),
    ]
    # a connection is a weight that meets a value, also one of the padding: two FLOPs
    assert sum(plan.forward_flops for plan in connected) == 2 * 1_732_000
    assert 1_732_000 == 28**2 * 10 * 25 + 14**2 * 20 * 250 + 980 * 400 + 400 * 400 + 400 * 10


def test_valid_convolutions_would_have_756_000() -> None:
    recipe = load("adam-mnist")
    layers = [
        each.model_copy(update={"padding": 0}) if each.type == "convolution" else each
        for each in recipe.network.layers
    ]
    valid = recipe.model_copy(update={"network": recipe.network.model_copy(update={"layers": layers})})
    assert sum(plan.forward_flops for plan in planned_layers(valid, 10)) == 2 * 756_000


def test_nothing_is_learnt_from_the_test_images_and_choices_have_a_split_of_their_own() -> None:
    recipe = load("adam-mnist")
    assert recipe.data.type == "images" and recipe.data.splits == "folders"
    assert recipe.data.validation == 0.1
