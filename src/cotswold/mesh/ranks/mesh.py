"""A grid of ranks and its collectives.

Knows: torch.distributed's collectives and device meshes, the place of each rank, bytes sent between ranks.
Does not know: maps, modules, how processes were started.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Grid
from cotswold.host.ipc.shared_memory_channel import SharedMemoryChannel
from cotswold.host.ipc.tcp_channel import TcpChannel
from cotswold.host.token import Token, token_of
from cotswold.mesh.ranks.consistency_checks import ConsistencyChecks
from cotswold.mesh.ranks.process_groups import process_group, timeout_of
from cotswold.mesh.ranks.shared_sums import SharedSums
from cotswold.mesh.ranks.short_messages import gather_short, is_short
from cotswold.mesh.transport.buffers import BufferPool
from cotswold.mesh.transport.connect import channels_of, streams_of
from cotswold.mesh.transport.in_flight import InFlightExchange
from cotswold.mesh.transport.routes import Routes
from cotswold.mesh.transport.torch_messages import PointToPoint

AXES = ("rows", "columns")
"""Names of the dimensions of the device mesh."""

MOST_CACHED = 1024
"""Maximum number of cached plans of a mesh."""
_T = TypeVar("_T")


class Mesh:
    """A 2-D grid of ranks of a job; create one with `Mesh.of`, with the same arguments on every rank.

    Args:
        device_mesh: A 2-D device mesh of torch.
        token: Secret with which ranks on several hosts authenticate each other (default: COTSWOLD_TOKEN).

    Attributes:
        device_mesh: torch's device mesh, for parameters (DTensor).
        grid: Number of rows and columns.
        rank: This rank's number in the grid, row by row.
        members: Ranks of the job in the grid, row by row.
        group: Process group of the grid's ranks for this mesh alone; None for one rank.

    Raises:
        UserError: The device mesh is not 2-D, its ranks do not rise row by row, or this rank is not in it.
    """

    def __init__(self, device_mesh: DeviceMesh, token: Token | None = None) -> None:
        if device_mesh.ndim != 2:
            raise UserError(
                f"a mesh for maps must have two dimensions (rows, columns), got {device_mesh.ndim}"
            )
        members = cast(list[int], device_mesh.mesh.flatten().tolist())
        self.device_mesh, self._token = device_mesh, token
        self.grid = Grid(*device_mesh.shape)
        self.members = members
        if members != sorted(members):
            raise UserError(
                f"ranks of a mesh for maps must rise row by row, as in torch's groups, got {members}"
            )
        me, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if me not in members:
            raise UserError(
                f"rank {me} is not in the grid of ranks {members}; call this only on the grid's ranks"
            )
        self.rank = members.index(me)
        self.group = process_group(members, count, device_mesh.device_type)
        self.buffers = BufferPool()
        self.draws = 0
        """Number of draws of random numbers that must be equal on all ranks."""
        self.calls = RLock()
        """Held by the thread in the forward of a partitioned module, because parameters are swapped there."""
        self.gathered = False
        """True if a reshape has gathered a map in this forward."""
        self.noticed: set[tuple[str, str]] = set()
        """Warnings that were given outside of partitioned modules."""
        self.forgotten: deque[InFlightExchange] = deque()
        """Unfinished exchanges to be abandoned by the thread that starts the next exchange."""
        self.shared_sums = SharedSums(self)
        """Sums of gradients of replicated parameters that are under way."""
        self._exchanges = self._sent_bytes = 0
        self._cached: dict[Hashable, Any] = {}

    @classmethod
    def of(
        cls,
        grid: Grid | str | tuple[int, int] | DeviceMesh | Mesh,
        device: str = "cpu",
        token: Token | None = None,
    ) -> Mesh:
        """Return the mesh of a grid.

        While the job's default group exists, equal grids return the same mesh. A single process needs no
        process group for a 1x1 grid.

        Args:
            grid: A grid of all ranks of the job ("2x2" or (2, 2) for two rows of two), a 2-D device mesh,
                which may have a part of the ranks, or a mesh, which is returned.
            device: Type of the device that holds the maps.
            token: Secret with which ranks on several hosts authenticate each other (default: COTSWOLD_TOKEN);
                used when the mesh is created.

        Returns:
            The mesh.

        Raises:
            UserError: The number of ranks of the job is not the number of places of the grid.
        """
        if isinstance(grid, Mesh):
            return grid
        if isinstance(grid, tuple):
            grid = Grid(*grid)
        wanted = Grid.parse(grid) if isinstance(grid, str) else grid
        known, key = _of_this_job(), wanted if isinstance(wanted, DeviceMesh) else (wanted, device)
        if key not in known:
            of_ranks = wanted if isinstance(wanted, DeviceMesh) else cls._all_ranks(wanted, device)
            known[key] = cls(of_ranks, token)
        return known[key]

    @staticmethod
    def _all_ranks(wanted: Grid, device: str) -> DeviceMesh:
        """Return the device mesh of a grid of all ranks of the job."""
        if not dist.is_initialized():
            if wanted.size > 1:
                raise UserError(
                    f"a {wanted} grid needs {wanted.size} processes that have called "
                    "torch.distributed.init_process_group; start them with torchrun or cotswold train --grid"
                )
            # Without a group, so that the process can still become a rank of a job.
            alone = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
            return DeviceMesh(device, alone, mesh_dim_names=AXES, _init_backend=False, _rank=0)
        if wanted.size != dist.get_world_size():
            raise UserError(
                f"a {wanted} grid has {wanted.size} ranks, but the job has {dist.get_world_size()}; use a "
                "DeviceMesh for a part of a job"
            )
        ranks = torch.arange(wanted.size, device="cpu").reshape(wanted.rows, wanted.columns)
        return DeviceMesh(device, ranks, mesh_dim_names=AXES)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.grid.size

    @cached_property
    def channels(self) -> dict[int, SharedMemoryChannel]:
        """Shared memory channels to the ranks on this host; the first access is a collective call."""
        if self.group is None:
            return {}
        return channels_of(self._gathered_by_group, timeout_of(self.group), self.members, self.rank)

    @cached_property
    def streams(self) -> dict[int, TcpChannel]:
        """TCP streams for short messages to ranks of other hosts; the first access is a collective call."""
        if self.group is None or len(self.channels) == self.size - 1:
            return {}
        near, token = tuple(self.channels), self._token or token_of(os.environ)
        return streams_of(
            self._gathered_by_group, timeout_of(self.group), self.members, self.rank, near, token
        )

    @cached_property
    def _has_own_connections(self) -> bool:
        """True if every pair of ranks has a channel or a stream; the first access is a collective call."""
        to_all = len(self.channels) + len(self.streams) == self.size - 1
        of_all = self._gathered_by_group(torch.tensor([to_all], dtype=torch.uint8, device="cpu"))
        return all(bool(one.item()) for one in of_all)

    def routes(self, device: torch.device) -> Routes:
        """Return the transports for messages from memory of a device; the first call is collective.

        Args:
            device: Device of the tensors.
        """
        return self._routes_of_cpu if device.type == "cpu" else self._routes_of_others

    @cached_property
    def _routes_of_cpu(self) -> Routes:
        return Routes(self.channels, self.streams, self._point_to_point, self.members)

    @cached_property
    def _routes_of_others(self) -> Routes:
        return Routes({}, {}, self._point_to_point, self.members)

    @cached_property
    def _point_to_point(self) -> PointToPoint:
        return PointToPoint(self.group, self.members, self.buffers)

    @property
    def consistency_checks(self) -> ConsistencyChecks:
        """Consistency checks between the ranks."""
        return ConsistencyChecks(self)

    @property
    def on_one_host(self) -> bool:
        """True if all messages use channels, which check the size of each message."""
        return self.device_mesh.device_type == "cpu" and len(self.channels) == self.size - 1

    def global_rank(self, rank: int) -> int:
        """Return the job's rank of a rank of the grid.

        Args:
            rank: Number in the grid.
        """
        return self.members[rank]

    def cached(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the cached value of a key, or create it; the oldest value is dropped if there are too many.

        Args:
            key: Key of the value.
            make: Creates the value.
        """
        if key not in self._cached:
            if len(self._cached) >= MOST_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = make()
        found: _T = self._cached[key]
        return found

    def next_tag(self) -> int:
        """Return the tag of the next exchange.

        It is equal on every rank, because all ranks begin exchanges in the same order.
        """
        self._exchanges += 1
        return self._exchanges

    def abandon_forgotten(self) -> None:
        """Abandon exchanges that will not be finished."""
        while self.forgotten:
            self.forgotten.popleft().abandon()

    def count(self, sent_bytes: int) -> None:
        """Count bytes that all ranks together send; every rank knows the number from the plan.

        Args:
            sent_bytes: Bytes to add.
        """
        self._sent_bytes += sent_bytes

    def take_bytes_sent(self) -> int:
        """Return the bytes that all ranks have sent since the last call, and reset the count.

        Messages of exchanges count as planned. Sums and maxima of n bytes over P ranks count as 2 (P - 1) n,
        and n bytes gathered from every rank as P (P - 1) n, which is the traffic of a ring, as Gloo and NCCL
        use. Short sums and maxima count as gathered if they do not use the group. Headers are not counted.
        """
        sent_bytes, self._sent_bytes = self._sent_bytes, 0
        return sent_bytes

    def sum_in_place(self, values: Tensor) -> Tensor:
        """Sum over all ranks in place, with the same bits on each.

        Args:
            values: This rank's values; changed in place.
        """
        return self._reduced(values, dist.ReduceOp.SUM)

    def start_sum(self, values: Tensor) -> dist.Work | None:
        """Start a sum over all ranks in place.

        Args:
            values: This rank's values; they must not be used before the returned work is done.

        Returns:
            The work to wait for; None for a single rank.
        """
        if self.size == 1:
            return None
        self.count(2 * (self.size - 1) * values.numel() * values.element_size())
        work: dist.Work | None = dist.all_reduce(values, group=self.group, async_op=True)
        return work

    def largest_in_place(self, values: Tensor) -> Tensor:
        """Elementwise maximum over all ranks in place.

        Args:
            values: This rank's integers; changed in place. A NaN in floats would be lost.
        """
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        if is_short(values, self.size) and self._has_own_connections:
            first, *others = self.gather(values)
            for each in others:  # in the order of ranks, so that all have the same bits
                first = first.add_(each) if how == dist.ReduceOp.SUM else torch.maximum(first, each)
            values.copy_(first)
        elif self.size > 1:
            dist.all_reduce(values, how, group=self.group)
            self.count(2 * (self.size - 1) * values.nbytes)
        return values

    def gather(self, values: Tensor, into: list[Tensor] | None = None) -> list[Tensor]:
        """Gather tensors of equal shape and type from all ranks.

        Args:
            values: This rank's tensor.
            into: One buffer per rank for the result (default: new tensors).

        Returns:
            The tensors in rank order.
        """
        if self.group is None:
            return [values]
        self.count(self.size * (self.size - 1) * values.nbytes)
        if into is None and is_short(values, self.size) and self._has_own_connections:
            return gather_short(values, self)
        return self._gathered_by_group(values, into)

    def _gathered_by_group(self, values: Tensor, into: list[Tensor] | None = None) -> list[Tensor]:
        found = [torch.empty_like(values) for _ in self.members] if into is None else into
        dist.all_gather(found, values, group=self.group)
        return found

    def check_on_all(self, check: Callable[[], None]) -> None:
        """Run a check on every rank, and raise on all ranks if it raises on one.

        Args:
            check: Raises an error if this rank cannot continue.

        Raises:
            GeometryError: On ranks whose check passed, with the number of ranks that failed.
        """
        error: Exception | None = None
        try:
            check()
        except Exception as found:  # raised below, once the other ranks know
            error = found
        failed = self.sum_in_place(torch.tensor([float(error is not None)], device="cpu"))
        if error is not None:
            raise error
        if failed.item():
            raise GeometryError(
                f"{int(failed.item())} of {self.size} ranks cannot continue; see their errors"
            )

    def __deepcopy__(self, memo: object) -> Mesh:
        """Return the same mesh: a copied module uses the same ranks, and counts exchanges with them."""
        return self

    def __repr__(self) -> str:
        return f"Mesh({self.grid}, rank {self.rank})"


_MESHES: list[tuple[weakref.ref[dist.ProcessGroup] | None, dict[Hashable, Mesh]]] = []


def _of_this_job() -> dict[Hashable, Mesh]:
    """Meshes of the current default group; meshes of an earlier group are dropped."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if not _MESHES or (_MESHES[0][0] and _MESHES[0][0]()) is not group:
        _MESHES[:] = [(None if group is None else weakref.ref(group), {})]
    return _MESHES[0][1]
