"""Descriptions of runs: valid, nearly valid, and longer than the controllers' metadata store accepts.

Knows: the contents of a description. Does not know: the receiver.
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
"""Geometry of a locally connected layer with as many rows and columns."""
_WRONG: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, -4, 3.5, 4.0, 1e300, float("nan"), float("inf"), 1 << 40, 1 << 70),
    *("x", "", "0", "velocity", "\ud800", [], [[]], {}, {"weights": []}, {"weights": [0] * 15}, ["1"]),
)
_LONG_LETTERS = 290_000


def described(run: str, tensor: str = "weights", products: bool = False) -> Description:
    """Return the description of a small run: three buckets with one vector each."""
    settings = AsyncSettings(
        *(run, "x", Momentum(0.9), {tensor: COLUMNS}, 4, QueueLimits(1 << 20, 1 << 20), Staleness()),
        products={tensor: _GEOMETRY} if products else {},
    )
    return Description(
        run, ((tensor, ROWS, COLUMNS),), "float32", SHARD_BYTES, BUCKETS, settings_as_dict(settings)
    )


def spoilt(random: Random, run: str) -> str:
    """Return a description with one or two values replaced."""
    whole: Any = json.loads(described(run, products=random.random() < 0.3).text)
    for _ in range(random.randrange(1, 3)):
        inside, key = random.choice(_places(whole))
        inside[key] = deepcopy(random.choice(_WRONG))  # the next replacement may be inside it
    return json.dumps(whole)


def long(run: str) -> str:
    """Return a valid description with few enough letters, but too many bytes for a transaction."""
    return json.dumps(json.loads(described(run, "\u20ac" * _LONG_LETTERS).text), ensure_ascii=False)


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Return all places inside a value, each with its container."""
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [place for key in keys for place in ((node, key), *_places(node[key]))]
