"""A sparse autoencoder with tied decoding: one stack of Coates et al. 2013, section 3.

Knows: objective (1), what is learnt and what is fixed. Does not know: how a stack is trained fast
(`ops.stack_step` does), other stacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from cotswold import ops
from cotswold.geometry import StackGeometry
from cotswold.nn._checks import (
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
from cotswold.ops.layout import lay_out
from cotswold.ops.reverse_mode import is_traced


class SparseAutoencoderStack(Layer):
    """Linear local filters of norm 1, L2 pooling, contrast normalisation; decoded by the same filters.

    Maps are ``(image, channel, y, x)``, or one without a batch dimension. Learnt are ``filters``, W~,
    ``(block_y, block_x, field_y, field_x * channel, neuron)``, and the scalar ``alpha``; W = W~ / |W~|. Fixed
    are ``norms``, the recorded |W~|, ``(block_y, block_x, neuron)``, and ``gain``, the scalar that brings
    inputs to a root mean square of 1. Call `calibrate` on a batch before training.

    In training mode, and where filters take a gradient, |W~| is computed anew; in evaluation mode the
    recorded norms serve, and `eval` records them.
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
        wide = torch.promote_types(like.dtype, torch.float32)  # what is few is not stored in half precision
        self.filters = nn.Parameter(like.new_empty(geometry.filters.filters_shape))
        self.alpha = nn.Parameter(like.new_ones(1, dtype=wide))  # FSDP shards no parameter without dimensions
        self.register_buffer("norms", like.new_ones(geometry.filters.norms_shape, dtype=wide))
        self.register_buffer("gain", like.new_ones((), dtype=wide))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random filters of norm 1 that depend on nothing but seed, index and block; α and gain of 1."""
        if self.filters.is_meta:
            return
        layer, like = self.geometry.filters, self.filters
        fill(like, ops.random_filters(layer, self.seed, self.index, like.dtype, like.device))
        with torch.no_grad():
            for ones in (self.alpha, self.norms, self.gain):
                ones.fill_(1)

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        """The map that the next stack reads, ``geometry.output``: filtered, pooled, normalised."""
        return self._enter(
            lambda maps: self._normalised(self._pooled(self._responses(maps, self._norms()))), x
        )

    def pooled(self, x: Tensor) -> Tensor:
        """The map of pooling units, ``geometry.pooled``."""
        return self._enter(lambda maps: self._pooled(self._responses(maps, self._norms())), x)

    def responses(self, x: Tensor) -> Tensor:
        """The map of filter responses ``αWx``, ``geometry.responses``; x times the gain."""
        return self._enter(lambda maps: self._responses(maps, self._norms()), x)

    def reconstruct(self, x: Tensor) -> Tensor:
        """``W'αWx``, in the units of ``x``."""

        def decoded(maps: Tensor) -> Tensor:
            norms = self._norms()
            return self._decoded(self._responses(maps, norms), norms) / self.gain.to(maps.dtype)

        return self._enter(decoded, x)

    def objective(self, x: Tensor) -> Tensor:
        """Objective (1) of the paper, a scalar that autograd differentiates.

        ``|W'(αWx) - x|² + λ sum_j sqrt(V_j (αWx)² + ε)``, x times the gain; the mean over the images.
        """
        return self.objective_parts(x)[0]

    def objective_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The objective and its two terms: the squared error, and the penalty with its λ."""
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
        """λ and ε, as `ops.stack_step` wants them."""
        return ops.StackObjective(sparsity=self.sparsity, epsilon=self.epsilon)

    def state(self, momentum: Tensor, masters: Tensor | None = None) -> ops.StackState:
        """What `ops.stack_step` updates in place, sharing memory.

        ``momentum`` is shaped as the filters. ``masters``: float32 copies of filters of bfloat16 or float16.
        """
        return ops.StackState(
            filters=self.filters.detach(),
            norms=self.norms,
            momentum=momentum,
            alpha=self.alpha.detach().view(()),
            gain=self.gain,
            masters=masters,
        )

    def calibrate(self, x: Tensor) -> None:
        """Set the gain from a batch's root mean square, and α to the best for these filters and pictures."""
        self._check(x)
        maps = x.unsqueeze(0) if x.dim() == 3 else x
        nothing = self.filters.new_empty(0)
        with torch.no_grad():
            ops.calibrate(self.state(nothing), maps, self.geometry, self.objective_settings)

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; the latter records the norms of the filters."""
        if not mode and not self.filters.is_meta:
            with torch.no_grad():
                self.norms.copy_(ops.filter_norms(unsharded(self.filters)))
        return super().train(mode)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """As a module's; α is a scalar there, as in every file, unless it is sharded."""
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
        """|W~|, and 1 for a filter of zeros, which then responds with 0."""
        differentiable = torch.is_grad_enabled() or is_traced()  # a trace serves both modes
        learning = self.training or (differentiable and self.filters.requires_grad)
        norms = ops.filter_norms(self.filters) if learning else self.norms
        return torch.where(norms > 0, norms, 1)

    def _autoencoded(self, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        responses = self._responses(x, norms)
        return responses, self._decoded(responses, norms)

    def _responses(self, x: Tensor, norms: Tensor) -> Tensor:
        x, filters = autocast(x, self.filters)
        scale = lay_out(self.alpha * self.gain / norms, self.geometry.filters)
        return ops.local_product(x, filters, self.geometry.filters) * scale.to(x.dtype)

    def _decoded(self, responses: Tensor, norms: Tensor) -> Tensor:
        scaled = responses / lay_out(norms, self.geometry.filters).to(responses.dtype)
        scaled, filters = autocast(scaled, self.filters)
        return ops.local_adjoint(scaled, filters, self.geometry.filters)

    def _pooled(self, responses: Tensor) -> Tensor:
        return ops.l2_pool(responses, self.geometry.pool, self.epsilon)

    def _normalised(self, pooled: Tensor) -> Tensor:
        return pooled if self.geometry.norm.size == 1 else ops.contrast_norm(pooled, self.geometry.norm)

    def extra_repr(self) -> str:
        """The maps, what a block sees and holds, and the objective's constants."""
        shape, layer = self.geometry, self.geometry.filters
        return (
            f"{shape.input} -> {shape.output}, field={(layer.y.size, layer.x.size)}, "
            f"stride={(layer.y.stride, layer.x.stride)}, block={(layer.rows, layer.columns, layer.depth)}, "
            f"grid={layer.grid}, pool={shape.pool.size}, norm={shape.norm.size}, "
            f"sparsity={self.sparsity}, epsilon={self.epsilon}, seed={self.seed}, index={self.index}"
        )
