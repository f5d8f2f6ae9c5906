"""Training of a recipe in this process, on ranks that it starts, or as one rank of several.

Knows: the processes that train a recipe. Does not know: the training, receivers of events.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_whole
from cotswold.api.request import RecipeLaunch, Request
from cotswold.api.run_job import Outcome, RunObservers, on_ranks, run_job
from cotswold.api.threads import computing, own_environment, own_modes, own_random, own_threads
from cotswold.errors import UserError
from cotswold.ui.display import Quiet

if TYPE_CHECKING:
    from cotswold.training.distributed import RankContext


def train_recipe(request: Request, hearing: RunObservers, *, grid: str | None, restarts: int) -> Outcome:
    """Train as requested, in the existing processes or in new ranks."""
    from cotswold.api import ranks as processes
    from cotswold.launch import world_of

    check_whole("restarts", restarts)
    if restarts < 0:
        raise UserError(f"restarts must be at least 0, got {restarts}")
    if grid is not None:
        request = replace(request, overrides=[*request.overrides, processes.override(grid)])
    display = hearing.display
    named = request.recipe, request.directory, request.overrides
    world = world_of(os.environ)
    if world is not None and world.size > 1:
        if restarts and world.launcher != "cotswold":
            raise UserError(
                f"restarts applies to ranks that Cotswold starts; these were started by {world.launcher}: "
                "use its own option (torchrun: --max-restarts, with --resume-if-started, Python: "
                'resume="if_started")'
            )
        with own_environment(), own_threads(), own_modes():
            processes.prepare(world)
            with processes.join_ranks(world, *named, display.say) as rank_context:
                return _trained(request, rank_context, hearing)
    wanted = None
    if any(word is not None for word in (grid, request.recipe, request.directory)):
        wanted = processes.wanted_recipe(*named, display.say)
        shape = processes.local_grid(wanted, display.say)
        if shape.size > 1:
            place = request.directory or Path("runs") / wanted.name
            return on_ranks(RecipeLaunch(request, place, shape), place, shape, restarts, hearing)
    if restarts:
        raise UserError("restarts needs several ranks; give a grid, such as 1x2")
    with computing(None, wanted):
        from cotswold.training.distributed import SINGLE_PROCESS

        return _trained(request, SINGLE_PROCESS, hearing)


def _trained(request: Request, rank_context: RankContext, hearing: RunObservers) -> Outcome:
    """Train in this process, alone or as a rank."""
    from cotswold import training
    from cotswold.training.data import stores

    display = hearing.display if rank_context.is_main else Quiet()
    resume = training.Resume.ALWAYS if request.resume else training.Resume.NEVER
    with display.counting("preparing", "samples") as advance:
        job = training.open_job(
            request.recipe,
            request.directory,
            overrides=request.overrides,
            stores=request.stores,
            resume=training.Resume.IF_STARTED if request.resume == "if_started" else resume,
            progress=advance,
            rank_context=rank_context,
            began=request.began,
        )
    if rank_context.is_main and not job.resumed:
        for note in [*job.store.notes, *stores.warnings(job.recipe, job.store)]:
            display.say(note)
    if rank_context.is_main and job.resumed:
        changed = training.source_note(job.run, job.recipe, job.store)
        if changed is not None:
            display.say(changed)
    with own_random():
        return run_job(job, rank_context, request.directory, display, hearing)
