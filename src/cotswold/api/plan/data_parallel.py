"""Plan of a run of synchronous replicas: ranks, parts of a batch, bytes, memory.

Knows: counts of a recipe, the parts of a batch. Does not know: training, time (`cotswold simulate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotswold.api.plan import base as plan
from cotswold.geometry import Grid

if TYPE_CHECKING:
    from cotswold.recipe import Recipe


def plan_row(recipe: Recipe) -> plan.Row:
    """Return the plan of a recipe of strategy `supervised` with several replicas."""
    from cotswold.training.data.stores import class_count
    from cotswold.training.jobs.restore import needed_bytes
    from cotswold.training.models import planned_layers
    from cotswold.training.strategies.base import Share

    mesh, batch, outputs = recipe.mesh, recipe.training.batch_size, class_count(recipe)
    layers, grid = planned_layers(recipe, outputs), Grid.parse(mesh.grid or "1x1")
    parts = [Share(index, mesh.replicas).bounds(batch) for index in range(mesh.replicas)]
    sizes = [stop - first for first, stop in parts]
    samples, exact = plan.training_samples(recipe)
    size = sum(layer.parameters for layer in layers)
    flops = [layer.forward_flops for layer in layers if layer.forward_flops]
    return {
        "strategy": recipe.training.strategy,
        "replicas": mesh.replicas,
        "grid": str(grid),
        "ranks": mesh.replicas * grid.size,
        "samples": samples,
        **({} if exact else {"samples_are": "approximate, before the data are prepared"}),
        "batch_size": batch,
        "samples_of_a_replica": str(max(sizes)) if len(set(sizes)) == 1 else f"{min(sizes)} or {max(sizes)}",
        "parameters": size,
        "gradient_sum_bytes": 2 * (mesh.replicas - 1) * plan.FLOAT_BYTES * size,
        "step_flops": batch * (3 * sum(flops) - flops[0]),  # the input needs no gradient
        "rank_memory_bytes": plan.PROCESS_BYTES + needed_bytes(recipe, outputs, max(sizes)),
    }
