from __future__ import annotations

import pytest

from cotswold import recipe as recipes
from cotswold.errors import RecipeError
from cotswold.recipe.schema import ImageData

TEXT = """
name = "varied"
[data]
source = "mnist"
labels = "file"
size = 28
colour = "grey"
whiten = {whiten}
{tables}
[[network.layers]]
type = "linear"
features = 5
[training]
strategy = "{strategy}"
"""


def parsed(tables: str, *, whiten: str = "false", strategy: str = "supervised") -> recipes.Recipe:
    return recipes.parse(TEXT.format(tables=tables, whiten=whiten, strategy=strategy))


def test_transforms_stand_in_their_order_with_their_parameters() -> None:
    data = parsed(
        '[[data.augment]]\nname = "affine"\nscale = [0.9, 1.1]\n'
        '[[data.augment]]\nname = "custom"\nfunction = "ink:drop"\nstrength = 2'
    ).data
    assert isinstance(data, ImageData)
    first, second = (each.model_dump(exclude_none=True) for each in data.augment)
    assert first["name"] == "affine" and first["scale"] == (0.9, 1.1)
    assert second == {"name": "custom", "function": "ink:drop", "strength": 2}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('name = "turning"', "turning"),
        ("degrees = 3", "name"),
        ('name = "rotation"', "degrees"),
        ('name = "rotation"\ndegrees = 500', "180"),
        ('name = "rotation"\ndegrees = 5\nfill = "blue"', "edge"),
        ('name = "rotation"\ndegrees = 5\ndegree = 5', "degree"),
        ('name = "translation"', "either pixels or fraction"),
        ('name = "random_crop"\narea = [0.9, 0.5]', "least"),
        ('name = "custom"\nfunction = "ink"', "module:function"),
    ],
)
def test_a_transform_that_cannot_be_says_why(table: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        parsed(f"[[data.augment]]\n{table}")


def test_colours_of_whitened_images_are_refused() -> None:
    with pytest.raises(RecipeError, match="whiten"):
        parsed('[[data.augment]]\nname = "colour_jitter"\nbrightness = 0.1', whiten="true")


@pytest.mark.parametrize("name", ["hue", "saturation"])
def test_colours_of_grey_images_are_refused(name: str) -> None:
    table = f'[[data.augment]]\nname = "colour_jitter"\nbrightness = 0.1\n{name} = 0.5'
    with pytest.raises(RecipeError, match=f"colour_jitter transform with {name}, but grey images have none"):
        parsed(table)
    assert parsed(table.replace(name, "contrast")).name == "varied"


def test_strategy_batch_refuses_variants() -> None:
    with pytest.raises(RecipeError, match="strategy batch compares evaluations"):
        parsed('[[data.augment]]\nname = "rotation"\ndegrees = 5', strategy="batch")
