"""A product that is ready to run: its plan as a job, for a tile, a processor and a number of threads.

Knows: the fields of a job. Does not know: the best tile, the source of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

from torch import Tensor

from cotswold.kernels.compile.emit import BYTES
from cotswold.kernels.compile.jobs import JobHead
from cotswold.kernels.machine.execution import PreparedKernel
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels import half_layout
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.job import ENTRY, JOB, TASK
from cotswold.kernels.microkernels.kinds import STEP, Tile
from cotswold.kernels.microkernels.panels import PANEL_GAP
from cotswold.kernels.operands import HALVES, pointer_of
from cotswold.kernels.products.cuts import K_BLOCK
from cotswold.kernels.products.plan import Blocking, GemmPlan
from cotswold.kernels.products.problem import Problem, lanes_of

TASKS_A_THREAD = 8
"""Tasks per thread, at least, so that no thread waits long for another."""
CLAIMS_A_THREAD = 32
TASKS_OF_A_PART = 2
"""Tasks of a part of a call, at least, so that the part does not exceed its fraction of the work."""


@dataclass(frozen=True)
class Execution:
    """Execution of a problem: tile, processor, number of threads, fraction of the work."""

    tile: Tile
    processor: Processor
    threads: int = 1
    part: float = 1.0
    """Fraction of the tasks to run, from the first; 1 for all."""
    k_block: int | None = None
    """Entries of a k-block, if not the plan's."""
    panels: bool | None = None
    """True or False to force packing of A or its absence; None to let the problem decide."""


@dataclass(frozen=True, eq=False)
class PreparedProduct(PreparedKernel):
    """A product, ready to run on input map, output map, filters and, if it adds them, biases."""

    plan: GemmPlan = field(kw_only=True)

    @property
    def nbytes(self) -> int:
        """Bytes of its tables."""
        return self.job.nbytes + self.plan.nbytes


def prepare_product(problem: Problem, how: Execution, code: int) -> PreparedProduct:
    """Prepare a product for the kernel at an address; operands' addresses are passed to `run`."""
    count, part = how.threads, how.part
    least = TASKS_A_THREAD * count if count > 1 else 1
    if part < 1:
        least = max(least, TASKS_OF_A_PART * ceil(1 / part))
    plan = problem.plan(Blocking(how.tile, lanes_of(how.processor, problem.dtype), least))
    if how.k_block is not None:
        plan = replace(plan, k_block=how.k_block)
    panels = problem.panels if how.panels is None else how.panels
    if panels:
        row_tiles, longest = plan.tasks[:, TASK["row_tiles"]].max(), plan.entries[:, ENTRY["k"]].max()
        plan = replace(plan, scratch_size=int(row_tiles * (how.tile.rows * longest + PANEL_GAP)))
    tasks = max(1, int(len(plan.tasks) * part))
    a_pitch, b_pitch = problem.operand_strides
    values = {
        "panels": panels,
        "claim": max(1, tasks // (count * CLAIMS_A_THREAD)),
        "a_pitch": a_pitch,
        "b_pitch": b_pitch,
        "images": problem.images,
        "accumulate": problem.accumulates,
    }
    size = plan.scratch_size
    if problem.dtype in HALVES:  # scratch for packed units and sums
        units = Units.for_dtype(problem.dtype, how.processor, how.tile)
        chunk = max(1, plan.k_block * half_layout.chunk(units) // K_BLOCK)
        size, packed_a, sums, c = half_layout.scratch(
            (plan.tasks, plan.entries), problem.kind, units, how.tile, chunk, plan.scratch_size
        )
        values |= {"k_block": chunk, "SLOT_SIZE": size, "packed_a": packed_a, "sums": sums, "gradient": c}
    names = [*problem.operand_roles, *(["biases"] if problem.kind.epilogue else [])]
    if problem.kind is STEP:
        names = [*"abc", "second_b", "entries", "filters", "momentum", "norms", "constants"]
        values |= {"filter_pitch": problem.layer.neurons, "filter_rows": problem.layer.fan_in}
    job, scratch = plan.job(tasks, values), size * count * BYTES[problem.dtype]
    return PreparedProduct(code, job, JOB.places(*names), JobHead.SCRATCH, scratch, count, plan=plan)


def run_step(
    ready: PreparedProduct,
    decoding: tuple[Tensor, Tensor],
    encoding: tuple[Tensor, Tensor],
    moved: tuple[Tensor, Tensor, Tensor],
    constants: Tensor,
) -> None:
    """Run a step; see `run.step` for its operands."""
    (delta, x), (second_delta, second_x), (filters, momentum, norms) = decoding, encoding, moved
    # the second half of the entries refers to the second input
    entries = ready.plan.entries.copy()
    distance = pointer_of(second_x) - pointer_of(x)
    entries[len(entries) // 2 :, 0] += distance // x.element_size()
    given = pointer_of(x), pointer_of(delta), pointer_of(filters), pointer_of(second_delta)
    learnt = filters, momentum, norms, constants
    ready.run(*given, entries.ctypes.data, *map(pointer_of, learnt))
