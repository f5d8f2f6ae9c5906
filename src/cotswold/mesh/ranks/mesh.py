"""A grid of ranks: who is in it, and what all of them do together.

Knows: torch.distributed's groups and device meshes, which of their ranks stand where, how many bytes they
send each other. Does not know: maps, modules, who started the processes.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from datetime import timedelta
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Grid
from cotswold.host.ipc.shared_memory_channel import Channel
from cotswold.host.ipc.tcp_channel import MessageStream
from cotswold.host.token import Token, token_of
from cotswold.mesh.ranks.agreement import Agreement
from cotswold.mesh.transport.buffers import Buffers
from cotswold.mesh.transport.connect import channels_of, streams_of
from cotswold.mesh.transport.routes import Routes
from cotswold.mesh.transport.torch_messages import PointToPoint
from cotswold.mesh.transport.under_way import UnderWay

AXES = ("rows", "columns")
"""Names of the dimensions of the device mesh."""

MOST_CACHED = 1024
"""Plans that a mesh keeps at most."""
_T = TypeVar("_T")


class Mesh:
    """A 2-D grid of ranks of a job. ``device_mesh`` is torch's own, for parameters (DTensor).

    Make one with `Mesh.of`, on every rank alike.
    """

    def __init__(self, device_mesh: DeviceMesh, token: Token | None = None) -> None:
        if device_mesh.ndim != 2:
            raise UserError(f"a mesh for maps has two dimensions (rows, columns), not {device_mesh.ndim}")
        members = cast(list[int], device_mesh.mesh.flatten().tolist())
        self.device_mesh, self._token = device_mesh, token
        self.grid = Grid(*device_mesh.shape)
        self.members = members
        """The ranks of the job that stand in the grid, row by row."""
        if members != sorted(members):
            raise UserError(
                f"ranks of a mesh for maps rise row by row, as torch's groups have them, not {members}"
            )
        me, count = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if me not in members:
            raise UserError(f"rank {me} is not in the grid of ranks {members}; call this on its ranks only")
        self.rank = members.index(me)
        self.group = _own_group(members, count, device_mesh.device_type)
        """A group of the grid's ranks for this mesh alone: nothing else has its tags. None for one rank."""
        self.buffers = Buffers()
        self.draws = 0
        """How often numbers were drawn that all ranks need alike."""
        self.calls = RLock()
        """Held by the thread that is in the forward of a partitioned module: parameters are swapped there."""
        self.gathered = False
        """Whether a reshape has made a map whole in this forward."""
        self.noticed: set[tuple[str, str]] = set()
        """Notices that were given outside of partitioned modules."""
        self.forgotten: deque[UnderWay] = deque()
        """Exchanges that nobody will finish, to be abandoned by the thread that starts exchanges."""
        self._exchanges = self._sent_bytes = 0
        self._cached: dict[Hashable, Any] = {}

    @classmethod
    def of(
        cls,
        grid: Grid | str | tuple[int, int] | DeviceMesh | Mesh,
        device: str = "cpu",
        token: Token | None = None,
    ) -> Mesh:
        """The mesh of a grid ("2x2", (2, 2)) of all ranks of the job, or of a 2-D device mesh, maybe a part.

        A process that is alone needs no group for a 1x1 grid. While the job's default group lives, the same
        grid gives the same mesh. By ``token``, when the mesh is made, ranks of several hosts know each other
        (see `connecting.streams_of`); by default by the one in COTSWOLD_TOKEN. Raises UserError where there
        are not as many ranks as the grid has places.
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
        """The device mesh of a grid of all ranks of the job."""
        if not dist.is_initialized():
            if wanted.size > 1:
                raise UserError(
                    f"a {wanted} grid needs {wanted.size} processes that have called "
                    "torch.distributed.init_process_group; start them with torchrun or cotswold train --grid"
                )
            # without a group, so that the process can still become a rank of a job
            alone = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
            return DeviceMesh(device, alone, mesh_dim_names=AXES, _init_backend=False, _rank=0)
        if wanted.size != dist.get_world_size():
            raise UserError(
                f"a {wanted} grid has {wanted.size} ranks, but the job has {dist.get_world_size()}; "
                "give a DeviceMesh for a part of a job"
            )
        ranks = torch.arange(wanted.size, device="cpu").reshape(wanted.rows, wanted.columns)
        return DeviceMesh(device, ranks, mesh_dim_names=AXES)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.grid.size

    @cached_property
    def channels(self) -> dict[int, Channel]:
        """Ways through memory to the ranks on this host; all ranks ask for the first time together."""
        if self.group is None:
            return {}
        return channels_of(self.gather, timeout_of(self.group), self.members, self.rank)

    @cached_property
    def streams(self) -> dict[int, MessageStream]:
        """Sockets for short messages to ranks of other hosts; all ranks ask for the first time together."""
        if self.group is None or len(self.channels) == self.size - 1:
            return {}
        near, token = tuple(self.channels), self._token or token_of(os.environ)
        return streams_of(self.gather, timeout_of(self.group), self.members, self.rank, near, token)

    def routes(self, device: torch.device) -> Routes:
        """The transports for messages between memory of a device; all ranks first ask together."""
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
    def agreement(self) -> Agreement:
        """What all ranks must have alike."""
        return Agreement(self)

    @property
    def on_one_host(self) -> bool:
        """Whether all messages go through channels, which know the size of what is expected."""
        return self.device_mesh.device_type == "cpu" and len(self.channels) == self.size - 1

    def member(self, rank: int) -> int:
        """The rank in the job of a rank of the grid."""
        return self.members[rank]

    def cached(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What was made for a key before, or is made now; the oldest is forgotten when there are too many."""
        if key not in self._cached:
            if len(self._cached) >= MOST_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = make()
        found: _T = self._cached[key]
        return found

    def next_tag(self) -> int:
        """A number that every rank has for the same exchange, for all begin their exchanges in one order."""
        self._exchanges += 1
        return self._exchanges

    def abandon_forgotten(self) -> None:
        """Abandon the exchanges that nobody will finish."""
        while self.forgotten:
            self.forgotten.popleft().abandon()

    def count(self, sent_bytes: int) -> None:
        """Count what all ranks together send; every rank knows it from the plan."""
        self._sent_bytes += sent_bytes

    def take_count(self) -> int:
        """Bytes that all ranks sent each other since this was last asked, headers left out.

        Messages of exchanges as planned; sums and maxima of n bytes over P ranks as 2 (P - 1) n, and n bytes
        gathered from every rank as P (P - 1) n: what a ring sends, as Gloo and NCCL do.
        """
        sent_bytes, self._sent_bytes = self._sent_bytes, 0
        return sent_bytes

    def sum_in_place(self, values: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest_in_place(self, values: Tensor) -> Tensor:
        """The largest of all ranks' whole numbers, place by place. Of floats a NaN would be lost."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values, how, group=self.group)
            self.count(2 * (self.size - 1) * values.numel() * values.element_size())
        return values

    def gather(self, values: Tensor, into: list[Tensor] | None = None) -> list[Tensor]:
        """What every rank has of one shape and type, in their order; ``into`` is room for it."""
        if self.group is None:
            return [values]
        found = [torch.empty_like(values) for _ in self.members] if into is None else into
        dist.all_gather(found, values, group=self.group)
        self.count(self.size * (self.size - 1) * values.numel() * values.element_size())
        return found

    def check_on_all(self, check: Callable[[], None]) -> None:
        """Run a check on every rank; where one raises, all do, so that none waits for the others.

        Ranks whose own check passed raise GeometryError with the number of those that failed.
        """
        error: Exception | None = None
        try:
            check()
        except Exception as found:  # raised again below, once the others know
            error = found
        failed = self.sum_in_place(torch.tensor([float(error is not None)], device="cpu"))
        if error is not None:
            raise error
        if failed.item():
            raise GeometryError(
                f"{int(failed.item())} of {self.size} ranks cannot take part; see their errors"
            )

    def __deepcopy__(self, memo: object) -> Mesh:
        """The same: a copy of a module is on the same ranks, and counts exchanges with them."""
        return self

    def __repr__(self) -> str:
        return f"Mesh({self.grid}, rank {self.rank})"


def _own_group(members: list[int], count: int, device: str) -> dist.ProcessGroup | None:
    """A new group of these of the job's ``count`` ranks, for tensors of a device and of the CPU.

    All ranks of the mesh call this; it waits as long for a rank as the job's own group. Raises UserError
    where the job's group has no backend for the CPU, and maps lie there.
    """
    if len(members) == 1:
        return None
    backend, timeout = None, timeout_of(None)
    if timeout is None:  # the few numbers that ranks compare lie on the CPU, wherever maps do
        backend = f"cpu:gloo,{dist.get_backend_config()}"
        if device == "cpu":
            raise UserError(
                f"maps on the CPU need a process group for the CPU, but the job's has {dist.get_backend()} "
                f'alone; call init_process_group("{backend}"), or move the module to the GPU before'
            )
        timeout = timeout_of(None, device)
    everybody = members == list(range(count))
    group: dist.ProcessGroup = dist.new_group(
        members, timeout, backend, use_local_synchronization=not everybody
    )
    return group


def timeout_of(group: dist.ProcessGroup | None, device: str = "cpu") -> timedelta | None:
    """How long ranks of a group (None: the job's) wait for each other; None without the device's backend."""
    known = group if group is not None else dist.group.WORLD
    assert known is not None, "there is a group where there are several ranks"
    try:
        backend = known._get_backend(torch.device(device))
    except RuntimeError:  # torch's word for a device without a backend
        return None
    timeout: timedelta = getattr(getattr(backend, "options", None), "_timeout", dist.default_pg_timeout)
    return timeout


_MESHES: list[tuple[weakref.ref[dist.ProcessGroup] | None, dict[Hashable, Mesh]]] = []


def _of_this_job() -> dict[Hashable, Mesh]:
    """Meshes that were made while the default group of now lived; those of a group before it are let go."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if not _MESHES or (_MESHES[0][0] and _MESHES[0][0]()) is not group:
        _MESHES[:] = [(None if group is None else weakref.ref(group), {})]
    return _MESHES[0][1]
