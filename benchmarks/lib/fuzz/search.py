"""The search for failures: lifetimes of targets, refused messages, and messages that broke one, for a replay.

Knows: seeds, lifetimes, files of messages. Does not know: the targets, their messages.
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

from .messages import EncodedMessage, MessageGenerator
from .target import Target

_CHECKED = 50
"""Number of messages between checks of the target."""
Make = Callable[[], Target]


@dataclass
class Found:
    """Result of a search."""

    lives: int = 0
    messages: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    broken: str = ""
    """Failure of a target, or an empty string."""
    said: list[EncodedMessage] = field(default_factory=list)
    """All messages to the failed target."""


def life(make: Make, seed: str, messages: int, found: Found) -> bool:
    """Send a number of messages to a new target; return True if the target passes its checks."""
    target, random = make(), Random(seed)
    making = MessageGenerator(random, target.words, target.numbers)
    said: list[EncodedMessage] = []
    try:
        for number in range(1, messages + 1):
            said.append(target.next(making, random))
            target.hear(said[-1])
            if number % _CHECKED == 0:
                target.check()
        target.check()
    except Exception:  # any exception is a failure of the target
        found.broken, found.said = traceback.format_exc(), said
    finally:
        target.close()
    found.lives, found.messages = found.lives + 1, found.messages + len(said)
    found.refused += target.counts()
    return not found.broken


def replay(make: Make, said: list[EncodedMessage]) -> str:
    """Send the same messages to a new target; return its failure, or an empty string."""
    target = make()
    try:
        for each in said:
            target.hear(each)
        target.check()
    except Exception:  # any exception is a failure of the target
        return traceback.format_exc()
    finally:
        target.close()
    return ""


def write(path: Path, kind: str, seed: str, found: Found) -> None:
    """Write the messages that broke a target to a file."""
    said = [list(astuple(each)) for each in found.said]
    packed = msgpack.packb({"kind": kind, "seed": seed, "broken": found.broken, "said": said})
    path.write_bytes(packed)


def read(path: Path) -> tuple[str, list[EncodedMessage]]:
    """Return the kind of the target and its messages from a file."""
    found: Mapping[str, object] = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
    said = found["said"]
    assert isinstance(said, list), f"{path} is no file of messages"
    return str(found["kind"]), [
        EncodedMessage(sender, fields, tuple(buffers)) for sender, fields, buffers in said
    ]


def hunt(make: Make, kind: str, seed: int, seconds: float, messages: int = 1000) -> Found:
    """Run lifetimes for some seconds, at least one, until a target fails."""
    found, deadline = Found(), time.monotonic() + seconds
    while True:
        if not life(make, f"{kind} {seed} {found.lives}", messages, found) or time.monotonic() >= deadline:
            return found
