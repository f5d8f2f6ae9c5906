"""A training job: a run directory, its recipe, its store, its network.

Knows: how the parts of a run are put together and taken up again. Does not know: the arithmetic of any
strategy, the terminal.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import CheckpointError, RunError
from cotswold.recipe import Recipe
from cotswold.run import (
    Account,
    Checkpoints,
    EventLog,
    RunDirectory,
    available_bytes,
    environment,
    keep_freed_bytes,
    require,
    tensorboard,
)
from cotswold.run.curves import TensorBoard
from cotswold.training.budget import largest_batch
from cotswold.training.greedy import Greedy
from cotswold.training.home import Home, InMemory
from cotswold.training.joint import Joint
from cotswold.training.loop import Loop, Stop, position_from
from cotswold.training.networks import build_stacks
from cotswold.training.offload.home import OnDisk, check_disk
from cotswold.training.pictures import HeldOutPictures, TrainingPictures
from cotswold.training.restore import (
    check_device,
    check_preparation,
    lasting,
    needed_bytes,
    newest,
    recipe_identity,
    start_of,
    supervised_network,
)
from cotswold.training.stores import (
    STORES,
    Tally,
    class_count,
    open_store,
    place_of,
    store_of,
    with_store_shape,
)
from cotswold.training.strategy import Strategy
from cotswold.training.supervised import Supervised

Watch = Callable[[Mapping[str, object]], None]
"""Receives every event of the run as it is written."""


class _Watched:
    """A mirror of the event log for whoever watches, and for TensorBoard where it is installed."""

    def __init__(self, watch: Watch, curves: TensorBoard | None) -> None:
        self._watch, self._curves = watch, curves

    def write(self, event: Mapping[str, object]) -> None:
        self._watch(event)
        if self._curves is not None:
            self._curves.write(event)

    def close(self) -> None:
        if self._curves is not None:
            self._curves.close()


class Resume(enum.Enum):
    """What to do where the run's directory holds a run already, and where it does not."""

    NEVER = "never"
    ALWAYS = "always"
    IF_STARTED = "if started"


@dataclass(frozen=True)
class Job:
    """One run, ready to be trained."""

    run: RunDirectory
    recipe: Recipe
    store: Store
    resumed: bool

    def train(self, watch: Watch, stop: Stop) -> bool:
        """Train to the end (True) or until a stop is asked for (False).

        Raises BusyError if another process trains here, MemoryLimitError before anything is allocated that
        would not fit, DivergedError where the objective is no number any more.
        """
        training = self.recipe.training
        check_memory(self.recipe, len(self.store.classes))
        check_disk(self.recipe, self.run.path)
        keep_freed_bytes()
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        with ExitStack() as open_things:
            open_things.enter_context(self.run.lock())
            mirror = _Watched(watch, tensorboard(self.run.tensorboard))
            log = open_things.enter_context(EventLog(self.run.events, mirror=mirror))
            pictures = open_things.enter_context(
                TrainingPictures(self.store, training.batch, training.seed, training.device)
            )
            identity = recipe_identity(self.recipe)
            loop = Loop(
                strategy=self._strategy(pictures.epoch_steps, open_things),
                pictures=pictures,
                log=log,
                checkpoints=Checkpoints(
                    self.run.checkpoints, keep=training.checkpoints_kept, identity=identity
                ),
                best=Checkpoints(self.run.best, identity=identity, keep=1),
                account=Account(),
                stop=stop,
                checkpoint_seconds=60 * training.checkpoint_minutes,
            )
            if self.resumed:
                _restore(loop, pictures)
            if loop.position.total == 0:
                self._announce(loop)
            return self._run(loop)

    def _run(self, loop: Loop) -> bool:
        status = "failed"
        try:
            finished = loop.run()
            status = "finished" if finished else "interrupted"
            return finished
        finally:
            summary = loop.account.summary(self.recipe.price)
            # an event's own seconds are those of the run
            summary["training_seconds"] = summary.pop("seconds")
            loop.log.write("end", status=status, **summary)

    def _strategy(self, epoch_steps: float, open_things: ExitStack) -> Strategy:
        held_out = HeldOutPictures(self.store, self.recipe)
        match self.recipe.training.strategy:
            case "greedy":
                return Greedy(self._home(open_things), self.recipe, epoch_steps, held_out.maps)
            case "joint":
                return Joint(self._home(open_things), self.recipe, epoch_steps, held_out.maps)
            case "supervised":
                network = supervised_network(self.recipe, len(self.store.classes))
                return Supervised(network, self.recipe, epoch_steps, held_out.batches)

    def _home(self, open_things: ExitStack) -> Home:
        """Where the stacks are; on the disk they begin anew unless there is a checkpoint to take up."""
        if self.recipe.training.offload == "none":
            return InMemory(build_stacks(self.recipe))
        fresh = not (self.resumed and Checkpoints(self.run.checkpoints).paths())
        return open_things.enter_context(OnDisk(self.recipe, self.run.path / "offload", fresh=fresh))

    def _announce(self, loop: Loop) -> None:
        strategy = loop.strategy
        held_out = "validation" if self.store.splits.get("validation") else "train"
        loop.log.write(
            "start",
            name=self.recipe.name,
            strategy=self.recipe.training.strategy,
            pictures=self.store.splits["train"],
            store=self.store.identity,
            threads=torch.get_num_threads(),
            parameters=strategy.parameters,
        )
        loop.log.write("whiteness", split=held_out, **self.store.whiteness(held_out).as_dict())


def open_job(
    recipe: str | Path | None,
    directory: str | Path | None,
    *,
    overrides: Sequence[str] = (),
    stores: Path | None = None,
    resume: Resume = Resume.NEVER,
    tally: Tally | None = None,
) -> Job:
    """A job from a recipe (a file or a shipped name) in a new directory, or from a run that is resumed.

    The store is made if the recipe names a source that has not been prepared under ``stores`` (`stores/` by
    default; a run that is resumed knows where its store is). Raises RecipeError, RunError (a directory that
    is taken, a run of another recipe), SourceError, StoreError, MachineError (a device that is not there).
    """
    wanted = recipes.load(recipe, overrides) if recipe is not None else None
    if wanted is None and (directory is None or resume is Resume.NEVER):
        raise RunError("name a recipe to train, or a run to go on with: --run DIRECTORY --resume")
    path = Path(directory) if directory is not None else Path("runs") / (wanted.name if wanted else "")
    started = (path / "recipe.toml").is_file()
    if not started and (resume is Resume.ALWAYS or wanted is None):
        raise RunError(f"there is no run in {path} to resume; name a recipe, without --resume, to begin one")
    if started and resume is Resume.NEVER:
        raise RunError(f"{path} already holds a run; go on with --resume, or choose another --run directory")
    if started:
        run = RunDirectory.open(path)
        kept = recipes.load(run.recipe)
        if wanted is None:
            wanted = recipes.load(run.recipe, overrides)
        check_device(wanted.training.device)
        if wanted.data.store is None:
            _same_recipe(wanted, kept, path)  # before anything is prepared
        store = store_of(run, kept, stores, tally)
        wanted = with_store_shape(wanted, store)
        _same_recipe(wanted, kept, path)
        return Job(run, wanted, store, resumed=True)
    assert wanted is not None, "checked above"
    check_device(wanted.training.device)
    if wanted.data.store is None:  # before hours of preparation
        check_start(wanted)
        check_memory(wanted, 0 if wanted.network.stacks else class_count(wanted))
    store = open_store(wanted, stores or STORES, tally)
    wanted = with_store_shape(wanted, store)
    # before there is a directory that holds a run
    check_start(wanted)
    check_memory(wanted, len(store.classes))
    check_disk(wanted, path)
    run = RunDirectory.create(path, recipes.dump(wanted), {**environment(), **place_of(store)})
    return Job(run, wanted, store, resumed=False)


def check_start(recipe: Recipe) -> None:
    """Raise RunError where the run that `network.start` names learnt from pictures that were prepared
    otherwise, or one of its stacks has not begun to learn."""
    start = start_of(recipe)
    if start is None:
        return
    check_preparation(recipe, start)
    made = recipes.load(start.recipe)
    position = position_from(newest(start, made).state)
    phases = len(made.network.stacks) if made.training.strategy == "greedy" else 1
    if position.phase + (position.step > 0) < phases:
        raise RunError(
            f"network.start names {start.path}, whose stacks have not all been trained; "
            f"train it further first: cotswold train --run {start.path} --resume"
        )


def check_memory(recipe: Recipe, classes: int) -> None:
    """Raise MemoryLimitError, with the figures and what would fit, where the recipe's training does not fit.

    Raises GeometryError, RecipeError or RunError where its network cannot be built at all.
    """
    available, batch = available_bytes(), recipe.training.batch
    needed = partial(needed_bytes, recipe, classes)
    fitting = largest_batch(needed, batch, available)
    remedy = (
        f"training.batch={fitting} would fit"
        if fitting
        else "not even training.batch=1 would fit; make the network smaller or use a larger machine"
    )
    require(needed(batch), f"training {recipe.name}", f"{remedy} (cotswold info shows each part)")


def _same_recipe(wanted: Recipe, kept: Recipe, path: Path) -> None:
    """Raise RunError where a resumed run was trained by another recipe, but for what may change."""
    there, here = (dict(_fields(lasting(each))) for each in (kept, wanted))
    differing = [key for key in there | here if there.get(key) != here.get(key)]
    if differing:
        shown = [f"{key} ({there.get(key)} there, {here.get(key)} here)" for key in differing[:3]]
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise RunError(
            f"the run in {path} has another recipe, which differs in {', '.join(shown)}{more}; resume it "
            "without changing these, or choose another --run directory"
        )


def _fields(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Every field of a recipe under its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _fields(inner, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from _fields(inner, (*path, str(number)))
    else:
        yield ".".join(path), value


def _restore(loop: Loop, pictures: TrainingPictures) -> None:
    """Take up the newest good checkpoint; without any, the run begins anew."""
    checkpoint, skipped = loop.checkpoints.latest()
    if checkpoint is None:
        return
    loop.position = position_from(checkpoint.state)
    tensors = loop.strategy.tensors(loop.position.phase, loop.position.step)
    for name, tensor in tensors.items():
        checkpoint.read_into(name, tensor)
    loop.strategy.take_up(checkpoint, loop.position.phase, loop.position.step)
    loop.strategy.restored(tensors, _table(checkpoint.state, "strategy"))
    pictures.load_state_dict(_table(checkpoint.state, "pictures"))
    loop.account = Account.restored(_table(checkpoint.state, "account"))
    loop.log.write("resumed", step=loop.position.total, skipped=list(skipped))


def _table(state: Mapping[str, object], name: str) -> dict[str, Any]:
    table = state.get(name)
    if not isinstance(table, dict):
        raise CheckpointError(f"the checkpoint says nothing of {name}; it is of another version")
    return table
