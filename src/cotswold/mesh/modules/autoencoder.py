"""A sparse autoencoder stack partitioned over a grid of ranks, with gradients.

Knows: where the stack's maps are exchanged and summed; tied decoding is an overlap-sum. Does not know: the
fast training of stacks (`stack_step`), messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from cotswold import nn, ops
from cotswold.errors import GeometryError
from cotswold.geometry import ExchangePlan, Partition, StackPartition
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.maps.windows import Windows, exchange_halo
from cotswold.mesh.modules.parameters import local_parameters_installed
from cotswold.mesh.ranks.collectives import all_reduce_backward, all_reduce_forward, connected_zeros
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.stacks.share import RankShare
from cotswold.nn.layer_base import autocast, check_dtype


class PartitionedAutoencoder(nn.SparseAutoencoderStack):
    """A `SparseAutoencoderStack` of which each rank holds the filters of some blocks.

    It takes replicated batches or `DistributedMap`s. Output maps are `DistributedMap`s; the objective and its
    terms are replicated. The batch dimension is required.
    """

    sharded: Mapping[str, tuple[int, int]] = MappingProxyType({"filters": (0, 1), "norms": (0, 1)})

    def __init__(self, stack: nn.SparseAutoencoderStack, mesh: Mesh) -> None:
        torch.nn.Module.__init__(self)
        self.geometry, self.sparsity, self.epsilon = stack.geometry, stack.sparsity, stack.epsilon
        self.seed, self.index = stack.seed, stack.index
        self.share = RankShare(mesh, StackPartition(stack.geometry, mesh.grid))
        self._entries: dict[Partition, Windows] = {}

    def objective_parts(self, x: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective and its two terms, replicated on every rank."""
        mesh = self.share.mesh
        with local_parameters_installed(self):
            maps = self._map(x)
            norms = self._norms()
            window = self._window(maps)
            responses = self._respond(window, norms)
            decoded = self._decoded(responses, norms)
            residual = decoded.local - self.share.own_of(window) * self.gain
            wide = torch.promote_types(maps.dtype, torch.float32)
            error = all_reduce_forward(residual.square().sum(dtype=wide), mesh) / maps.shape[0]
            pooled = self._pooled(responses).local.sum(dtype=wide)
            penalty = self.sparsity * all_reduce_forward(pooled, mesh) / maps.shape[0]
        return error + penalty, error, penalty

    def calibrate(self, x: Any) -> None:
        """Set the gain from a batch's root mean square, and α to the best value for the filters."""
        from cotswold.mesh.stacks import step as stack_step

        with torch.no_grad(), local_parameters_installed(self):
            window = self._window(self._map(x))
            state = self.state(self.filters.new_empty(0))
            stack_step.calibrate(self.share, state, window, self.objective_settings)

    def state(self, momentum: Tensor, masters: Tensor | None = None) -> ops.StackState:
        """Return this rank's part of the state that `stacks.step.step` updates in place, sharing memory."""
        with local_parameters_installed(self):
            return super().state(momentum, masters)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; evaluation mode records the norms of the filters."""
        if mode or self.filters.is_meta:
            torch.nn.Module.train(self, mode)
            return self
        with local_parameters_installed(self):
            return super().train(mode)

    def _enter(self, function: Callable[[Any], Any], x: Any) -> Any:
        with local_parameters_installed(self):
            return function(self._map(x))

    def _map(self, x: Any) -> DistributedMap:
        maps = x if isinstance(x, DistributedMap) else DistributedMap.of(x, self.share.mesh)
        shape = self.geometry.input
        if tuple(maps.shape[1:]) != (shape.channels, shape.height, shape.width):
            raise GeometryError(
                f"SparseAutoencoderStack was built for batches of {shape}, got {tuple(maps.shape)}"
            )
        check_dtype(self, maps.source, self.filters)
        return maps

    def _window(self, maps: DistributedMap) -> Tensor:
        if maps.partition not in self._entries:
            wanted = self.share.partition.windows
            exchange = Exchange(self.share.mesh, ExchangePlan(maps.partition.boxes, wanted))
            self._entries[maps.partition] = Windows(self.share.partition.responses, wanted, wanted, exchange)
        return exchange_halo(maps, self._entries[maps.partition])

    def _norms(self) -> Tensor:
        return super()._norms() if self.filters.numel() else self.norms

    def _responses(self, x: Any, norms: Tensor) -> Any:
        return self._respond(self._window(x), norms)

    def _respond(self, window: Tensor, norms: Tensor) -> DistributedMap:
        alpha, mesh = all_reduce_backward(self.alpha, self.share.mesh), self.share.mesh
        partition = self.share.partition.responses
        if self.share.layer is None:
            shape = window.shape[0], self.geometry.responses.channels, *partition.box(mesh.rank).shape
            return DistributedMap(connected_zeros(shape, window, self.filters, alpha), partition, mesh)
        window, filters = autocast(window, self.filters)
        z = ops.local_product(window, filters, self.share.layer)
        return DistributedMap(
            z * (self.share.scales(norms) * (alpha * self.gain)).to(z.dtype), partition, mesh
        )

    def _decoded(self, responses: Any, norms: Tensor) -> Any:
        z, partition, mesh = responses.local, self.share.partition.input, self.share.mesh
        if self.share.layer is None:
            shape = z.shape[0], self.geometry.input.channels, *self.share.window.shape
            window = connected_zeros(shape, z, self.filters)
        else:
            scaled, filters = autocast(z * self.share.scales(norms).to(z.dtype), self.filters)
            window = ops.local_adjoint(scaled, filters, self.share.layer)
        return DistributedMap(self.share.pixels.adjoint(window), partition, mesh)

    def _pooled(self, responses: Any) -> Any:
        window, partition = self.share.pooling(responses.local), self.share.partition.pooled
        return self._of(window, partition, lambda: self.share.pool(window, self.epsilon))

    def _normalised(self, pooled: Any) -> Any:
        window, partition = self.share.normalisation(pooled.local), self.share.partition.output
        return self._of(window, partition, lambda: self.share.normalise(window))

    def _of(self, window: Tensor, partition: Partition, compute: Callable[[], Tensor]) -> DistributedMap:
        box = partition.box(self.share.mesh.rank)
        local = compute() if box.size else connected_zeros((*window.shape[:2], *box.shape), window)
        return DistributedMap(local, partition, self.share.mesh)
