"""A stack whose filters and momentum are on disk.

Knows: the methods of its base class `SparseAutoencoderStack`. Does not know: other stacks, checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from cotswold import ops
from cotswold.checkpoint import Checkpoint, SealedChunk
from cotswold.geometry import Box, StackGeometry
from cotswold.nn import SparseAutoencoderStack
from cotswold.ops.memory_format import empty_map, neurons_to_map
from cotswold.ops.products import adjoint, product
from cotswold.training.parameters.offload.passes import Streamed
from cotswold.training.parameters.offload.row_cache import RowThreads
from cotswold.training.parameters.offload.row_files import RowFiles
from cotswold.training.parameters.offload.row_order import Strip
from cotswold.training.parameters.offload.row_stream import RowStream
from cotswold.training.parameters.offload.sparse_memory import Arena


class OffloadedStack(SparseAutoencoderStack):
    """A stack that keeps only some rows of blocks in memory; without autograd, on the CPU.

    ``filters`` has its full shape, with values where a sweep has read them. ``names`` are the checkpoint
    names of filters and momentum; ``room`` is the number of filter rows that fit in memory.
    """

    def __init__(
        self,
        geometry: StackGeometry,
        sparsity: float,
        epsilon: float,
        seed: int,
        index: int,
        *,
        folder: Path,
        names: tuple[str, str],
        room: int,
        threads: RowThreads,
    ) -> None:
        super().__init__(geometry, sparsity, epsilon, seed, index, device="meta")
        shape = geometry.filters.filters_shape
        folder.mkdir(parents=True)
        held, moving = (Arena(shape) for _ in range(2))
        self.rows = RowFiles(folder, names[0], held)
        self.momentum_rows = RowFiles(folder, names[1], moving)
        self.stream = RowStream(geometry.filters, self.rows, self.momentum_rows, room, threads)
        self.filters = nn.Parameter(held.tensor, requires_grad=False)
        self.alpha = nn.Parameter(torch.ones(()), requires_grad=False)
        self.norms = torch.ones(geometry.filters.norms_shape)
        self.gain = torch.ones(())

    def reset_parameters(self) -> None:
        """Write the rows of random filters, equal to those in memory; set α, gain and norms to 1."""
        if self.filters.is_meta:
            return
        layer = self.geometry.filters
        for row in range(layer.grid[0]):
            self.stream.filters.fill(row)
            blocks = Box((row, 0), (row + 1, layer.grid[1]))
            self.filters[row] = ops.random_filters(layer, self.seed, self.index, blocks=blocks)[0]
            self.stream.filters.release(row, is_changed=True)
        for ones in (self.alpha, self.norms, self.gain):
            ones.fill_(1)

    @property
    def has_momentum(self) -> bool:
        """True if momentum exists, even if it is zero."""
        return bool(self.momentum_rows.rows_on_disk)

    def zero_momentum(self) -> None:
        """Write a momentum of zeros."""
        cache = self.stream.momentum
        cache.clear()
        for row in range(self.geometry.filters.grid[0]):
            cache.fill(row)
            self.momentum_rows.arena.tensor[row].zero_()
            cache.release(row, is_changed=True)

    def free_momentum(self) -> None:
        """Delete the momentum, in memory and on disk."""
        self.stream.momentum.clear()
        self.momentum_rows.remove()

    def calibrate(self, x: Tensor) -> None:
        """Set the gain from a batch's root mean square, and α to the optimum for these filters and images."""
        self._check(x)
        with torch.no_grad():
            ops.calibrate(self._state(), x, self.geometry, self.objective_settings, self._passes())

    def step(
        self,
        batch: Tensor,
        objective: ops.StackObjective,
        rule: ops.StepRule,
        *,
        upstream: Tensor | None = None,
        input_gradient: bool = False,
    ) -> ops.StackReport:
        """Apply `ops.stack_step`; filters are read twice, momentum once, and both are written once."""
        return ops.stack_step(
            self._state(),
            batch,
            self.geometry,
            objective,
            rule,
            upstream=upstream,
            input_gradient=input_gradient,
            passes=self._passes(),
        )

    def train(self, mode: bool = True) -> OffloadedStack:
        """Set training or evaluation mode; the latter records the norms of the filters."""
        if self.training and not mode and not self.filters.is_meta:
            with torch.no_grad():
                self._passes().measure()
        nn.Module.train(self, mode)
        return self

    def _state(self) -> ops.StackState:
        return self.state(self.momentum_rows.arena.tensor)

    def _passes(self) -> Streamed:
        return Streamed(self._state(), self.geometry.filters, self.stream)

    def _norms(self) -> Tensor:
        """Return the recorded norms, or in training mode space for the norms that `_responses` measures."""
        return torch.empty_like(self.norms) if self.training else torch.where(self.norms > 0, self.norms, 1)

    def _autoencoded(self, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """Return responses and decoded maps from one sweep."""
        responses = empty_map(x, x.shape[0], self.geometry.responses)
        decoded = empty_map(x, x.shape[0], self.geometry.input)
        for visit in self.stream.sweep():
            self._respond(visit.row, x, norms, responses)
            self._decode(visit.strip, responses, norms, decoded)
            self._done(visit.finished)
        return responses, decoded

    def _responses(self, x: Tensor, norms: Tensor) -> Tensor:
        responses = empty_map(x, x.shape[0], self.geometry.responses)
        for visit in self.stream.sweep():
            self._respond(visit.row, x, norms, responses)
            self._done((visit.row,))
        return responses

    def _decoded(self, responses: Tensor, norms: Tensor) -> Tensor:
        decoded = empty_map(responses, responses.shape[0], self.geometry.input)
        for visit in self.stream.sweep():
            self._decode(visit.strip, responses, norms, decoded)
            self._done(visit.finished)
        return decoded

    @torch.no_grad()
    def _respond(self, row: int, x: Tensor, norms: Tensor, responses: Tensor) -> None:
        """Compute the responses of a row of blocks; in training mode, measure its norms first."""
        rows = slice(row, row + 1)
        part, seen = self.geometry.filters.block_rows(row, row + 1)
        if self.training:
            measured = ops.filter_norms(self.filters[rows])
            norms[rows] = torch.where(measured > 0, measured, 1)
        scale = neurons_to_map(self.alpha * self.gain / norms[rows], part).to(x.dtype)
        made = product(x[:, :, slice(*seen)], self.filters[rows], part)
        responses[:, :, self._written(rows)] = made.mul_(scale)

    @torch.no_grad()
    def _decode(self, strip: Strip | None, responses: Tensor, norms: Tensor, decoded: Tensor) -> None:
        """Decode a strip of the input map from the responses of the rows that cover it."""
        if strip is None:
            return
        unit = neurons_to_map(norms[strip.blocks], strip.layer).to(responses.dtype)
        scaled = responses[:, :, self._written(strip.blocks)] / unit
        decoded[:, :, strip.rows] = adjoint(scaled, self.filters[strip.blocks], strip.layer)

    def _done(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.stream.filters.release(row, is_changed=False)

    def _written(self, blocks: slice) -> slice:
        high = self.geometry.filters.rows
        return slice(blocks.start * high, blocks.stop * high)


class FilterFiles:
    """The filters of a stack in a state dict."""

    def __init__(self, stack: OffloadedStack) -> None:
        self._stack = stack

    def chunks(self) -> list[SealedChunk]:
        """Return every row as a chunk, once all are written."""
        self._stack.stream.settle()
        return self._stack.rows.chunks()

    def load(self, checkpoint: Checkpoint) -> None:
        """Take all rows from a checkpoint."""
        self._stack.rows.load(checkpoint, self._stack.stream.filters.capacity)


class MomentumFiles:
    """The momentum of a stack in a state dict."""

    def __init__(self, stack: OffloadedStack) -> None:
        self._stack = stack

    def chunks(self) -> list[SealedChunk]:
        """Return every row as a chunk, once all are written; zeros if there is no momentum yet."""
        if not self._stack.has_momentum:
            self._stack.zero_momentum()
        self._stack.stream.settle()
        return self._stack.momentum_rows.chunks()

    def load(self, checkpoint: Checkpoint) -> None:
        """Take all rows from a checkpoint."""
        self._stack.momentum_rows.load(checkpoint, self._stack.stream.filters.capacity)
