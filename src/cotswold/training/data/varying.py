"""The variants of training samples that a recipe asks for.

Knows: a recipe's `[[data.augment]]`. Does not know: pixels.
"""

from __future__ import annotations

from cotswold.data import Augmentation, Preparation, Store
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.recipe.schema import PictureData
from cotswold.recipe.schema.augment import Colour


def varying_of(recipe: Recipe, store: Store) -> Augmentation | None:
    """What makes variants of a store's samples; None where they stay as they are. Raises UserError for an own
    transform that is not there, and for colours where the store has none."""
    data = recipe.data
    if not isinstance(data, PictureData) or not data.augment:
        return None
    preparation = store.transform.preparation
    is_white = isinstance(preparation, Preparation) and preparation.whiten
    if is_white and any(isinstance(each, Colour) for each in data.augment):
        raise UserError(
            f"data.augment has a transform of colours, and the pictures of {store.path} are whitened; leave "
            "it out, or prepare pictures with whiten = false"
        )
    of_hues = any(isinstance(each, Colour) and (each.hue or each.saturation) for each in data.augment)
    if of_hues and store.shape.channels == 1:
        raise UserError(
            "data.augment has a colour transform with hue or saturation, and the pictures of "
            f"{store.path} are grey; take both out, or prepare pictures in colour"
        )
    return Augmentation.of([each.model_dump(exclude_none=True) for each in data.augment])
