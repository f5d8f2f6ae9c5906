"""A training job: a run directory, its recipe, its store, its network.

Knows: how the parts of a run are put together and taken up again. Does not know: the arithmetic of any
strategy, the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from cotswold import recipe as recipes
from cotswold.checkpoint import Checkpoint, Checkpoints
from cotswold.data import Store, shuffle_bytes
from cotswold.errors import CheckpointError, MachineError
from cotswold.geometry import Box, Grid
from cotswold.host import keep_freed_bytes, raise_on_all
from cotswold.recipe import FORMAT, Recipe
from cotswold.run import Account, EventLog, RunDirectory, Stop, tensorboard
from cotswold.run.events import Observer
from cotswold.training.agreement import check_recipe, remembered, stamp
from cotswold.training.fit import check_fit
from cotswold.training.greedy import Greedy
from cotswold.training.home import Home, InMemory
from cotswold.training.joint import Joint
from cotswold.training.loop import Log, Loop, position_from
from cotswold.training.networks import build_stacks
from cotswold.training.offload.home import OnDisk
from cotswold.training.on_mesh import OnMesh
from cotswold.training.pictures import HeldOutPictures, TrainingPictures
from cotswold.training.prepared import KEY, Prepared
from cotswold.training.prolonging import Epochs, Prolongable, note, prolonged
from cotswold.training.restore import supervised_network
from cotswold.training.supervised import Supervised
from cotswold.training.supervised_on_mesh import SupervisedOnMesh, window_of
from cotswold.training.team import SOLO, Team

Watch = Callable[[Mapping[str, object]], None]
"""Receives every event of the run as it is written; if it raises it receives no more, and the run goes on."""


class _Watching:
    """An observer of the event log that hands events on to a function."""

    name = "who watches"

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def write(self, event: Mapping[str, object]) -> None:
        self._watch(event)

    def close(self) -> None:
        pass


class NoLog:
    """Where events of ranks go that do not lead: nowhere."""

    def write(self, kind: str, **fields: object) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Job:
    """One run, ready to be trained."""

    run: RunDirectory
    recipe: Recipe
    store: Store
    resumed: bool
    team: Team = SOLO
    totals: tuple[Epochs, ...] = ()
    """To which the run is prolonged, one after the other."""

    def train(self, watch: Watch, stop: Stop) -> bool:
        """Train to the end (True) or until a stop is asked for (False).

        Raises BusyError if another process trains here, MemoryLimitError before anything is allocated that
        would not fit, DivergedError where the objective is no number any more.
        """
        recipe, team = self.team.placed(self.recipe), self.team
        if recipe is not self.recipe:
            return replace(self, recipe=recipe).train(watch, stop)
        training = recipe.training
        with raise_on_all(team.ranks, MachineError):  # before any of them allocates
            check_fit(self.recipe, self.store, self.run.path, team)
        keep_freed_bytes()
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        with ExitStack() as open_things:
            log: Log = NoLog()
            with raise_on_all(team.ranks, MachineError):
                if team.leads:
                    open_things.enter_context(self.run.lock())
                    self.run.remember(remembered(self.recipe, recipes.load(self.run.recipe)))
                identity = self.run.identity
            if team.leads:
                curves = tensorboard(self.run.tensorboard)
                observers: list[Observer] = [_Watching(watch)]
                observers += [] if curves is None else [curves]
                log = open_things.enter_context(EventLog(self.run.events, observers=observers))
                if note(self.run, self.totals):
                    log.write("prolonged", epochs=self.totals[-1], prolongation=len(self.totals))
            home = self._home(open_things)
            box = self._window(home)
            pictures = open_things.enter_context(
                TrainingPictures(self.store, training.batch_size, training.seed, training.device, box=box)
            )
            loop = Loop(
                strategy=prolonged(
                    self._strategy(home, HeldOutPictures(self.store, self.recipe, box=box), pictures),
                    self.recipe,
                    self.totals,
                ),
                pictures=pictures,
                log=log,
                checkpoints=Checkpoints(
                    self.run.checkpoints,
                    keep=training.checkpoints_kept,
                    identity=identity,
                    ranks=team.ranks,
                ),
                best=Checkpoints(self.run.best, identity=identity, keep=1, ranks=team.ranks),
                account=Account(),
                stop=stop,
                checkpoint_seconds=60 * training.checkpoint_minutes,
                team=team,
                stamp={**stamp(self.recipe), KEY: Prepared.of(self.store).state()},
            )
            if self.resumed:
                self._restore(loop, pictures)
            if loop.position.total == 0 and team.leads:
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

    def _strategy(
        self, home: Home | None, held_out: HeldOutPictures, pictures: TrainingPictures
    ) -> Prolongable:
        if home is None:
            network = supervised_network(self.recipe, len(self.store.classes))
            known = network, self.recipe, pictures.epoch_steps, held_out.batches
            mesh = self.team.mesh
            return Supervised(*known) if mesh is None else SupervisedOnMesh(*known, mesh)
        kind = Greedy if self.recipe.training.strategy == "greedy" else Joint
        return kind(home, self.recipe, pictures.epoch_steps, held_out.maps)

    def _window(self, home: Home | None) -> Box | None:
        """What this process reads of every picture; None for all of it."""
        if isinstance(home, OnMesh):
            return home.window
        return None if self.team.mesh is None else window_of(self.recipe, self.team.mesh)

    def _home(self, open_things: ExitStack) -> Home | None:
        """Where the stacks are; on the disk they begin anew unless there is a checkpoint to take up."""
        if not self.recipe.network.stacks:
            return None
        if self.team.mesh is not None:
            return OnMesh(self.recipe, self.team.mesh)
        if not self.recipe.offloaded:
            return InMemory(build_stacks(self.recipe))
        fresh = not (self.resumed and Checkpoints(self.run.checkpoints).paths())
        reading = shuffle_bytes(self.store, "train")
        home = OnDisk(self.recipe, self.run.path / "offload", fresh=fresh, reading=reading)
        return open_things.enter_context(home)

    def _announce(self, loop: Loop) -> None:
        strategy = loop.strategy
        held_out = "validation" if self.store.splits.get("validation") else "train"
        loop.log.write(
            "start",
            format=FORMAT,
            name=self.recipe.name,
            strategy=self.recipe.training.strategy,
            pictures=self.store.splits["train"],
            store=self.store.identity,
            notes=list(self.store.notes),
            threads=torch.get_num_threads(),
            grid=str(self.team.mesh.grid if self.team.mesh is not None else Grid(1, 1)),
            parameters=strategy.parameters,
        )
        loop.log.write("whiteness", split=held_out, **self.store.whiteness(held_out).as_dict())

    def _restore(self, loop: Loop, pictures: TrainingPictures) -> None:
        """Take up the newest checkpoint that is good for it; without any, the run begins anew."""

        def take(checkpoint: Checkpoint) -> None:
            check_recipe(checkpoint, self.recipe)
            try:
                _take_up(loop, pictures, checkpoint)
            except (LookupError, TypeError, ValueError) as error:
                raise CheckpointError(f"{checkpoint.path} is of another version ({error!r})") from error

        checkpoint, skipped = loop.checkpoints.latest(take)
        if checkpoint is None:
            return
        loop.log.write(
            "resumed",
            format=FORMAT,
            step=loop.position.total,
            skipped=list(skipped),
            grid="1x1" if loop.team.mesh is None else str(loop.team.mesh.grid),
            remembered=self.run.remembered,
        )


def _take_up(loop: Loop, pictures: TrainingPictures, checkpoint: Checkpoint) -> None:
    position = position_from(checkpoint.state)
    if position.phase > loop.strategy.phases:
        raise CheckpointError(f"{checkpoint.path} was taken in a phase that this run does not have")
    tensors = loop.strategy.tensors(position.phase, position.step)
    for name, tensor in tensors.items():
        checkpoint.read_into(name, tensor)
    loop.strategy.take_up(checkpoint, position.phase, position.step)
    loop.strategy.restored(tensors, _table(checkpoint.state, "strategy"))
    pictures.load_state_dict(_table(checkpoint.state, "pictures"))
    loop.account = Account.restored(_table(checkpoint.state, "account"))
    loop.position = position


def _table(state: Mapping[str, object], name: str) -> dict[str, Any]:
    table = state.get(name)
    if not isinstance(table, dict):
        raise CheckpointError(f"the checkpoint says nothing of {name}; it is of another version")
    return table
