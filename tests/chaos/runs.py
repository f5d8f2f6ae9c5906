"""Series of lives in a world, in this process, and their results.

Knows: worlds, seeds, planted faults. Does not know: the number of processes, files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass

from tests.chaos.faults import FAULTS
from tests.chaos.invariants import BrokenError
from tests.chaos.simulation import Simulation
from tests.chaos.trace import Trace
from tests.chaos.worlds import WORLDS

_ESCAPED = AssertionError, LookupError, TypeError, ValueError
"""Exceptions that a state machine raises in an impossible state."""


@dataclass(frozen=True)
class Broken:
    """A life that violated a requirement."""

    world: str
    seed: int
    sentence: str


@dataclass
class SimulationRuns:
    """Results of the lives in a world."""

    world: str
    lives: int = 0
    judged: int = 0
    """Number of lives judged at their end: all but those that lost a bucket where the world allows it."""
    seconds: float = 0.0
    """Processor seconds of this machine."""
    lived_seconds: float = 0.0
    """Simulated seconds."""
    messages: int = 0
    said: int = 0
    """Judged messages of servers to clients."""
    broken: Broken | None = None
    """The first broken life; later ones do not run."""

    def add(self, more: SimulationRuns) -> None:
        """Add the results of later lives."""
        for name in ("lives", "judged", "seconds", "lived_seconds", "messages", "said"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.broken = more.broken

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return asdict(self)


def lived(world: str, seeds: range, fault: str | None = None) -> SimulationRuns:
    """Run these seeds until one breaks, with a planted fault if one is named."""
    lives, began = SimulationRuns(world), time.process_time()
    with nullcontext() if fault is None else FAULTS[fault].planted():
        for seed in seeds:
            life = Simulation(seed, WORLDS[world])
            lives.broken = _broken(world, seed, life.live, fault)
            lives.lives += 1
            lives.judged += not life.is_lost
            lives.lived_seconds += life.loop.now
            lives.messages += life.network.messages
            lives.said += life.judge.said
            if lives.broken is not None:
                break
    lives.seconds = time.process_time() - began
    return lives


def transcript(world: str, seed: int, fault: str | None = None) -> list[str]:
    """Run the same life again and return its readable transcript, with the failure as last line."""
    with nullcontext() if fault is None else FAULTS[fault].planted():
        told = Trace(seed, WORLDS[world])
        broken = _broken(world, seed, told.life.live, fault)
    last = "nothing is broken" if broken is None else f"broken: {broken.sentence}"
    return [*told.transcript, f"{told.life.loop.now:8.3f} s  {last}"]


def _broken(world: str, seed: int, live: Callable[[], None], fault: str | None) -> Broken | None:
    try:
        live()
    except BrokenError as error:
        return Broken(world, seed, str(error))
    except _ESCAPED as error:
        if fault is not None and not isinstance(error, AssertionError):
            raise  # a mistake of the planted fault
        return Broken(world, seed, f"a machine raises {type(error).__name__}: {error}")
    return None
