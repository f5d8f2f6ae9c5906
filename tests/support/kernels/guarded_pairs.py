"""Runs products of half precision between protected pages; a script, because it may crash.

Knows: `guarded`. Does not know: right results, except those of the same kernel on ordinary memory.

``python -m tests.support.kernels.guarded_pairs SEED CASES`` prints each case before it runs it.
"""

from __future__ import annotations

import random
import sys

import torch
from tests.support.kernels.guarded import TILES, Guard, any_layer, scratch_of
from tests.support.kernels.operations import KERNELS, amx_tiles, forced, operands, processors, run

from cotswold.geometry import BlockLocal
from cotswold.kernels.microkernels import half_layout
from cotswold.kernels.products.problem import Overrides


def run_between(
    operation: str,
    layer: BlockLocal,
    images: int,
    pitch: int,
    setting: Overrides,
    at_end: bool,
    dtype: torch.dtype,
) -> None:
    """Run on ordinary and on guarded memory."""
    guard = Guard(at_end)
    first, second = operands(operation, layer, images, dtype)
    expected = run(operation, layer, (first, second), setting)
    pair = guard.like(first, pitch, True), guard.like(second, pitch, True)
    out = guard.like(expected, pitch, False)

    with scratch_of(guard):
        run(operation, layer, pair, setting, out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def main(seed: str, cases: int) -> None:
    """Run cases that must not crash."""
    chance = random.Random(seed)
    for _ in range(cases):
        (operation, few), layer = chance.choice(KERNELS), any_layer(chance)
        processor, dtype = chance.choice(processors()), chance.choice([torch.bfloat16, torch.float16])
        tile = chance.choice([*TILES, *amx_tiles(processor)])
        images, setting = chance.randint(1, 70), forced(*tile, processor=processor, few=few)
        half_layout.CHUNK = chance.choice([1, 1024])
        pitch, at_end = chance.choice([0, 0, 3]), chance.random() < 0.5
        told = processor.isa, dtype, half_layout.CHUNK
        print(operation, layer, images, pitch, setting.tile, at_end, *told, flush=True)
        run_between(operation, layer, images, pitch, setting, at_end, dtype)
    print("alive")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
