"""Timed updates of stacks on a mesh. Functions here are called on ranks of a pool.

Knows: the order of greedy and joint updates. Does not know: predictions, how ranks are started.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.bench.ranks.rank import PoolRank
from cotswold.geometry import Grid, MapShape
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.stacks.stack import TrainedStack
from cotswold.ops import StepRule
from cotswold.ops.memory_format import empty_map
from cotswold.simulate.workloads.stacks import StackWork

RULE = StepRule(rate=1e-3)


def prepare(rank: PoolRank, work: StackWork, grid: Grid) -> None:
    """Make `update` an action of the rank."""
    mesh = Mesh.of(grid)
    stacks: list[TrainedStack] = []
    for index, geometry in enumerate(work.stacks):
        below = stacks[-1].share.partition.output.boxes if stacks else None
        stacks.append(TrainedStack(mesh, geometry, index=index, below=below))
    window = stacks[0].share.window
    torch.manual_seed(mesh.rank)
    samples = empty_map(
        torch.empty(0), work.images, MapShape(work.stacks[0].input.channels, *window.shape)
    ).normal_()
    maps = samples
    for stack in stacks:
        stack.calibrate(maps)
        maps = stack(maps)

    rank.actions = {"update": lambda: update(stacks, samples, work.strategy == "joint")}
    rank.actions["update"]()
    dist.barrier()


def update(stacks: list[TrainedStack], samples: Tensor, joint: bool) -> None:
    """Run all stacks but the last forward, then step from the top down; greedy training steps the top stack
    only."""
    inputs = [samples]
    for stack in stacks[:-1]:
        inputs.append(stack(inputs[-1]))
    upstream: Tensor | None = None
    for index in reversed(range(len(stacks))):
        stack = stacks[index]
        report = stack.step(
            inputs[index],
            stack.objective_settings,
            RULE,
            upstream=upstream,
            input_gradient=joint and index > 0,
        )
        if not joint:
            return
        upstream = report.input_gradient
