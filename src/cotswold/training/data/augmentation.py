"""The augmentation that a recipe requests.

Knows: a recipe's `[[data.augment]]`. Does not know: pixels.
"""

from __future__ import annotations

from cotswold.data import Augmentation, Preparation, Store
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.recipe.schema import ImageData
from cotswold.recipe.schema.augment import ColourJitter


def augmentation_of(recipe: Recipe, store: Store) -> Augmentation | None:
    """Return the augmentation for a store's samples; None if there is none.

    Raises UserError for a missing custom transform, and for colour_jitter with a store without colours.
    """
    data = recipe.data
    if not isinstance(data, ImageData) or not data.augment:
        return None
    preparation = store.transform.preparation
    is_white = isinstance(preparation, Preparation) and preparation.whiten
    if is_white and any(isinstance(each, ColourJitter) for each in data.augment):
        raise UserError(
            f"data.augment has a colour_jitter transform, but the images of {store.path} are whitened; "
            "remove it, or prepare images with whiten = false"
        )
    of_hues = any(isinstance(each, ColourJitter) and (each.hue or each.saturation) for each in data.augment)
    if of_hues and store.shape.channels == 1:
        raise UserError(
            "data.augment has a colour_jitter transform with hue or saturation, but the images of "
            f"{store.path} are grey; remove both, or prepare images in colour"
        )
    return Augmentation.of([each.model_dump(exclude_none=True) for each in data.augment])
