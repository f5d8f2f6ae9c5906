"""A training job: a run directory, its recipe, and the trainer.

Knows: how the parts of a run are created, assembled and resumed. Does not know: the arithmetic of any
strategy, which trainer runs, the terminal.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

import torch

from cotswold import recipe as recipes
from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.data import Store
from cotswold.errors import CheckpointError, CotswoldError, MachineError, ResumableError, describe_exception
from cotswold.files import DiskRemedy
from cotswold.host import keep_freed_bytes, raise_on_all
from cotswold.host.stack_dump import stack_dumps_to
from cotswold.recipe import FORMAT, Recipe
from cotswold.recipe.schema import BatchTraining, DownpourTraining, SharedTraining, SupervisedTraining
from cotswold.recipe.schema.cluster import metrics_place
from cotswold.run import EventLog, NoLog, Recorder, RunDirectory, Stop, tensorboard
from cotswold.run.events import Log, Observer
from cotswold.run.loggers.status_file import StatusFile
from cotswold.run.stop import NOTHING_SAVED
from cotswold.training.data.sample_spec import KEY, SampleSpec
from cotswold.training.data.stores import warnings
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.jobs.config_diff import check_recipe, lasting_overrides, metadata
from cotswold.training.jobs.extend import record_totals, stages
from cotswold.training.jobs.preflight import check_resources
from cotswold.training.strategies import registry as table
from cotswold.training.strategies.phases import Epochs
from cotswold.training.strategies.registry import Runner, TrainContext

_FREE_AND_RESTART = f"free some space and resume ({NOTHING_SAVED})"


def _rate(training: SharedTraining) -> str:
    return "learning_rate" if isinstance(training, SupervisedTraining | DownpourTraining) else "relative_rate"


OnEvent = Callable[[Mapping[str, object]], None]
"""Receives every event of the run as it is written; after raising it receives no more, and the run
continues.
"""


class _Callback:
    """An observer of the event log that passes events to a function."""

    name = "the callback"

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def write(self, event: Mapping[str, object]) -> None:
        self._on_event(event)

    def close(self) -> None:
        """Do nothing: a function holds no resources."""


@dataclass(frozen=True)
class Job(ABC):
    """One run, ready to train.

    Args:
        run: The directory of the run.
        recipe: The recipe with the epochs that the run began with.
        resumed: True if the run existed before.
        rank_context: The ranks that train together.
        totals: The total epochs of each extension of the run, in order.
        start_time: The time (`time.monotonic`) from which the run's seconds count.
    """

    run: RunDirectory
    recipe: Recipe
    resumed: bool
    rank_context: RankContext = SINGLE_PROCESS
    totals: tuple[Epochs, ...] = ()
    """The total epochs of each extension of the run, in order."""
    start_time: float = field(default_factory=time.monotonic)
    """The start of the command by the monotonic clock; the run's time counts from it."""

    @abstractmethod
    def check(self) -> None:
        """Raise MemoryLimitError or DiskFullError if this process's part does not fit."""

    @abstractmethod
    def metadata(self) -> Mapping[str, object]:
        """Return the metadata of every checkpoint's state, in addition to the recipe."""

    @abstractmethod
    def build(self, recorder: Recorder, exit_stack: ExitStack, *, fresh: bool) -> Runner:
        """Return the trainer.

        Args:
            recorder: Receives metrics and events, and writes checkpoints.
            exit_stack: Closes the resources of the trainer when training ends.
            fresh: True if the run has no checkpoint to resume from.
        """

    @abstractmethod
    def announce(self, recorder: Recorder, start: Mapping[str, object]) -> None:
        """Write the first events of a run.

        Args:
            recorder: Receives the events.
            start: The fields of the event ``start`` that all jobs share; the job adds those of its data.
        """

    def train(self, watch: OnEvent, stop: Stop) -> bool:
        """Train to the end or until a stop request.

        Args:
            watch: Receives every event of the run.
            stop: The request to stop, which another thread or a signal may set.

        Returns:
            True at the end of the training, False after a stop.

        Raises:
            BusyError: If another process trains in this directory.
            MemoryLimitError: Before the allocation, if the training does not fit.
            DivergedError: If the objective is no longer finite.
        """
        recipe, rank_context = self.rank_context.with_local_device(self.recipe), self.rank_context
        if recipe is not self.recipe:
            return replace(self, recipe=recipe).train(watch, stop)
        with raise_on_all(rank_context.ranks, MachineError):  # before any of them allocates
            self.check()
        keep_freed_bytes()
        if recipe.training.threads is not None:
            torch.set_num_threads(recipe.training.threads)
        with ExitStack() as exit_stack:
            with raise_on_all(rank_context.ranks, MachineError):
                if rank_context.is_main:
                    exit_stack.enter_context(self.run.lock())
                    self.run.check_known()
                    self.run.set_overrides(lasting_overrides(recipe, recipes.load(self.run.recipe)))
                    if rank_context.ranks.size == 1:
                        exit_stack.enter_context(stack_dumps_to(self.run.main_log))
                identity = self.run.identity
            log = self._log(watch, exit_stack) if rank_context.is_main else NoLog()
            recorder = self._recorder(log, stop, identity)
            runner = self._built(recorder, exit_stack)
            if self.resumed:
                self._resume(recorder, runner)
            if runner.number == 0 and rank_context.is_main:
                self._announce(recorder, runner)
            return self._run(recorder, runner)

    def _log(self, on_event: OnEvent, exit_stack: ExitStack) -> EventLog:
        curves = tensorboard(self.run.tensorboard)
        observers: list[Observer] = [_Callback(on_event), StatusFile(self.run.status)]
        observers += [] if curves is None else [curves]
        place = metrics_place(self.recipe.cluster.metrics_address)
        scraped = None
        if place is not None:
            from cotswold.run.prometheus.server import PrometheusObserver

            scraped = PrometheusObserver(*place, self._about)
            exit_stack.callback(scraped.close)
            observers.append(scraped)
        log = exit_stack.enter_context(EventLog(self.run.events, observers=observers, began=self.start_time))
        if scraped is not None:
            log.show("metrics", url=scraped.url)
        if record_totals(self.run, self.totals):
            log.write("extended", epochs=self.totals[-1], extension=len(self.totals))
        return log

    @property
    def _about(self) -> Mapping[str, str]:
        recipe = self.recipe
        return {"run": self.run.path.name, "recipe": recipe.name, "strategy": recipe.training.strategy}

    def _built(self, recorder: Recorder, exit_stack: ExitStack) -> Runner:
        """Return the trainer; a start that fails is recorded as an event, because its time counts."""
        fresh = not (self.resumed and recorder.checkpoints.paths())
        try:
            return self.build(recorder, exit_stack, fresh=fresh)
        except BaseException as error:
            self._add_resume_command(error)
            with suppress(CotswoldError):  # a full disk must not hide the cause
                recorder.event("start_failed", reason=_words(error))
            raise

    def _recorder(self, log: Log, stop: Stop, identity: str) -> Recorder:
        training, ranks = self.recipe.training, self.rank_context.ranks
        remedy = f"try a smaller learning rate (training.{_rate(training)})"
        if isinstance(training, BatchTraining):
            remedy = (
                "try another training.method or training.line_search, or look for non-finite values in the "
                "data"
            )
        if isinstance(training, DownpourTraining):
            less = "a smaller training.momentum, " if training.update_rule == "momentum" else ""
            fewer = ", or fewer replicas (cluster.workers)" if self.recipe.cluster.workers > 1 else ""
            remedy += f", {less}training.max_staleness=0, training.clip_norm, a training.warmup{fewer}"
        return Recorder(
            log=log,
            checkpoints=CheckpointManager(
                self.run.checkpoints, keep=training.checkpoints_kept, identity=identity, ranks=ranks
            ),
            best=CheckpointManager(self.run.best, identity=identity, keep=1, ranks=ranks),
            stop=stop,
            checkpoint_seconds=60 * training.checkpoint_minutes,
            metadata={**metadata(self.recipe), **self.metadata()},
            remedy=remedy,
            sent_bytes=self.rank_context.pop_bytes_sent,
            run_clock=(lambda: log.seconds) if isinstance(log, EventLog) else None,
            seconds_max=self.recipe.price.seconds_max,
        )

    def _run(self, recorder: Recorder, runner: Runner) -> bool:
        status, why = "failed", ""
        recorder.start()
        try:
            finished = runner.run()
            status = "finished" if finished else "limited" if recorder.stop.is_limited else "interrupted"
            why = self.recipe.price.limit if status == "limited" else ""
            return finished
        except BaseException as error:
            self._add_resume_command(error)
            why = _words(error)
            raise
        finally:
            recorder.add_elapsed()
            recorder.end(status, self.recipe.price, why)

    def _add_resume_command(self, error: BaseException) -> None:
        """Add the resume command to an error that asks to resume, or say that no checkpoint exists yet."""
        if not isinstance(error, MachineError):
            return
        is_saved = bool(CheckpointManager(self.run.checkpoints).paths())
        if isinstance(error, ResumableError):
            error.remedy += f": {self._resume_words}{'' if is_saved else f' ({NOTHING_SAVED})'}"
        elif error.remedy == DiskRemedy.RESUME and not is_saved:
            error.remedy = DiskRemedy.REPEAT if self.run.has_no_step else _FREE_AND_RESTART

    @property
    def _resume_words(self) -> str:
        """The command, or the Python argument, that resumes the run."""
        if self.recipe.network.module is not None:
            return "resume=True"
        return f"cotswold train --run {self.run.path} --resume"

    def _announce(self, recorder: Recorder, runner: Runner) -> None:
        start = {
            "format": FORMAT,
            "name": self.recipe.name,
            "strategy": self.recipe.training.strategy,
            "threads": torch.get_num_threads(),
            "grid": self._grid,
            "parameters": runner.parameters,
        }
        self.announce(recorder, start)

    @property
    def _grid(self) -> str:
        """The grid of ranks over which the network is partitioned, in this process or in each worker."""
        return (
            (self.recipe.worker_grid or "1x1")
            if self.rank_context.mesh is None
            else str(self.rank_context.mesh.grid)
        )

    def _resume(self, recorder: Recorder, runner: Runner) -> None:
        """Resume from the newest valid checkpoint; without one, restart the run from the beginning."""

        def use(checkpoint: Checkpoint) -> None:
            check_recipe(checkpoint, self.recipe)
            try:
                runner.resume(checkpoint)
            except (LookupError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{checkpoint.path} was written by another version ({describe_exception(error)})"
                ) from error

        checkpoint, skipped = recorder.resume(use)
        if checkpoint is None:
            lost = recorder.log.earlier_seconds if isinstance(recorder.log, EventLog) else 0.0
            recorder.event("restarted", lost_seconds=lost)
            return
        recorder.event(
            "resumed",
            format=FORMAT,
            step=runner.number,
            step_unit="samples" if isinstance(self.recipe.training, DownpourTraining) else "steps",
            skipped_checkpoints=list(skipped),
            grid=self._grid,
            overrides=self.run.overrides,
        )


def _words(error: BaseException) -> str:
    """Return the message of an error, or its type and location if it is unexpected."""
    return str(error) if isinstance(error, CotswoldError) else describe_exception(error)


@dataclass(frozen=True, kw_only=True)
class RecipeJob(Job):
    """A run on a prepared store, with the strategy that its recipe names.

    Args:
        store: The store of the samples.
    """

    store: Store

    def check(self) -> None:
        """Raise MemoryLimitError or DiskFullError if this rank's part of the network does not fit."""
        check_resources(self.recipe, self.store, self.run.path, self.rank_context)

    def metadata(self) -> Mapping[str, object]:
        """Return the preparation that samples need for the network."""
        return {KEY: SampleSpec.of(self.store).state()}

    def build(self, recorder: Recorder, exit_stack: ExitStack, *, fresh: bool) -> Runner:
        """Build the trainer of the recipe's strategy."""
        context = TrainContext(
            recipe=self.recipe,
            run=self.run,
            store=self.store,
            rank_context=self.rank_context,
            recorder=recorder,
            epochs=stages(self.recipe, self.totals),
            fresh=fresh,
            exit_stack=exit_stack,
        )
        torch.manual_seed(self.recipe.training.seed)  # for unseeded draws of strategies
        return table.entry(self.recipe.training.strategy).build(context)

    def announce(self, recorder: Recorder, start: Mapping[str, object]) -> None:
        """Write the start of the run and, for images, their whiteness."""
        recorder.event(
            "start",
            **start,
            samples=self.store.splits["train"],
            store=self.store.identity,
            notes=[*self.store.notes, *warnings(self.recipe, self.store)],
        )
        if self.store.kind == "images":
            split = "validation" if self.store.splits.get("validation") else "train"
            recorder.event("whiteness", split=split, **self.store.whiteness(split).as_dict())
