"""The sample spec: the preparation of a run's samples, stored in its checkpoints.

Knows: the transform, the classes or regression targets, the identity of the run's store. Does not know:
networks, where stores are kept.

A network needs samples prepared like its training samples. The store can be lost, or prepared again from a
folder that has grown, with another whitening. So every checkpoint carries the transform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from cotswold.data import AnyTransform, Store, VectorTransform, transform_from_state
from cotswold.data.preprocessing.target_scale import TargetScale
from cotswold.errors import CheckpointError
from cotswold.files import MalformedError, take

KEY = "prepared"
"""The key in a checkpoint's state."""


@dataclass(frozen=True)
class SampleSpec:
    """The preparation that a run's network needs, and the names of its outputs.

    Args:
        transform: The transform from source samples to inputs.
        classes: Names of the classes; empty without labels.
        store: Identity of the store of the training samples.
        targets: Number of regression targets per sample; 0 for classes, and without labels.
        target_scale: The standardisation of the targets; None if they were not standardised.
    """

    transform: AnyTransform
    classes: tuple[str, ...]
    """Names of the classes; empty without labels."""
    store: str
    """Identity of the store of the training samples."""
    targets: int = 0
    """Number of regression targets per sample; 0 for classes, and without labels."""
    target_scale: TargetScale | None = None
    """The standardisation of the targets; None if they were not standardised."""

    @property
    def outputs(self) -> int:
        """Outputs of the network: one per class or regression target; 0 without labels."""
        return len(self.classes) or self.targets

    @property
    def target_names(self) -> tuple[str, ...]:
        """Name of the column that a table's network predicts; empty for other samples."""
        if not self.targets or not isinstance(self.transform, VectorTransform):
            return ()
        table = self.transform.preparation.table
        return () if table is None or table.target is None else (table.target,)

    @classmethod
    def of(cls, store: Store) -> SampleSpec:
        """Return the spec of a store.

        Args:
            store: The store of the samples.

        Returns:
            The spec of the store's samples.
        """
        return cls(store.transform, store.classes, store.identity, store.targets, store.target_scale)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Return outputs of a network in the unit of the labels, with their standardisation undone.

        Args:
            outputs: Outputs ``(sample, output)``.

        Returns:
            Predictions ``(sample, output)`` in the unit of the labels.
        """
        return outputs if self.target_scale is None else self.target_scale.restored(outputs)

    def state(self) -> dict[str, object]:
        """Return the spec as JSON-compatible values, without loss."""
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
                "the checkpoint lacks the preparation of its samples; another version wrote it"
            ) from error
