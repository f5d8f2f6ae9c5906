"""Replicas whose servers save their state on disk, compared with replicas whose servers do not.

Knows: how both are opened, the order of training, the comparison. Does not know: the command, how results are
kept.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from cotswold import recipe as recipes
from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.recipe import Recipe, dump
from cotswold.replicas.replicas import Replicas
from lib.downpour.replicas import opened, stretch

LEAST_WANTED = 0.97
SETTLING_SECONDS = 1.0
_SELDOM_SECONDS = 60.0
"""Seconds between writes of one-copy servers "without disks", which have disks too: without a disk the run
would keep a growing log, which takes more time."""
_SILENCE_SECONDS = 600.0
"""Limit of silence, long enough for the paused replicas, which no program reads."""


class PersistencePair:
    """Two sets of replicas, which train alternately; use in a ``with`` statement."""

    def __init__(self, recipe: Recipe, store: Store, folder: Path | None, flush_seconds: float) -> None:
        """``folder`` is on the measured disk [the system's folder for temporary files]."""
        self._recipe, self._store = recipe, store
        self._folder, self._flush_seconds = folder, flush_seconds
        self._open = ExitStack()
        self._copies = 0
        self._sets: tuple[Replicas, Replicas] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def cell(self, copies: int, seconds: float) -> Document:
        """Measure samples per second with disks, without, without and with, for ``seconds`` each; return the
        rates and the processor time."""
        saving, plain = self._opened(copies)
        rates: dict[str, list[float]] = {"with": [], "without": []}
        used: dict[str, Document] = {}
        for name, replicas in (("with", saving), ("without", plain), ("without", plain), ("with", saving)):
            replicas.resume()
            replicas.proceed(SETTLING_SECONDS)
            rate, used[name] = stretch(replicas, seconds)
            rates[name].append(rate)
            replicas.pause()
        unsaved = [each.unsaved for each in saving.count() if each.unsaved is not None]
        first, other = (sum(rates[name]) / 2 for name in ("with", "without"))
        return {
            "copies": copies,
            "with": rounded(first),
            "without": rounded(other),
            "ratio": rounded(first / other),
            "used": used,
            "longest_window_seconds": rounded(max(each.longest_seconds for each in unsaved)),
        }

    def _opened(self, copies: int) -> tuple[Replicas, Replicas]:
        if self._sets is None or copies != self._copies:
            self._open.close()
            self._open, self._copies = ExitStack(), copies
            rows = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
            disks = Path(self._open.enter_context(tempfile.TemporaryDirectory(dir=self._folder)))
            seldom = _SELDOM_SECONDS if copies == 1 else None
            self._sets = (
                self._one(copies, rows, disks / "with", self._flush_seconds),
                self._one(copies, rows, disks / "without", seldom),
            )
        return self._sets

    def _one(self, copies: int, rows: Path, run: Path, flush_seconds: float | None) -> Replicas:
        overrides = [
            f"cluster.replication_factor={copies}",
            f"cluster.heartbeat_timeout={_SILENCE_SECONDS:g}",
        ]
        if flush_seconds is not None:
            overrides.append(f"cluster.flush_seconds={flush_seconds:g}")
        recipe = recipes.parse(dump(self._recipe), overrides=overrides)
        return self._open.enter_context(opened(recipe, self._store, rows, run=run))
