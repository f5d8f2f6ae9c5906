"""Ranks that are killed while they save a checkpoint together; run as a program, it says what it found.

Knows: processes, signals. Does not know: what is right.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from tests.run.crowd import processes

from cotswold.geometry import Box
from cotswold.run import ALONE, Checkpoint, Checkpoints, Piece, Ranks

SIZE = 3
WIDTH = 50_000
CALLS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir")
"""What a save does to the disk, a call at a time."""


def pieces(step: int, ranks: Ranks) -> Iterator[Piece]:
    """Two tensors cut along either axis; the last rank has nothing of the second."""
    rank, size, parts = ranks.rank, ranks.size, 4
    for part in range(rank, parts, size):
        box = Box((part, 0), (part + 1, WIDTH))
        yield Piece("rows", torch.full(box.shape, float(step + part)), box, (parts, WIDTH))
    if size == 1 or rank < size - 1:
        each = WIDTH // max(size - 1, 1)
        box = Box((0, rank * each), (2, (rank + 1) * each))
        yield Piece("columns", torch.full(box.shape, float(-step)), box, (2, each * max(size - 1, 1)))


def save(folder: Path, steps: range, ranks: Ranks) -> None:
    """Save one checkpoint after the other."""
    for step in steps:
        Checkpoints(folder, ranks=ranks).save(step, pieces(step, ranks), {"step": step, "of": ranks.rank})


def is_sound(checkpoint: Checkpoint) -> bool:
    """Whether it holds what was saved at its step, in boxes that other ranks would read."""
    step, rows = checkpoint.step, checkpoint.read("rows", Box((1, 7), (3, WIDTH - 7)))
    expected = torch.tensor([[step + 1.0], [step + 2.0]]).expand_as(rows)
    return (
        rows.equal(expected)
        and bool((checkpoint.read("columns") == -step).all())
        and checkpoint.state == {"step": step, "of": 0}
    )


def report(folder: Path, before: int) -> dict[str, object]:
    """What is in the folder."""
    found, skipped = Checkpoints(folder).latest()
    assert found is not None
    partial_there = bool(list(folder.glob("*.partial")))
    return {
        "before": before,
        "after": found.step,
        "sound": is_sound(found) and not skipped,
        "partial": partial_there,
    }


def ended(children: list[int]) -> list[int]:
    """How the ranks ended: an exit code, or a signal as a negative number."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def at_random_moments(folder: Path, kills: int) -> Iterator[dict[str, object]]:
    """Kill one rank or another at some moment of saves that follow each other."""
    began = time.monotonic()
    save(folder, range(1, 2), ALONE)
    once = time.monotonic() - began
    for kill in range(kills):
        found = Checkpoints(folder).latest().checkpoint
        assert found is not None
        before = found.step
        size = random.choice([2, 3])
        children = processes(size, partial(save, folder, range(before + 1, before + 1000)))
        time.sleep(random.uniform(0, 4 * once))
        os.kill(children[kill % size], signal.SIGKILL)
        yield {"ended": ended(children), **report(folder, before)}


def at_every_call(folder: Path) -> Iterator[dict[str, object]]:
    """Kill each rank before each of the calls that a save makes on the disk."""
    for victim in range(SIZE):
        number, survived = 0, False
        while not survived:
            save(folder, range(1, 2), ALONE)
            children = processes(SIZE, partial(dying_save, folder, victim, number))
            codes = ended(children)
            survived = codes == [0] * SIZE
            yield {"victim": victim, "call": number, "ended": codes, **report(folder, 1)}
            number += 1


def dying_save(folder: Path, victim: int, number: int, ranks: Ranks) -> None:
    """Save a second checkpoint, unless a rank dies before a call of that number."""
    left = number

    def dying(real: object, *arguments: object, **named: object) -> object:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*arguments, **named)  # type: ignore[operator]  # one of `CALLS`

    if ranks.rank == victim:
        for call in CALLS:
            setattr(os, call, partial(dying, getattr(os, call)))
    save(folder, range(2, 3), ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    random.seed(0)
    place = Path(sys.argv[1])
    found_all = at_random_moments(place, int(sys.argv[2])) if len(sys.argv) > 2 else at_every_call(place)
    print(json.dumps(list(found_all)))
