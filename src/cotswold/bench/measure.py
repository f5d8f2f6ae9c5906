"""Interleaved measurement on a machine that others use too.

Knows: interleaving, medians and spread, the machine's description in a result. Does not know: what is
measured.

The clock of a shared machine drifts by a factor of two within a minute. So everything that is compared runs
in turn, round after round, and is compared round by round: a slow second slows both.
"""

from __future__ import annotations

import gc
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import quantiles
from typing import TypeVar

Document = dict[str, object]
"""A result of measurements; JSON."""
Clock = Callable[[], float]
Key = TypeVar("Key")

UNTIMED_SECONDS = 0.25
"""Calls of this length are hardly affected by earlier work."""
SHORTEST_SECONDS = 2e-3
"""A shorter action is repeated within a sample until it takes about this long."""
REPEATS_MOST = 1000
_DIGITS = 5
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Spread:
    """Minimum, quartiles and maximum of some samples."""

    least: float
    lower: float
    median: float
    upper: float
    greatest: float

    @classmethod
    def from_samples(cls, samples: Sequence[float]) -> Spread:
        """Compute quartiles by linear interpolation."""
        if len(samples) == 1:
            return cls(*[samples[0]] * 5)
        lower, median, upper = quantiles(samples, n=4, method="inclusive")
        return cls(min(samples), lower, median, upper, max(samples))

    def as_dict(self) -> dict[str, float]:
        """The five numbers by name, rounded."""
        return {name: rounded(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Rounds:
    """Bounds on the number of rounds.

    At most ``max_rounds``, none after ``seconds``, but at least ``min_rounds``. An action with calls longer
    than ``slow_seconds`` is excluded from the rounds.
    """

    max_rounds: int
    min_rounds: int = 1
    seconds: float = inf
    slow_seconds: float = inf


def interleaved(
    actions: Mapping[Key, Callable[[], object]], rounds: int | Rounds, clock: Clock = time.perf_counter
) -> dict[Key, list[float]]:
    """Seconds of every action in every round, after one round that does not count.

    Each round starts with another action, so that the order varies. Before a sample a short action runs once
    untimed: threads of libraries spin for a while after their work, and caches hold others' data. An action
    that is too slow for the rounds has one sample.
    """
    limits = rounds if isinstance(rounds, Rounds) else Rounds(rounds)
    probes = {key: _probe(action, clock) for key, action in actions.items()}
    keys = [key for key, seconds in probes.items() if seconds <= limits.slow_seconds]
    repeats = {key: max(1, min(REPEATS_MOST, round(SHORTEST_SECONDS / probes[key]))) for key in keys}
    samples: dict[Key, list[float]] = {key: [] if key in repeats else [probes[key]] for key in actions}
    with _no_collection():
        begun = clock()
        for number in range(limits.max_rounds if keys else 0):
            if number >= limits.min_rounds and clock() - begun > limits.seconds:
                break
            first = number % len(keys)
            for key in keys[first:] + keys[:first]:
                if probes[key] < UNTIMED_SECONDS:
                    actions[key]()
                samples[key].append(_sample(actions[key], repeats[key], clock))
    return samples


def _probe(action: Callable[[], object], clock: Clock) -> float:
    """Seconds of the second call; the first may compile."""
    _sample(action, 1, clock)
    return max(_sample(action, 1, clock), 1e-9)


def _sample(action: Callable[[], object], repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        action()
    return (clock() - start) / repeats


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def rates(work: float, seconds: Sequence[float]) -> Spread:
    """Work per second."""
    return Spread.from_samples([work / one for one in seconds])


def ratios(first: Sequence[float], second: Sequence[float]) -> Spread:
    """First over second, round by round; a single sample stands for every round."""
    first, second = (list(first) * len(second), second) if len(first) == 1 else (first, second)
    second = list(second) * len(first) if len(second) == 1 else second
    return Spread.from_samples([a / b for a, b in zip(first, second, strict=True)])


def rounded(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def rounded_all(values: Sequence[float]) -> list[float]:
    """Round each value to five significant digits."""
    return [rounded(value) for value in values]


@contextmanager
def threads_in_children(threads: int) -> Iterator[None]:
    """Limit processes that start in the block to ``threads`` threads, for every library."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def document(bench: str, command: str, **content: object) -> Document:
    """A result: its command, commit, machine and load, then the measurements."""
    from cotswold.run import describe_environment

    load = [rounded(value) for value in os.getloadavg()]
    machine = {**describe_environment(), "target": _target()}
    told = {"bench": bench, "command": command, **source_commit(Path(__file__).parent)}
    return {**told, "machine": machine, "load": load, **content}


def source_commit(folder: Path) -> dict[str, object]:
    """Return the commit of a folder in a repository, and whether tracked files differ from it.

    Both are None for an installed package, even if its environment is inside another repository.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
            )
        except OSError:  # git is not installed
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", ".") is not None else None
    changes = git("status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _target() -> str | None:
    """Return LLVM's name of this processor and the instruction set of its kernels; None without kernels."""
    try:
        from cotswold.kernels.machine.processor import this_processor
    except (ImportError, OSError):
        return None
    here = this_processor()
    return None if here is None else f"{here.cpu} {here.isa}{' amx' if here.has_amx else ''}"
