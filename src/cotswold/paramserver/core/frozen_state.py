"""The state of a server's shards that is kept at a checkpoint, until the coordinator has taken it.

Knows: copies of vectors, versions, samples. Does not know: when shards freeze (`updating`), where numbers
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from cotswold.shards.core.shard_server import Arithmetic, Values
from cotswold.wire import FrozenPart, PullFrozen, Ranges


@dataclass(frozen=True)
class Frozen(Generic[Values]):
    """The shards at a checkpoint: all updates before the markers, and none behind."""

    checkpoint: int
    vectors: Mapping[str, list[Values]]
    """The weights and what the rule keeps, in the shards' order."""
    versions: tuple[int, ...]
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    """(session, what is in them, what was refused for ever), of those that have lived since it began."""


def part_of(
    frozen: Frozen[Values] | None,
    server: str,
    numbers: Sequence[int],
    pull: PullFrozen,
    arithmetic: Arithmetic[Values],
) -> FrozenPart:
    """The answer of ``server``, whose shards are ``numbers``, to a pull of what it has kept."""
    place = {number: place for place, number in enumerate(numbers)}
    if frozen is None or frozen.checkpoint != pull.checkpoint:
        error = f"checkpoint {pull.checkpoint} is not kept"
    elif pull.name not in frozen.vectors:
        error = f"there is no vector {pull.name!r}"
    elif not place.keys() >= set(pull.shards):
        error = f"shards {sorted(set(pull.shards) - place.keys())} are not here"
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
