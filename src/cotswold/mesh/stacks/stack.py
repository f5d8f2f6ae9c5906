"""A stack that all ranks of a mesh train together: this rank's filters, and the verbs of training.

Knows: what of a stack's state a rank holds, and where it lies in the whole. Does not know: the order in which
stacks are trained, recipes, files. Without autograd; modules
of `partition` have gradients.
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
from cotswold.mesh.stacks.share import Share


class TrainedStack:
    """The share of this rank in one stack; every method is called by all ranks together, in one order.

    ``below`` is who holds the input map (the outputs of the stack below), None where each rank reads its
    window of the pictures, ``partition.windows[rank]``, by itself. The first filters depend on seed, index
    and block alone, and are the same on every grid.
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
        self.share = Share(mesh, StackPartition(geometry, mesh.grid), below)
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
        """This rank's part of the stack's output, from its part of the map below (or window of pictures)."""
        return steps.output(self.share, self._state(), x, self.objective_settings.epsilon)

    def calibrate(self, x: Tensor) -> None:
        """Set the gain from a batch's root mean square, and α to the best for these filters and pictures."""
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
        """One step on a batch; see `stacks.step.step`. A momentum begins at rest."""
        if self.momentum is None:
            self.rest()
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
        """The objective and its two terms, means over images, the same on every rank."""
        error, penalty = steps.objective_parts(self.share, self._state(), x, self.objective_settings)
        return error + penalty, error, penalty

    def rest(self) -> None:
        """A momentum of zeros."""
        self.momentum = torch.zeros_like(self.filters)

    def let_go(self) -> None:
        """Forget the momentum."""
        self.momentum = None

    training = False
    """Norms are recorded by every step, so that evaluation needs no other mode."""

    def train(self) -> Self:
        """The stack itself: it computes alike in training and evaluation."""
        return self

    def eval(self) -> Self:
        """The stack itself: it computes alike in training and evaluation."""
        return self

    def parts(self) -> Iterator[tuple[str, Tensor, Box, tuple[int, ...]]]:
        """What this rank holds of the stack: name, live tensor, its box in the whole, the whole's shape.

        Scalars are the same on every rank and rank 0's alone.
        """
        layer = self.geometry.filters
        yield "filters", self.filters, self._box(layer.filters_shape), layer.filters_shape
        yield "norms", self.norms, self._box(layer.norms_shape), layer.norms_shape
        for name, scalar in (("alpha", self.alpha), ("gain", self.gain)):
            yield name, scalar, Box.whole(()), ()

    def moving(self) -> tuple[Tensor, Box, tuple[int, ...]]:
        """The momentum that this rank holds, at rest where there was none; its box, the whole's shape."""
        if self.momentum is None:
            self.rest()
        assert self.momentum is not None, "it rests now"
        shape = self.geometry.filters.filters_shape
        return self.momentum, self._box(shape), shape

    def _box(self, shape: tuple[int, ...]) -> Box:
        return Box((*self.blocks.start, *(0 for _ in shape[2:])), (*self.blocks.stop, *shape[2:]))

    def _state(self) -> ops.StackState:
        nothing = self.filters.new_empty(0)  # whoever moves nothing reads no momentum
        moving = nothing if self.momentum is None else self.momentum
        return ops.StackState(self.filters, self.norms, moving, self.alpha, self.gain)
