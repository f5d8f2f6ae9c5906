"""Concurrent micro-batches in ranks that compute one network together.

Knows: partitioned networks, threads, sums of gradients. Does not know: samples, losses, how ranks are
started.

A rank waits for messages of slower ranks. While one micro-batch waits another computes, so a late message
leaves no rank idle (Chilimbi et al. 2014, section 3.2.5). Each micro-batch has a copy of the partitioned
network with a separate mesh, so its messages have separate tags and may overtake others. The copies share
their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.geometry import Grid
from cotswold.mesh import Mesh, partition

_T = TypeVar("_T")
_Part = TypeVar("_Part")


class ConcurrentMicrobatches:
    """``count`` copies of one network over the ranks of a grid; all ranks call methods in the same order."""

    def __init__(self, network: nn.Module, grid: Grid, count: int) -> None:
        """Partition the network; raises UserError if that is impossible."""
        first = Mesh.of(grid)
        meshes = [first, *(Mesh(first.device_mesh) for _ in range(count - 1))]
        for each in meshes:  # in one thread: two concurrent connects would deadlock
            each.routes(torch.device("cpu"))
        self.networks: list[nn.Module] = [partition(network, each) for each in meshes]
        self._threads = ThreadPoolExecutor(count, "micro-batch") if count > 1 else None
        for copy in self.networks[1:]:
            _share(self.networks[0], copy)
        names = [name for name, each in network.named_parameters() if each.requires_grad]
        found = [dict(each.named_parameters()) for each in self.networks]
        self._parameters = [[cast(DTensor, each[name]) for name in names] for each in found]

    @property
    def parameters(self) -> Sequence[DTensor]:
        """The trainable parameters, shared by all copies."""
        return self._parameters[0]

    def clear(self) -> None:
        """Delete the gradients."""
        for copy in self._parameters:
            for each in copy:
                each.grad = None

    def gradients(self) -> list[Tensor]:
        """Return this rank's part of the gradient of each parameter, summed over the copies in order."""
        return [_sum_of(each) for each in zip(*self._parameters, strict=True)]

    def run(self, parts: Sequence[_Part], compute: Callable[[_Part, nn.Module], _T]) -> list[_T]:
        """Run ``compute`` on each of ``parts`` concurrently, at most one per copy, and return the results.

        Raises the first error.
        """
        if self._threads is None:
            return [compute(part, self.networks[0]) for part in parts]
        jobs = [
            self._threads.submit(compute, part, network)
            for part, network in zip(parts, self.networks, strict=False)
        ]
        for job in wait(jobs, return_when=FIRST_EXCEPTION).done:
            job.result()
        return [job.result() for job in jobs]


def parts_of(numbers: Sequence[int], count: int) -> list[Sequence[int]]:
    """Divide ``numbers`` into ``count`` parts of nearly equal size, or fewer if there are not enough numbers.

    >>> parts_of(range(5), 2)
    [range(0, 2), range(2, 5)]
    """
    count = max(1, min(count, len(numbers)))
    ends = [len(numbers) * each // count for each in range(count + 1)]
    return [numbers[start:stop] for start, stop in pairwise(ends)]


def _share(network: nn.Module, copy: nn.Module) -> None:
    """Make the parameters of a copy share the memory of the network's; gradients stay separate."""
    shared: dict[Tensor, nn.Parameter] = {}
    for name, each in network.named_parameters(remove_duplicate=False):
        if each not in shared:
            whole = cast(DTensor, each.detach())
            placed = whole.device_mesh, whole.placements
            values = DTensor.from_local(
                whole.to_local(), *placed, run_check=False, shape=whole.shape, stride=whole.stride()
            )
            shared[each] = nn.Parameter(values, each.requires_grad)
        holder, _, own = name.rpartition(".")
        setattr(copy.get_submodule(holder), own, shared[each])


def _sum_of(copies: Sequence[DTensor]) -> Tensor:
    found = [cast(DTensor, each.grad).to_local() for each in copies if each.grad is not None]
    if not found:
        with torch.no_grad():
            return torch.zeros_like(copies[0].to_local())
    total, *more = found
    for each in more:
        total = total + each
    return total
