"""Ranks that are killed while they save a checkpoint together; run as a program, it prints its findings.

Knows: processes, signals. Does not know: correct results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from tests.support.checkpoint.many_ranks import processes

from cotswold.checkpoint import Checkpoint, CheckpointManager, TensorChunk
from cotswold.geometry import Box
from cotswold.host import ALONE, Ranks

WIDTH = 50_000
CALLS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir")
"""Disk calls of a save."""


def pieces(step: int, ranks: Ranks) -> Iterator[TensorChunk]:
    """Yield two tensors cut along either axis; the last rank has no part of the second."""
    rank, size, parts = ranks.rank, ranks.size, 4
    for part in range(rank, parts, size):
        box = Box((part, 0), (part + 1, WIDTH))
        yield TensorChunk("rows", torch.full(box.shape, float(step + part)), box, (parts, WIDTH))
    if size == 1 or rank < size - 1:
        each = WIDTH // max(size - 1, 1)
        box = Box((0, rank * each), (2, (rank + 1) * each))
        yield TensorChunk("columns", torch.full(box.shape, float(-step)), box, (2, each * max(size - 1, 1)))


def save(folder: Path, steps: range, ranks: Ranks) -> None:
    """Save one checkpoint after the other."""
    for step in steps:
        CheckpointManager(folder, ranks=ranks).save(
            step, pieces(step, ranks), {"step": step, "of": ranks.rank}
        )


def is_sound(checkpoint: Checkpoint) -> bool:
    """True if it has the contents of its step, in boxes that other ranks would read."""
    step, rows = checkpoint.step, checkpoint.read("rows", Box((1, 7), (3, WIDTH - 7)))
    expected = torch.tensor([[step + 1.0], [step + 2.0]]).expand_as(rows)
    return (
        rows.equal(expected)
        and bool((checkpoint.read("columns") == -step).all())
        and checkpoint.state == {"step": step, "of": 0}
    )


def report(folder: Path) -> dict[str, object]:
    """Return a description of the folder."""
    found, skipped = CheckpointManager(folder).latest()
    assert found is not None
    return {
        "after": found.step,
        "sound": is_sound(found) and not skipped,
        "partial": bool(list(folder.glob("*.partial"))),
        "whole": len(CheckpointManager(folder).paths()),
    }


def ended(children: list[int]) -> list[int]:
    """Return the exits of the ranks: an exit code, or a signal as a negative number."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def at_every_call(folder: Path, size: int) -> Iterator[dict[str, object]]:
    """Kill each rank before each disk call of a save: inside it, between renaming and pruning, and during
    pruning."""
    for victim in range(size):
        number, survived = 0, False
        while not survived:
            save(folder, range(1, 3), ALONE)
            codes = ended(processes(size, partial(dying_save, folder, victim, number)))
            survived = codes == [0] * size
            yield {"victim": victim, "call": number, "ended": codes, **report(folder)}
            number += 1


def dying_save(folder: Path, victim: int, number: int, ranks: Ranks) -> None:
    """Save a third checkpoint, unless a rank dies before a call of that number."""
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
    save(folder, range(3, 4), ranks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(list(at_every_call(Path(sys.argv[1]), int(sys.argv[2])))))
