"""The update of data-parallel replicas, each on a grid: parts of a batch, and an all-reduce of all gradients.

Knows: the programs of one replica, the ranks at one place of all replicas. Does not know: layers, passing
time, hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotswold.geometry import Grid
from cotswold.simulate.hardware.device import DeviceModel
from cotswold.simulate.timeline.actions import Action, AllReduce, Post, Program, Wait
from cotswold.simulate.workloads.layers import LayerWork


@dataclass(frozen=True)
class ReplicatedWork:
    """An update of several replicas of a network of layers.

    Gradients are summed at the end of the backward pass. A run begins its buckets earlier, so it hides some
    of this time.

    Args:
        work: The update of one process with the whole batch.
        replicas: Number of replicas.
    """

    work: LayerWork
    replicas: int

    @property
    def images(self) -> int:
        """Size of the whole batch."""
        return self.work.images

    @property
    def parameters(self) -> int:
        """Number of different weights."""
        return self.work.parameters

    @property
    def update_flops(self) -> int:
        """FLOPs of the update of all replicas."""
        return self.work.update_flops

    @property
    def part(self) -> LayerWork:
        """The update of the replica with the largest part of the batch."""
        return replace(self.work, images=-(-self.work.images // self.replicas))

    def programs(self, grid: Grid, speed: DeviceModel) -> tuple[Program, ...]:
        """Return the program of every rank of every replica, replica by replica.

        Args:
            grid: Grid of ranks of each replica.
            speed: Device of a rank.
        """
        own, parts, found = self.part.programs(grid, speed), self.work.parts(grid), []
        for replica in range(self.replicas):
            for place, program in enumerate(own):
                members = tuple(each * grid.size + place for each in range(self.replicas))
                weights = sum(row[place].weights for row in parts)
                total = AllReduce(self.work.value_bytes * weights, members)
                found.append((*_moved(program, replica, grid.size), total))
        return tuple(found)

    def rank_bytes(self, grid: Grid) -> int:
        """Return the memory in bytes of the rank that needs most.

        Args:
            grid: Grid of ranks of each replica.
        """
        return self.part.rank_bytes(grid)


def _moved(program: Program, replica: int, size: int) -> Sequence[Action]:
    """Return a program of the first replica with the ranks of another one."""
    first = replica * size
    found: list[Action] = []
    for action in program:
        match action:
            case Post(exchange, sends):
                found.append(Post(f"{replica}/{exchange}", tuple((to + first, each) for to, each in sends)))
            case Wait(exchange, sources, targets):
                sources, targets = (tuple(each + first for each in ranks) for ranks in (sources, targets))
                found.append(Wait(f"{replica}/{exchange}", sources, targets))
            case AllReduce():
                found.append(AllReduce(action.bytes, tuple(range(first, first + size))))
            case _:
                found.append(action)
    return found
