"""Partition ordinary modules over ranks.

Knows: which modules have a partitioned version, which run unchanged on distributed maps, which cannot be
split. Does not know: how layers compute.
"""

from __future__ import annotations

import copy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm, SpectralNormStateDictHook
from torch.nn.utils.weight_norm import WeightNorm

from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.mesh.modules import checkpoints, optimisers
from cotswold.mesh.modules.autoencoder import PartitionedAutoencoder
from cotswold.mesh.modules.inside import watch_parts
from cotswold.mesh.modules.layer import SpatialLayer
from cotswold.mesh.modules.linear import SplitLinear
from cotswold.mesh.modules.local import PartitionedLocal2d, PartitionedSmoothing
from cotswold.mesh.modules.meta import is_meta, local_parts, materialised
from cotswold.mesh.modules.parameters import distributed
from cotswold.mesh.modules.root import make_root, replicate_root
from cotswold.mesh.modules.torch_modules import shallow_copy
from cotswold.mesh.ranks.consistency_checks import states_of
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.replicas import ReplicaAxis, replicated
from cotswold.nn import L2Pool2d, Linear, LocalContrastNorm2d, LocallyConnected2d, SparseAutoencoderStack

SPLITS: tuple[type[nn.Module], ...] = (
    nn.Conv2d,
    nn.ConvTranspose2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.SyncBatchNorm,
    nn.GroupNorm,
    nn.InstanceNorm2d,
    nn.LayerNorm,
    nn.PReLU,
    nn.ParameterList,
    nn.ParameterDict,
    ParametrizationList,
)
"""torch modules with parameters whose own forward runs on distributed maps, or on replicated tensors."""

WHOLE: tuple[type[nn.Module], ...] = (
    nn.BatchNorm3d,
    nn.Bilinear,
    nn.Conv1d,
    nn.Conv3d,
    nn.ConvTranspose3d,
    nn.InstanceNorm3d,
    nn.ConvTranspose1d,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RMSNorm,
    nn.Transformer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
)
"""torch modules that every rank computes whole, on replicated tensors; they refuse maps."""

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)


def partition(
    module: nn.Module,
    grid: Grid | str | tuple[int, int] | DeviceMesh | Mesh,
    *,
    replicas: int = 1,
    sync_batchnorm: bool = False,
) -> Any:
    """Partition a module over a grid of ranks: each rank computes a part of every map.

    Every rank calls this with the same module, which stays unchanged::

        torch.distributed.init_process_group("gloo")
        model = cotswold.mesh.partition(model, "2x2")
        loss = torch.nn.functional.cross_entropy(model(images), labels)  # the whole batch, on every rank

    The partitioned module has the module's names and interface. It takes replicated batches
    ``(image, channel, y, x)`` or `DistributedMap`s, and returns what the module returns: replicated if it has
    no spatial dimensions, otherwise a `DistributedMap`, or a `DistributedArray` if its dimensions are others
    than ``(image, channel, y, x)``. Its parameters are DTensors on the grid, so
    torch.optim, ``clip_grad_norm_`` and state dicts work.

    Each rank of a module on the meta device creates only its own parts, with the values that a module built
    on the CPU would have. It draws layer by layer in the order of ``modules()``, with at most one layer whole
    in memory, and of a `LocallyConnected2d` one row of blocks.

    With ``replicas`` the ranks of the job form several such grids, replica by replica: rank r is in replica
    r // (places of the grid). Each replica gets its own batch, and backward passes average the gradients over
    replicas, which begins during the pass. All start with the parameters and buffers of the first replica.
    Around backward passes that only accumulate gradients use ``with model.no_sync():``.

    Args:
        module: The module, equal on every rank.
        grid: The grid of all ranks of the job, "2x2" or (2, 2) for two rows of two; or a 2-D `DeviceMesh`,
            which may have a part of the ranks; or a `Mesh`.
        replicas: Number of replicas of the grid; their batches should have equal sizes.
        sync_batchnorm: Use statistics of the batches of all replicas in batch normalisation, in training
            mode. If false, each replica uses those of its own batch, unless the module has a
            ``SyncBatchNorm``.

    Returns:
        The partitioned module.

    Raises:
        UserError: A module cannot be split or differs between ranks (the message names it), or the number of
            ranks is not the number of places of the grid, times the number of replicas.
    """
    first = next(module.parameters(), None)
    device = "cpu" if first is None or first.is_meta else first.device.type
    mesh, axis = _mesh_of(grid, replicas, device)
    _check_alike(module, mesh)
    # Keep the device mesh unflattened, despite DTensor's warnings: torch 2.13 gathers unequal parts of a
    # flattened mesh wrongly.
    optimisers.watch()
    checkpoints.watch()
    partitioned = _Partitioner(mesh).of(module, "")
    make_root(partitioned, mesh)
    watch_parts(partitioned, mesh)
    if axis is not None:
        replicate_root(partitioned, axis, sync_batchnorm=sync_batchnorm)
    return partitioned


def _mesh_of(
    grid: Grid | str | tuple[int, int] | DeviceMesh | Mesh, replicas: int, device: str
) -> tuple[Mesh, ReplicaAxis | None]:
    if replicas == 1:
        return Mesh.of(grid, device), None
    if isinstance(grid, DeviceMesh | Mesh):
        raise UserError(
            f'replicas={replicas} uses all ranks of the job; give the grid of each replica as text, "1x2"'
        )
    return replicated(replicas, grid, device)


class _Partitioner:
    """Partitioned versions of a module and its children, each created once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._replaced: dict[int, nn.Module] = {}
        self._owners: dict[int, str] = {}
        self._linear_layers = 0
        self._is_inside_whole = False
        """True if the enclosing module uses the parameters of its children directly."""
        self._device = mesh.device_mesh.device_type

    def of(self, module: nn.Module, name: str) -> nn.Module:
        """Return the partitioned version of the module called ``name``."""
        if id(module) not in self._replaced:
            _refuse(module, name)
            self._replaced[id(module)] = self._partitioned(module, name)
        return self._replaced[id(module)]

    def _partitioned(self, module: nn.Module, name: str) -> nn.Module:
        dims: dict[str, tuple[int, int]] = {}
        if _is_matrix(module) and not self._is_inside_whole:
            way = "rows" if self._linear_layers % 2 else "columns"
            self._linear_layers += 1
            partitioned: nn.Module = SplitLinear(module, self.mesh, way)  # type: ignore[arg-type]  # it is one
            dims = {"weight": (0, 0), "bias": (0, 0)} if way == "columns" else {"weight": (1, 1)}
        elif isinstance(module, LocallyConnected2d):
            partitioned = PartitionedLocal2d(module)
        elif isinstance(module, L2Pool2d | LocalContrastNorm2d):
            partitioned = PartitionedSmoothing(module)
        elif isinstance(module, SparseAutoencoderStack):
            partitioned = PartitionedAutoencoder(module, self.mesh)
            dims = dict(partitioned.sharded)
        else:
            partitioned = shallow_copy(module)
            vars(partitioned).update(
                {
                    key: copy.copy(held)
                    for key, held in vars(module).items()
                    if isinstance(held, dict | set | list)
                }
            )
        partitioned.training = module.training
        own = partitioned._parameters
        partitioned._parameters = {
            **module._parameters,
            **{key: own[key] for key in own.keys() - module._parameters},
        }
        if isinstance(partitioned, SpatialLayer):
            partitioned.join(self.mesh)
            dims = dict(partitioned.sharded)
        for key, values in module._parameters.items():
            if values is not None:
                self._check_parameter(values, f"{name}.{key}" if name else key)
        if isinstance(module, LocallyConnected2d) and is_meta(module):
            partitioned._parameters |= local_parts(module, self.mesh, dims, self._device)
            return partitioned
        with_values = materialised(module, name, self._device) if is_meta(module) else module
        for key, values in with_values._parameters.items():
            if values is not None:
                partitioned._parameters[key] = distributed(values, self.mesh, dims.get(key))
        partitioned._buffers = {
            key: values if values is None else self._buffer(values, dims.get(key))
            for key, values in with_values._buffers.items()
        }
        inside_whole = self._is_inside_whole
        self._is_inside_whole = inside_whole or isinstance(module, WHOLE)
        partitioned._modules = {
            key: None if child is None else self.of(child, f"{name}.{key}" if name else key)
            for key, child in module._modules.items()
        }
        self._is_inside_whole = inside_whole
        return partitioned

    def _buffer(self, values: Tensor, dims: tuple[int, int] | None) -> Tensor:
        return values.clone() if dims is None else distributed(values, self.mesh, dims).detach()

    def _check_parameter(self, values: nn.Parameter, name: str) -> None:
        owner = self._owners.setdefault(id(values), name)
        if owner != name:
            raise UserError(
                f"{name} and {owner} are one parameter, which cannot be split; use separate parameters"
            )


def _refuse(module: nn.Module, name: str) -> None:
    """Raise UserError for a module that cannot be split."""
    kind = type(module).__name__
    called = f"{kind} {name!r}" if name else kind
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise UserError(f"{called} has no weights yet; call it once with an input before partitioning it")
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        raise UserError(
            f"{called} is compiled and cannot be split; partition the module from which it was compiled"
        )
    divided = isinstance(module, LocallyConnected2d | SparseAutoencoderStack) or getattr(
        module, "sharded", None
    )
    if hasattr(module, "parametrizations") and (divided or is_meta(module)):
        raise UserError(
            f"{called} has parametrizations, and parameters that differ by position or have no values yet; "
            "remove them with torch.nn.utils.parametrize.remove_parametrizations, or build it on the CPU"
        )
    if any(isinstance(values, DTensor) for values in module._parameters.values()):
        raise UserError(f"{called} is partitioned already; partition the original module")
    if any(not _is_of_norm(hook) for hooks in _HOOKS for hook in getattr(module, hooks).values()):
        raise UserError(
            f"{called} has hooks and cannot be split; remove them, and register them on the partitioned "
            "module"
        )
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        raise UserError(
            f"{called} is recurrent and cannot be split over ranks; move it out of the partitioned module, "
            "and apply it to the module's output"
        )
    held = next((key for key, value in vars(module).items() if key not in _HOMES and _holds(value)), None)
    if held is not None:
        raise UserError(
            f"{called} also keeps modules, parameters or methods of modules in its attribute {held!r}, "
            "which would still refer to the original module; keep them in nn.ModuleList, nn.ModuleDict or "
            "attributes, and look them up there"
        )
    library = type(module).__module__.startswith(("torch.nn.", "cotswold.nn."))
    known = (
        isinstance(module, (*SPLITS, *WHOLE, LocallyConnected2d, SparseAutoencoderStack))
        or type(module).forward in _MATRIX_FORWARDS
    )
    if library and not known and module._parameters:
        raise UserError(
            f"{called} cannot be split over ranks; move it out of the partitioned module, or write it as a "
            "cotswold.mesh.SpatialLayer"
        )


_MATRIX_FORWARDS = (nn.Linear.forward, Linear.forward)


def _is_matrix(module: nn.Module) -> bool:
    """True for a `Linear` with parameters of its own, which are not computed from others."""
    return type(module).forward in _MATRIX_FORWARDS and {"weight", "bias"} <= module._parameters.keys()


def _is_of_norm(hook: object) -> bool:
    """True for hooks of torch.nn.utils.weight_norm and spectral_norm, which compute a parameter."""
    return isinstance(hook, WeightNorm | SpectralNorm | SpectralNormStateDictHook)


_HOMES = frozenset(("_modules", "_parameters", "_buffers"))


def _holds(value: object) -> bool:
    """True if a value refers to a module or parameter outside of torch's registries."""
    if isinstance(value, nn.Module | nn.Parameter):
        return True
    if isinstance(value, dict):
        return any(map(_holds, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_holds, value))
    if isinstance(value, MethodType):
        return _holds(value.__self__)
    if isinstance(value, partial):
        return _holds((value.func, value.args, value.keywords))
    if isinstance(value, FunctionType):
        return any(isinstance(_cell_key(cell), nn.Module | nn.Parameter) for cell in value.__closure__ or ())
    return False


def _cell_key(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _draws_random(module: nn.Module) -> bool:
    """True if a module draws random numbers that must be equal on all ranks."""
    drawing = _DropoutNd, nn.MultiheadAttention, nn.RReLU, nn.FractionalMaxPool2d
    return any(isinstance(one, drawing) or is_meta(one) for one in module.modules())


def _check_alike(module: nn.Module, mesh: Mesh) -> None:
    """Raise UserError if ranks have different parameters, buffers, or generators that draw for all."""
    if mesh.size == 1:
        return
    held = [
        one.detach()
        for one in (*module.parameters(), *module.buffers())
        if not isinstance(one, nn.UninitializedParameter | nn.UninitializedBuffer) and not one.is_meta
    ]
    finite = (torch.nan_to_num(one.double(), nan=0.5, posinf=1, neginf=-1) for one in held)
    sums = [torch.stack([values.sum(), values.square().sum()]).cpu() for values in finite]
    mesh.consistency_checks.values(
        [(tuple(one.shape), one.dtype) for one in held],
        torch.cat([torch.ones(1, dtype=torch.float64, device="cpu"), *sums]),
        f"has another {type(module).__name__} module",
        "call torch.manual_seed with the same number on each rank, build the module, and partition it",
    )
    drawing = _draws_random(module)
    mesh.consistency_checks.generators(states_of(mesh.device_mesh.device_type), drawing)
