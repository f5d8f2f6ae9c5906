"""Runs moves of pixels between protected pages; a script, because it may crash.

Knows: `guarded`, the allocation of images, maps and scratch. Does not know: right results, except NumPy's.

``python -m tests.support.kernels.guarded_warp SEED CASES`` prints each case before it runs it.
"""

from __future__ import annotations

import random
import sys
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from tests.support.kernels.guarded import Guard
from tests.support.kernels.operations import processors

from cotswold.data.augment import warp
from cotswold.kernels.machine.execution import LINE
from cotswold.kernels.products.problem import Overrides
from cotswold.kernels.warp import PADDING_MODES, Field, Images, run

Float32 = NDArray[np.float32]


def placed(guard: Guard, values: Float32) -> Float32:
    """Return the same numbers between guards, read-only."""
    content = torch.from_numpy(values.copy()).flatten()
    found: Float32 = guard.numbers(content.numel(), torch.float32, content).numpy().reshape(values.shape)
    return found


def run_between(asked: Images, how: Overrides, at_end: bool) -> None:
    """Run with all of the kernel's memory between guards."""
    guard, field = Guard(at_end), asked.field
    if field is not None:
        field = Field(field.keys, field.stream, placed(guard, field.taps), placed(guard, field.slopes))
    here = Images(placed(guard, asked.values), placed(guard, asked.maps), field, asked.fill)
    expected = warp.warp_reference(asked)
    run(asked, warp.warp_reference, how)  # so that its trial is behind it

    def target(like: Float32) -> Float32:
        return guard.numbers(like.size, torch.float32).numpy().reshape(like.shape)

    def scratch(size: int, **_: object) -> torch.Tensor:
        return guard.numbers((size - LINE) // 4, torch.float32)

    with mock.patch("numpy.empty_like", target), mock.patch("torch.empty", scratch):
        found = run(here, warp.warp_reference, how)
    assert found.tobytes() == expected.tobytes()


def main(seed: str, cases: int) -> None:
    """Run cases that must not crash."""
    chance, numbers = random.Random(seed), np.random.default_rng(len(seed))
    for _ in range(cases):
        images = chance.randint(1, 3)
        shape = images, chance.randint(1, 3), chance.randint(1, 40), chance.randint(2, 40)
        maps = np.eye(2, 3) + chance.choice([0.01, 0.4, 50.0]) * numbers.standard_normal((images, 2, 3))
        field = None
        if chance.random() < 0.6:
            keys = numbers.integers(0, 1 << 64, images, np.uint64)
            slopes = 20 * numbers.standard_normal((images, 2, 2))
            field = warp.field(keys, 1, chance.uniform(0.3, 12), slopes)
        values = numbers.standard_normal(shape).astype(np.float32)
        fill, processor, at_end = (
            chance.choice(PADDING_MODES),
            chance.choice(processors()),
            chance.random() < 0.5,
        )
        print(shape, fill, field is not None, processor.isa, at_end, flush=True)
        run_between(Images(values, maps.astype(np.float32), field, fill), Overrides(processor), at_end)
    print("alive")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
