from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cotswold.nn import SparseAutoencoderStack, StackNetwork
from cotswold.recipe import Recipe, dump, parse
from cotswold.run import EventLog, RunDirectory

TEXT = """
name = "small"
data = { source = "builtin:demo", size = 16 }
training = { strategy = "greedy" }
[[network.stacks]]
kernel_size = 6
stride = 2
block = [2, 2]
channels = 3
pool = 3
norm = 3
pool_padding = "same"
[[network.stacks]]
kernel_size = 8
stride = 2
block = [2, 2]
channels = 2
pool = 3
norm = 1
pool_padding = "same"
"""


@pytest.fixture
def recipe() -> Recipe:
    return parse(TEXT)


@pytest.fixture
def network(recipe: Recipe) -> StackNetwork:
    stacks = [SparseAutoencoderStack(g, seed=1, index=i) for i, g in enumerate(recipe.stack_geometries())]
    return StackNetwork(stacks).eval()


@pytest.fixture
def images() -> torch.Tensor:
    """Return 40 images, images last."""
    drawn = torch.randn(3, 16, 16, 40, generator=torch.Generator().manual_seed(0))
    return drawn.permute(3, 0, 1, 2)


@pytest.fixture
def run(tmp_path: Path, recipe: Recipe) -> RunDirectory:
    """Return a run in the middle of its first stack."""
    run = RunDirectory.create(tmp_path / "run", dump(recipe), {"cores": 2, "processor": "a <fast> one"})
    with EventLog(run.events) as log:
        log.write("start", name="small", strategy="greedy", samples=1234, parameters=5_000_000)
        log.write("phase_start", phase=0, input="3 x 16 x 16", output="3 x 12 x 12", parameters=1)
        for step in range(1, 30):
            rates = {
                "samples_per_second": 100.0,
                "gflops": 9.0,
                "waited_seconds": 0.01,
                "interval_seconds": 1.0,
            }
            log.write("step", phase=0, step=step, phase_step=step, loss=100.0 / step, **rates)
        log.write("validation", phase=0, step=0, phase_step=0, loss=90.0)
        log.write("validation", phase=0, step=29, phase_step=29, loss=45.0)
    return run
