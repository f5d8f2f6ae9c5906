"""The synchronous trainer: mini-batches in one process, or on ranks that take every step together.

Knows: phases and steps, when to validate, the position in a checkpoint. Does not know: any one strategy, the
consumers of events, the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from cotswold.checkpoint import Checkpoint, OptionalTensor, SealedChunk, StateDict, TensorChunk
from cotswold.checkpoint import state_dict as states
from cotswold.errors import CheckpointError, CotswoldError, MachineError
from cotswold.host import raise_on_all
from cotswold.run import Recorder
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.strategies.base import Batches, Strategy
from cotswold.training.strategies.phases import Phase
from cotswold.training.strategies.validate import add_location, check_interface, check_metrics, check_state
from cotswold.training.trainers.prefetch import MonitoredBatches, PeekableBatches

EVENTS_LEAST = 60
"""The minimum number of events in a phase, however short: the points of its curves."""


RANDOM = "random"
"""The key of torch's CPU random state in checkpoints, which the strategy provides or the trainer adds."""


@dataclass
class Position:
    """The position of the next step in the run."""

    phase: int = 0
    step: int = 0
    total: int = 0
    """Steps taken in all phases."""


@dataclass
class SyncTrainer:
    """Drive one strategy and its batches step by step."""

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

    @property
    def number(self) -> int:
        """Steps taken so far: the number of the next checkpoint."""
        return self.position.total

    @property
    def parameters(self) -> int:
        """The number of weights of the network."""
        return self.strategy.parameters

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises CheckpointError for another network or version."""
        with add_location(self.strategy):
            self._resume(checkpoint)

    def _resume(self, checkpoint: Checkpoint) -> None:
        position = position_from(checkpoint.state)
        if position.phase > len(self.strategy.phases):
            raise CheckpointError(f"{checkpoint.path} was written in a phase that this run does not have")
        self.strategy.enter(position.phase, position.step)
        own = self.strategy.state_dict()
        state = states.load(_with_random(own), checkpoint, _table(checkpoint.state, "strategy"))
        drawn = None if RANDOM in own else state.pop(RANDOM, None)
        if isinstance(drawn, OptionalTensor):
            torch.set_rng_state(drawn.tensor)
        self.strategy.load_state_dict(state)
        self.batches.load_state_dict(_table(checkpoint.state, "batches"))
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
        batches = MonitoredBatches(self._batch_iterator or iter(self.batches))
        if self._is_resumed and position.phase == len(phases):
            self.recorder.event("already_complete", reason=self._complete_reason)
        while position.phase < len(phases):
            self.strategy.enter(position.phase, position.step)
            check_state(self.strategy, self.strategy.state_dict())  # before any training could be lost
            if position.step == 0:
                described = {**self.strategy.describe(), **phases[position.phase].place()}
                self.recorder.event("phase_start", **described)
            if not self._run_phase(phases[position.phase], batches):
                self._save()
                return False
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
            ]
            finished, signal, save, limited, gives_up = self.rank_context.all_reduce_max(wishes)
            if finished:
                break
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
            last = position.step == phase.steps
            if recorder.is_means_due or last or (every is not None and position.step % every == 0):
                self._record_means(phase, name)
            if last or (phase.validate_every is not None and position.step % phase.validate_every == 0):
                self._validate(phase)
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
        if batches.has_failed and self.position.total and self.rank_context.mesh is None:
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
            path = self.recorder.save_best(*self._checkpoint())
            self.recorder.event("checkpoint", step=self.number, path=path.name)

    def _save(self) -> None:
        path = self.recorder.save(*self._checkpoint())
        self.recorder.event("checkpoint", step=self.number, path=path.name)

    def _checkpoint(self) -> tuple[int, Iterator[TensorChunk | SealedChunk], dict[str, object], str]:
        kept = self.strategy.state_dict()
        check_state(self.strategy, kept)
        kept = _with_random(kept)
        state: dict[str, object] = {
            "strategy": states.plain_values(kept),
            "batches": self.batches.state_dict()
            if self._batch_iterator is None
            else self._batch_iterator.position,
            "position": vars(self.position).copy(),
            "ended": list(self._ended),
        }
        return self.number, states.chunks(kept, self.rank_context.ranks.rank), state, f"step {self.number}"


def _with_random(state: StateDict) -> StateDict:
    """Add torch's random state, which dropout uses, unless the state of the strategy has it.

    Older checkpoints may lack it.
    """
    return state if RANDOM in state else {**state, RANDOM: OptionalTensor(torch.get_rng_state())}


def position_from(state: Mapping[str, object]) -> Position:
    """Return the position in a checkpoint; raises CheckpointError if there is none."""
    found = state.get("position")
    if (
        not isinstance(found, dict)
        or set(found) != {"phase", "step", "total"}
        or not all(type(value) is int and value >= 0 for value in found.values())
    ):
        raise CheckpointError("the checkpoint lacks its position in the run; another version wrote it")
    return Position(**found)


def _table(state: Mapping[str, object], name: str) -> dict[str, Any]:
    table = state.get(name)
    if not isinstance(table, dict):
        raise CheckpointError(f"the checkpoint has no {name}; another version wrote it")
    return table
