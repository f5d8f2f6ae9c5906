"""The three heavy products of a block-local layer, on the kernels of this processor.

Knows: which plan and kernel an operation takes, how a job is handed to threads. Does not know: autograd.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cotswold.geometry import BlockLocal
from cotswold.kernels import engine, machine, plan, threads
from cotswold.kernels.driver import ADJOINT, KINDS, OUTER, PRODUCT, PRODUCT_FEW, Job, Kind, write_kernel
from cotswold.kernels.emit import Lanes
from cotswold.kernels.machine import Machine
from cotswold.kernels.plan import Grain, Pitches, Plan
from cotswold.kernels.tile import Tile


@lru_cache(maxsize=256)
def kernel(kind: str, dtype: str, tile: Tile, processor: Machine) -> int:
    lanes = Lanes(dtype, processor.lanes(dtype))
    module = write_kernel(KINDS[kind], lanes, tile, processor.triple)
    return engine.loaded(engine.compiled(module, processor), processor, "work")


TILE = {"product": Tile(8, 3), "product_few": Tile(8, 3), "adjoint": Tile(8, 3), "outer": Tile(8, 3)}
CHUNK = {"product": 1, "product_few": 1 << 30, "adjoint": 1 << 30, "outer": 1 << 30}


def pitches(x: Tensor, channels: int) -> Pitches:
    from cotswold.ops.layout import pitch_of
    p = pitch_of(x)
    return Pitches(p.channel, p.channel * channels, p.row)


def execute(kind, plan_: Plan, a, b, c, a_pitch, b_pitch, images, n, tile, processor, dtype, second=0):
    job = np.zeros(Job.FIELDS, np.int64)
    size = plan_.scratch_size
    scratch = torch.empty(size * n + 64, dtype=dtype) if size else None
    job[Job.TASKS] = plan_.tasks.ctypes.data
    job[Job.TASK_COUNT] = len(plan_.tasks)
    job[Job.ENTRIES] = plan_.entries.ctypes.data
    job[Job.ROW_TILES] = plan_.row_tiles.ctypes.data
    job[Job.LANE_TILES] = plan_.lane_tiles.ctypes.data
    job[Job.OFFSETS] = plan_.offsets.ctypes.data
    job[Job.A], job[Job.B], job[Job.C] = a.data_ptr(), b.data_ptr(), c.data_ptr()
    job[Job.A_PITCH], job[Job.B_PITCH] = a_pitch, b_pitch
    job[Job.CLAIM] = max(1, len(plan_.tasks) // (n * 16))
    job[Job.CHUNK] = CHUNK[kind.name]
    job[Job.SCRATCH] = scratch.data_ptr() if scratch is not None else 0
    job[Job.SLOT_SIZE] = size
    job[Job.SCRATCH_PITCH] = plan_.scratch_pitch
    job[Job.IMAGES] = images
    job[Job.SECOND_B] = second
    name = str(dtype).removeprefix("torch.")
    threads.run(kernel(kind.name, name, tile, processor), job.ctypes.data, n)


def product(x, filters, layer, out, kind=PRODUCT, tile=None, processor=None, n=None):
    processor = processor or machine.host()
    n = n or torch.get_num_threads()
    tile = tile or TILE[kind.name]
    name = str(x.dtype).removeprefix("torch.")
    grain = Grain(tile, processor.lanes(name), 4 * n if n > 1 else 1)
    px, py = pitches(x, layer.input.channels), pitches(out, layer.depth)
    if kind is PRODUCT:
        p = plan.product_plan(layer, x.shape[0], px, py, grain)
        execute(kind, p, filters, x, out, layer.neurons, px.channel, x.shape[0], n, tile, processor, x.dtype)
    else:
        p = plan.few_plan(layer, x.shape[0], px, py, grain)
        execute(kind, p, x, filters, out, px.channel, layer.neurons, x.shape[0], n, tile, processor, x.dtype)
    return out


def adjoint(y, filters, layer, out, tile=None, processor=None, n=None):
    processor = processor or machine.host()
    n = n or torch.get_num_threads()
    tile = tile or TILE["adjoint"]
    name = str(y.dtype).removeprefix("torch.")
    grain = Grain(tile, processor.lanes(name), 4 * n if n > 1 else 1)
    px, py = pitches(out, layer.input.channels), pitches(y, layer.depth)
    p = plan.adjoint_plan(layer, y.shape[0], px, py, grain)
    execute(ADJOINT, p, filters, y, out, layer.neurons, py.channel, y.shape[0], n, tile, processor, y.dtype)
    return out


def outer(delta, x, layer, out, tile=None, processor=None, n=None):
    processor = processor or machine.host()
    n = n or torch.get_num_threads()
    tile = tile or TILE["outer"]
    name = str(x.dtype).removeprefix("torch.")
    grain = Grain(tile, processor.lanes(name), 4 * n if n > 1 else 1)
    px, py = pitches(x, layer.input.channels), pitches(delta, layer.depth)
    p = plan.outer_plan(layer, x.shape[0], px, py, grain)
    execute(OUTER, p, x, delta, out, px.channel, py.channel, x.shape[0], n, tile, processor, x.dtype)
    return out
