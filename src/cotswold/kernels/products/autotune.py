"""Autotuning: the choice of a tile by measurement, once for each class of shapes.

Knows: candidates, the classes of shapes, the cache of choices. Does not know: operands, plans.

Other processes can only lengthen a measurement, so the shortest of many counts. If measurements differ much,
the machine was busy: a later process measures such a class again, a few times at most, and the shortest of
all measurements counts.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from cotswold.files import MalformedError, parse_object, take
from cotswold.kernels.compile import code_cache, engine
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.kinds import AMX_TILE, Tile
from cotswold.kernels.products import compiled

SECONDS_MOST = 1.5
"""Maximum seconds of measuring, without compilation."""
SECONDS_LEAST = 0.1
"""Seconds for which short calls are measured, so that other processes do not decide."""
ROUNDS, ROUNDS_MOST = 3, 50
MIN_SPEEDUP = 1.03
"""Minimum speedup over the default tile."""
NOISE_LIMIT = 1.25
"""Maximum ratio of a tile's median time to its shortest on an idle machine."""
MEASURED_MOST = 4
"""Maximum number of measurements of a class while the machine is busy."""
RETUNE_SECONDS = 3600.0
"""Seconds until the next measurement, when other load may have ended."""
WORTH_FLOPS = 2e7
"""Work below which nothing is measured and the default is used."""


@dataclass(frozen=True)
class TuningKey:
    """Tuning key of a tile: it depends on the threads, and on the batch only by whether it fills a vector."""

    kind: str
    dtype: str
    rows: int
    depth: int
    entry: int
    narrow: bool
    threads: int = 1

    @classmethod
    @lru_cache(maxsize=1024)
    def from_shape(
        cls, kind: str, dtype: str, rows: int, depth: int, entry: int, narrow: bool, threads: int = 1
    ) -> TuningKey:
        """Round rows of a task, its total k and that of an entry, so that near shapes share a class."""
        return cls(kind, dtype, min(rows, 256), _power(depth), _power(entry), narrow, threads)

    @property
    def name(self) -> str:
        """Name of the class in its file."""
        sizes = self.rows, self.depth, self.entry, int(self.narrow), self.threads
        return "-".join(map(str, (self.kind, self.dtype, *sizes)))


def _power(value: int) -> int:
    return 1 << round(math.log2(max(value, 1)))


@dataclass(frozen=True)
class Choice:
    """A tile, the reason for its choice, and the shortest seconds of each candidate.

    ``noise`` is the spread of the measurements of one tile, ``measured`` the number of measurements of the
    class, ``measured_at`` the time of the last, in seconds since 1970. While another thread measures the
    class, a choice ``is_provisional``: do not cache it.
    """

    tile: Tile
    reason: str
    seconds: dict[str, float]
    noise: float = 1.0
    measured: int = 1
    measured_at: float = 0.0
    is_provisional: bool = False

    def should_retune(self, now: float) -> bool:
        """Return True if it was measured on a busy machine and is due for another measurement."""
        waited = (
            not 0 <= now - self.measured_at < RETUNE_SECONDS
        )  # a clock that was set back gives no information
        return self.noise > NOISE_LIMIT and self.measured < MEASURED_MOST and waited


_TILES = {
    "avx512": ([Tile(8, 3), Tile(12, 2), Tile(6, 4)], [Tile(8, 3), Tile(6, 4), Tile(4, 3)]),
    "avx2": ([Tile(6, 2), Tile(4, 3)], [Tile(6, 2), Tile(4, 3), Tile(12, 1)]),
    "neon": ([Tile(6, 4), Tile(12, 2)], [Tile(6, 4), Tile(4, 3), Tile(12, 2)]),
}
"""Tiles that fill the registers, then tiles for few lanes; 8x3 on NEON would spill registers."""


AMX_ROWS, AMX_ENTRY = 8, 16
"""Rows, and k of an entry, from which AMX is faster: it packs 32 k at a time and computes 16 rows."""


def candidates(processor: Processor, shape: TuningKey) -> list[Tile]:
    """Return the tiles to measure; the first is the default.

    AMX has one tile, and a rule instead of a measurement, because its sums have other bits.
    """
    fills = shape.rows >= AMX_ROWS and shape.entry >= AMX_ENTRY
    if fills and Units.for_dtype(shape.dtype, processor, AMX_TILE).amx:
        return [AMX_TILE]
    wide, few = _TILES[processor.isa]
    return few if shape.narrow else wide


_LOCK = threading.RLock()
engine.lock_during_fork(_LOCK)
_CHOICES: dict[tuple[TuningKey, Processor], Choice] = {}
_measuring: set[tuple[TuningKey, Processor]] = set()
"""Classes that a thread of this process measures now, without the lock."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_measuring.clear)


@lru_cache(maxsize=8)
def default(processor: Processor, shape: TuningKey, reason: str = "too little work to measure") -> Choice:
    """Choice of a class that is not measured."""
    return Choice(candidates(processor, shape)[0], reason, {})


def choose(shape: TuningKey, processor: Processor, measured: Callable[[Tile], float]) -> Choice:
    """Return the best tile of a class; ``measured`` runs a tile on the given operands and returns seconds.

    While another thread measures the class, the result is provisional: what is known of the class, or the
    default.
    """
    key = shape, processor
    found = _CHOICES.get(key)
    if found is not None:
        return found
    if len(candidates(processor, shape)) == 1:
        return _CHOICES.setdefault(key, default(processor, shape, "the only tile of AMX"))
    with _LOCK:  # held for short times only, because forks wait for it
        if key in _CHOICES:
            return _CHOICES[key]
        known = _load_choice(shape, processor)
        if known is not None and not known.should_retune(time.time()):
            return _CHOICES.setdefault(key, known)
        if key in _measuring:  # by another thread: both would measure each other
            choice = known or default(processor, shape)
            return replace(choice, reason="another thread is measuring", is_provisional=True)
        _measuring.add(key)
    try:
        made = _measure(shape, processor, measured, known)
        return _CHOICES.setdefault(key, made)
    finally:
        _measuring.discard(key)


def _file(shape: TuningKey, processor: Processor) -> str:
    default = candidates(processor, shape)[0]
    return f"{shape.name}-{compiled.cache_key(shape.kind, shape.dtype, default, processor)}.json"


def _load_choice(shape: TuningKey, processor: Processor) -> Choice | None:
    content = code_cache.load(_file(shape, processor))
    if content is None:
        return None
    names = set(map(str, candidates(processor, shape)))
    try:
        told = parse_object(content)
        table = take(told, "seconds", dict)
        seconds = {name: take(table, name, float) for name in table}
        noise, when = take(told, "noise", float), take(told, "when", float)
        measured = take(told, "measured", int)
    except MalformedError:  # written by another version
        return None
    if not seconds or not seconds.keys() <= names:
        return None
    best = _best_tile(seconds, processor, shape)
    return Choice(best, "measured before", seconds, noise, measured, when)


def _measure(
    shape: TuningKey, processor: Processor, measured: Callable[[Tile], float], before: Choice | None
) -> Choice:
    """Measure a class; keep the shortest times of this and all earlier measurements."""
    tiles = candidates(processor, shape)
    for tile in tiles:
        compiled.kernel(shape.kind, shape.dtype, tile, processor)
    took: dict[Tile, list[float]] = {tile: [] for tile in tiles}
    begun = time.monotonic()
    until = begun + SECONDS_MOST
    for number in range(ROUNDS_MOST * len(tiles)):
        now, tile = time.monotonic(), tiles[number % len(tiles)]
        if (number and now > until) or (number >= ROUNDS * len(tiles) and now > begun + SECONDS_LEAST):
            break
        took[tile].append(measured(tile))
    seconds = dict(before.seconds) if before else {}
    for tile, each in took.items():
        if each:
            seconds[str(tile)] = min(*each, seconds.get(str(tile), math.inf))
    noise = max((statistics.median(one) / min(one) for one in took.values() if one), default=1.0)
    found = Choice(
        _best_tile(seconds, processor, shape),
        "measured now" if before is None else "measured again, because the machine was busy",
        seconds,
        noise,
        1 + (before.measured if before else 0),
        time.time(),
    )
    told = {"seconds": seconds, "noise": noise, "measured": found.measured, "when": found.measured_at}
    code_cache.save(_file(shape, processor), json.dumps(told).encode())
    return found


def _best_tile(seconds: Mapping[str, float], processor: Processor, shape: TuningKey) -> Tile:
    """Return the fastest tile, or the default if it is hardly slower."""
    tiles = candidates(processor, shape)
    fastest = min(tiles, key=lambda one: seconds.get(str(one), math.inf))
    return (
        tiles[0] if seconds.get(str(tiles[0]), math.inf) <= seconds[str(fastest)] * MIN_SPEEDUP else fastest
    )
