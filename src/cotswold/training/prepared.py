"""How a run's pictures were prepared, as its checkpoints remember it.

Knows: the transform, the classes, the identity of the store that a run learnt from. Does not know: networks,
where stores are kept.

A network is of use with pictures that were prepared as its own were, and a store can be lost, or made anew
from a folder that has grown, with another whitening. So every checkpoint carries the transform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.data import AnyTransform, Store, transform_from_state
from cotswold.errors import CheckpointError
from cotswold.files import MalformedError, take

KEY = "prepared"
"""The name under which a checkpoint's state has it."""


@dataclass(frozen=True)
class Prepared:
    """What any other sample needs to be read by a run's network, and what its answers are called."""

    transform: AnyTransform
    classes: tuple[str, ...]
    """Names of the classes; empty without labels."""
    store: str
    """Identity of the store that the run learnt from."""

    @classmethod
    def of(cls, store: Store) -> Prepared:
        """That of a store."""
        return cls(store.transform, store.classes, store.identity)

    def state(self) -> dict[str, object]:
        """Everything, as JSON keeps it without loss."""
        return {"transform": self.transform.state(), "classes": list(self.classes), "store": self.store}

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> Prepared | None:
        """That of a checkpoint's state; None where it was written before checkpoints had it.

        Raises CheckpointError where it is not what `state` gave.
        """
        if KEY not in state:
            return None
        try:
            table: dict[str, object] = take(state, KEY, dict)
            classes: list[object] = take(table, "classes", list)
            transform = transform_from_state(take(table, "transform", dict))
            return cls(transform, tuple(map(str, classes)), take(table, "store", str))
        except (MalformedError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                "the checkpoint does not say how its pictures were prepared; it is of another version"
            ) from error
