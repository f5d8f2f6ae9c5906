"""A stack that all ranks of a mesh train together: this rank's filters, and the methods of training.

Knows: this rank's part of a stack's state, and its place in the whole. Does not know: the order in which
stacks are trained, recipes, files. It uses no autograd; modules of `partition` have gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import Box, StackGeometry, StackPartition
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.stacks import step as steps
from cotswold.mesh.stacks.share import RankShare


class TrainedStack:
    """The share of this rank in one stack; all ranks call every method together, in the same order.

    The initial filters depend only on seed, index and block, and are equal on every grid.

    Args:
        mesh: The ranks.
        geometry: Sizes of the stack's maps and filters.
        sparsity: Weight λ of the penalty.
        epsilon: Constant under the roots of pooling.
        seed: Seed of the initial filters.
        index: Number of the stack in the network.
        below: Box of the input map that each rank holds (the output of the stack below). None if each rank
            reads its window of the images, ``partition.windows[rank]``, itself.
        dtype: Type of the filters.
        device: Device of the filters.
    """

    def __init__(
        self,
        mesh: Mesh,
        geometry: StackGeometry,
        sparsity: float = 0.1,
        epsilon: float = 1e-6,
        seed: int = 0,
        index: int = 0,
        *,
        below: tuple[Box, ...] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.geometry = geometry
        self.objective_settings = ops.StackObjective(sparsity=sparsity, epsilon=epsilon)
        self.share = RankShare(mesh, StackPartition(geometry, mesh.grid), below)
        self.blocks = self.share.partition.blocks.box(mesh.rank)
        layer = geometry.filters
        filters = ops.random_filters(layer, seed, index, dtype, device, blocks=self.blocks)
        wide = torch.promote_types(dtype, torch.float32)
        rows, columns = self.blocks.shape
        self.norms = filters.new_ones((rows, columns, layer.neurons), dtype=wide)
        self.alpha, self.gain = (filters.new_ones((), dtype=wide) for _ in range(2))
        self.filters = filters
        self.momentum: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute this rank's part of the stack's output.

        Args:
            x: This rank's part ``(image, channel, y, x)`` of the map below, or its window of the images.
        """
        return steps.output(self.share, self._state(), x, self.objective_settings.epsilon)

    def calibrate(self, x: Tensor) -> None:
        """Set the gain from a batch's root mean square, and α to the best value for these filters and images.

        Args:
            x: This rank's part ``(image, channel, y, x)`` of the map below, or its window of the images.
        """
        steps.calibrate(self.share, self._state(), x, self.objective_settings)

    def step(
        self,
        batch: Tensor,
        objective: ops.StackObjective,
        rule: ops.StepRule,
        *,
        upstream: Tensor | None = None,
        input_gradient: bool = False,
    ) -> ops.StackReport:
        """Take one training step on a batch; see `stacks.step.step`. The momentum starts at zero.

        Args:
            batch: This rank's part ``(image, channel, y, x)`` of the map below, or its window of the images.
            objective: Weights of the objective.
            rule: Learning rate, momentum and the step of α.
            upstream: Gradient with respect to this rank's part of the output, of losses above the stack.
            input_gradient: True to return the gradient with respect to this rank's part of the map below.

        Returns:
            The objective and its terms, equal on every rank.
        """
        if self.momentum is None:
            self.zero_momentum()
        return steps.step(
            self.share,
            self._state(),
            batch,
            objective,
            rule,
            upstream=upstream,
            input_gradient=input_gradient,
        )

    def objective_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective and its two terms, means over images, equal on every rank.

        Args:
            x: This rank's part ``(image, channel, y, x)`` of the map below, or its window of the images.
        """
        error, penalty = steps.objective_parts(self.share, self._state(), x, self.objective_settings)
        return error + penalty, error, penalty

    def zero_momentum(self) -> None:
        """Set the momentum to zero."""
        self.momentum = torch.zeros_like(self.filters)

    def discard_momentum(self) -> None:
        """Discard the momentum."""
        self.momentum = None

    training = False
    """Always False: every step records the norms, so evaluation needs no other mode."""

    def train(self) -> Self:
        """Return the stack: training and evaluation compute alike."""
        return self

    def eval(self) -> Self:
        """Return the stack: training and evaluation compute alike."""
        return self

    def parts(self) -> Iterator[tuple[str, Tensor, Box, tuple[int, ...]]]:
        """Yield this rank's tensors: name, live tensor, its box in the whole, the whole's shape.

        Scalars are equal on every rank, and belong to rank 0.
        """
        layer = self.geometry.filters
        yield "filters", self.filters, self._box(layer.filters_shape), layer.filters_shape
        yield "norms", self.norms, self._box(layer.norms_shape), layer.norms_shape
        for name, scalar in (("alpha", self.alpha), ("gain", self.gain)):
            yield name, scalar, Box.whole(()), ()

    def momentum_part(self) -> tuple[Tensor, Box, tuple[int, ...]]:
        """Return this rank's momentum (zeros if unset), its box in the whole, and the whole's shape."""
        if self.momentum is None:
            self.zero_momentum()
        assert self.momentum is not None, "zero_momentum() has set it"
        shape = self.geometry.filters.filters_shape
        return self.momentum, self._box(shape), shape

    def _box(self, shape: tuple[int, ...]) -> Box:
        return Box((*self.blocks.start, *(0 for _ in shape[2:])), (*self.blocks.stop, *shape[2:]))

    def _state(self) -> ops.StackState:
        nothing = self.filters.new_empty(0)  # without a step no momentum is read
        moving = nothing if self.momentum is None else self.momentum
        return ops.StackState(self.filters, self.norms, moving, self.alpha, self.gain)
