"""Descriptions of runs, right, nearly right, and longer than the state of controllers takes.

Knows: what a description has inside. Does not know: who hears it.
"""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

from cotswold.optim.server_rules import Momentum
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.replication.run_description import Description

ROWS, COLUMNS, SHARD_BYTES, BUCKETS = 24, 4, 64, 3
_GEOMETRY = (0, *(1, ROWS, COLUMNS), *(1, 1, 0, 0), *(1, 1, 0, 0), *(1, 1, 1))
"""Of a locally connected layer that has as many rows and columns."""
_WRONG: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, -4, 3.5, 4.0, 1e300, float("nan"), float("inf"), 1 << 40, 1 << 70),
    *("x", "", "0", "velocity", "\ud800", [], [[]], {}, {"weights": []}, {"weights": [0] * 15}, ["1"]),
)
_LONG_LETTERS = 290_000


def described(run: str, tensor: str = "weights", products: bool = False) -> Description:
    """A small run: three buckets, of a vector each."""
    settings = AsyncSettings(
        *(run, "x", Momentum(0.9), {tensor: COLUMNS}, 4, QueueLimits(1 << 20, 1 << 20), Staleness()),
        products={tensor: _GEOMETRY} if products else {},
    )
    return Description(
        run, ((tensor, ROWS, COLUMNS),), "float32", SHARD_BYTES, BUCKETS, settings_as_dict(settings)
    )


def spoilt(random: Random, run: str) -> str:
    """One with other values in a place or two."""
    whole: Any = json.loads(described(run, products=random.random() < 0.3).text)
    for _ in range(random.randrange(1, 3)):
        inside, key = random.choice(_places(whole))
        inside[key] = deepcopy(random.choice(_WRONG))  # what is spoilt next may be inside
    return json.dumps(whole)


def long(run: str) -> str:
    """A right one of fewer letters than a description may have, and more bytes than a transaction."""
    return json.dumps(json.loads(described(run, "\u20ac" * _LONG_LETTERS).text), ensure_ascii=False)


def _places(node: Any) -> list[tuple[Any, Any]]:
    """All places in a value that have one, with what has them."""
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [place for key in keys for place in ((node, key), *_places(node[key]))]
