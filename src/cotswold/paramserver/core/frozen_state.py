"""The state of a server's shards at a checkpoint, until the coordinator has taken it.

Knows: copies of vectors, versions, samples. Does not know: when shards freeze
(`paramserver.core.update_server`), where numbers are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from cotswold.shards.core.shard_server import Arithmetic, Values
from cotswold.wire import FrozenPart, PullFrozen, Ranges


@dataclass(frozen=True)
class CheckpointState(Generic[Values]):
    """The shards at a checkpoint: all updates before the markers, and none after them."""

    checkpoint: int
    vectors: Mapping[str, list[Values]]
    """The weights and the state vectors of the rule, in the order of the shards."""
    versions: tuple[int, ...]
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    """(session, applied, permanently refused) of the sessions that were live since the checkpoint began."""


def frozen_part(
    frozen: CheckpointState[Values] | None,
    server: str,
    numbers: Sequence[int],
    pull: PullFrozen,
    arithmetic: Arithmetic[Values],
) -> FrozenPart:
    """Return the reply of ``server``, whose shards are ``numbers``, to a pull of its frozen state."""
    place = {number: place for place, number in enumerate(numbers)}
    if frozen is None or frozen.checkpoint != pull.checkpoint:
        error = f"checkpoint {pull.checkpoint} is not kept"
    elif pull.name not in frozen.vectors:
        error = f"unknown vector {pull.name!r}"
    elif not place.keys() >= set(pull.shards):
        error = f"this server does not have shards {sorted(set(pull.shards) - place.keys())}"
    else:
        return FrozenPart(
            server,
            pull.checkpoint,
            pull.name,
            pull.shards,
            tuple(frozen.versions[place[number]] for number in pull.shards),
            tuple(arithmetic.write(frozen.vectors[pull.name][place[number]]) for number in pull.shards),
        )
    return FrozenPart(server, pull.checkpoint, pull.name, (), (), (), error)
