"""The peak memory of a training step.

Knows: torch's own count of its allocations, the kernel's count of resident pages. Does not know: training.

The calling process, which should have done nothing else, runs steps of a stack. During one step torch's
profiler records every allocation and release. The greatest sum of live memory, with filters, momentum and
batch, is the peak. On Linux, a second figure comes from the operating system: the greatest resident set
during a step, minus that of the process before the stack was created. It includes the libraries' own
buffers, and freed memory that was not returned.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from cotswold.bench.measure import Document, rounded
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.training.jobs.memory_estimate import stack_budget

_SMALL = StackGeometry(
    BlockLocal(MapShape(1, 8, 8), Window(4), Window(4), 1, 1, 4),
    Smoothing(3, keep=True),
    Smoothing(3, keep=True),
)


def peak_of(geometry: StackGeometry, batch: int) -> Document:
    """Peak of one stack's step in this process, in bytes."""
    _stepper(_SMALL, 1)[0]()  # first calls of libraries do not count
    before = _resident("VmRSS")
    step, held_bytes = _stepper(geometry, batch)
    step()
    _reset_peak_memory()
    step()
    after = _resident("VmHWM")
    budget = stack_budget(geometry, batch)
    peak = held_bytes + greatest_sum(allocations(step))
    return {
        "filters_bytes": budget.filter_bytes,
        "momentum_bytes": budget.momentum_bytes,
        "activations_bytes": budget.activation_bytes,
        "block_row_gradient_bytes": budget.gradient_bytes,
        "allowed_bytes": budget.training_bytes,
        "peak_bytes": peak,
        "over_percent": rounded(100 * (peak / budget.training_bytes - 1)),
        "resident_bytes": None if before is None or after is None else after - before,
    }


def _stepper(geometry: StackGeometry, batch: int) -> tuple[Callable[[], object], int]:
    """A step on random images, and the bytes that it holds before it starts."""
    import torch

    from cotswold import ops

    layer, shape = geometry.filters, geometry.input
    filters, one = ops.random_filters(layer, 0, 0), torch.ones(())
    images = torch.randn(shape.height, shape.width, shape.channels, batch).permute(3, 2, 0, 1)
    momentum, norms = torch.zeros_like(filters), torch.ones(layer.norms_shape)
    state = ops.StackState(filters, norms, momentum, one, one.clone())
    objective, rule = ops.StackObjective(), ops.StepRule(rate=0.1)
    held_bytes = sum(held.numel() * held.element_size() for held in (filters, norms, momentum, images))
    return lambda: ops.stack_step(state, images, geometry, objective, rule), held_bytes


def allocations(action: Callable[[], object]) -> list[int]:
    """Bytes of every allocation of torch (positive) and every release (negative) during an action."""
    # silences the profiler's messages on stderr at its start and stop
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        action()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(trace))
        return memory_changes(trace)


def memory_changes(trace: Path) -> list[int]:
    """Bytes of every allocation (positive) and release (negative) of main memory, in order."""
    events = json.loads(trace.read_text())["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    memory.sort(key=lambda event: event["ts"])
    return [event["args"]["Bytes"] for event in memory if event["args"]["Device Type"] == 0]


def greatest_sum(changes: Sequence[int]) -> int:
    """The greatest sum of the first changes; 0 for none.

    >>> greatest_sum([5, 3, -5, 4])
    8
    """
    alive = greatest = 0
    for change in changes:
        alive += change
        greatest = max(greatest, alive)
    return greatest


def _resident(what: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(what)), None)


def _reset_peak_memory() -> None:
    """Reset the operating system's count of the greatest resident set."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
