"""The position of a run in a checkpoint's state.

Knows: phases and steps by number. Does not know: trainers, strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cotswold.checkpoint import OptionalTensor, StateDict
from cotswold.errors import CheckpointError

RANDOM = "random"
"""The key of torch's CPU random state in checkpoints, which the strategy provides or the trainer adds."""


@dataclass
class Position:
    """The position of the next step in the run."""

    phase: int = 0
    step: int = 0
    total: int = 0
    """Steps taken in all phases."""


def position_from(state: Mapping[str, object]) -> Position:
    """Return the position in a checkpoint; raises CheckpointError if there is none."""
    found = state.get("position")
    if (
        not isinstance(found, dict)
        or set(found) != {"phase", "step", "total"}
        or not all(type(value) is int and value >= 0 for value in found.values())
    ):
        raise CheckpointError("the checkpoint lacks its position in the run; another version wrote it")
    return Position(**found)


def require_table(state: Mapping[str, object], name: str) -> dict[str, Any]:
    """Return a table of a checkpoint's state; raises CheckpointError without it."""
    table = state.get(name)
    if not isinstance(table, dict):
        raise CheckpointError(f"the checkpoint has no {name}; another version wrote it")
    return table


def with_random(state: StateDict) -> StateDict:
    """Add torch's random state, which dropout uses, unless the state of the strategy has it.

    Older checkpoints may lack it.
    """
    return state if RANDOM in state else {**state, RANDOM: OptionalTensor(torch.get_rng_state())}
