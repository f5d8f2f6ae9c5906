"""The choice of a tile by measurement, once for each class of shapes.

Knows: candidates, what makes two shapes alike, where choices are remembered. Does not know: operands, plans.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cotswold.kernels import library, store
from cotswold.kernels.machine import Machine
from cotswold.kernels.tile import Tile

SECONDS_MOST = 1.5
"""How long measuring may take, compiling not counted."""
ROUNDS = 3
WORTH_FLOPS = 2e7
"""Work below which nothing is measured: a default will do."""


@dataclass(frozen=True)
class Setting:
    """How a kernel runs: its tile, and how many k make a chunk, after which C passes through memory."""

    tile: Tile
    chunk: int

    def __str__(self) -> str:
        return f"{self.tile}, k by {self.chunk}" if self.chunk < EVERY else f"{self.tile}, all k"


EVERY = 1 << 30
"""A chunk that holds every k."""
PAIR_CHUNKS = (256, 1024)
"""Chunks for bfloat16, of which a copy in pairs must fit a cache."""


@dataclass(frozen=True)
class ShapeClass:
    """What the best setting depends on; the batch is not in it, but for whether it fills a vector."""

    kind: str
    dtype: str
    rows: int
    depth: int
    entry: int
    narrow: bool

    @classmethod
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
    """A setting, why it was taken, and the seconds that each candidate took."""

    setting: Setting
    why: str
    seconds: dict[str, float]


def candidates(processor: Machine, narrow: bool, dtype: str = "float32") -> list[Setting]:
    """Settings worth measuring; the first is the default."""
    if processor.registers >= 32:
        tiles = [Tile(8, 3), Tile(4, 3), Tile(24, 1)] if narrow else [Tile(8, 3), Tile(12, 2), Tile(6, 4)]
    else:
        tiles = [Tile(6, 2), Tile(4, 3), Tile(12, 1)] if narrow else [Tile(6, 2), Tile(4, 3)]
    chunks = PAIR_CHUNKS if dtype == "bfloat16" else (128, EVERY)
    return [Setting(tile, chunk) for tile in tiles for chunk in chunks]


_LOCK = threading.RLock()
_CHOICES: dict[tuple[ShapeClass, Machine], Choice] = {}


def choose(
    shape: ShapeClass, processor: Machine, flops: float, measured: Callable[[Setting], float]
) -> Choice:
    """The best setting of a class; ``measured`` runs one on the operands at hand and gives its seconds."""
    key = shape, processor
    found = _CHOICES.get(key)
    if found is not None:
        return found
    if flops < WORTH_FLOPS:
        return Choice(candidates(processor, shape.narrow, shape.dtype)[0], "too little work to measure", {})
    with _LOCK:
        if key not in _CHOICES:
            _CHOICES[key] = _recalled(shape, processor) or _measured(shape, processor, measured)
        return _CHOICES[key]


def _file(shape: ShapeClass, processor: Machine) -> str:
    return f"{shape.name}-{library.digest(processor)}.json"


def _recalled(shape: ShapeClass, processor: Machine) -> Choice | None:
    content = store.recall(_file(shape, processor))
    if content is None:
        return None
    told = json.loads(content)
    setting = Setting(Tile(*told["tile"]), told["chunk"])
    return (
        Choice(setting, "measured before", told["seconds"])
        if setting in candidates(processor, shape.narrow, shape.dtype)
        else None
    )


def _measured(shape: ShapeClass, processor: Machine, measured: Callable[[Setting], float]) -> Choice:
    settings = candidates(processor, shape.narrow, shape.dtype)
    for tile in {one.tile for one in settings}:
        library.kernel(shape.kind, shape.dtype, tile, processor)
    best: dict[Setting, float] = {}
    until = time.monotonic() + SECONDS_MOST
    for round_ in range(ROUNDS):
        for setting in settings:
            if round_ > 0 and time.monotonic() > until:
                break
            best[setting] = min(measured(setting), best.get(setting, math.inf))
    setting = min(best, key=lambda one: best[one])
    seconds = {str(one): value for one, value in best.items()}
    told = {"tile": [setting.tile.rows, setting.tile.vectors], "chunk": setting.chunk, "seconds": seconds}
    store.remember(_file(shape, processor), json.dumps(told).encode())
    return Choice(setting, "measured now", seconds)
