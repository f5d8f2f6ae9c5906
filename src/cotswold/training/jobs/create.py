"""From the words of a command to a job: a new run, or one that is resumed.

Knows: what must agree between a recipe, a directory and a store before anything is trained. Does not know:
how anything is trained, the terminal.
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
from cotswold.run import RunDirectory, describe_environment
from cotswold.training.data.stores import (
    STORES,
    Progress,
    class_count,
    open_store,
    with_features,
    with_features_of,
    with_store_shape,
)
from cotswold.training.distributed import SOLO, Team
from cotswold.training.jobs.config_diff import differences
from cotswold.training.jobs.extend import asked_for
from cotswold.training.jobs.job import Job, StoreJob
from cotswold.training.jobs.preflight import check_fit, check_memory
from cotswold.training.jobs.restore import (
    check_preparation,
    check_training_device,
    newest,
    not_begun,
    start_of,
)
from cotswold.training.jobs.run_store import place_of, store_of

_Job = TypeVar("_Job", bound=Job)


NO_RUN = (
    "there is no run in {} to resume; name a recipe, without resuming, to begin one, or the directory that "
    "the run is in now (--run, Python: directory=)"
)
_NO_RUN_OF_MODULE = (
    "there is no run in {} to resume; give the directory that the run is in now (directory=), or leave "
    "resume out to begin one"
)


class Resume(enum.Enum):
    """What to do where the run's directory holds a run already, and where it does not."""

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
    team: Team = SOLO,
    began: float | None = None,
) -> StoreJob:
    """A job from a recipe (a file or a shipped name) in a new directory, or from a run that is resumed.

    The store is made if the recipe names a source that has not been prepared under ``stores`` (`stores/` by
    default; a run that is resumed knows where its store is). All ranks of a ``team`` call this together; the
    first does the work, and the others take what it has found. The time of the run is counted from when it
    ``began`` (`time.monotonic`), by default now. Raises RecipeError, RunError (a directory
    that is taken, a run of another recipe), SourceError, StoreError, MachineError (a device that is not
    there), on every rank alike.
    """
    began = time.monotonic() if began is None else began

    def opened() -> StoreJob:
        path = _directory(recipe, directory, overrides)
        started = check_started(path, resume, named=recipe is not None)
        begin = _resumed if started else _begun
        return begin(recipe, path, overrides, stores, progress, team)

    def tell(job: StoreJob) -> dict[str, object]:
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
            "name a recipe to train, or a run to go on with: --run DIRECTORY --resume (Python: directory=, "
            "resume=True)"
        )
    job = agreed(team, opened, tell, lambda found: _joined(found, team))
    return replace(job, began=began)


def agreed(
    team: Team,
    opened: Callable[[], _Job],
    tell: Callable[[_Job], Mapping[str, object]],
    join: Callable[[Mapping[str, Any]], _Job],
) -> _Job:
    """The same job on every rank: the main one opens it and tells the others, who join; what one of them
    raises all of them raise."""
    if not team.is_main:
        told = team.ranks.gather(None)[0]
        if "error" in told:
            kind, sentence = told["error"]
            raise getattr(errors, kind)(sentence)
        with raise_on_all(team.ranks, MachineError):
            return join(told["job"])
        raise AssertionError("raise_on_all has raised")
    try:
        job = opened()
    except BaseException as error:  # the others wait to hear of an interrupt, too
        kind = type(error).__name__ if isinstance(error, CotswoldError) else MachineError.__name__
        team.ranks.gather({"error": [kind, str(error) or type(error).__name__]})
        raise
    team.ranks.gather({"job": tell(job)})
    with raise_on_all(team.ranks, MachineError):
        pass  # the others may not see the same files
    return job


def check_started(path: Path, resume: Resume, *, named: bool = True, python: bool = False) -> bool:
    """Whether there is a run in a directory, to go on with; raises RunError where that is not what was asked
    for. ``named``: it is known what to begin where there is none; ``python``: a program asks, not the command
    line."""
    started = (path / "recipe.toml").is_file()
    if started and resume is Resume.NEVER and _is_free(RunDirectory(path.absolute())):
        return False
    if not started and (resume is Resume.ALWAYS or not named):
        raise RunError((_NO_RUN_OF_MODULE if python else NO_RUN).format(path))
    if started and resume is Resume.NEVER:
        how = "resume=True" if python else "--resume (Python: resume=True)"
        raise RunError(f"{path} already holds a run; go on with {how}, or choose another directory")
    return started


def _is_free(run: RunDirectory) -> bool:
    """Whether another run may begin in the place of one, which has not begun and which nobody trains."""
    if not run.is_unbegun:
        return False
    try:
        with run.lock():
            return True
    except CotswoldError:
        return False


def _directory(recipe: str | Path | None, directory: str | Path | None, overrides: Sequence[str]) -> Path:
    """Where the run is or will be."""
    if directory is not None:
        return Path(directory)
    assert recipe is not None, "checked by open_job"
    return Path("runs") / recipes.load(recipe, overrides).name


def _resumed(
    recipe: str | Path | None,
    path: Path,
    overrides: Sequence[str],
    stores: Path | None,
    progress: Progress | None,
    team: Team,
) -> StoreJob:
    run = RunDirectory.open(path).recognised()
    kept = recipes.load(run.recipe)
    if kept.network.module is not None:
        raise RunError(
            f"the run in {path} trains {kept.network.module}, a module of a Python program; go on from "
            f"there: cotswold.train(module, dataset, {str(path)!r}, resume=True, ...)"
        )
    wanted = recipes.load(run.recipe if recipe is None else recipe, [*run.remembered, *overrides])
    wanted, totals = asked_for(wanted, kept, run)
    check_training_device(wanted.training)
    _check_cluster(wanted)
    data, began = wanted.data, kept.data
    if isinstance(data, SourcedData) and isinstance(began, SourcedData) and data.splits == "auto":
        # what the run began with was one answer to it
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
    return StoreJob(run, wanted, resumed=True, team=team, totals=totals, store=store)


def _check_cluster(wanted: Recipe) -> None:
    """Raise UserError if the environment does not let a run reach its cluster or parameter servers."""
    if wanted.cluster.address is not None:
        from cotswold.processes.ray.settings import check_joinable

        check_joinable(wanted.cluster.address)
    if wanted.cluster.parameter_servers is not None:
        from cotswold.transport.token_rotation import required_tokens

        required_tokens(os.environ)


def _check_pool(wanted: Recipe, store: Store | None = None) -> None:
    """Check the data servers of a recipe, as `check_pool` does."""
    if wanted.is_served:
        from cotswold.training.data.service import check_pool

        check_pool(wanted, store)


def _store_of(
    run: RunDirectory, wanted: Recipe, stores: Path | None, progress: Progress | None, is_place_given: bool
) -> Store:
    """As `store_of`; if the samples are not where the recipe says, the error says how to name their place."""
    try:
        return store_of(run, wanted, stores, progress, is_place_given=is_place_given)
    except (SourceError, StoreError) as error:
        data = wanted.data
        place = data.source if isinstance(data, SourcedData) and data.store is None else data.store
        if place is None or expanded(recipes.expand(place)).exists():
            raise
        raise SourceError(
            f"{place}, from which the run in {run.path} learnt, does not exist; name the place of the same "
            "samples now (--set data.source=PATH), or of the folder of their store (--stores FOLDER)"
        ) from error


def _begun(
    recipe: str | Path | None,
    path: Path,
    overrides: Sequence[str],
    stores: Path | None,
    progress: Progress | None,
    team: Team,
) -> StoreJob:
    assert recipe is not None, "a run begins with a recipe"
    wanted = with_features(recipes.load(recipe, overrides))
    check_training_device(wanted.training)
    _check_cluster(wanted)
    if wanted.data.store is None:  # before hours of preparation
        check_start(wanted)
        check_memory(wanted, 0 if wanted.network.stacks else class_count(wanted), team)
        _check_pool(wanted)
    store = open_store(wanted, stores or STORES, progress)
    wanted = with_store_shape(wanted, store)
    # before there is a directory that holds a run
    check_start(wanted)
    check_fit(wanted, store, path, team)
    _check_pool(wanted, store)
    run = RunDirectory.begin(path, recipes.dump(wanted), {**describe_environment(), **place_of(store)})
    return StoreJob(run, wanted, resumed=False, team=team, store=store)


def _joined(found: Mapping[str, Any], team: Team) -> StoreJob:
    """The job of a rank that is not the main one: what that has found, and the same data."""
    recipe = recipes.parse(found["recipe"], "the recipe of rank 0")
    check_training_device(recipe.training)
    run, store = RunDirectory.open(Path(found["run"])), Store(found["store"])
    if store.identity != found["identity"]:
        raise StoreError(
            f"the store {store.path} is another one than rank 0 sees there; ranks need the same files, "
            "on a file system that their hosts share or copied whole"
        )
    check_memory(recipe, store.outputs, team, reading=shuffle_bytes(store, "train"))
    totals = tuple(map(tuple, found["totals"]))
    return StoreJob(run, recipe, resumed=bool(found["resumed"]), team=team, totals=totals, store=store)


def check_start(recipe: Recipe) -> None:
    """Raise RunError where the run that `network.start` names learnt from pictures that were prepared
    otherwise, or one of its stacks has not begun to learn."""
    start = start_of(recipe)
    if start is None:
        return
    check_preparation(recipe, start)
    if start.run is not None and not_begun(start.made, newest(start.run, start.made).state):
        raise RunError(
            f"network.start names {start.run.path}, whose stacks have not all been trained; "
            f"train it further first: cotswold train --run {start.run.path} --resume"
        )


def same_recipe(wanted: Recipe, kept: Recipe, path: Path) -> None:
    """Raise RunError where a resumed run was trained by another recipe, but for what may change."""
    differing = differences(kept, wanted)
    if differing is not None:
        raise RunError(
            f"the run in {path} has another recipe, which differs in {differing}; resume it "
            "without changing these, or choose another directory"
        )
