"""The axis of replicas of a mesh: equal grids of ranks, each with its own batch.

Knows: torch.distributed's groups, the ranks at one place of all replicas, bytes sent between them. Does not
know: maps, modules, how a batch is divided.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.host.token import Token
from cotswold.mesh.ranks.mesh import AXES, Mesh, _of_this_job
from cotswold.mesh.ranks.process_groups import process_group

REPLICA_AXES = ("replicas", *AXES)
"""Names of the dimensions of a device mesh with replicas."""


class ReplicaAxis:
    """The replicas of a model, as seen by one rank: the ranks at its place in every replica.

    Create them with `replicated`, with the same arguments on every rank.

    Args:
        count: Number of replicas.
        grid: The grid of ranks of each replica.
        rank: This rank's number in the job; ranks rise replica by replica, and in each row by row.
        device: Type of the device that holds gradients.

    Attributes:
        index: Number of this rank's replica, from 0.
    """

    def __init__(self, count: int, grid: Grid, rank: int, device: str) -> None:
        self.count, self.grid = count, grid
        self.index, place = divmod(rank, grid.size)
        self.members = [replica * grid.size + place for replica in range(count)]
        self.group = process_group(self.members, count * grid.size, device)
        self._sent_bytes = 0

    @property
    def size(self) -> int:
        """Number of ranks that sum: one of each replica."""
        return self.count

    def start_sum(self, values: Tensor) -> dist.Work | None:
        """Start a sum over the replicas in place.

        Args:
            values: This replica's values; they must not be used before the returned work is done.

        Returns:
            The work to wait for; None for a single replica.
        """
        self._count(values)
        work: dist.Work | None = None
        if self.group is not None:
            work = dist.all_reduce(values, group=self.group, async_op=True)
        return work

    def sum_in_place(self, values: Tensor) -> Tensor:
        """Sum over the replicas in place, with the same bits on each.

        Args:
            values: This replica's values; changed in place.
        """
        work = self.start_sum(values)
        if work is not None:
            work.wait()
        return values

    def largest_in_place(self, values: Tensor) -> Tensor:
        """Elementwise maximum over the replicas in place.

        Args:
            values: This replica's integers; changed in place.
        """
        if self.group is not None:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)
            self._count(values)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Gather tensors of equal shape and type from all replicas, in their order.

        Args:
            values: This replica's tensor.
        """
        if self.group is None:
            return [values]
        found = [torch.empty_like(values) for _ in self.members]
        dist.all_gather(found, values, group=self.group)
        self._sent_bytes += self.grid.size * self.count * (self.count - 1) * values.nbytes
        return found

    def copy_first(self, values: Tensor) -> None:
        """Replace a tensor by that of the first replica.

        Args:
            values: The tensor; changed in place except on the first replica.
        """
        if self.group is None:
            return
        whole = values if values.is_contiguous() else values.contiguous()
        dist.broadcast(whole, self.members[0], group=self.group)
        self._sent_bytes += self.grid.size * (self.count - 1) * values.nbytes
        if whole is not values:
            values.copy_(whole)

    def take_bytes_sent(self) -> int:
        """Return the bytes that replicas have sent since the last call, and reset the count.

        Sums and maxima of n bytes over R replicas count as 2 (R - 1) n, as in a ring, for every place of the
        grid. A place with a smaller part of a weight counts as much as this one.
        """
        sent_bytes, self._sent_bytes = self._sent_bytes, 0
        return sent_bytes

    def _count(self, values: Tensor) -> None:
        self._sent_bytes += 2 * (self.count - 1) * self.grid.size * values.nbytes

    def __deepcopy__(self, memo: object) -> ReplicaAxis:
        """Return the same object: a copied module has the same ranks."""
        return self

    def __repr__(self) -> str:
        return f"ReplicaAxis({self.index} of {self.count}, {self.grid})"


def replicated(
    count: int, grid: Grid | str | tuple[int, int], device: str = "cpu", token: Token | None = None
) -> tuple[Mesh, ReplicaAxis]:
    """Return the mesh of this rank's replica, and the axis of replicas.

    All ranks of the job call this together; equal calls return the same objects.

    Args:
        count: Number of replicas.
        grid: The grid of ranks of each replica, "2x2" or (2, 2).
        device: Type of the device that holds maps and gradients.
        token: Secret with which ranks on several hosts authenticate each other (default: COTSWOLD_TOKEN).

    Returns:
        The mesh and the replicas.

    Raises:
        UserError: The number of ranks of the job is not ``count`` times the number of places of the grid.
    """
    wanted = Grid(*grid) if isinstance(grid, tuple) else Grid.parse(grid) if isinstance(grid, str) else grid
    if count < 1:
        raise UserError(f"replicas={count} is not possible; give 1 or more")
    ranks, started = count * wanted.size, dist.get_world_size() if dist.is_initialized() else 1
    if ranks != started:
        raise UserError(
            f"{count} replicas of a {wanted} grid need {ranks} ranks, but {started} "
            f"{'was' if started == 1 else 'were'} started; start that number"
        )
    known, key = (
        cast(dict[Hashable, tuple[Mesh, ReplicaAxis]], _of_this_job()),
        ("replicas", count, wanted, device),
    )
    if key not in known:
        if count == 1:
            mesh = Mesh.of(wanted, device, token)
        else:
            places = torch.arange(ranks, device="cpu").reshape(count, wanted.rows, wanted.columns)
            whole = DeviceMesh(device, places, mesh_dim_names=REPLICA_AXES)
            mesh = Mesh.of(whole[AXES], device, token)
        rank = dist.get_rank() if dist.is_initialized() else 0
        known[key] = mesh, ReplicaAxis(count, wanted, rank, device)
    return known[key]
