"""Products of a block-local layer as calls of kernels: operands, how a plan is made, how a job is filled.

Knows: which kind of kernel a product takes, which operand is A, B or C. Does not know: which tile is best,
where kernels come from, autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Box, Region
from cotswold.kernels.machine import threads
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels import pair_driver
from cotswold.kernels.microkernels.activation import CURVES
from cotswold.kernels.microkernels.driver import (
    ADJOINT,
    FINISHED,
    OUTER,
    PRODUCT,
    PRODUCT_FEW,
    STEP,
    Job,
    Kind,
)
from cotswold.kernels.microkernels.tile import Tile
from cotswold.kernels.products import plan
from cotswold.kernels.products.plan import Grain, Pitches, Plan, Table

TASKS_A_THREAD = 8
"""Into how many tasks work is cut at least for each thread, so that none waits long for another."""
CLAIMS_A_THREAD = 32
TASKS_OF_A_PART = 2
"""Tasks that a part of a call has at least, so that it is no more work than it should be."""
FEW_GAIN = 1.15
"""By how much neurons in the lanes must save work, for their results are transposed afterwards."""
PACKED_ROWS = 4
"""Rows of products of bfloat16 that take as long as packing what they are multiplied with."""


@dataclass(frozen=True, eq=False)
class Map:
    """A map in memory, images last, and its pitches."""

    values: Tensor
    pitches: Pitches


@dataclass(frozen=True)
class Forced:
    """What is otherwise chosen, for tests and measurements; ``few``: whether neurons are in the lanes."""

    processor: Processor | None = None
    tile: Tile | None = None
    threads: int | None = None
    few: bool | None = None


FREE = Forced()


@dataclass(frozen=True, eq=False)
class Update:
    """The second pair of a step's products, and what moves by their sum: filters, momentum, norms.

    ``constants`` are float64: the part of the last step that is kept, the rate over α times the fan-in, the
    longest step.
    """

    delta: Tensor
    x: Tensor
    filters: Tensor
    momentum: Tensor
    norms: Tensor
    constants: Tensor


@dataclass(frozen=True, eq=False)
class Call:
    """A kind of kernel with its operands and how its plan is made."""

    kind: Kind
    layer: BlockLocal
    images: int
    a: Tensor
    b: Tensor
    c: Tensor
    a_pitch: int
    b_pitch: int
    rows: int
    entry: int
    narrow: bool
    planned: Callable[[Grain], Plan]
    update: Update | None = None
    biases: Tensor | None = None
    share: float = 1.0
    """The part of the whole product that is computed, where a region is."""

    @property
    def flops(self) -> float:
        """Two for each multiplication and addition."""
        times = self.images * (1 if self.update is None else 2)
        return _product_flops(self.layer) * times * self.share

    @property
    def dtype(self) -> str:
        """The type of the result, as kernels call it."""
        return dtype_of(self.c)


def _share(only: Region | None, plane: tuple[int, int]) -> float:
    """The part of a plane's points that a region holds."""
    if only is None:
        return 1.0
    inside = only.box.intersect(Box.whole(plane)).size / (plane[0] * plane[1])
    return 1 - inside if only.outside else inside


@lru_cache(maxsize=256)
def _product_flops(layer: BlockLocal) -> int:
    return layer.product_flops


@lru_cache(maxsize=16)
def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(x: Tensor) -> str:
    """A tensor's type as kernels call it."""
    return _named(x.dtype)


def summed(dtype: str) -> str:
    """The type of sums of products of a type."""
    return "float32" if dtype == "bfloat16" else dtype


def lanes_of(forced: Forced, dtype: str) -> int:
    """Sums in a vector."""
    return processor_of(forced).lanes(summed(dtype))


def finishes(images: int, dtype: torch.dtype, layer: BlockLocal, activation: str) -> bool:
    """Whether biases and an activation are part of the product: in float32, with images in the lanes.

    Curves take this way for any number of images: the bits of a response must not depend on the batch.
    """
    if dtype != torch.float32 or images == 0:
        return False
    return activation in CURVES or not _few(images, layer, _named(dtype), FREE)


def _few(images: int, layer: BlockLocal, dtype: str, forced: Forced) -> bool:
    """Whether images fill no vector, and neurons fill them better; larger batches share their kernels."""
    if forced.few is not None:
        return forced.few
    lanes = lanes_of(forced, dtype)
    if images > lanes:
        return False
    rows = images + (PACKED_ROWS if dtype == "bfloat16" else 0)
    of_images, of_neurons = layer.neurons * -(-images // lanes), rows * -(-layer.neurons // lanes)
    return of_neurons * FEW_GAIN < of_images


def product_call(
    x: Map,
    filters: Tensor,
    layer: BlockLocal,
    out: Map,
    forced: Forced = FREE,
    only: Region | None = None,
) -> Call:
    """``Wx`` as a call: images in the lanes, or neurons where images would leave most of them empty."""
    images, neurons, dtype = x.values.shape[0], layer.neurons, dtype_of(x.values)
    lanes, entry = lanes_of(forced, dtype), layer.x.size * layer.input.channels
    share = _share(only, layer.grid)
    if _few(images, layer, dtype, forced):
        operands = x.values, filters, out.values, x.pitches.channel, neurons
        return Call(
            PRODUCT_FEW, layer, images, *operands, min(images, 16), entry, neurons <= lanes,
            lambda grain: plan.few_plan(layer, images, x.pitches, out.pitches, grain, only),
            share=share,
        )  # fmt: skip
    operands = filters, x.values, out.values, neurons, x.pitches.channel
    return Call(
        PRODUCT, layer, images, *operands, neurons, entry, images <= lanes,
        lambda grain: plan.product_plan(layer, images, x.pitches, out.pitches, grain, only),
        share=share,
    )  # fmt: skip


def finished_call(
    x: Map,
    filters: Tensor,
    biases: Tensor,
    layer: BlockLocal,
    out: Map,
    activation: str,
    forced: Forced = FREE,
    only: Region | None = None,
) -> Call:
    """The activation of ``Wx`` and biases as a call, images in the lanes."""
    call = product_call(x, filters, layer, out, Forced(forced.processor, few=False), only)
    return replace(call, kind=FINISHED[activation], biases=biases)


def adjoint_call(
    y: Map,
    filters: Tensor,
    layer: BlockLocal,
    out: Map,
    forced: Forced = FREE,
    only: Region | None = None,
) -> Call:
    """``W'y`` as a call."""
    images, entry = y.values.shape[0], layer.columns * layer.depth
    operands = filters, y.values, out.values, layer.neurons, y.pitches.channel
    rows = min(layer.x.step, layer.x.size) * layer.input.channels
    narrow = images <= lanes_of(forced, dtype_of(y.values))
    return Call(
        ADJOINT, layer, images, *operands, rows, entry, narrow,
        lambda grain: plan.adjoint_plan(layer, images, out.pitches, y.pitches, grain, only),
        share=_share(only, (layer.input.height, layer.input.width)),
    )  # fmt: skip


def outer_call(delta: Map, x: Map, layer: BlockLocal, out: Tensor, forced: Forced = FREE) -> Call:
    """``δx'`` as a call."""
    images = x.values.shape[0]
    operands = x.values, delta.values, out, x.pitches.channel, delta.pitches.channel
    rows = layer.x.size * layer.input.channels
    narrow = layer.neurons <= lanes_of(forced, dtype_of(out))
    return Call(
        OUTER, layer, images, *operands, rows, images, narrow,
        lambda grain: plan.outer_plan(layer, images, x.pitches, delta.pitches, grain),
    )  # fmt: skip


def step_call(
    decoding: tuple[Map, Map],
    encoding: tuple[Map, Map],
    layer: BlockLocal,
    moved: tuple[Tensor, Tensor, Tensor],
    constants: Tensor,
) -> Call:
    """The step of a stack as a call; see `products.step`."""
    (delta, x), (second_delta, second_x) = decoding, encoding
    assert delta.pitches == second_delta.pitches and x.pitches == second_x.pitches, "pitches must be alike"
    filters, momentum, norms = moved
    images = x.values.shape[0]
    update = Update(second_delta.values, second_x.values, filters, momentum, norms, constants)
    return Call(
        STEP, layer, images, x.values, delta.values, filters, x.pitches.channel, delta.pitches.channel,
        layer.x.size * layer.input.channels, images, False,
        lambda grain: plan.step_plan(layer, images, x.pitches, delta.pitches, grain), update,
    )  # fmt: skip


def processor_of(forced: Forced) -> Processor:
    """The processor that code is written for."""
    found = forced.processor or this_processor()
    assert found is not None, "asked for kernels on a processor that has none; see `available`"
    return found


def perform(work: int, call: Call, tile: Tile, processor: Processor, count: int, part: float = 1.0) -> None:
    """Run a call, or the first part of its tasks, by the kernel at an address, on so many threads."""
    lanes = processor.lanes(summed(call.dtype))
    least = TASKS_A_THREAD * count if count > 1 else 1
    grain = Grain(tile, lanes, max(least, TASKS_OF_A_PART * ceil(1 / part)) if part < 1 else least)
    tables = call.planned(grain)
    job = tables.job.copy()
    tasks = max(1, int(len(tables.tasks) * part))
    job[Job.TASK_COUNT] = tasks
    job[Job.CLAIM] = max(1, tasks // (count * CLAIMS_A_THREAD))
    job[Job.A], job[Job.B], job[Job.C] = call.a.data_ptr(), call.b.data_ptr(), call.c.data_ptr()
    job[Job.A_PITCH], job[Job.B_PITCH] = call.a_pitch, call.b_pitch
    job[Job.IMAGES] = call.images
    job[Job.BIASES] = 0 if call.biases is None else call.biases.data_ptr()
    entries = None if call.update is None else _join(job, call, call.update, tables)
    size = _pack(job, call, tile, tables) if call.dtype == "bfloat16" else tables.scratch_size
    scratch = call.c.new_empty(size * count) if size else None
    job[Job.SCRATCH] = 0 if scratch is None else scratch.data_ptr()
    threads.run(work, job.ctypes.data, count)
    del entries  # the kernel has read them until here


def _pack(job: Table, call: Call, tile: Tile, tables: Plan) -> int:
    """Put where bfloat16 is packed and summed into a job; returns the numbers of scratch of a thread."""
    chunk = max(1, tables.section * pair_driver.CHUNK // plan.SECTION)
    size, packed_a, sums, c = pair_driver.scratch(tables, call.kind, tile, chunk)
    job[Job.SECTION], job[Job.SLOT_SIZE] = chunk, size
    job[Job.PACKED_A], job[Job.SUMS], job[Job.GRADIENT] = packed_a, sums, c
    return size


def _join(job: Table, call: Call, update: Update, tables: Plan) -> Table:
    """Put a step's other operands into its job; returns entries of which half lead to the second input."""
    entries = tables.entries.copy()
    distance = update.x.data_ptr() - call.a.data_ptr()
    entries[len(entries) // 2 :, 0] += distance // update.x.element_size()
    job[Job.ENTRIES] = entries.ctypes.data
    job[Job.SECOND_B], job[Job.FILTERS] = update.delta.data_ptr(), update.filters.data_ptr()
    job[Job.MOMENTUM], job[Job.NORMS] = update.momentum.data_ptr(), update.norms.data_ptr()
    job[Job.CONSTANTS] = update.constants.data_ptr()
    job[Job.FILTER_PITCH], job[Job.FILTER_ROWS] = call.layer.neurons, call.layer.fan_in
    return entries
