"""Shared by map kernels: the workers of a pass, the maps of a job.

Knows: the strides of a map in a job. Does not know: what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder
from cotswold.kernels.machine.processor import Processor


@dataclass(frozen=True)
class Workers:
    """Number of images and their dtype; processor and number of threads."""

    images: int
    dtype: str
    processor: Processor
    threads: int


class JobMap:
    """A map of a job: address of a block of lanes, and strides; ``group`` selects the first channel.

    Elements have the type of the lanes, or ``kind``.
    """

    def __init__(
        self,
        w: FunctionBuilder,
        job: ir.Value,
        field: int,
        lane: ir.Value,
        group: ir.Value | None = None,
        kind: ir.Type | None = None,
    ) -> None:
        self.w, self.kind = w, kind if kind is not None else w.lanes.scalar
        self.row, self.column, self.channel = (w.field(job, field + i) for i in (1, 2, 3))
        first = lane if group is None else w.b.add(w.b.mul(group, self.channel), lane)
        self.base = w.b.gep(w.pointer_field(job, field), [first], source_etype=self.kind)

    def position_address(self, y: ir.Value, x: ir.Value) -> ir.Value:
        """Address of a position."""
        b = self.w.b
        offset = b.add(b.mul(y, self.row), b.mul(x, self.column))
        return b.gep(self.base, [offset], source_etype=self.kind)
