"""Preparations and transforms of every kind.

Knows: that each kind has its own. Does not know: what they do.
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
    """The transform whose `state` this is, of pictures or of vectors; raises MalformedError for anything
    else."""
    preparation = state.get("preparation")
    if not isinstance(preparation, dict):
        raise MalformedError("describes no transform (it has no preparation)")
    return (VectorTransform if "features" in preparation else Transform).from_state(state)


def differing(there: AnyPreparation, here: AnyPreparation) -> list[tuple[str, object, object]]:
    """The fields of `[data]` in which two preparations give a network other values, with both values.

    As what a store keeps the values does not count, nor what whitening would do where there is none.
    """
    if there.kind != here.kind:
        return [("type", there.kind, here.kind)]
    unread = {"dtype", "kind"} | ({"band"} if isinstance(there, Preparation) and not there.whiten else set())
    names = [field.name for field in fields(there) if field.name not in unread]
    pairs = [(name, getattr(there, name), getattr(here, name)) for name in names]
    return [(name, one, other) for name, one, other in pairs if one != other]


def of_pictures(transform: AnyTransform) -> Transform:
    """The transform, if it is one of pictures; raises UserError for whoever wants pictures of vectors."""
    if isinstance(transform, Transform):
        return transform
    raise UserError(
        f"this is made for pictures, and the network learnt from {transform.preparation.kind}; "
        "cotswold.features gives what it answers to these"
    )
