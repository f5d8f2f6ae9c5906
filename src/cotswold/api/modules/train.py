"""Training of a user's module and dataset, in this process or on ranks that have both.

Knows: the processes that train a module. Does not know: how objects reach them, the training.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.modules.launch import ModuleLaunch, join_ranks
from cotswold.api.modules.request import ModuleRequest
from cotswold.api.run import Run, load_trained
from cotswold.api.run_job import Outcome, RunObservers, run_job, train_on_ranks
from cotswold.api.threads import (
    compute_threads,
    own_environment,
    own_threads,
    preserve_random_states,
    training_modes,
)
from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.ui.display import LoggingDisplay

if TYPE_CHECKING:
    from cotswold.training.distributed import RankContext


def train_module(request: ModuleRequest, observers: RunObservers, *, restarts: int = 0) -> Outcome:
    """Train a module as requested, in the existing processes or in new ranks."""
    from cotswold.launch import world_of

    leads_ranks = request.training.strategy in ("batch", "downpour")  # workers lead their own ranks
    grid = None if leads_ranks else request.mesh.grid
    world = world_of(os.environ)
    if world is not None and world.size > 1:
        with own_environment(), own_threads(), training_modes(request.device):
            from cotswold.api import ranks as processes

            processes.prepare(world)
            request.make()
            with join_ranks(world, request, grid) as members:
                return _train(request, members, observers)
    shape = Grid(1, 1) if grid is None else Grid.parse(grid)
    if shape.size * request.mesh.replicas > 1:
        return _train_on_ranks(request, shape, restarts, observers)
    if restarts:
        raise UserError("restarts needs several ranks; give a grid, such as 1x2, or replicas")
    with compute_threads(request.training.threads, device=request.device):
        from cotswold.training.distributed import SINGLE_PROCESS

        request.make()
        return _train(request, SINGLE_PROCESS, observers)


def _train_on_ranks(request: ModuleRequest, grid: Grid, restarts: int, observers: RunObservers) -> Outcome:
    """Train copies of the module in new processes, then fill the caller's module."""
    with tempfile.TemporaryDirectory(prefix="cotswold-") as folder:
        launch = ModuleLaunch.from_request(request, grid, Path(folder))
        outcome = train_on_ranks(launch, request.directory, grid, restarts, observers, request.mesh.replicas)
    if request.module is not None and outcome.code == 0:
        load_trained(request.module, Run(request.directory).directory)
    return outcome


def _train(request: ModuleRequest, rank_context: RankContext, observers: RunObservers) -> Outcome:
    from cotswold import training
    from cotswold.training.jobs.factories import imported

    assert request.module is not None and request.dataset is not None, "made before"
    resume, loss = training.Resume.ALWAYS if request.resume else training.Resume.NEVER, request.loss
    job = training.open_module_job(
        request.module,
        request.dataset,
        loss=imported(loss) if isinstance(loss, str) and ":" in loss else loss,
        factory=request.process_factory,
        directory=request.directory,
        settings=request.training,
        cluster=request.cluster,
        mesh=request.mesh,
        validation=request.validation,
        resume=training.Resume.IF_STARTED if request.resume == "if_started" else resume,
        rank_context=rank_context,
        components=request.components,
    )
    display = observers.display if rank_context.is_main else LoggingDisplay()
    if rank_context.is_main and job.resume_note is not None:
        display.show(job.resume_note)
    try:
        with preserve_random_states():
            return run_job(job, rank_context, request.directory, display, observers)
    finally:
        request.module.eval()
