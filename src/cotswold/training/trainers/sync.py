"""The synchronous trainer: mini-batches in one process, or on ranks that take every step together.

Knows: phases and steps, when to validate, the position in a checkpoint. Does not know: any one strategy, the
consumers of events, the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from cotswold.checkpoint import Checkpoint, OptionalTensor, SealedChunk, TensorChunk
from cotswold.checkpoint import state_dict as states
from cotswold.errors import CheckpointError, CotswoldError, MachineError
from cotswold.host import raise_on_all
from cotswold.run import Recorder
from cotswold.training.callbacks.ema import ModelEMA, average_of, network_name, raw_weights
from cotswold.training.callbacks.runner import CallbackRunner, TrainingState
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.strategies.base import Batch, Batches, Strategy
from cotswold.training.strategies.phases import Phase
from cotswold.training.strategies.validate import add_location, check_interface, check_metrics, check_state
from cotswold.training.trainers.base import Trainer
from cotswold.training.trainers.position import RANDOM, Position, position_from, require_table, with_random
from cotswold.training.trainers.prefetch import MonitoredBatches, PeekableBatches

EVENTS_LEAST = 60
"""The minimum number of events in a phase, however short: the points of its curves."""


@dataclass
class SyncTrainer(Trainer):
    """Drive one strategy and its batches step by step; `make_trainer` makes it.

    Args:
        strategy: The strategy.
        batches: The training batches.
        recorder: Receives metrics and events, and writes checkpoints.
        rank_context: The ranks that take each step together.
        position: The position of the next step.
        is_served: True if data servers make the batches.
    """

    strategy: Strategy
    batches: Batches
    recorder: Recorder
    rank_context: RankContext = SINGLE_PROCESS
    position: Position = field(default_factory=Position)
    is_served: bool = False
    """True if data servers make the batches, which may therefore stop arriving."""

    def __post_init__(self) -> None:
        """Check the strategy; raises UserError if a method is missing."""
        check_interface(self.strategy)
        self._batch_iterator: PeekableBatches | None = None
        self._ended: list[int] = []
        """The total steps at the end of each finished phase."""
        self._is_resumed = False
        self._batch: Batch | None = None
        self._metrics: Mapping[str, float] = {}

    @property
    def number(self) -> int:
        """Steps taken so far: the number of the next checkpoint."""
        return self.position.total

    @property
    def parameters(self) -> int:
        """The number of weights of the network."""
        return self.strategy.parameters

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of the strategy for the event `start`, such as its optimiser."""
        found: Mapping[str, object] = getattr(self.strategy, "settings", {})
        return found

    @property
    def resume_warning(self) -> str:
        """A sentence on what the loaded checkpoint replaced; empty if there is nothing to say."""
        return str(getattr(self.strategy, "resume_warning", ""))

    # ---- callbacks

    def use_callbacks(self, callbacks: CallbackRunner) -> None:
        """Call these callbacks from now on. Raises UserError for one that this trainer cannot serve."""
        super().use_callbacks(callbacks)
        average = average_of(callbacks.active)
        if average is not None:
            assert self._module is not None, "a callback that needs a module is refused without one"
            average.track(self._module, self.strategy.state_dict())

    @property
    def _average(self) -> ModelEMA | None:
        """The average of the weights, which is validated and saved; None without the callback."""
        return average_of(self.callbacks.active)

    @property
    def _module(self) -> nn.Module | None:
        network = getattr(self.strategy, "network", None)
        return network if isinstance(network, nn.Module) else None

    @property
    def keeps_module(self) -> bool:
        """True if the strategy has a module as its attribute ``network``."""
        return self._module is not None

    @property
    def planned(self) -> float:
        """The steps of all phases."""
        return sum(phase.steps or 0 for phase in self.strategy.phases)

    @property
    def _epoch_steps(self) -> int:
        """The steps of an epoch."""
        updates = [each.validate_every for each in self.strategy.phases if each.validate_every is not None]
        return updates[0] if updates else max(1, int(self.batches.epoch_steps))

    def training_state(self) -> TrainingState:
        """Return the state that callbacks receive."""
        found = [getattr(self.strategy, name, None) for name in ("optimizer", "optimiser")]
        return TrainingState(
            step=self.position.total,
            epoch=self.position.total // self._epoch_steps,
            module=self._module,
            optimizer=next((each for each in found if isinstance(each, Optimizer)), None),
            batch=self._batch,
            metrics=self._metrics,
        )

    def _begin_batch(self, batch: Batch) -> None:
        self._batch = batch
        self.call("on_batch_start")

    # ---- resume

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises CheckpointError for another network or version."""
        with add_location(self.strategy):
            self._resume(checkpoint)

    def _resume(self, checkpoint: Checkpoint) -> None:
        position = position_from(checkpoint.state)
        if position.phase > len(self.strategy.phases):
            raise CheckpointError(f"{checkpoint.path} was written in a phase that this run does not have")
        self.strategy.enter(position.phase, position.step)
        self.load_callbacks(checkpoint)
        own = self.strategy.state_dict()
        loaded, average = with_random(own), self._average
        raw = raw_weights(own, checkpoint.names)
        is_averaged = average is not None and average.matches(raw)
        if average is not None and is_averaged:
            loaded = average.substitute(loaded)
        loaded = {**loaded, **raw}  # raw weights last: the tensors before them may be the same
        state = states.load(loaded, checkpoint, require_table(checkpoint.state, "strategy"))
        if average is not None and not is_averaged and self._module is not None:
            average.track(self._module, own)
        averaged = {network_name(name) for name in raw}
        state = {
            name: own[name] if name in averaged else each for name, each in state.items() if name not in raw
        }
        drawn = None if RANDOM in own else state.pop(RANDOM, None)
        if isinstance(drawn, OptionalTensor):
            torch.set_rng_state(drawn.tensor)
        self.strategy.load_state_dict(state)
        self.batches.load_state_dict(require_table(checkpoint.state, "batches"))
        ended = checkpoint.state.get("ended")
        if not isinstance(ended, list) or not all(type(each) is int for each in ended):
            raise CheckpointError(f"{checkpoint.path} lacks the ends of its phases; it is damaged")
        self._ended = list(ended)
        self.position = self._position_to_resume(position)
        self._is_resumed = True
        self.strategy.enter(self.position.phase, self.position.step)

    def _position_to_resume(self, position: Position) -> Position:
        """Return a position within the last phase if patience ended that phase and has since been raised."""
        phases = self.strategy.phases
        if position.phase != len(phases) or self.strategy.should_stop:
            return position
        last = len(phases) - 1
        if last and len(self._ended) != len(phases):
            return position
        steps, taken = phases[last].steps, position.total - (self._ended[last - 1] if last else 0)
        if steps is None or taken >= steps:
            return position
        del self._ended[last:]
        return Position(last, taken, position.total)

    def run(self) -> bool:
        """Train to the end (True) or until a stop request (False); saves in both cases.

        Raises UserError if the strategy returns a wrong type, and MachineError, after a save, if data servers
        stop making batches.
        """
        with add_location(self.strategy):
            return self._run()

    def _run(self) -> bool:
        position, phases = self.position, self.strategy.phases
        self._batch_iterator = PeekableBatches(self.batches) if self.is_served else None
        on_batch = self._begin_batch if self.callbacks.needs_batches else None
        batches = MonitoredBatches(self._batch_iterator or iter(self.batches), on_batch)
        if self._is_resumed and position.phase == len(phases):
            self.recorder.event("already_complete", reason=self._complete_reason)
            return True
        complete = self.callbacks.complete_reason
        if self.callbacks.has_loaded_end and self.rank_context.all_reduce_max([int(complete is not None)])[0]:
            self.recorder.event("already_complete", reason=complete or "a callback ended the run")
            return True
        self.call("on_start")
        while position.phase < len(phases):
            self.strategy.enter(position.phase, position.step)
            check_state(self.strategy, self.strategy.state_dict())  # before any training could be lost
            if position.step == 0:
                described = {**self.strategy.describe(), **phases[position.phase].place()}
                self.recorder.event("phase_start", **described)
            if not self._run_phase(phases[position.phase], batches):
                self._save()
                return self.is_ended_by_callback
            position.phase, position.step = position.phase + 1, 0
            self._ended.append(position.total)
            self.strategy.enter(position.phase, position.step)
            self._save()
        return True

    @property
    def _complete_reason(self) -> str:
        """The reason why a resumed run takes no step, and the remedy."""
        if self.strategy.should_stop:
            return (
                f"the run ended after {self.position.total} steps, because validation stopped improving; a "
                "larger training.patience or more training.epochs continue it"
            )
        return "all epochs are trained; more training.epochs extend the run"

    def _run_phase(self, phase: Phase, batches: MonitoredBatches) -> bool:
        """Take the phase's remaining steps; return False on a stop request."""
        strategy, recorder, position = self.strategy, self.recorder, self.position
        account, name = recorder.usage, strategy.describe()["phase"]
        seconds_before, samples_before, flops_before = recorder.clock(), account.samples, account.flops
        recorder.restart_means(self.batches.waited_seconds)
        every = None if phase.steps is None else -(-phase.steps // EVENTS_LEAST)
        step_seconds = 0.0
        while phase.steps is None or position.step < phase.steps:
            over = position.step > 0 and strategy.should_stop
            began = recorder.clock()
            without = not over and recorder.stop.signal is None and self._is_starved()
            fetch_seconds = recorder.clock() - began
            wishes = [
                int(over),
                recorder.stop.signal or 0,
                int(recorder.is_save_due),
                int(recorder.limit_within(step_seconds)),
                int(without),
                int(self.callbacks.ended is not None),
            ]
            finished, signal, save, limited, gives_up, ended = self.rank_context.all_reduce_max(wishes)
            if finished:
                break
            if ended:  # before a signal: the run is over, not stopped
                self.is_ended_by_callback = True
                return False
            if limited:
                recorder.stop.is_limited = True
                return False
            if signal:
                recorder.stop.signal = signal
                return False
            if gives_up:
                self._save_and_raise()
            if position.step == 0:
                strategy.begin(batches)
                self._validate(phase)
            began = recorder.clock()
            try:
                metrics = check_metrics(strategy, "train_step", strategy.train_step(batches))
            except Exception:
                self._save_before_failure(batches)
                raise
            step_seconds = recorder.clock() - began + fetch_seconds
            recorder.add(metrics, strategy.flops, f"step {position.total + 1}")
            position.step += 1
            position.total += 1
            self._metrics = {"loss": metrics.loss, **metrics.details}
            self.call("on_step_end")
            last = position.step == phase.steps
            if recorder.is_means_due or last or (every is not None and position.step % every == 0):
                self._record_means(phase, name)
            at = position.total if phase.counts_from_start else position.step
            if last or (phase.validate_every is not None and at % phase.validate_every == 0):
                self._validate(phase)
            if position.total % self._epoch_steps == 0:
                self.call("on_epoch_end")
            if save:
                self._save()
        recorder.event(
            "phase_end",
            phase=name,
            step=position.total,
            phase_seconds=recorder.clock() - seconds_before,
            samples=account.samples - samples_before,
            flops=account.flops - flops_before,
        )
        return True

    def _save_before_failure(self, batches: MonitoredBatches) -> None:
        """Save the training before a batch that cannot be drawn.

        Several ranks do not save here, because not all of them may fail.
        """
        if batches.has_failed and self.position.total and self.rank_context.ranks.size == 1:
            with suppress(CotswoldError):  # the caller raises the original error
                self._save()

    def _is_starved(self) -> bool:
        """Return True if the next batch does not arrive; before the first step of a phase, nothing new
        needs a save.
        """
        return (
            self._batch_iterator is not None and self.position.step > 0 and not self._batch_iterator.fetch()
        )

    def _save_and_raise(self) -> None:
        """Save, then raise on all ranks the reason why no batch arrives."""
        assert self._batch_iterator is not None, "only batches of data servers can be missing"
        self._save()
        with raise_on_all(self.rank_context.ranks, MachineError):
            if self._batch_iterator.error is not None:
                raise self._batch_iterator.error

    def _record_means(self, phase: Phase, name: object) -> None:
        means = self.recorder.means(self.batches.waited_seconds)
        last = {} if phase.steps is None else {"phase_steps": phase.steps_before + phase.steps}
        self.recorder.event(
            "step",
            phase=name,
            step=self.position.total,
            **last,
            phase_step=phase.steps_before + self.position.step,
            **means.values,
            training_seconds=self.recorder.seconds,
            interval_steps=means.count,
        )

    def _validate(self, phase: Phase) -> None:
        average = self._average
        with nullcontext() if average is None else average.exchanged():
            metrics = self.strategy.validate()
        if metrics is None:
            return
        check_metrics(self.strategy, "validate", metrics)
        self.recorder.event(
            "validation",
            phase=self.strategy.describe()["phase"],
            step=self.position.total,
            phase_step=phase.steps_before + self.position.step,
            loss=metrics.loss,
            **metrics.details,
        )
        if self.rank_context.all_reduce_max([int(self.strategy.is_best)])[0]:
            self._record_saved(self.recorder.save_best(*self._checkpoint()))
        self._metrics = {"loss": metrics.loss, **metrics.details}
        self.call("on_validation_end")

    def _save(self) -> None:
        self._record_saved(self.recorder.save(*self._checkpoint()))

    def _record_saved(self, path: Path) -> None:
        self.recorder.event("checkpoint", step=self.number, path=path.name)
        self.call("on_checkpoint", checkpoint=path)

    def _checkpoint(self) -> tuple[int, Iterator[TensorChunk | SealedChunk], dict[str, object], str]:
        kept = self.strategy.state_dict()
        check_state(self.strategy, kept)
        kept, average = with_random(kept), self._average
        if average is not None:
            kept = average.substitute(kept)
        entries, more = self.callback_entries()
        state: dict[str, object] = {
            "strategy": states.plain_values(kept),
            "batches": self.batches.state_dict()
            if self._batch_iterator is None
            else self._batch_iterator.position,
            "position": vars(self.position).copy(),
            "ended": list(self._ended),
            **entries,
        }
        rank_context = self.rank_context
        own = states.chunks(kept if rank_context.writes_state else {}, rank_context.ranks.rank)
        pieces = chain(own, more)
        return self.number, pieces, state, f"step {self.number}"
