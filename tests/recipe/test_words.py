"""Recipes in older words are read as today's, and say so."""

from __future__ import annotations

import pytest

from cotswold.errors import RecipeError
from cotswold.recipe import Recipe, dump, from_values, parse
from cotswold.recipe.schema import (
    Convolution,
    GreedyTraining,
    JointTraining,
    Linear,
    Local,
    LossObjective,
    Pool,
    SupervisedTraining,
)

STACKS = """\
name = "mine"
data = { source = "pictures", size = 40 }
[[network.stacks]]
field = 12
step = [4, 2]
maps = 3
pool = 3
keep = true
[[network.stacks]]
field = 5
keep = false
rate = 3.0
[training]
strategy = "greedy"
batch = 24
rate = 1
decay = 0
[objective]
sparsity = 0.5
loss = "softmax"
[mesh]
patience = 7
"""
LAYERS = """\
name = "mine"
data = { source = "pictures", labels = "folders" }
[network]
layers = [
  { type = "convolution", channels = 4, field = 3, step = 2 },
  { type = "local", channels = 2, field = [3, 4] },
  { type = "pool", size = 3, step = 2 },
  { type = "normalisation", kind = "contrast", size = 3 },
  { type = "full", units = 7 },
]
[training]
strategy = "supervised"
batch = 24
rate = 0.1
decay = 0.01
patience = 3
offload = "none"
[objective]
sparsity = 0.5
loss = "softmax"
"""


def heard(text: str, *overrides: str) -> tuple[Recipe, list[str]]:
    told: list[str] = []
    return parse(text, "mine.toml", overrides, told.append), told


def test_a_recipe_of_stacks_in_old_words_has_the_values_that_it_had() -> None:
    recipe, _ = heard(STACKS)
    first, second = recipe.network.stacks
    assert (first.stride, first.channels, first.smoothing_padding) == ((4, 2), 3, "same")
    assert (second.stride, second.smoothing_padding, second.relative_rate) == (1, "valid", 3.0)
    assert isinstance(recipe.training, GreedyTraining)
    assert (recipe.training.batch_size, recipe.training.relative_rate) == (24, 1.0)
    assert (recipe.sparsity(0), recipe.mesh.timeout) == (0.5, 7.0)


def test_a_recipe_of_layers_in_old_words_has_the_values_that_it_had() -> None:
    recipe, _ = heard(LAYERS)
    convolution, local, pool, contrast, linear = recipe.network.layers
    assert isinstance(convolution, Convolution) and isinstance(local, Local) and isinstance(pool, Pool)
    assert (convolution.kernel_size, convolution.stride, local.kernel_size) == (3, 2, (3, 4))
    assert (pool.kernel_size, pool.stride) == (3, 2)
    assert contrast.model_dump() == {"type": "normalisation", "kind": "contrast", "size": 3}
    assert isinstance(linear, Linear) and linear.features == 7
    training = recipe.training
    assert isinstance(training, SupervisedTraining)
    assert (training.batch_size, training.learning_rate, training.weight_decay) == (24, 0.1, 0.01)
    assert training.patience == 3
    assert isinstance(recipe.objective, LossObjective) and recipe.objective.loss == "cross_entropy"


def test_one_sentence_says_what_the_old_words_are_called_now() -> None:
    (said,) = heard(LAYERS)[1]
    assert said == (
        "mine.toml uses words of an older version: training.batch is training.batch_size now, "
        "training.rate is training.learning_rate now, training.decay is training.weight_decay now, "
        'network.layers.4.units (full) is features now, network.layers.4.type "full" is "linear" now, '
        "network.layers.0.field (convolution) and network.layers.1.field (local) are kernel_size now, "
        "network.layers.2.size (pool) is kernel_size now, network.layers.0.step (convolution) and "
        'network.layers.2.step (pool) are stride now, objective.loss "softmax" is "cross_entropy" now '
        "(cotswold recipe show writes today's)"
    )
    (said,) = heard(STACKS)[1]
    assert "training.rate is training.relative_rate now" in said
    assert "network.stacks.0.keep and network.stacks.1.keep are smoothing_padding now" in said
    assert "mesh.patience is mesh.timeout now" in said


@pytest.mark.parametrize("text", [STACKS, LAYERS])
def test_what_is_written_of_it_has_todays_words_and_is_silent(text: str) -> None:
    recipe, _ = heard(text)
    assert heard(dump(recipe)) == (recipe, [])


@pytest.mark.parametrize("format", [1, 2])
def test_a_recipe_that_says_an_older_format_needs_no_old_word(format: int) -> None:
    text = f"""
    format = {format}
    name = "mine"
    data = {{ source = "pictures", labels = "folders" }}
    network.layers = []
    objective = {{ sparsity = 0.5, ramp = 0.1, epsilon = 1e-6 }}
    training = {{ strategy = "supervised", offload = "none" }}
    """
    assert heard(text)[0].training == SupervisedTraining(strategy="supervised")


def test_a_state_in_which_nothing_is_null_has_the_defaults() -> None:
    old = {
        "format": 2,
        "name": "mine",
        "data": {"source": "pictures", "store": None},
        "network": {"stacks": [{"field": 3, "rate": None}], "layers": [], "start": None},
        "training": {"strategy": "joint", "rate": None, "decay": 0.0, "patience": None},
    }
    recipe = from_values(old, "the state")
    assert recipe.training == JointTraining(strategy="joint")
    assert old["training"] == {"strategy": "joint", "rate": None, "decay": 0.0, "patience": None}


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        heard(text, *overrides)
    return str(caught.value)


def test_old_words_beside_new_ones_are_refused_with_both_named() -> None:
    mixed = LAYERS.replace("decay = 0.01", "weight_decay = 0.01")
    assert complaint(mixed).startswith(
        "mine.toml mixes words of an older version with today's, such as training.weight_decay: "
        "training.batch is training.batch_size now, training.rate is training.learning_rate now, "
    )
    assert "mixes words" in complaint("format = 2\n" + mixed)


@pytest.mark.parametrize(
    ("override", "now"),
    [
        ("training.rate=1", "training.relative_rate"),
        ("training.batch=1", "training.batch_size"),
        ("network.stacks.0.maps=1", "network.stacks.0.channels"),
        ("network.stacks.1.keep=true", "network.stacks.1.smoothing_padding"),
        ("mesh.patience=1", "mesh.timeout"),
    ],
)
def test_an_override_in_an_old_word_names_todays(override: str, now: str) -> None:
    old = override.partition("=")[0]
    expected = f"mine.toml: {old} was a key of an older version; it is {now} now"
    assert complaint(dump(heard(STACKS)[0]), override) == complaint(STACKS, override) == expected


def test_old_words_in_a_recipe_that_says_todays_format_are_named() -> None:
    text = dump(heard(LAYERS)[0])
    assert complaint(text.replace("learning_rate", "rate")).endswith(
        "training.rate was a key of an older version; it is training.learning_rate now"
    )
    assert complaint(text, "network.layers.2.size=3").endswith("it is network.layers.2.kernel_size now")
    changed = text.replace("stride", "step").replace("learning_rate", "rate")
    assert complaint(changed) == (
        "mine.toml: keys of an older version: network.layers.0.step (convolution) is stride now, "
        "network.layers.1.step (local) is stride now, network.layers.2.step (pool) is stride now, "
        "training.rate is training.learning_rate now"
    )


@pytest.mark.parametrize(
    "change", [('"greedy"', '"gready"'), ("batch = 24", "batch = true"), ("step = [4, 2]", "step = {}")]
)
def test_mistakes_in_old_recipes_are_found_as_in_others(change: tuple[str, str]) -> None:
    assert complaint(STACKS.replace(*change)).startswith("mine.toml")


def test_a_value_that_had_an_effect_is_never_dropped() -> None:
    assert "weight_decay belongs" not in complaint(STACKS.replace("decay = 0", "decay = 0.1"))
    assert "training.decay" in complaint(STACKS.replace("decay = 0", "decay = 0.1"))
    offloaded = LAYERS.replace('offload = "none"', 'offload = "disk"')
    assert "training.offload belongs to strategies greedy and joint" in complaint(offloaded)
