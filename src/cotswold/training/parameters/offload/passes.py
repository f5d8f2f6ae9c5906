"""The passes of a training step over filters that are streamed row by row.

Knows: the slices of maps that a block row reads and writes, the order of products. Does not know: files,
threads.

Every number is computed as in memory, by the same kernels in the same order of sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal
from cotswold.ops.memory_format import empty_map
from cotswold.ops.step import InMemoryFilterAccess, decode, respond
from cotswold.training.parameters.offload.row_order import Strip, window
from cotswold.training.parameters.offload.row_stream import RowStream


@dataclass(frozen=True)
class Streamed:
    """Passes over the rows of a stream; the filters and momentum of ``state`` are its arenas."""

    state: ops.StackState
    layer: BlockLocal
    stream: RowStream

    def measure(self) -> None:
        """Measure the norms of the filters."""
        for visit in self.stream.sweep():
            self._part(visit.row).measure()
            self.stream.filters.release(visit.row, is_changed=False)

    def decode(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``αWx`` and ``W'αWx``; each row is read once for both."""
        z = empty_map(batch, batch.shape[0], self.layer.output)
        decoded = torch.zeros_like(batch)
        for visit in self.stream.sweep(before_move=True):
            part, seen = self._part(visit.row), self._seen(visit.row)
            z[:, :, self._written(visit.row)] = respond(part.state, batch[:, :, seen], part.layer)
            self._decode_strip(visit.strip, z, decoded)
            for row in visit.finished:
                self.stream.filters.release(row, is_changed=False)
        return z, decoded

    def move(
        self,
        decoding: tuple[Tensor, Tensor],
        encoding: tuple[Tensor, Tensor],
        rule: ops.StepRule,
        encode: bool,
    ) -> Tensor | None:
        """Add W times the residual, then step; with ``encode`` also return W' times the encoding.

        A row is changed only after the last strip that needs its old values.
        """
        (z, residual), (to_z, batch) = decoding, encoding
        encoded = torch.zeros_like(batch) if encode else None
        whole = self.state.alpha * self.state.gain
        sweep = self.stream.move(window(self.layer) if encode else 0)
        for visit in sweep:
            seen, written = self._seen(visit.row), self._written(visit.row)
            self._part(visit.row).add_residual(
                to_z[:, :, written], residual[:, :, seen], None if encode else whole
            )
            if encoded is not None:
                self._decode_strip(visit.strip, to_z, encoded)
            for row in visit.finished if encode else (visit.row,):
                sweep.take(row)
                seen, written = self._seen(row), self._written(row)
                if encode:
                    to_z[:, :, written].mul_(whole.to(to_z.dtype))
                self._part(row).step(
                    (z[:, :, written], residual[:, :, seen]), (to_z[:, :, written], batch[:, :, seen]), rule
                )
                sweep.release(row)
        return encoded

    def _decode_strip(self, strip: Strip | None, z: Tensor, into: Tensor) -> None:
        if strip is not None:
            z = z[:, :, self._written(strip.blocks.start, strip.blocks.stop)]
            into[:, :, strip.rows] = decode(z, self._rows(strip.blocks), strip.layer)

    def _part(self, row: int) -> InMemoryFilterAccess:
        layer, _ = self.layer.block_rows(row, row + 1)
        return InMemoryFilterAccess(self._rows(slice(row, row + 1)), layer)

    def _rows(self, rows: slice) -> ops.StackState:
        whole = self.state
        return ops.StackState(
            whole.filters[rows], whole.norms[rows], whole.momentum[rows], whole.alpha, whole.gain
        )

    def _seen(self, row: int) -> slice:
        return slice(*self.layer.block_rows(row, row + 1)[1])

    def _written(self, first: int, stop: int | None = None) -> slice:
        stop = first + 1 if stop is None else stop
        return slice(first * self.layer.rows, stop * self.layer.rows)
