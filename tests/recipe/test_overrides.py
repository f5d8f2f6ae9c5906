"""An override of a general field applies to every stack, and says so."""

from __future__ import annotations

import pytest

from cotswold.errors import RecipeError
from cotswold.recipe import Recipe, parse
from cotswold.recipe.schema import DownpourTraining

TEXT = """
name = "mine"
[data]
source = "images"
[[network.stacks]]
kernel_size = 12
[[network.stacks]]
kernel_size = 5
epochs = 6.0
relative_rate = 3.0
sparsity = 0.5
[[network.stacks]]
kernel_size = 3
epochs = 8.0
[training]
strategy = "greedy"
epochs = 4.0
"""


def read(*overrides: str) -> tuple[Recipe, list[str]]:
    told: list[str] = []
    return parse(TEXT, overrides=overrides, tell=told.append), told


@pytest.mark.parametrize(
    ("override", "own", "expected"),
    [
        ("training.epochs=2", "epochs", [None, None, None]),
        ("training.relative_rate=1", "relative_rate", [None, None, None]),
        ("objective.sparsity=1", "sparsity", [None, None, None]),
        ("training.batch_size=2", "epochs", [None, 6.0, 8.0]),
        ("training.epochs=", "epochs", [None, 6.0, 8.0]),
    ],
)
def test_an_override_of_a_general_field_reaches_every_stack(
    override: str, own: str, expected: list[float | None]
) -> None:
    recipe, _ = read(override)
    assert [getattr(stack, own) for stack in recipe.network.stacks] == expected


def test_it_says_what_it_sets_aside() -> None:
    assert read("training.epochs=2")[1] == [
        "training.epochs=2 applies to every stack; the recipe's network.stacks.1.epochs, "
        "network.stacks.2.epochs is ignored (network.stacks.N.epochs=... sets one stack)"
    ]
    assert read("training.batch_size=2")[1] == []


@pytest.mark.parametrize(
    "overrides",
    [
        ("training.epochs=2", "network.stacks.1.epochs=6"),
        ("network.stacks.1.epochs=6", "training.epochs=2"),
    ],
)
def test_a_stack_that_is_overridden_as_well_keeps_its_own(overrides: tuple[str, str]) -> None:
    assert [stack.epochs for stack in read(*overrides)[0].network.stacks] == [None, 6.0, None]


def test_stacks_that_are_overridden_whole_keep_their_own() -> None:
    recipe, told = read("network.stacks=[{kernel_size = 4, epochs = 3.0}]", "training.epochs=2")
    assert (recipe.network.stacks[0].epochs, told) == (3.0, [])


def test_another_strategy_takes_whole_epochs_however_they_are_written() -> None:
    text = TEXT[: TEXT.index("[[")].replace('"images"', '"rows.npz"\ntype = "vectors"\nlabels = "file"')
    layers = (
        "[[network.layers]]\ntype = 'linear'\nfeatures = 3\n[training]\nstrategy = 'supervised'\nepochs = "
    )
    training = parse(f"{text}{layers}10.0\n", overrides=["training.strategy=downpour"]).training
    assert isinstance(training, DownpourTraining)
    assert training.epochs == 10 and isinstance(training.epochs, int)
    with pytest.raises(RecipeError, match=r"epochs must be an integer > 0, not 2\.5"):
        parse(f"{text}{layers}2.5\n", overrides=["training.strategy=downpour"])
