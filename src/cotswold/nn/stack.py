"""A sparse autoencoder with tied decoding: one stack of Coates et al. 2013, section 3.

Knows: objective (1), the learned and the fixed values. Does not know: fast training of a stack (see
`ops.step`), other stacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from cotswold import ops
from cotswold.geometry import StackGeometry
from cotswold.nn.layer_base import (
    Layer,
    autocast,
    batched,
    check_dtype,
    check_shape,
    fill,
    is_sharded,
    refuse_onnx,
    traced_as_leaf,
    unsharded,
)
from cotswold.ops.memory_format import neurons_to_map
from cotswold.ops.reverse_mode import is_traced


class SparseAutoencoderStack(Layer):
    """Linear local filters of norm 1, L2 pooling and contrast normalisation; the same filters decode.

    Maps are ``(image, channel, y, x)``, or one map without the batch dimension. Learned: ``filters``, W~,
    ``(block_y, block_x, field_y, field_x * channel, neuron)``, and the scalar ``alpha``; W = W~ / |W~|.
    Fixed: ``norms``, the recorded |W~|, ``(block_y, block_x, neuron)``, and ``gain``, the scalar that scales
    inputs to a root mean square of 1. Call `calibrate` on a batch before training.

    The norms |W~| are recomputed in training mode and if the filters need a gradient. In evaluation mode the
    recorded norms are used; `eval` records them.

    Args:
        geometry: Shapes of the maps, filters and windows.
        sparsity: λ, the weight of the penalty.
        epsilon: ε under the roots of pooling.
        seed: Seed of the initial filters.
        index: Number of the stack in its network; it selects other initial filters for the same seed.
        device: Device of parameters and buffers.
        dtype: Dtype of the filters; the other values have at least float32.

    Source:
        Coates et al. 2013, section 3.
    """

    norms: Tensor
    gain: Tensor

    def __init__(
        self,
        geometry: StackGeometry,
        sparsity: float = 0.1,
        epsilon: float = 1e-6,
        seed: int = 0,
        index: int = 0,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.geometry, self.sparsity, self.epsilon = geometry, sparsity, epsilon
        self.seed, self.index = seed, index
        like = torch.empty(0, device=device, dtype=dtype)
        wide = torch.promote_types(like.dtype, torch.float32)  # small values are not stored in half precision
        self.filters = nn.Parameter(like.new_empty(geometry.filters.filters_shape))
        self.alpha = nn.Parameter(like.new_ones(1, dtype=wide))  # FSDP cannot shard a scalar parameter
        self.register_buffer("norms", like.new_ones(geometry.filters.norms_shape, dtype=wide))
        self.register_buffer("gain", like.new_ones((), dtype=wide))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw filters of norm 1 that depend only on seed, index and block; set α and the gain to 1."""
        if self.filters.is_meta:
            return
        layer, like = self.geometry.filters, self.filters
        fill(like, ops.random_filters(layer, self.seed, self.index, like.dtype, like.device))
        with torch.no_grad():
            for ones in (self.alpha, self.norms, self.gain):
                ones.fill_(1)

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        """Return the map that the next stack reads (``geometry.output``): filtered, pooled, normalised.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.

        Raises:
            GeometryError: Another shape or dtype.
            ExportError: An ONNX export is running.
        """
        return self._enter(
            lambda maps: self._normalised(self._pooled(self._responses(maps, self._norms()))), x
        )

    def pooled(self, x: Tensor) -> Tensor:
        """Return the map of pooling units (``geometry.pooled``); errors as for `forward`.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.
        """
        return self._enter(lambda maps: self._pooled(self._responses(maps, self._norms())), x)

    def responses(self, x: Tensor) -> Tensor:
        """Return the filter responses ``αW(gain x)`` (``geometry.responses``); errors as for `forward`.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.
        """
        return self._enter(lambda maps: self._responses(maps, self._norms()), x)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the reconstruction ``W'αWx``, in the units and shape of ``x``; errors as for `forward`.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.
        """

        def decoded(maps: Tensor) -> Tensor:
            norms = self._norms()
            return self._decoded(self._responses(maps, norms), norms) / self.gain.to(maps.dtype)

        return self._enter(decoded, x)

    def objective(self, x: Tensor) -> Tensor:
        """Return objective (1) of the paper, a scalar that autograd differentiates.

        ``|W'(αWx) - x|² + λ sum_j sqrt(V_j (αWx)² + ε)``, with x scaled by the gain; the mean over the
        images.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.

        Source:
            Coates et al. 2013, equation 1.
        """
        return self.objective_parts(x)[0]

    def objective_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective and its two terms: the squared error, and the penalty scaled by λ.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.
        """
        self._check(x)
        maps = x.unsqueeze(0) if x.dim() == 3 else x
        norms = self._norms()
        responses, decoded = self._autoencoded(maps, norms)
        wide = torch.promote_types(x.dtype, torch.float32)
        residual = decoded - maps * self.gain
        error = residual.square().sum(dtype=wide) / maps.shape[0]
        penalty = self.sparsity * self._pooled(responses).sum(dtype=wide) / maps.shape[0]
        return error + penalty, error, penalty

    @property
    def objective_settings(self) -> ops.StackObjective:
        """λ and ε in the form that `ops.step` takes."""
        return ops.StackObjective(sparsity=self.sparsity, epsilon=self.epsilon)

    def state(self, momentum: Tensor, masters: Tensor | None = None) -> ops.StackState:
        """Return the state that `ops.step` updates in place; it shares memory with this module.

        Args:
            momentum: Velocity of the filters, of their shape.
            masters: float32 copies of the filters, if these are bfloat16 or float16.
        """
        return ops.StackState(
            filters=self.filters.detach(),
            norms=self.norms,
            momentum=momentum,
            alpha=self.alpha.detach().view(()),
            gain=self.gain,
            master_filters=masters,
        )

    def calibrate(self, x: Tensor) -> None:
        """Set the gain from the root mean square of a batch, and α to its optimum for these filters.

        Args:
            x: Maps ``(image, channel, y, x)`` of ``geometry.input``, or one map.
        """
        self._check(x)
        maps = x.unsqueeze(0) if x.dim() == 3 else x
        nothing = self.filters.new_empty(0)
        with torch.no_grad():
            ops.calibrate(self.state(nothing), maps, self.geometry, self.objective_settings)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; evaluation mode records the norms of the filters.

        Args:
            mode: True for training mode.
        """
        if not mode and not self.filters.is_meta:
            with torch.no_grad():
                self.norms.copy_(ops.filter_norms(unsharded(self.filters)))
        return super().train(mode)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save α as a scalar, as every file has it, unless it is sharded."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        alpha = destination[f"{prefix}alpha"]
        if not is_sharded(alpha) and not keep_vars:
            destination[f"{prefix}alpha"] = alpha.view(())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        alpha = state_dict.get(f"{prefix}alpha")
        if isinstance(alpha, Tensor) and alpha.dim() == 0:
            state_dict[f"{prefix}alpha"] = alpha.view(1)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check(self, x: Tensor) -> None:
        refuse_onnx(self)
        shape = self.geometry.input
        check_shape(self, x, (shape.channels, shape.height, shape.width))
        check_dtype(self, x, self.filters)

    def _enter(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self._check(x)
        return batched(function, x, 3)

    def _norms(self) -> Tensor:
        """Return |W~|, with 1 for a filter of zeros, so that the filter responds with 0."""
        differentiable = torch.is_grad_enabled() or is_traced()  # a trace serves both modes
        learning = self.training or (differentiable and self.filters.requires_grad)
        norms = ops.filter_norms(self.filters) if learning else self.norms
        return torch.where(norms > 0, norms, 1)

    def _autoencoded(self, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        responses = self._responses(x, norms)
        return responses, self._decoded(responses, norms)

    def _responses(self, x: Tensor, norms: Tensor) -> Tensor:
        x, filters = autocast(x, self.filters)
        scale = neurons_to_map(self.alpha * self.gain / norms, self.geometry.filters)
        return ops.local_product(x, filters, self.geometry.filters) * scale.to(x.dtype)

    def _decoded(self, responses: Tensor, norms: Tensor) -> Tensor:
        scaled = responses / neurons_to_map(norms, self.geometry.filters).to(responses.dtype)
        scaled, filters = autocast(scaled, self.filters)
        return ops.local_adjoint(scaled, filters, self.geometry.filters)

    def _pooled(self, responses: Tensor) -> Tensor:
        return ops.l2_pool(responses, self.geometry.pool, self.epsilon)

    def _normalised(self, pooled: Tensor) -> Tensor:
        return pooled if self.geometry.norm.size == 1 else ops.contrast_norm(pooled, self.geometry.norm)

    def extra_repr(self) -> str:
        """Return the maps, the sizes of windows and blocks, and the objective's constants as text."""
        shape, layer = self.geometry, self.geometry.filters
        return (
            f"{shape.input} -> {shape.output}, kernel_size={(layer.y.size, layer.x.size)}, "
            f"stride={(layer.y.stride, layer.x.stride)}, block={(layer.rows, layer.columns, layer.depth)}, "
            f"grid={layer.grid}, pool={shape.pool.size}, norm={shape.norm.size}, "
            f"sparsity={self.sparsity}, epsilon={self.epsilon}, seed={self.seed}, index={self.index}"
        )
