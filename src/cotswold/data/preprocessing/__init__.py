"""Preparations and transforms of every kind of data.

Knows: the types of each kind. Does not know: their effect.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cotswold.data.preprocessing.images import Preparation, Transform
from cotswold.data.preprocessing.vectors import VectorPreparation, VectorTransform
from cotswold.errors import UserError
from cotswold.files import MalformedError

AnyPreparation = Preparation | VectorPreparation
AnyTransform = Transform | VectorTransform


def transform_from_state(state: dict[str, Any]) -> AnyTransform:
    """Restore the transform of images or vectors from its `state`.

    Args:
        state: A value of `Transform.state` or `VectorTransform.state`.

    Raises:
        MalformedError: for anything else.
    """
    preparation = state.get("preparation")
    if not isinstance(preparation, dict):
        raise MalformedError("does not describe a transform (it has no preparation)")
    return (VectorTransform if "features" in preparation else Transform).from_state(state)


def differing_fields(old: AnyPreparation, new: AnyPreparation) -> list[tuple[str, object, object]]:
    """Return the fields of `[data]` in which two preparations differ for a network, with both values.

    The dtype of a store does not count, nor do parameters of a disabled whitening.

    Args:
        old: One preparation.
        new: The other.

    Returns:
        (field, value in ``old``, value in ``new``) for each difference.
    """
    if old.kind != new.kind:
        return [("type", old.kind, new.kind)]
    unread = {"dtype", "kind"} | (
        {"whiten_cutoff"} if isinstance(old, Preparation) and not old.whiten else set()
    )
    names = [field.name for field in fields(old) if field.name not in unread]
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in names]
    return [(name, one, other) for name, one, other in pairs if one != other]


def as_image_transform(transform: AnyTransform) -> Transform:
    """Return ``transform`` if it is one of images.

    Args:
        transform: Any transform.

    Raises:
        UserError: if the transform is one of vectors.
    """
    if isinstance(transform, Transform):
        return transform
    raise UserError(
        f"this function needs images, but the network learnt from {transform.preparation.kind}; "
        "cotswold.features returns its outputs for these"
    )
