"""What a run's samples are, as its checkpoints remember it.

Knows: the transform, the classes or numbers to predict, the identity of the store that a run learnt from.
Does not know: networks, where stores are kept.

A network is of use with samples that were prepared as its own were, and a store can be lost, or made anew
from a folder that has grown, with another whitening. So every checkpoint carries the transform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from cotswold.data import AnyTransform, Store, transform_from_state
from cotswold.data.preprocessing.target_scale import TargetScale
from cotswold.errors import CheckpointError
from cotswold.files import MalformedError, take

KEY = "prepared"
"""The name under which a checkpoint's state has it."""


@dataclass(frozen=True)
class SampleSpec:
    """What any other sample needs to be read by a run's network, and what its answers are called."""

    transform: AnyTransform
    classes: tuple[str, ...]
    """Names of the classes; empty without labels."""
    store: str
    """Identity of the store that the run learnt from."""
    targets: int = 0
    """Numbers that were to be predicted for each sample; 0 for classes, and without labels."""
    target_scale: TargetScale | None = None
    """What standardised them for learning; None if they were learnt as they are."""

    @property
    def outputs(self) -> int:
        """Outputs of a network that has learnt the labels: one a class, or one a number; 0 without labels."""
        return len(self.classes) or self.targets

    @classmethod
    def of(cls, store: Store) -> SampleSpec:
        """That of a store."""
        return cls(store.transform, store.classes, store.identity, store.targets, store.target_scale)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Outputs of a network in the unit of the labels: the inverse of how these were standardised."""
        return outputs if self.target_scale is None else self.target_scale.restored(outputs)

    def state(self) -> dict[str, object]:
        """Everything, as JSON keeps it without loss."""
        return {
            "transform": self.transform.state(),
            "classes": list(self.classes),
            "store": self.store,
            "targets": self.targets,
            **({} if self.target_scale is None else {"target_scale": self.target_scale.state()}),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, object]) -> SampleSpec:
        """Return the one in a checkpoint's state; raises CheckpointError if there is none."""
        try:
            table: dict[str, object] = take(state, KEY, dict)
            classes: list[object] = take(table, "classes", list)
            transform = transform_from_state(take(table, "transform", dict))
            targets = take(table, "targets", int) if "targets" in table else 0
            scale = (
                TargetScale.from_state(take(table, "target_scale", dict)) if "target_scale" in table else None
            )
            return cls(transform, tuple(map(str, classes)), take(table, "store", str), targets, scale)
        except (MalformedError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                "the checkpoint does not say how its samples were prepared; it is of another version"
            ) from error
