"""A hunt: lives of victims, what was refused, and what broke one, so that it can be said again.

Knows: seeds, lives, files of what was said. Does not know: who is told what.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from random import Random

import msgpack

from .messages import Making, Said
from .target import Victim

_CHECKED = 50
"""After so many messages it is looked whether all is as it must be."""
Make = Callable[[], Victim]


@dataclass
class Found:
    """What came of a hunt."""

    lives: int = 0
    messages: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: str = ""
    """What broke a victim; empty where nothing did."""
    said: list[Said] = field(default_factory=list)
    """What that one was told, to the last."""


def life(make: Make, seed: str, messages: int, found: Found) -> bool:
    """Tell a new victim so many messages; whether it is well."""
    victim, random = make(), Random(seed)
    making = Making(random, victim.words, victim.numbers)
    said: list[Said] = []
    try:
        for number in range(1, messages + 1):
            said.append(victim.next(making, random))
            victim.hear(said[-1])
            if number % _CHECKED == 0:
                victim.check()
        victim.check()
    except Exception:  # whatever it is: that is what is hunted for
        found.broken, found.said = traceback.format_exc(), said
    finally:
        victim.close()
    found.lives, found.messages = found.lives + 1, found.messages + len(said)
    found.refused += victim.counts()
    return not found.broken


def replay(make: Make, said: list[Said]) -> str:
    """Tell a new victim the same; what broke it, empty where nothing did."""
    victim = make()
    try:
        for each in said:
            victim.hear(each)
        victim.check()
    except Exception:  # whatever it is
        return traceback.format_exc()
    finally:
        victim.close()
    return ""


def write(path: Path, kind: str, seed: str, found: Found) -> None:
    """What broke a victim, in a file."""
    said = [list(astuple(each)) for each in found.said]
    packed = msgpack.packb({"kind": kind, "seed": seed, "broken": found.broken, "said": said})
    path.write_bytes(packed)


def read(path: Path) -> tuple[str, list[Said]]:
    """The kind of victim, and what it was told."""
    found: Mapping[str, object] = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
    said = found["said"]
    assert isinstance(said, list), f"{path} is no file of a hunt"
    return str(found["kind"]), [Said(sender, fields, tuple(buffers)) for sender, fields, buffers in said]


def hunt(make: Make, kind: str, seed: int, seconds: float, messages: int = 1000) -> Found:
    """As many lives as there is time for, one at least, until one ends badly."""
    found, deadline = Found(), time.monotonic() + seconds
    while True:
        if not life(make, f"{kind} {seed} {found.lives}", messages, found) or time.monotonic() >= deadline:
            return found
