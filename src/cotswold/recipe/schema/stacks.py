"""`[training]` of the strategies that train stacks: greedy and joint.

Knows: fields, units and defaults. Does not know: what a strategy does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cotswold.recipe.schema.fields import (
    Positive,
)
from cotswold.recipe.schema.strategy import StackObjective, SteppedTraining


class StackTraining(SteppedTraining):
    """Settings of the strategies that train stacks."""

    objective = StackObjective
    refused: ClassVar[Mapping[str, str]] = {
        "optimizer": "stacks are trained by SGD in their own kernels: set training.momentum",
        "precision": "the kernels of stacks compute in float32: remove it",
    }

    relative_rate: Positive = 2.0
    """Learning rate in units of 1 / (α fan-in), so that one value suits every data set and stack; about
    100 times the usual value for SGD.
    """
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Fraction of the last step that is kept."""
    offload: Literal["none", "disk"] = "none"
    """`none`: filters and momenta are in memory; `disk`: they are in files in the run directory and pass
    through memory once per pass over the data, for stacks larger than memory.
    """


class GreedyTraining(StackTraining):
    """One stack after another, without labels."""

    strategy: Literal["greedy"] = "greedy"
    """`greedy`: train each stack on the output of the stacks below, which stay fixed."""


class JointTraining(StackTraining):
    """All stacks at once, without labels."""

    strategy: Literal["joint"] = "joint"
    """`joint`: every step updates every stack."""
