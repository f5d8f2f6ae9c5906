"""Calls of a partitioned module: compare and distribute inputs, gather outputs without spatial dimensions.

Knows: its outermost module, and state dicts of the original module. Does not know: how modules are split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

from cotswold.errors import UserError
from cotswold.mesh.maps.array import DistributedArray
from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.maps.features import DistributedFeatures
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.modules.checkpoints import running
from cotswold.mesh.modules.gradient_buckets import GradientBuckets
from cotswold.mesh.modules.inside import check_root
from cotswold.mesh.modules.parameters import local_parameters_installed, local_part, own_box
from cotswold.mesh.modules.sync_batchnorm import StatisticsRanks, synchronised_batchnorm
from cotswold.mesh.modules.torch_modules import has_sync_batchnorm
from cotswold.mesh.ranks.consistency_checks import due, states_of
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.replicas import ReplicaAxis


class _Root:
    """Mixin of the outermost module: distributes inputs, gathers outputs without space."""

    _mesh_of_maps: Mesh
    _calls_of_root = 0
    _buckets_of_replicas: GradientBuckets | None = None
    _statistics_of_replicas: StatisticsRanks | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward on this rank's parts."""
        check_root(self)  # type: ignore[arg-type]  # it is mixed into a module
        with self._mesh_of_maps.calls:
            return self._forward(args, kwargs)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mesh = self._mesh_of_maps
        self._calls_of_root += 1
        mesh.gathered = False
        mesh.shared_sums.abandon()
        with _compared(self, (args, kwargs), due(self._calls_of_root)):  # type: ignore[arg-type]  # as below
            args, kwargs = tree_map(lambda value: _distribute(value, mesh), (args, kwargs))
            with self._installed(), _script_errors():
                out = super().forward(*args, **kwargs)  # type: ignore[misc]  # as above
        buckets = self._buckets_of_replicas
        if buckets is not None and torch.is_grad_enabled():
            buckets.refresh()
            for each in tree_leaves(out):
                if isinstance(each, Tensor):
                    buckets.finish_after(each.local if isinstance(each, _PARTS) else each)
        return tree_map(_full, out)

    def _normalised(self) -> AbstractContextManager[None]:
        """Return the context in which batch normalisation sees the batches of all replicas."""
        how = self._statistics_of_replicas
        is_learning = self.training  # type: ignore[attr-defined]  # it is mixed into a module
        return nullcontext() if how is None or not is_learning else synchronised_batchnorm(how)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context whose backward passes only accumulate gradients, without averaging over replicas.

        The next backward pass outside of it averages the sum, as in torch's DistributedDataParallel.
        """
        buckets = self._buckets_of_replicas
        return nullcontext() if buckets is None else buckets.paused()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Make parameters local for a `with` block, and again where a checkpoint calls parts of it."""
        with local_parameters_installed(self), running(self), self._normalised():  # type: ignore[arg-type]  # it is mixed into a module
            yield

    def _recompute(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function of the forward again, during the backward pass of a checkpoint."""
        with self._mesh_of_maps.calls, self._installed():
            return function(*args, **kwargs)


@contextmanager
def _script_errors() -> Iterator[None]:
    """Raise UserError if TorchScript fails, which loses the message of the function that it calls."""
    try:
        yield
    except RuntimeError as error:
        if "TorchScript interpreter" not in str(error):
            raise
        raise UserError(
            "a function of torch.jit.script received a distributed tensor, which TorchScript cannot read; "
            f"use the Python function from which it was made ({error})"
        ) from error


@contextmanager
def _compared(partitioned: nn.Module, given: object, values_too: bool) -> Iterator[None]:
    """Check around a call that all ranks got the same arguments, and draw the same random numbers."""
    mesh: Mesh = partitioned._mesh_of_maps  # type: ignore[assignment]  # torch types attributes as tensors or modules
    if mesh.size == 1:
        yield
        return
    device = mesh.device_mesh.device_type
    if values_too or not mesh.on_one_host:
        leaves = tree_leaves(given)
        maps = [one for one in leaves if isinstance(one, Tensor)]
        sizes = [(tuple(one.shape), one.dtype) for one in maps]
        settings = (
            [one for one in leaves if isinstance(one, bool | int | float | complex | str)],
            [module.training for module in partitioned.modules()],
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        )
        tensors = [one for one in maps if not isinstance(one, DistributedTensor)]
        mesh.consistency_checks.batches(sizes, settings, tensors, values_too)
    if values_too:
        mesh.consistency_checks.parameters(
            [one.to_local() for one in partitioned.parameters() if _is_shared(one)]
        )
    before = states_of(device) if values_too else []
    yield
    if values_too:
        mesh.consistency_checks.generators(before, states_of(device) != before)


def _is_shared(parameter: Tensor) -> TypeGuard[DTensor]:
    """True if a parameter is replicated."""
    return isinstance(parameter, DTensor) and all(each.is_replicate() for each in parameter.placements)


def _distribute(value: Any, mesh: Mesh) -> Any:
    if isinstance(value, DistributedTensor) or not isinstance(value, Tensor) or value.dim() != 4:
        return value
    return DistributedMap.of(value, mesh)


def _full(value: Any) -> Any:
    if isinstance(value, DistributedMap | DistributedArray):
        value.check_gradient()
    return value.full_tensor() if isinstance(value, DistributedFeatures) else value


_PARTS = (DistributedMap, DistributedFeatures)
"""Outputs of which a rank has a part."""


def replicate_root(partitioned: nn.Module, replicas: ReplicaAxis, *, sync_batchnorm: bool) -> None:
    """Give an outermost module the values of the first replica, and average its gradients over replicas."""
    for each in (*partitioned.parameters(), *partitioned.buffers()):
        replicas.copy_first(local_part(each).detach())
    mesh: Mesh = partitioned._mesh_of_maps  # type: ignore[assignment]  # torch types attributes as tensors or modules
    buckets = GradientBuckets(partitioned.parameters(), replicas, shared_sums=mesh.shared_sums)
    vars(partitioned)["_buckets_of_replicas"] = buckets
    if sync_batchnorm or has_sync_batchnorm(partitioned):
        vars(partitioned)["_statistics_of_replicas"] = StatisticsRanks(replicas, mesh)


def make_root(partitioned: nn.Module, mesh: Mesh) -> None:
    """Make a partitioned module the outermost one."""
    kind = type(partitioned)
    partitioned.__class__ = type(f"Partitioned{kind.__name__.removeprefix('Partitioned')}", (_Root, kind), {})
    partitioned._mesh_of_maps = mesh  # type: ignore[assignment]  # torch types attributes as tensors or modules
    partitioned.register_load_state_dict_pre_hook(_cut_whole_values)  # type: ignore[no-untyped-call]  # torch's


def _cut_whole_values(partitioned: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Let a partitioned module load the original module's state; each rank takes its part."""
    for name, values in [*partitioned.named_parameters(), *partitioned.named_buffers()]:
        given = state.get(prefix + name)
        if not isinstance(values, DTensor) or not isinstance(given, Tensor) or isinstance(given, DTensor):
            continue
        if given.shape == values.shape:
            state[prefix + name] = DTensor.from_local(
                given[own_box(values).slices],
                values.device_mesh,
                values.placements,
                run_check=False,
                shape=values.shape,
                stride=values.stride(),
            )
