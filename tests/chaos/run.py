"""Millions of lives over several processes, for `benchmarks/chaos.py`. A file keeps the results.

Knows: processes, the file of results. Does not know: the command's options, the contents of a life.
"""

from __future__ import annotations

import json
import multiprocessing
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS
from tests.chaos.runs import Broken, SimulationRuns, lived
from tests.chaos.worlds import WORLDS

import cotswold
from cotswold.errors import UserError

_SAY_SECONDS = 5.0
_TOGETHER = 20
"""Number of lives in a task."""
_AHEAD = 2
"""Waiting tasks per process."""


def chosen(worlds: Sequence[str]) -> list[str]:
    """Return the names of worlds [all]. Raises UserError for an unknown name."""
    for name in worlds:
        if name not in WORLDS:
            raise UserError(f"no world {name!r}; there are: {', '.join(WORLDS)}")
    return list(worlds) or list(WORLDS)


def live_copies(
    worlds: Sequence[str] = (),
    seeds: range = range(100),
    *,
    fault: str | None = None,
    processes: int = 1,
    out: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[SimulationRuns]:
    """Run every seed in every world until one breaks there, with a planted fault if one is named.

    ``out``: a directory whose chaos.json keeps results. Lives in it with the same program, fault and first
    seed do not run again. Raises UserError for an unknown world or fault.
    """
    if fault is not None and fault not in FAULTS:
        raise UserError(f"no fault {fault!r}; there are: {', '.join(FAULTS)}")
    kept = _ResultFile(None if out is None else out / "chaos.json", seeds.start, fault, say)
    found = {name: kept.of.get(name, SimulationRuns(name)) for name in chosen(worlds)}
    kept.of |= found
    try:
        _live(found, seeds, fault, processes, kept, say)
    finally:
        kept.write()
    return list(found.values())


def _live(
    found: dict[str, SimulationRuns],
    seeds: range,
    fault: str | None,
    processes: int,
    kept: _ResultFile,
    say: Callable[[str], None],
) -> None:
    said = began = time.monotonic()
    here = 0
    for name, more in _outcomes(_chunks(found, seeds), fault, processes):
        lives = found[name]
        if lives.broken is not None:
            continue
        lives.add(more)
        here += more.lives
        now = time.monotonic()
        if now - said > _SAY_SECONDS:
            said = now
            kept.write()
            state = "nothing is broken" if lives.broken is None else f"seed {lives.broken.seed} is broken"
            so_far = f"{lives.lives:,} of {len(seeds):,} lives, {here / (now - began):.1f} lives a second"
            say(f"{name}: {so_far}, {state}")


def _chunks(found: dict[str, SimulationRuns], seeds: range) -> Iterator[tuple[str, range]]:
    """Yield the tasks, world by world, until a life of the world breaks."""
    for name, lives in found.items():
        for start in range(lives.lives, len(seeds), _TOGETHER):
            if lives.broken is not None:
                break
            yield name, seeds[start : start + _TOGETHER]


def _outcomes(
    chunks: Iterator[tuple[str, range]], fault: str | None, processes: int
) -> Iterator[tuple[str, SimulationRuns]]:
    """Yield the results in the same order."""
    if processes == 1:
        yield from ((name, lived(name, seeds, fault)) for name, seeds in chunks)
        return
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(processes, context)
    try:
        waiting: deque[tuple[str, Future[SimulationRuns]]] = deque()
        while True:
            for name, seeds in islice(chunks, _AHEAD * processes - len(waiting)):
                waiting.append((name, pool.submit(lived, name, seeds, fault)))
            if not waiting:
                return
            name, outcome = waiting.popleft()
            yield name, outcome.result()
    finally:
        pool.shutdown(cancel_futures=True)


class _ResultFile:
    """Results so far, in a file if there is one."""

    def __init__(self, path: Path | None, first: int, fault: str | None, say: Callable[[str], None]) -> None:
        self._path, self._key = path, {"program": _program(), "first": first, "fault": fault}
        self.of: dict[str, SimulationRuns] = {}
        """Results by world."""
        if path is None or not path.exists():
            return
        told = json.loads(path.read_text())
        if any(told.get(name) != value for name, value in self._key.items()):
            say(f"{path} is of another program, fault or first seed: all is lived anew")
            return
        self.of = {each["world"]: _lives(each) for each in told["worlds"]}

    def write(self) -> None:
        """Write the file atomically."""
        if self._path is None:
            return
        told = {**self._key, "worlds": [each.as_json() for each in self.of.values()]}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(told, indent=1) + "\n")
        new.replace(self._path)


def _lives(told: dict[str, Any]) -> SimulationRuns:
    broken = told.pop("broken")
    return SimulationRuns(**told, broken=None if broken is None else Broken(**broken))


def _program() -> int:
    """Return a checksum of the machines, the network and the lives: if it differs, seeds mean other lives."""
    assert cotswold.__file__ is not None, "the package has files"
    root, here, number = Path(cotswold.__file__).parent, Path(__file__).parent, 0
    own = [path for path in here.glob("*.py") if not path.name.startswith("test_")]
    folders = [root / name for name in ("shards", "paramserver", "replication", "wire", "simulate")]
    assert all(folder.is_dir() for folder in folders), "the packages of the machines"
    for path in sorted([*(path for folder in folders for path in folder.rglob("*.py")), *own]):
        number = zlib.crc32(path.read_bytes(), number)
    return number
