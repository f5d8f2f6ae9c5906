"""Training of a recipe in this process, on ranks that it starts, or as one rank of several.

Knows: the processes that train a recipe. Does not know: the training, receivers of events.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_integer
from cotswold.api.objects import COMPONENTS, read_objects, write_objects
from cotswold.api.request import RecipeLaunch, Request
from cotswold.api.run_job import Outcome, RunObservers, run_job, train_on_ranks
from cotswold.api.threads import (
    compute_threads,
    own_environment,
    own_threads,
    preserve_random_states,
    training_modes,
)
from cotswold.errors import UserError
from cotswold.run import RUNS
from cotswold.ui.display import LoggingDisplay

if TYPE_CHECKING:
    from cotswold.geometry import Grid
    from cotswold.training.components import Components
    from cotswold.training.distributed import RankContext


def train_request(request: Request, observers: RunObservers, *, grid: str | None, restarts: int) -> Outcome:
    """Train as requested, in the existing processes or in new ranks."""
    from cotswold.api import ranks as processes
    from cotswold.launch import world_of

    check_integer("restarts", restarts)
    if restarts < 0:
        raise UserError(f"restarts must be at least 0, got {restarts}")
    if grid is not None:
        request = replace(request, overrides=[*request.overrides, processes.override(grid)])
    display = observers.display
    world = world_of(os.environ)
    found = processes.directory_to_resume(request, processes.told_once(world, display.note))
    request = replace(request, directory=found)
    named = request.recipe, request.directory, request.overrides
    if world is not None and world.size > 1:
        if restarts and world.launcher != "cotswold":
            raise UserError(
                f"restarts applies to ranks that Cotswold starts; these were started by {world.launcher}: "
                "use its own option (torchrun: --max-restarts, with --resume-if-started, Python: "
                'resume="if_started")'
            )
        with own_environment(), own_threads(), training_modes():
            processes.prepare(world)
            with processes.join_ranks(world, *named, display.show) as rank_context:
                return _train(request, rank_context, observers)
    wanted = None
    if any(word is not None for word in (grid, request.recipe, request.directory)):
        wanted = processes.requested_recipe(*named, display.show)
        shape = processes.local_grid(wanted, display.show)
        replicas = wanted.mesh.replicas
        if shape.size * replicas > 1:
            place = request.directory or RUNS / wanted.name
            return _train_on_ranks(request, place, shape, replicas, restarts, observers)
    if restarts:
        raise UserError("restarts needs several ranks; give a grid, such as 1x2, or replicas")
    with compute_threads(None, wanted):
        from cotswold.training.distributed import SINGLE_PROCESS

        return _train(request, SINGLE_PROCESS, observers)


def _train_on_ranks(
    request: Request, place: Path, grid: Grid, replicas: int, restarts: int, observers: RunObservers
) -> Outcome:
    """Train in new processes, which receive the request's components in a file."""
    if request.components is None:
        launch = RecipeLaunch(request, place, grid)
        return train_on_ranks(launch, place, grid, restarts, observers, replicas)
    with tempfile.TemporaryDirectory(prefix="cotswold-") as folder:
        file = Path(folder) / "components.pkl"
        remedy = "define its class in a module, or train in one process"
        write_objects(file, {"components": request.components}, remedy)
        launch = RecipeLaunch(request, place, grid, environment={COMPONENTS: str(file)})
        return train_on_ranks(launch, place, grid, restarts, observers, replicas)


def _components_of(request: Request) -> Components:
    """Return the components of a request, or those that the launching process sent to this rank."""
    from cotswold.training.components import Components

    if request.components is not None:
        return request.components
    file = os.environ.get(COMPONENTS)
    found: Components = Components() if file is None else read_objects(Path(file))["components"]
    return found


def _train(request: Request, rank_context: RankContext, observers: RunObservers) -> Outcome:
    """Train in this process, alone or as a rank."""
    from cotswold import training
    from cotswold.training.data import stores

    display = observers.display if rank_context.is_main else LoggingDisplay()
    resume = training.Resume.ALWAYS if request.resume else training.Resume.NEVER
    with display.count("preparing", "samples") as advance:
        job = training.open_job(
            request.recipe,
            request.directory,
            overrides=request.overrides,
            stores=request.stores,
            resume=training.Resume.IF_STARTED if request.resume == "if_started" else resume,
            progress=advance,
            rank_context=rank_context,
            start_time=request.start_time,
            components=_components_of(request),
        )
    if rank_context.is_main and not job.resumed:
        for note in job.store.notes:
            (display.show if note in job.store.warnings else display.note)(note)
        for warning in stores.warnings(job.recipe, job.store):
            display.show(warning)
    if rank_context.is_main and job.resumed:
        changed = training.source_note(job.run, job.recipe, job.store)
        if changed is not None:
            display.show(changed)
    with preserve_random_states():
        return run_job(job, rank_context, request.directory, display, observers)
