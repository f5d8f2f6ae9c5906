"""Lives after lives, and what became of them: `cotswold bench chaos`.

Knows: worlds, seeds, planted faults. Does not know: the words of the command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass

from cotswold.bench.chaos.faults import FAULTS
from cotswold.bench.chaos.judge import BrokenError
from cotswold.bench.chaos.life import Life
from cotswold.bench.chaos.worlds import WORLDS
from cotswold.errors import UserError

_SAY_SECONDS = 2.0


@dataclass(frozen=True)
class Broken:
    """A life in which something was not true."""

    world: str
    seed: int
    sentence: str
    transcript: tuple[str, ...]
    """What befell whom until then."""


@dataclass
class Lives:
    """What became of the lives in a world."""

    world: str
    lives: int = 0
    seconds: float = 0.0
    """Of this machine."""
    lived_seconds: float = 0.0
    """Of the simulated ones."""
    messages: int = 0
    said: int = 0
    """Messages of servers to clients that were judged."""
    broken: Broken | None = None
    """The first; the others are not lived."""

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def chosen(worlds: Sequence[str]) -> list[str]:
    """The names of worlds; all where none is given. Raises UserError for one that is not."""
    for name in worlds:
        if name not in WORLDS:
            raise UserError(f"no world {name!r}; there are: {', '.join(WORLDS)}")
    return list(worlds) or list(WORLDS)


def live_copies(
    worlds: Sequence[str] = (),
    seeds: range = range(100),
    *,
    fault: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[Lives]:
    """Live every seed in every world until something breaks there, with a planted fault if one is named.

    Raises UserError for a world or a fault that is not.
    """
    if fault is not None and fault not in FAULTS:
        raise UserError(f"no fault {fault!r}; there are: {', '.join(FAULTS)}")
    found = []
    with nullcontext() if fault is None else FAULTS[fault].planted():
        for name in chosen(worlds):
            found.append(_lived(name, seeds, say))
    return found


def _lived(name: str, seeds: range, say: Callable[[str], None]) -> Lives:
    lives, began = Lives(name), time.monotonic()
    said = began
    for seed in seeds:
        life = Life(seed, WORLDS[name])
        try:
            life.live()
        except BrokenError as error:
            lives.broken = Broken(name, seed, str(error), tuple(life.transcript))
        except AssertionError as error:  # a machine has found itself where it cannot be
            lives.broken = Broken(name, seed, f"an assertion fails: {error}", tuple(life.transcript))
        except (LookupError, TypeError, ValueError) as error:  # the same, and it did not expect that
            lives.broken = Broken(name, seed, f"{type(error).__name__}: {error}", tuple(life.transcript))
        lives.lives += 1
        lives.lived_seconds += life.loop.now
        lives.messages += life.network.messages
        lives.said += life.judge.said
        lives.seconds = time.monotonic() - began
        if lives.broken is not None:
            break
        if time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            say(f"{name}: {lives.lives} of {len(seeds)} lives, nothing is broken")
    return lives
