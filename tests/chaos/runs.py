"""Lives after lives in a world, in this process: what became of them.

Knows: worlds, seeds, planted faults. Does not know: how many processes there are, files.
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
"""What a machine raises that finds itself where it cannot be."""


@dataclass(frozen=True)
class Broken:
    """A life in which something was not true."""

    world: str
    seed: int
    sentence: str


@dataclass
class SimulationRuns:
    """What became of the lives in a world."""

    world: str
    lives: int = 0
    judged: int = 0
    """Of which the end was judged: not those in which a bucket was lost, where that may be."""
    seconds: float = 0.0
    """Of this machine's processors, all together."""
    lived_seconds: float = 0.0
    """Of the simulated ones."""
    messages: int = 0
    said: int = 0
    """Messages of servers to clients that were judged."""
    broken: Broken | None = None
    """The first; the others are not lived."""

    def add(self, more: SimulationRuns) -> None:
        """Those that follow."""
        for name in ("lives", "judged", "seconds", "lived_seconds", "messages", "said"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.broken = more.broken

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def lived(world: str, seeds: range, fault: str | None = None) -> SimulationRuns:
    """Live these, until something breaks, with a planted fault if one is named."""
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
    """The same life again, step for step, as it can be read; what broke is its last line."""
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
            raise  # it is a mistake in the planted one
        return Broken(world, seed, f"a machine raises {type(error).__name__}: {error}")
    return None
