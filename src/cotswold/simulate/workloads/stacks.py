"""The update of a network of stacks over a grid (Coates et al. 2013, sections 4.2 and 5.1).

Knows: the order of stacks, their memory. Does not know: the operations of one stack, passing time, hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cotswold.geometry import Grid, StackGeometry, StackPartition
from cotswold.simulate.hardware.device import DeviceModel
from cotswold.simulate.timeline.actions import Program, Script
from cotswold.simulate.workloads.stack_part import StackPart, batch_points, maps_points, weights

SCALARS_BYTES = 4 * 8
"""Bytes that a step reduces over all ranks: overlap, energy, squared error, penalty."""


@dataclass(frozen=True)
class StackWork:
    """An update of a network of stacks.

    Args:
        stacks: The stacks, from the input upwards.
        images: Batch size.
        strategy: `greedy`: only the top stack learns; `joint`: all learn.
        value_bytes: Bytes of a value.
    """

    stacks: tuple[StackGeometry, ...]
    images: int
    strategy: Literal["greedy", "joint"]
    value_bytes: int = 4

    @property
    def parameters(self) -> int:
        """Number of filter weights of all stacks."""
        return sum(stack.filters.parameters for stack in self.stacks)

    @property
    def update_flops(self) -> int:
        """FLOPs of the products of an update."""
        products = [stack.filters.product_flops for stack in self.stacks]
        if self.strategy == "greedy":
            return self.images * (sum(products[:-1]) + 5 * products[-1])
        return self.images * (sum(products[:-1]) + 5 * sum(products) + sum(products[1:]))

    def programs(self, grid: Grid, speed: DeviceModel) -> tuple[Program, ...]:
        """Return the program of every rank of a grid for one update.

        Args:
            grid: Grid of ranks.
            speed: Device of a rank.
        """
        script = Script(grid.size)
        parts = [
            StackPart(StackPartition(stack, grid), self.images, self.value_bytes, speed, script)
            for stack in self.stacks
        ]
        beneath = [None, *parts[:-1]]
        for part, below in zip(parts[:-1], beneath[:-1], strict=True):
            part.forward(below)
        top = len(parts) - 1
        for index in reversed(range(0 if self.strategy == "joint" else top, top + 1)):
            joint = self.strategy == "joint"
            parts[index].step(beneath[index], upstream=index < top, descend=joint and index > 0)
            script.sum_short(SCALARS_BYTES)
        return script.programs

    def rank_bytes(self, grid: Grid) -> int:
        """Return the memory in bytes of the rank that needs most: filters, momentum, the maps of one stack.

        Args:
            grid: Grid of ranks.
        """
        parts = [StackPartition(stack, grid) for stack in self.stacks]
        learns = [self.strategy == "joint" or part is parts[-1] for part in parts]
        needed = []
        for rank in range(grid.size):
            filters = [weights(part, rank) for part in parts]
            maps = [maps_points(part, rank) * self.images for part in parts]
            inputs = sum(batch_points(part, rank) for part in parts) * self.images
            kept = sum(filters) + sum(count for count, moves in zip(filters, learns, strict=True) if moves)
            needed.append((kept + inputs + max(maps)) * self.value_bytes)
        return max(needed)
