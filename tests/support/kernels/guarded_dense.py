"""Runs passes over layers of dense networks between protected pages; a script, because it may crash.

Knows: `guarded`. Does not know: right results, except those of the same kernel on ordinary memory.

``python -m tests.support.kernels.guarded_dense SEED CASES`` prints each case before it runs it.
"""

from __future__ import annotations

import random
import sys

import torch
from tests.support.kernels.dense_passes import PASSES, layer, operands
from tests.support.kernels.guarded import Guard
from tests.support.kernels.operations import processors, same_bits
from torch import Tensor

from cotswold.kernels.dense import Layer, Operand, Operation, run
from cotswold.kernels.products.problem import Overrides

WRITTEN: tuple[Operand, ...] = ("sums", "bias_gradient", "partials")


def run_between(what: Operation, of: Layer, how: Overrides, at_end: bool) -> None:
    """Run on ordinary and on guarded memory, with read-only inputs."""
    guard = Guard(at_end)
    expected, placed = operands(of, 0), dict[Operand, Tensor]()
    for name, content in operands(of, 0).items():
        # the last row ends with its last lane
        used = content.flatten()[: (of.rows - 1) * of.pitch + of.lanes]
        used = used if name in ("sums", "other") else content.flatten()
        if name in WRITTEN:
            placed[name] = guard.numbers(used.numel(), used.dtype).copy_(used)
        else:
            bits = used.view(torch.float32)  # of classes too, which are integers
            placed[name] = guard.numbers(bits.numel(), torch.float32, bits).view(used.dtype)
    run(what, of, expected, how)
    run(what, of, placed, how)
    for name in WRITTEN[:2]:
        assert same_bits(placed[name], expected[name].flatten()[: placed[name].numel()]), name


def main(seed: str, cases: int) -> None:
    """Run cases that must not crash."""
    chance = random.Random(seed)
    for _ in range(cases):
        of = layer(chance.randint(1, 200), chance.randint(1, 90), chance.choice([0, 0, 5]))
        what, processor = chance.choice(PASSES), chance.choice(processors())
        at_end = chance.random() < 0.5
        print(what, of, processor.isa, at_end, flush=True)
        run_between(what, of, Overrides(processor, threads=1), at_end)
    print("alive")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
