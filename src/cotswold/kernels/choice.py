"""The choice of a tile by measurement, once for each class of shapes.

Knows: candidates, what makes two shapes alike, where choices are remembered. Does not know: operands, plans.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from cotswold.kernels import engine, library, product_kernels, store
from cotswold.kernels.machine import Machine
from cotswold.kernels.tile import Tile

SECONDS_MOST = 1.5
"""How long measuring may take, compiling not counted."""
SECONDS_LEAST = 0.1
"""How long short calls are measured, so that other processes do not decide."""
ROUNDS, ROUNDS_MOST = 3, 50
WORTH = 1.03
"""By how much another tile than the default must be faster."""
WORTH_FLOPS = 2e7
"""Work below which nothing is measured: a default will do."""


@dataclass(frozen=True)
class ShapeClass:
    """What the best tile depends on; the batch is not in it, but for whether it fills a vector."""

    kind: str
    dtype: str
    rows: int
    depth: int
    entry: int
    narrow: bool

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, kind: str, dtype: str, rows: int, depth: int, entry: int, narrow: bool) -> ShapeClass:
        """Rows of a task, its k in all and that of an entry, rounded so that near shapes share a class."""
        return cls(kind, dtype, min(rows, 256), _power(depth), _power(entry), narrow)

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.kind}-{self.dtype}-{self.rows}-{self.depth}-{self.entry}-{int(self.narrow)}"


def _power(value: int) -> int:
    return 1 << round(math.log2(max(value, 1)))


@dataclass(frozen=True)
class Choice:
    """A tile, why it was taken, and the seconds that each candidate took."""

    tile: Tile
    why: str
    seconds: dict[str, float]


_TILES = {
    "avx512": ([Tile(8, 3), Tile(12, 2), Tile(6, 4)], [Tile(8, 3), Tile(6, 4), Tile(4, 3)]),
    "avx2": ([Tile(6, 2), Tile(4, 3)], [Tile(6, 2), Tile(4, 3), Tile(12, 1)]),
    "neon": ([Tile(6, 4), Tile(12, 2)], [Tile(6, 4), Tile(4, 3), Tile(12, 2)]),
}
"""Tiles that fill the registers, and those where lanes are few; 8x3 on NEON would move them to and fro."""


def candidates(processor: Machine, narrow: bool) -> list[Tile]:
    """Tiles worth measuring; the first is the default."""
    wide, few = _TILES[processor.isa]
    return few if narrow else wide


_LOCK = threading.RLock()
_CHOICES: dict[tuple[ShapeClass, Machine], Choice] = {}


@lru_cache(maxsize=8)
def default(processor: Machine, narrow: bool) -> Choice:
    """The choice for so little work that measuring would cost more than it gains."""
    return Choice(candidates(processor, narrow)[0], "too little work to measure", {})


def choose(shape: ShapeClass, processor: Machine, measured: Callable[[Tile], float]) -> Choice:
    """The best tile of a class; ``measured`` runs one on the operands at hand and gives its seconds."""
    key = shape, processor
    found = _CHOICES.get(key)
    if found is not None:
        return found
    with _LOCK:
        if key not in _CHOICES:
            _CHOICES[key] = _recalled(shape, processor) or _measured(shape, processor, measured)
        return _CHOICES[key]


def _file(shape: ShapeClass, processor: Machine) -> str:
    default = candidates(processor, shape.narrow)[0]
    return f"{shape.name}-{product_kernels.edition(shape.kind, shape.dtype, default, processor)}.json"


def _recalled(shape: ShapeClass, processor: Machine) -> Choice | None:
    content = store.recall(_file(shape, processor))
    if content is None:
        return None
    told = json.loads(content)
    tile = Tile(*told["tile"])
    known = tile in candidates(processor, shape.narrow)
    return Choice(tile, "measured before", told["seconds"]) if known else None


def _measured(shape: ShapeClass, processor: Machine, measured: Callable[[Tile], float]) -> Choice:
    tiles = candidates(processor, shape.narrow)
    for tile in tiles:
        product_kernels.kernel(shape.kind, shape.dtype, tile, processor)
    best: dict[Tile, float] = {}
    begun = time.monotonic()
    until = begun + SECONDS_MOST
    for number in range(ROUNDS_MOST * len(tiles)):
        now, tile = time.monotonic(), tiles[number % len(tiles)]
        if (best and now > until) or (number >= ROUNDS * len(tiles) and now > begun + SECONDS_LEAST):
            break
        best[tile] = min(measured(tile), best.get(tile, math.inf))
    fastest = min(best, key=lambda one: best[one])
    if best[tiles[0]] <= best[fastest] * WORTH:
        fastest = tiles[0]
    seconds = {str(one): value for one, value in best.items()}
    told = {"tile": [fastest.rows, fastest.vectors], "seconds": seconds}
    store.remember(_file(shape, processor), json.dumps(told).encode())
    return Choice(fastest, "measured now", seconds)


def _hold_locks() -> None:
    for lock in (_LOCK, library.LOCK, engine.LOCK):
        lock.acquire()


def _release_locks() -> None:
    for lock in (engine.LOCK, library.LOCK, _LOCK):
        lock.release()


if hasattr(os, "register_at_fork"):
    # a child must not inherit a lock, LLVM's own among them, that a thread it does not have holds
    os.register_at_fork(before=_hold_locks, after_in_parent=_release_locks, after_in_child=_release_locks)
