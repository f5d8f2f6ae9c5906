"""A training job: a run directory, its recipe, and the trainer.

Knows: how the parts of a run are created, assembled and resumed. Does not know: the arithmetic of any
strategy, which trainer runs, the terminal.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from cotswold import recipe as recipes
from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.errors import (
    CheckpointError,
    CotswoldError,
    MachineError,
    ResumableError,
    UserError,
    describe_exception,
)
from cotswold.files import DiskRemedy
from cotswold.host import keep_freed_memory, raise_on_all
from cotswold.host.stack_dump import stack_dumps_into, stack_dumps_to
from cotswold.launch.rank_log import stack_descriptor
from cotswold.recipe import FORMAT, Recipe
from cotswold.recipe.schema import BatchTraining, DownpourTraining, SharedTraining, SupervisedTraining
from cotswold.recipe.schema.cluster import metrics_place
from cotswold.run import EventLog, NoLog, Recorder, RunDirectory, Stop
from cotswold.run.events import Log, Observer
from cotswold.run.loggers.context import NO_FIGURES, LoggerContext
from cotswold.run.loggers.registry import check_observers, open_loggers
from cotswold.run.loggers.status_file import StatusFile
from cotswold.run.stop import NOTHING_SAVED
from cotswold.training.callbacks.base import HOOKS, Status
from cotswold.training.callbacks.functions import EventObserver, OnEvent, as_callbacks
from cotswold.training.callbacks.runner import CallbackRunner
from cotswold.training.components import Components
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.jobs.config_diff import check_recipe, lasting_overrides, metadata
from cotswold.training.jobs.extend import record_totals
from cotswold.training.strategies.phases import Epochs
from cotswold.training.strategies.registry import Runner
from cotswold.training.trainers.base import Trainer

_FREE_AND_RESTART = f"free some space and resume ({NOTHING_SAVED})"


def _rate(training: SharedTraining) -> str:
    return "learning_rate" if isinstance(training, SupervisedTraining | DownpourTraining) else "relative_rate"


def _no_figures(run: Path) -> Mapping[str, bytes]:
    """Return no figures.

    Args:
        run: The directory of the run.
    """
    return {}


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
    components: Components = field(default_factory=Components)
    """The objects that the program gave in addition to the recipe."""
    figures: Callable[[Path], Mapping[str, bytes]] = _no_figures
    """Returns figures of the network of a run's directory, as PNG files by name, for loggers."""

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
        keep_freed_memory()
        if recipe.training.threads is not None:
            torch.set_num_threads(recipe.training.threads)
        with ExitStack() as exit_stack:
            with raise_on_all(rank_context.ranks, MachineError):
                if rank_context.is_main:
                    exit_stack.enter_context(self.run.lock())
                    self.run.check_known()
                    self.run.set_overrides(lasting_overrides(recipe, recipes.load(self.run.recipe)))
                identity = self.run.identity
            exit_stack.enter_context(self._stack_dumps())
            given = as_callbacks(self.components.callbacks)
            callbacks = CallbackRunner(given, self.run.path, stop, rank_context.ranks.rank)
            log = self._log(watch, exit_stack, callbacks) if rank_context.is_main else NoLog()
            callbacks.log = log
            recorder = self._recorder(log, stop, identity)
            runner = self._built(recorder, exit_stack)
            _use_callbacks(runner, callbacks)
            if self.resumed:
                self._resume(recorder, runner)
            if runner.number == 0 and rank_context.is_main:
                self._announce(recorder, runner)
            return self._run(recorder, runner)

    def _stack_dumps(self) -> AbstractContextManager[None]:
        """Let `cotswold why --stacks` ask this process for its stacks, in the log of its rank."""
        ranks = self.rank_context.ranks
        if ranks.size == 1:
            return stack_dumps_to(self.run.main_log)
        descriptor = stack_descriptor()
        if descriptor is not None:
            return stack_dumps_into(descriptor)
        has_folder = self.run.path.is_dir()  # another machine may lack it
        return stack_dumps_to(self.run.rank_log(ranks.rank)) if has_folder else nullcontext()

    def _log(self, on_event: OnEvent, exit_stack: ExitStack, callbacks: CallbackRunner) -> EventLog:
        observers: list[Observer] = [EventObserver("the callback", on_event), StatusFile(self.run.status)]
        check_observers(self.components.loggers)
        observers += [*open_loggers(self.recipe.training.loggers, self._logged), *self.components.loggers]
        place = metrics_place(self.recipe.cluster.metrics_address)
        scraped = None
        if place is not None:
            from cotswold.run.prometheus.server import PrometheusObserver

            scraped = PrometheusObserver(*place, self._about)
            exit_stack.callback(scraped.close)
            observers.append(scraped)
        if callbacks.hears("on_event"):
            observers.append(EventObserver("the callbacks", callbacks.write))
        log = exit_stack.enter_context(EventLog(self.run.events, observers=observers, began=self.start_time))
        if scraped is not None:
            log.show("metrics", url=scraped.url)
        if record_totals(self.run, self.totals):
            log.write("extended", epochs=self.totals[-1], extension=len(self.totals))
        return log

    @property
    def _logged(self) -> LoggerContext:
        """The parts of the run that loggers may use."""
        is_asked = self.recipe.training.loggers is not None  # figures read the checkpoint again
        return LoggerContext(
            run=self.run.path,
            identity=self.run.identity,
            recipe=self.recipe.model_dump(mode="json", exclude_none=True),
            recipe_text=recipes.dump(self.recipe),
            environment=self.run.environment(),
            figures=partial(self.figures, self.run.path) if is_asked else NO_FIGURES,
        )

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
        status: Status = "failed"
        why = ""
        recorder.start()
        try:
            finished = runner.run()
            status = "finished" if finished else "limited" if recorder.stop.is_limited else "interrupted"
            why = self.recipe.price.limit if status == "limited" else ""
            why = (runner.end_reason or why) if isinstance(runner, Trainer) else why
            return finished
        except BaseException as error:
            self._add_resume_command(error)
            why = _words(error)
            raise
        finally:
            recorder.add_elapsed()
            if isinstance(runner, Trainer):
                runner.call("on_end", status=status)
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
            **({} if self.recipe.training.device == "cpu" else {"device": self.recipe.training.device}),
            "grid": self._grid,
            **self._replicas,
            "parameters": runner.parameters,
            **getattr(runner, "settings", {}),
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

    @property
    def _replicas(self) -> Mapping[str, int]:
        """The number of replicas, if there are several."""
        count = self.rank_context.share.count
        return {} if count == 1 else {"replicas": count}

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
            **self._replicas,
            overrides=self.run.overrides,
        )
        if warning := getattr(runner, "resume_warning", ""):
            recorder.event("warning", warning=warning)


def _use_callbacks(runner: Runner, callbacks: CallbackRunner) -> None:
    """Let a trainer call callbacks; raises UserError if it cannot."""
    if isinstance(runner, Trainer):
        runner.use_callbacks(callbacks)
    elif any(callbacks.hears(hook) for hook in HOOKS if hook != "on_event"):
        raise UserError(
            f"the trainer {type(runner).__name__} calls no callbacks; derive it from "
            "cotswold.training.Trainer, or give functions of events"
        )


def _words(error: BaseException) -> str:
    """Return the message of an error, or its type and location if it is unexpected."""
    return str(error) if isinstance(error, CotswoldError) else describe_exception(error)
