"""Memory for saving and reading beyond the tensors; run as a program, it prints bytes.

Knows: the peak resident set of a process. Does not know: the limit.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch

from cotswold.checkpoint import CheckpointManager, TensorChunk
from cotswold.geometry import Box

ROWS, COLUMNS = 4096, 8192
"""128 MiB of float32, eight chunks."""


def peak_bytes() -> int:
    """Return the peak resident set so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def weigh(folder: Path) -> dict[str, int]:
    """Return the growth of the peak at each step, with all tensors allocated before the first."""
    checkpoints = CheckpointManager(folder)
    checkpoints.save(
        1, {"first": torch.zeros(3, 5).T}, {}
    )  # what is loaded at the first use is no part of it
    checkpoints.latest()
    whole = torch.ones(ROWS, COLUMNS)
    window = Box((ROWS // 4, 100), (ROWS // 2, COLUMNS // 3))
    part, turned = torch.ones(window.shape), torch.ones(COLUMNS, ROWS).T
    growth, before = {}, peak_bytes()

    def weighed(what: str) -> None:
        nonlocal before
        growth[what], before = peak_bytes() - before, peak_bytes()

    checkpoints.save(2, [TensorChunk("w", whole)], {})
    weighed("saving a tensor as it lies")
    checkpoints.save(3, [TensorChunk("w", whole.T), TensorChunk("cut", whole[:, 1:])], {})
    weighed("saving tensors with other strides")
    checkpoint = checkpoints.latest().checkpoint
    assert checkpoint is not None
    weighed("opening")
    checkpoint.read_into("w", turned.T)
    weighed("reading a tensor as it lies")
    checkpoint.read_into("w", whole.T)
    weighed("reading a tensor with other strides")
    checkpoint.read_into("cut", part, window)
    weighed("reading a part of a piece")
    return growth


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(weigh(Path(sys.argv[1]))))
