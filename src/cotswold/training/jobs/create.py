"""Creation of jobs: a new run from a recipe, or a resumed run.

Knows: what must agree between a recipe, a directory and a store before training. Does not know: how anything
is trained, the terminal.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cotswold import errors
from cotswold import recipe as recipes
from cotswold.data import Store, shuffle_bytes
from cotswold.errors import CotswoldError, MachineError, RunError, SourceError, StoreError
from cotswold.files import expanded
from cotswold.host import raise_on_all
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SourcedData
from cotswold.run import RUNS, RunDirectory, describe_environment
from cotswold.training.components import Components
from cotswold.training.data.stores import (
    STORES,
    Progress,
    class_count,
    open_store,
    with_features,
    with_features_of,
    with_store_shape,
)
from cotswold.training.devices import with_chosen_device
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.jobs.check_outputs import check_outputs
from cotswold.training.jobs.config_diff import differences
from cotswold.training.jobs.extend import apply_extension
from cotswold.training.jobs.job import Job
from cotswold.training.jobs.preflight import check_memory, check_resources
from cotswold.training.jobs.recipe_job import RecipeJob
from cotswold.training.jobs.restore import (
    backbone_of,
    check_preparation,
    check_training_device,
    newest,
    untrained_phases,
)
from cotswold.training.jobs.run_store import record_of, store_of
from cotswold.training.optimizers import with_own_optimizer

_Job = TypeVar("_Job", bound=Job)


NO_RUN = (
    "there is no run in {} to resume; name a recipe without --resume to start one, or give the run's "
    "present directory (--run, Python: directory=)"
)
_NO_RUN_OF_MODULE = (
    "there is no run in {} to resume; give the run's present directory (directory=), or omit "
    "resume to start a new run"
)


class Resume(enum.Enum):
    """The behaviour for a directory with, or without, an existing run.

    `NEVER` starts a new run, and fails if the directory holds one. `ALWAYS` resumes, and fails without a run.
    `IF_STARTED` resumes if a run exists, and otherwise starts one.
    """

    NEVER = "never"
    ALWAYS = "always"
    IF_STARTED = "if started"


def open_job(
    recipe: str | Path | None,
    directory: str | Path | None,
    *,
    overrides: Sequence[str] = (),
    stores: Path | None = None,
    resume: Resume = Resume.NEVER,
    progress: Progress | None = None,
    rank_context: RankContext = SINGLE_PROCESS,
    start_time: float | None = None,
    components: Components | None = None,
) -> RecipeJob:
    """Return a job for a recipe in a new directory, or for a run that is resumed.

    If the recipe names a source that has not been prepared under ``stores``, its store is prepared. All ranks
    of ``rank_context`` call this together; the main rank does the work and sends the result to the others.

    Args:
        recipe: A recipe file or the name of a shipped recipe; None resumes the run in ``directory``.
        directory: The directory of the run; None means `runs/` and the recipe's name.
        overrides: Recipe fields to replace, each as ``key=value``.
        stores: The folder of prepared stores; None means `stores/`, or the store of a resumed run.
        resume: What to do if the directory holds a run, or none.
        progress: Receives the progress of the preparation.
        rank_context: The ranks that train together.
        start_time: The start of the run's time, by `time.monotonic`; None means now.
        components: The program's optimiser, scheduler, metrics, callbacks and loggers.

    Returns:
        The job, ready to train.

    Raises:
        RecipeError: If the recipe is not valid.
        RunError: If the directory is taken, or its run has another recipe.
        SourceError: If the samples cannot be read.
        StoreError: If a store is damaged, or has other samples than the run's.
        MachineError: If the device is missing. Every rank raises the same error.
    """
    start_time = time.monotonic() if start_time is None else start_time
    components = components or Components()

    def opened() -> RecipeJob:
        path = _directory(recipe, directory, overrides)
        started = is_started(path, resume, named=recipe is not None)
        begin = _resumed if started else _create
        return begin(recipe, path, overrides, stores, progress, rank_context, components)

    def describe_job(job: RecipeJob) -> dict[str, object]:
        return {
            "run": str(job.run.path.absolute()),
            "store": str(job.store.path.absolute()),
            "identity": job.store.identity,
            "recipe": recipes.dump(job.recipe),
            "resumed": job.resumed,
            "totals": job.totals,
        }

    if recipe is None and (directory is None or resume is Resume.NEVER):
        raise RunError(
            "name a recipe to train, or a run to resume: --run DIRECTORY --resume (Python: directory=, "
            "resume=True)"
        )
    job = open_on_all_ranks(rank_context, opened, describe_job, lambda found: _attach(found, rank_context))
    return replace(job, start_time=start_time, components=components)


def open_on_all_ranks(
    rank_context: RankContext,
    opened: Callable[[], _Job],
    describe_job: Callable[[_Job], Mapping[str, object]],
    join: Callable[[Mapping[str, Any]], _Job],
) -> _Job:
    """Return the same job on every rank: the main rank opens it, the others attach to it.

    If one rank raises, all ranks raise.
    """
    if not rank_context.is_main:
        told = rank_context.ranks.gather(None)[0]
        if "error" in told:
            kind, sentence = told["error"]
            raise getattr(errors, kind)(sentence)
        with raise_on_all(rank_context.ranks, MachineError):
            return join(told["job"])
        raise AssertionError("raise_on_all has raised")
    try:
        job = opened()
    except BaseException as error:  # the others must also learn of an interrupt
        kind = type(error).__name__ if isinstance(error, CotswoldError) else MachineError.__name__
        rank_context.ranks.gather({"error": [kind, str(error) or type(error).__name__]})
        raise
    rank_context.ranks.gather({"job": describe_job(job)})
    with raise_on_all(rank_context.ranks, MachineError):
        pass  # the other ranks may not see the same files
    return job


def is_started(path: Path, resume: Resume, *, named: bool = True, python: bool = False) -> bool:
    """Return True if the directory holds a run to resume; raises RunError if that contradicts ``resume``.

    ``named`` says that the caller can start a new run; ``python`` selects the error text for programs.
    """
    started = (path / "recipe.toml").is_file()
    if started and resume is Resume.NEVER and _is_free(RunDirectory(path.absolute())):
        return False
    if not started and (resume is Resume.ALWAYS or not named):
        raise RunError((_NO_RUN_OF_MODULE if python else NO_RUN).format(path))
    if started and resume is Resume.NEVER:
        how = "resume=True" if python else "--resume (Python: resume=True)"
        raise RunError(f"{path} already holds a run; resume it with {how}, or choose another directory")
    return started


def _is_free(run: RunDirectory) -> bool:
    """Return True if a new run may replace this one, which has not begun and is not being trained."""
    if not run.has_no_step:
        return False
    try:
        with run.lock():
            return True
    except CotswoldError:
        return False


def _directory(recipe: str | Path | None, directory: str | Path | None, overrides: Sequence[str]) -> Path:
    """Return the directory of the run."""
    if directory is not None:
        return Path(directory)
    assert recipe is not None, "checked by open_job"
    return RUNS / recipes.load(recipe, overrides).name


def _resumed(
    recipe: str | Path | None,
    path: Path,
    overrides: Sequence[str],
    stores: Path | None,
    progress: Progress | None,
    rank_context: RankContext,
    components: Components,
) -> RecipeJob:
    run = RunDirectory.open(path).recognised()
    kept = recipes.load(run.recipe)
    if kept.network.module is not None:
        raise RunError(
            f"the run in {path} trains {kept.network.module}, a module of a Python program; resume it "
            f"there: cotswold.train(module, dataset, directory={str(path)!r}, resume=True, ...)"
        )
    wanted = recipes.load(run.recipe if recipe is None else recipe, [*run.overrides, *overrides])
    wanted = _with_own_optimizer(with_chosen_device(wanted), components)
    wanted, totals = apply_extension(wanted, kept, run)
    check_training_device(wanted.training)
    check_outputs(wanted.training)
    _check_cluster(wanted)
    data, began = wanted.data, kept.data
    if isinstance(data, SourcedData) and isinstance(began, SourcedData) and data.splits == "auto":
        # the run began with one resolved value of "auto"
        splits = {"splits": began.splits}
        wanted = wanted.model_copy(update={"data": data.model_copy(update=splits)})
    wanted = with_features_of(wanted, kept)
    if wanted.data.store is None:
        same_recipe(wanted, kept, path)  # before anything is prepared
    is_place_given = any(each.partition("=")[0].strip() == "data.source" for each in overrides)
    store = _store_of(run, wanted, stores, progress, is_place_given)
    wanted = with_store_shape(wanted, store)
    same_recipe(wanted, kept, path)
    _check_pool(wanted, store)
    return RecipeJob(run, wanted, resumed=True, rank_context=rank_context, totals=totals, store=store)


def _with_own_optimizer(wanted: Recipe, components: Components) -> Recipe:
    return wanted.model_copy(update={"training": with_own_optimizer(wanted.training, components)})


def _check_cluster(wanted: Recipe) -> None:
    """Raise UserError if the environment does not allow access to the cluster or the parameter servers."""
    if wanted.cluster.ray_address is not None:
        from cotswold.processes.ray.settings import check_joinable

        check_joinable(wanted.cluster.ray_address)
    if wanted.cluster.controllers is not None:
        from cotswold.transport.token_rotation import required_tokens

        required_tokens(os.environ)


def _check_pool(wanted: Recipe, store: Store | None = None) -> None:
    """Check the data servers of a recipe, if it uses them."""
    if wanted.is_served:
        from cotswold.training.data.data_servers import check_pool

        check_pool(wanted, store)


def _store_of(
    run: RunDirectory, wanted: Recipe, stores: Path | None, progress: Progress | None, is_place_given: bool
) -> Store:
    """Return the store of a run; if the samples are missing, the error says how to give their location."""
    try:
        return store_of(run, wanted, stores, progress, is_place_given=is_place_given)
    except (SourceError, StoreError) as error:
        data = wanted.data
        place = data.source if isinstance(data, SourcedData) and data.store is None else data.store
        if place is None or expanded(recipes.expand(place)).exists():
            raise
        raise SourceError(
            f"{place}, the training samples of the run in {run.path}, does not exist; give the present "
            "place of the same samples (--set data.source=PATH), or the folder of their store (--stores "
            "FOLDER)"
        ) from error


def _create(
    recipe: str | Path | None,
    path: Path,
    overrides: Sequence[str],
    stores: Path | None,
    progress: Progress | None,
    rank_context: RankContext,
    components: Components,
) -> RecipeJob:
    assert recipe is not None, "a new run needs a recipe"
    wanted = _with_own_optimizer(recipes.load(recipe, overrides), components)
    wanted = with_chosen_device(with_features(wanted))
    check_training_device(wanted.training)
    check_outputs(wanted.training)
    _check_cluster(wanted)
    if wanted.data.store is None:  # preparation may take hours
        check_backbone(wanted)
        check_memory(wanted, 0 if wanted.network.stacks else class_count(wanted), rank_context)
        _check_pool(wanted)
    store = open_store(wanted, stores or STORES, progress)
    wanted = with_store_shape(wanted, store)
    # before the directory of the run exists
    check_backbone(wanted)
    check_resources(wanted, store, path, rank_context)
    _check_pool(wanted, store)
    run = RunDirectory.create_or_replace(
        path, recipes.dump(wanted), {**describe_environment(), **record_of(store)}
    )
    return RecipeJob(run, wanted, resumed=False, rank_context=rank_context, store=store)


def _attach(found: Mapping[str, Any], rank_context: RankContext) -> RecipeJob:
    """Return the job of a rank other than the main one, with the main rank's run and the same data."""
    recipe = recipes.parse(found["recipe"], "the recipe of rank 0")
    check_training_device(recipe.training)
    check_outputs(recipe.training)
    run, store = RunDirectory.open(Path(found["run"])), Store(found["store"])
    if store.identity != found["identity"]:
        raise StoreError(
            f"the store {store.path} differs from the one that rank 0 sees there; ranks need the same files, "
            "on a shared file system or as complete copies"
        )
    check_memory(recipe, store.outputs, rank_context, reading=shuffle_bytes(store, "train"))
    totals = tuple(map(tuple, found["totals"]))
    return RecipeJob(
        run, recipe, resumed=bool(found["resumed"]), rank_context=rank_context, totals=totals, store=store
    )


def check_backbone(recipe: Recipe) -> None:
    """Raise RunError if the stacks of `network.backbone` need other preparation or have untrained stacks."""
    backbone = backbone_of(recipe)
    if backbone is None:
        return
    check_preparation(recipe, backbone)
    if backbone.run is not None and untrained_phases(
        backbone.recipe, newest(backbone.run, backbone.recipe).state
    ):
        raise RunError(
            f"network.backbone names {backbone.run.path}, whose stacks have not all been trained; "
            f"train it further first: cotswold train --run {backbone.run.path} --resume"
        )


def same_recipe(requested: Recipe, saved: Recipe, path: Path) -> None:
    """Raise RunError if the run was trained with another recipe, apart from fields that may change."""
    differing = differences(saved, requested)
    if differing is not None:
        raise RunError(
            f"the run in {path} has another recipe, which differs in {differing}; resume it "
            "without changing these, or choose another directory"
        )
