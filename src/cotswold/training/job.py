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

from cotswold.data import Store
from cotswold.errors import CheckpointError, MachineError
from cotswold.geometry import Box, Grid
from cotswold.recipe import Recipe
from cotswold.run import (
    Account,
    Checkpoints,
    EventLog,
    RunDirectory,
    keep_freed_bytes,
    tensorboard,
    together,
)
from cotswold.run.curves import TensorBoard
from cotswold.training.fit import check_fit
from cotswold.training.greedy import Greedy
from cotswold.training.home import Home, InMemory
from cotswold.training.joint import Joint
from cotswold.training.loop import Log, Loop, Stop, position_from
from cotswold.training.networks import build_stacks
from cotswold.training.offload.home import OnDisk
from cotswold.training.on_mesh import OnMesh
from cotswold.training.pictures import HeldOutPictures, TrainingPictures
from cotswold.training.prepared import KEY, Prepared
from cotswold.training.restore import recipe_identity, supervised_network
from cotswold.training.strategy import Strategy
from cotswold.training.supervised import Supervised
from cotswold.training.supervised_on_mesh import SupervisedOnMesh, window_of
from cotswold.training.team import SOLO, Team

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

    def train(self, watch: Watch, stop: Stop) -> bool:
        """Train to the end (True) or until a stop is asked for (False).

        Raises BusyError if another process trains here, MemoryLimitError before anything is allocated that
        would not fit, DivergedError where the objective is no number any more.
        """
        recipe, team = self.team.placed(self.recipe), self.team
        if recipe is not self.recipe:
            return replace(self, recipe=recipe).train(watch, stop)
        training = recipe.training
        with together(team.ranks, MachineError):  # before any of them allocates
            check_fit(self.recipe, len(self.store.classes), self.run.path, team)
        keep_freed_bytes()
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        with ExitStack() as open_things:
            log: Log = NoLog()
            with together(team.ranks, MachineError):
                if team.leads:
                    open_things.enter_context(self.run.lock())
            if team.leads:
                mirror = _Watched(watch, tensorboard(self.run.tensorboard))
                log = open_things.enter_context(EventLog(self.run.events, mirror=mirror))
            home = self._home(open_things)
            box = self._window(home)
            pictures = open_things.enter_context(
                TrainingPictures(self.store, training.batch, training.seed, training.device, box=box)
            )
            identity, kept = recipe_identity(self.recipe), training.checkpoints_kept
            loop = Loop(
                strategy=self._strategy(home, HeldOutPictures(self.store, self.recipe, box=box), pictures),
                pictures=pictures,
                log=log,
                checkpoints=Checkpoints(self.run.checkpoints, keep=kept, identity=identity, ranks=team.ranks),
                best=Checkpoints(self.run.best, identity=identity, keep=1, ranks=team.ranks),
                account=Account(),
                stop=stop,
                checkpoint_seconds=60 * training.checkpoint_minutes,
                team=team,
                stamp={KEY: Prepared.of(self.store).state()},
            )
            if self.resumed:
                _restore(loop, pictures)
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

    def _strategy(self, home: Home | None, held_out: HeldOutPictures, pictures: TrainingPictures) -> Strategy:
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
            grid=str(self.team.mesh.grid if self.team.mesh is not None else Grid(1, 1)),
            parameters=strategy.parameters,
        )
        loop.log.write("whiteness", split=held_out, **self.store.whiteness(held_out).as_dict())


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
    grid = "1x1" if loop.team.mesh is None else str(loop.team.mesh.grid)
    loop.log.write("resumed", step=loop.position.total, skipped=list(skipped), grid=grid)


def _table(state: Mapping[str, object], name: str) -> dict[str, Any]:
    table = state.get(name)
    if not isinstance(table, dict):
        raise CheckpointError(f"the checkpoint says nothing of {name}; it is of another version")
    return table
