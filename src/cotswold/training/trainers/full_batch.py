"""The trainer of full-batch optimisers, which need value and gradient over the whole training set.

Knows: iterations, when to validate and to end, the checkpoint fields of an optimisation. Does not know:
methods, the processes that compute, the terminal.

Checkpoints are numbered by iterations and hold the method between two iterations: its values, and the vectors
that it names. A stop inside an iteration takes effect at the next portion; the run resumes from the beginning
of that iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import inf, isfinite

import torch
from torch import Tensor, nn

from cotswold.checkpoint import Checkpoint, TensorChunk
from cotswold.errors import CheckpointError, CotswoldError, DivergedError
from cotswold.optim import Convergence
from cotswold.optim.convergence import LossDecrease
from cotswold.recipe.schema import BatchTraining
from cotswold.run import Recorder
from cotswold.training.callbacks.runner import TrainingState
from cotswold.training.early_stopping import Patience
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.backend import Backend, Method
from cotswold.training.full_batch.local import EvaluationProgress
from cotswold.training.metrics.held_out import HeldOutMetrics
from cotswold.training.models import network_tensors
from cotswold.training.trainers.base import Trainer
from cotswold.training.trainers.position import position_from, require_table

SHOW_SECONDS = 1.0
"""Seconds between progress reports within an evaluation."""
_POINT = "x"
_VECTOR = "vector."


class _StoppedError(Exception):
    """Raised inside an iteration when a stop is requested."""


@dataclass(frozen=True)
class _BestValidation:
    """The best validation so far."""

    number: int = 0
    point: Tensor | None = None
    """The evaluated point, until the next checkpoint writes it."""


class FullBatchTrainer(Trainer):
    """Drive one method on one backend, iteration by iteration."""

    def __init__(
        self,
        place: Backend,
        method: Method,
        flat: FlatParameters,
        training: BatchTraining,
        recorder: Recorder,
        describe: Mapping[str, object],
        metrics: HeldOutMetrics | None = None,
    ) -> None:
        """``flat`` is the network, filled for a checkpoint or an evaluation; ``describe`` holds the event
        fields of the network. This process measures the ``metrics`` of validations.
        """
        self._held_out = metrics
        self._place, self._method, self._flat = place, method, flat
        self._training, self._recorder, self._describe = training, recorder, describe
        self._number = self._evaluations = self._partial_evaluations = 0
        self._best = _BestValidation()
        self._stopping = Patience(training.patience)
        # values over different samples are not comparable
        patience = 0 if training.chooses else training.convergence_patience
        self._convergence = Convergence(torch.finfo(flat.vector.dtype).eps, patience)
        self._ended: str | None = None
        self._is_stuck = False  # True if the run has ended because no step decreases the objective
        self._gradient_norm, self._failure = inf, ""  # of the last iteration
        self._decrease = LossDecrease(training.loss_tolerance)
        self._is_new = True
        self._shown = -inf
        self._asked = 0  # evaluations and slopes, including the current iteration's
        self._since = recorder.clock()  # start of the current evaluation
        self._durations: dict[int, float] = {}  # seconds of the latest evaluation, by number of portions
        self._validation_seconds = 0.0
        self._metrics: Mapping[str, float] = {}
        place.listen(self._report_progress)

    @property
    def number(self) -> int:
        """Iterations so far: the number of the next checkpoint."""
        return self._number

    @property
    def parameters(self) -> int:
        """The number of weights of the network."""
        return sum(each.numel() for each in self.network.parameters())

    @property
    def network(self) -> nn.Module:
        """The network at the point of the last checkpoint, validation or resume."""
        return self._flat.module

    # ---- callbacks

    @property
    def planned(self) -> float:
        """The iterations of the run."""
        return float(self._training.max_iterations)

    def training_state(self) -> TrainingState:
        """Return the state that callbacks receive: an iteration is a step and an epoch."""
        return TrainingState(self._number, self._number, self.network, metrics=self._metrics)

    # ---- checkpoints

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises CheckpointError for another network or version."""
        position, kept = position_from(checkpoint.state), checkpoint.state.get("strategy")
        if not isinstance(kept, dict) or not isinstance(kept.get("vectors"), list):
            raise CheckpointError(f"{checkpoint.path} has no state of a method; another version wrote it")
        for name, tensor in network_tensors(self.network).items():
            checkpoint.read_into(name, tensor)
        self._place.write(_POINT, self._flat.vector)
        for name in map(str, kept["vectors"]):
            if name != _POINT:
                value = self._flat.vector.new_empty(self._flat.vector.shape)
                checkpoint.read_into(f"{_VECTOR}{name}", value)
                self._place.write(name, value)
        self.load_callbacks(checkpoint)
        self._method.load(require_table(kept, "method"))
        self._place.load(require_table(kept, "place"))
        self._best = _BestValidation()
        self._stopping.load(kept)
        self._convergence.load(require_table(kept, "convergence"))
        self._number = position.total
        self._evaluations = int(kept["evaluations"])
        self._partial_evaluations = int(kept["partial_evaluations"])
        self._asked = self._evaluations + self._partial_evaluations
        ended, norm = kept.get("ended"), kept.get("gradient_norm")
        self._ended, self._is_stuck = ended if isinstance(ended, str) else None, kept["is_stuck"] is True
        self._gradient_norm = norm if isinstance(norm, float) else inf
        self._decrease.load(kept.get("decrease") or {})  # checkpoints of older versions lack it
        self._is_new = False

    def _fill(self) -> None:
        """Copy the point into the network."""
        self._flat.vector.copy_(self._place.read(_POINT))

    def _checkpoint(self) -> tuple[int, Iterator[TensorChunk], dict[str, object], str]:
        kept = self._method.state()
        entries, more = self.callback_entries()
        state: dict[str, object] = {
            "strategy": {
                "method": dict(kept.values),
                "vectors": list(kept.vectors),
                "place": dict(self._place.state()),
                **self._stopping.state(),
                "convergence": dict(self._convergence.state()),
                "evaluations": self._evaluations,
                "partial_evaluations": self._partial_evaluations,
                "gradient_norm": None if self._gradient_norm == inf else self._gradient_norm,
                "ended": self._ended,
                "is_stuck": self._is_stuck,
                "decrease": dict(self._decrease.state()),
            },
            "position": {"phase": 0, "step": self._number, "total": self._number},
            **entries,
        }
        pieces = chain(self._pieces(kept.vectors), more)
        return self._number, pieces, state, f"iteration {self._number}"

    def _pieces(self, vectors: tuple[str, ...]) -> Iterator[TensorChunk]:
        self._fill()
        for name, tensor in network_tensors(self.network).items():
            yield TensorChunk(name, tensor)
        for name in vectors:
            if name != _POINT:
                yield TensorChunk(f"{_VECTOR}{name}", self._place.read(name))

    def _save(self) -> None:
        self._save_best()  # first: a kill between the two saves would lose it
        path = self._recorder.save(*self._checkpoint())
        self._recorder.event("checkpoint", step=self._number, path=path.name)
        self.call("on_checkpoint", checkpoint=path)

    def _save_best(self) -> None:
        best, vector = self._best, self._flat.vector
        if best.point is None:
            return
        position = {"phase": 0, "step": best.number, "total": best.number}
        now = vector.clone()  # in a single process, the network's vector is the point
        vector.copy_(best.point)
        try:
            pieces = (TensorChunk(name, each) for name, each in network_tensors(self.network).items())
            where = f"iteration {best.number}"
            self._recorder.save_best(best.number, pieces, {"position": position}, where)
        finally:
            vector.copy_(now)
        self._best = replace(best, point=None)

    # ---- running

    def run(self) -> bool:
        """Optimise to the end (True) or until a stop request (False); saves in both cases."""
        if not self._is_new and (complete := self._complete_reason()) is not None:
            self._recorder.event("already_complete", reason=complete)
            return True
        self.call("on_start")
        if self._is_new:
            self._recorder.event("phase_start", **self._describe)
            self._validate()
        self._ended, self._is_stuck = None, False
        while (reason := self._end_reason()) is None:
            if self._should_stop(self._expected_seconds()):
                self._save()
                return False
            if self._recorder.is_save_due or self._is_first:
                self._save()
            try:
                self._iterate()
            except _StoppedError:
                self._save()
                return False
            except DivergedError:  # the point is useless; the last checkpoint may be good
                raise
            except Exception:  # worker errors: the start of the iteration is intact
                with suppress(CotswoldError):  # except for data of a lost server
                    self._save()
                raise
        self._ended, self._is_stuck = reason, bool(self._failure)
        self.is_ended_by_callback = reason == self._callback_reason
        self._recorder.event("phase_end", phase="layers", step=self._number, reason=reason, **self._totals())
        self._save()
        return True

    def _complete_reason(self) -> str | None:
        """Return the reason why a resumed run has nothing to do; None if it can continue."""
        if self._ended is not None and (self._end_reason() is not None or self._is_stuck):
            return f"the run has ended ({self._ended})"
        return self.callbacks.complete_reason

    @property
    def _callback_reason(self) -> str | None:
        """The reason of a callback that ends the run."""
        ended = self.callbacks.ended
        return None if ended is None else f"{ended.name}: {ended.reason}"

    @property
    def _is_first(self) -> bool:
        """True after an unsaved first iteration: a parameter server may die before a checkpoint is due."""
        return self._number == 1 and not self._recorder.checkpoints.paths()

    def _expected_seconds(self) -> float:
        """Return the minimum seconds of the next iteration, assuming the present speed of evaluations."""
        is_validated = (self._number + 1) % self._training.validate_every == 0
        return max(self._durations.values(), default=0.0) + (
            self._validation_seconds if is_validated else 0.0
        )

    def _should_stop(self, ahead_seconds: float) -> bool:
        """Return True if a stop is requested, or the time limit would pass within ``ahead_seconds``."""
        recorder = self._recorder
        if recorder.stop.signal is None and recorder.limit_within(ahead_seconds):
            recorder.stop.is_limited = True
        return recorder.stop.signal is not None or recorder.stop.is_limited

    def _report_progress(self, share: EvaluationProgress) -> None:
        recorder, flops = self._recorder, self._place.flops[int(share.gradient)]
        now = recorder.clock()
        taken = now - self._since
        if share.finished:
            self._asked += 1
            self._durations[share.portions], self._since = taken, now
            recorder.count(share.samples, flops * share.samples)
            if (drawn := share.drawn) is not None:
                counted = {"subset_name": drawn.name, "samples": share.samples, "portions": drawn.portions}
                recorder.event("subset", subset=drawn.number, **counted)
            return
        if share.portions and now - self._shown >= SHOW_SECONDS:  # a cluster deals portions a moment later
            self._shown = now
            recorder.show("portions", **{**vars(share), "evaluation": self._asked + 1})
        if self._should_stop(max(0.0, self._durations.get(share.portions, 0.0) - taken)):
            recorder.count(share.samples, flops * share.samples)
            raise _StoppedError

    def _iterate(self) -> None:
        recorder = self._recorder
        began, account = recorder.clock(), recorder.usage
        self._since = began
        samples_before, flops_before = account.samples, account.flops
        found = self._method.step()
        if not isfinite(found.value) or not isfinite(found.gradient_norm):
            what = "objective" if not isfinite(found.value) else "gradient"
            raise recorder.divergence_error(f"the {what} is not finite", f"iteration {self._number + 1}")
        self._number += 1
        self._evaluations += found.evaluations
        self._partial_evaluations += found.partial_evaluations
        self._gradient_norm, self._failure = found.gradient_norm, found.failure or ""
        self._convergence.update(found)
        self._decrease.update(found)
        seconds = max(recorder.clock() - began, 1e-9)
        data_loss = {"data_loss": found.value - found.penalty} if self._training.weight_decay else {}
        notes = {"restart": found.restart, "skipped": found.skipped, "failure": found.failure}
        recorder.event(
            "step",
            phase="layers",
            step=self._number,
            phase_step=self._number,
            phase_steps=self._training.max_iterations,
            loss=found.value,
            **data_loss,
            gradient_norm=found.gradient_norm,
            step_length=found.step,
            evaluations=self._evaluations,
            partial_evaluations=self._partial_evaluations,
            subset_name=found.sample_set,
            subset_samples=found.samples,
            flops=account.flops,
            training_seconds=recorder.seconds,
            samples_per_second=(account.samples - samples_before) / seconds,
            gflops=(account.flops - flops_before) / seconds / 1e9,
            workers=self._place.workers,
            interval_seconds=seconds,
            interval_steps=1,
            **{name: why for name, why in notes.items() if why is not None},
        )
        self._metrics = {"loss": found.value, "gradient_norm": found.gradient_norm, **data_loss}
        self.call("on_step_end")
        if self._number % self._training.validate_every == 0:
            self._validate()
        self.call("on_epoch_end")

    def _validate(self) -> None:
        began = self._recorder.clock()
        self._method.flush()
        found = self._place.validate()
        if found is not None and self._held_out is not None and self._held_out.metrics:
            self._fill()
            found = {**found, **self._held_out.values(self.network.eval())}
        self._validation_seconds = self._recorder.clock() - began
        if found is None:
            return
        if self._stopping.update(found["loss"]):
            point = self._place.read(_POINT).clone() if self._number else None
            self._best = _BestValidation(self._number, point)
        self._recorder.event(
            "validation",
            phase="layers",
            step=self._number,
            phase_step=self._number,
            evaluations=self._evaluations,
            flops=self._recorder.usage.flops,
            training_seconds=self._recorder.seconds,
            **found,
        )
        if self.callbacks.hears("on_validation_end"):
            self._fill()
            self._metrics = dict(found)
            self.call("on_validation_end")

    def _end_reason(self) -> str | None:
        """Return the reason why the run has ended; None if it has not."""
        training = self._training
        if self._number >= training.max_iterations:
            return _ITERATIONS
        if training.max_evaluations is not None and self._evaluations >= training.max_evaluations:
            return _EVALUATIONS
        if training.max_flops is not None and self._recorder.usage.flops >= training.max_flops:
            return _FLOPS
        if self._stopping.is_exhausted:
            return self._stopping.reason
        if self._failure:
            return f"no step decreases the objective: {self._failure}"
        if self._gradient_norm <= training.tolerance:
            return _TOLERANCE
        if self._decrease.is_small:
            return _LOSS_TOLERANCE
        if self._convergence.is_converged:
            return _CONVERGED
        return self._callback_reason

    def _totals(self) -> dict[str, object]:
        account = self._recorder.usage
        return {"samples": account.samples, "flops": account.flops, "evaluations": self._evaluations}


_ITERATIONS = "training.max_iterations reached"
_EVALUATIONS = "training.max_evaluations reached"
_FLOPS = "training.max_flops reached"
_TOLERANCE = "the gradient norm is at most training.tolerance"
_LOSS_TOLERANCE = "an iteration decreased the loss by at most training.loss_tolerance"
_CONVERGED = "converged: training.convergence_patience in a row made no measurable progress"
