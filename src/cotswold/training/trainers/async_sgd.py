"""The trainer of asynchronous replicas: no common step; progress is counted in samples.

Knows: when to validate, save and end, the checkpoint fields of replicas. Does not know: the processes that
train, the consumers of events, the terminal.

Checkpoints are numbered by counted samples. When a checkpoint is due, servers keep a state behind markers,
and the trainer reads and writes it while replicas continue. Before a stop, the coordinator hands out no more
samples until every sample in flight is settled. In both cases the vectors match the ledger exactly, so any
number of replicas and servers can resume; pushes that were pending are computed again. Until the vectors are
written, this process holds a copy of them in addition to the servers. After each epoch an evaluator process
evaluates the parameters that it pulls. The best parameters are saved, and after `training.patience`
evaluations without improvement the run ends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf, isfinite
from pathlib import Path

import torch
from torch import nn

from cotswold.checkpoint import Checkpoint
from cotswold.errors import CheckpointError
from cotswold.optim.schedule import SampleSchedule
from cotswold.recipe.schema import DownpourTraining
from cotswold.replicas.evaluator import EvaluatorError, EvaluatorHandle
from cotswold.replicas.replicas import Replicas
from cotswold.replicas.snapshot import ParameterSnapshot
from cotswold.run import Metrics, Recorder
from cotswold.shards.core.sample_ledger import SampleLedger
from cotswold.shards.runtime.work import LEFT_OUT, UNJUDGED
from cotswold.training.callbacks.runner import CALLBACK_END, TrainingState
from cotswold.training.early_stopping import Patience
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.models import layer_names, network_tensors
from cotswold.training.trainers.async_checkpoint import VECTOR, AsyncCheckpointWriter
from cotswold.training.trainers.async_status import StatusReporter, reason_if_complete
from cotswold.training.trainers.base import Trainer
from cotswold.training.trainers.position import position_from
from cotswold.training.trainers.pushed_bytes import PushedBytes
from cotswold.training.trainers.rejected_updates import RejectedUpdates, describe_rejections, kinds
from cotswold.training.trainers.unsaved_window import UnsavedWindow
from cotswold.wire.lifecycle import EvaluateReply, StepMetrics

POLL_SECONDS = 0.2
_POINT = "x"
_WHY = "cluster_disk in events.jsonl"
_WHY_OF_CLUSTER = "events.jsonl in the folder of the servers' host"
"""The place where events explain a late disk."""
Open = Callable[[ParameterSnapshot | None], AbstractContextManager[Replicas]]
"""Start the processes; the argument is the snapshot to resume from, or None."""


class AsyncTrainer(Trainer):
    """Train asynchronous replicas until the end or a stop request."""

    def __init__(
        self,
        open_replicas: Open,
        flat: FlatParameters,
        samples: int,
        training: DownpourTraining,
        recorder: Recorder,
        describe: Mapping[str, object],
    ) -> None:
        """``flat`` is the network, filled when a checkpoint is written; ``samples`` is the number per
        epoch; ``describe`` holds the event fields of the network.
        """
        self._open, self._flat, self._samples = open_replicas, flat, samples
        self._training, self._recorder, self._describe = training, recorder, describe
        self._ledger: SampleLedger | None = None
        self._snapshot: ParameterSnapshot | None = None
        self._is_finished = False
        self._complete_reason: str | None = None
        """The reason why a resumed run has nothing to train."""
        self._is_extended = False
        """True if the run has more epochs than when its checkpoint was written."""
        self._ended: str | None = None
        """The reason for an end before the last epoch."""
        self._metrics: Mapping[str, float] = {}
        self._validated: FlatParameters | None = None
        """A copy of the network with the last validated parameters, for callbacks."""
        self._stopping = Patience(training.patience)
        self._refusals = RejectedUpdates(training.batch_size)
        self._saved = 0
        self._sent = 0
        self._replicas = 0
        """The number of replicas when means were last reported."""
        self._unrecorded = 0
        """The number of metrics since means were last reported."""
        self._windows = UnsavedWindow()
        self._pushes = PushedBytes(layer_names(flat.module))
        self._schedule = SampleSchedule(
            *(training.schedule, training.warmup, samples, training.batch_size, training.epochs)
        )

    @property
    def number(self) -> int:
        """Counted samples so far: the number of the next checkpoint."""
        return 0 if self._ledger is None else self._ledger.total.counted

    @property
    def module(self) -> nn.Module:
        """The network with the weights of the last checkpoint."""
        return self._flat.module

    @property
    def parameters(self) -> int:
        """The number of weights of the network."""
        return sum(each.numel() for each in self._flat.module.parameters())

    @property
    def planned(self) -> float:
        """The epochs of the run."""
        return float(self._training.epochs)

    def training_state(self) -> TrainingState:
        """Return the state that callbacks receive: a report of means is a step."""
        module = None if self._validated is None else self._validated.module
        return TrainingState(self.number, self.epochs_ended, module, metrics=self._metrics)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises CheckpointError for another network or version."""
        position, kept = position_from(checkpoint.state), checkpoint.state.get("strategy")
        if not isinstance(kept, dict) or not isinstance(kept.get("vectors"), list):
            raise CheckpointError(f"{checkpoint.path} has no state of replicas; another version wrote it")
        for name, tensor in network_tensors(self._flat.module).items():
            checkpoint.read_into(name, tensor)
        vectors = {_POINT: self._flat.vector.clone()}
        for name in map(str, kept["vectors"]):
            vectors[name] = torch.empty_like(self._flat.vector)
            checkpoint.read_into(f"{VECTOR}{name}", vectors[name])
        snapshot = ParameterSnapshot.of(kept, self._samples, vectors)
        ledger = snapshot.ledger
        self._stopping.load(kept)
        self._pushes.load(kept.get("pushed"))
        self._ledger, self._snapshot, self._saved = ledger, snapshot, position.total
        self._is_finished = kept.get("is_finished") is True
        self.epochs_ended = int(kept.get("epochs_ended", ledger.epoch + ledger.is_stopped))
        has_more = self._is_extended = self._training.epochs > int(kept["epochs"])
        self.load_callbacks(checkpoint)
        continues = CALLBACK_END in checkpoint.state and self.callbacks.complete_reason is None
        is_patient = kept["ended"] is not None and (continues or self._training.patience != kept["patience"])
        if self._is_finished and (has_more or is_patient):  # more was requested than before
            self._is_finished = False
            self._stopping.restart()
        self._complete_reason = self.callbacks.complete_reason if self._is_finished else None
        if self._complete_reason is None:
            ended = kept["ended"] if self._is_finished else None
            had = ledger.epoch + self._is_finished
            self._complete_reason = reason_if_complete(self._training.epochs, had, self._is_finished, ended)
        if ledger.is_stopped and ledger.epoch + 1 < self._training.epochs:
            ledger.is_stopped = False
            ledger.next_epoch()

    def run(self) -> bool:
        """Train to the end (True) or until a stop request (False); saves in both cases.

        Raises EvaluatorError, after a save, if no process can evaluate.
        """
        recorder, is_new = self._recorder, self._snapshot is None
        evaluator_error: EvaluatorError | None = None
        if self._complete_reason is not None:
            recorder.event("already_complete", reason=self._complete_reason)
            return True
        self.call("on_start")
        if is_new:
            recorder.event("phase_start", **self._describe)
        if self._is_extended:
            recorder.event("extended", epochs=[float(self._training.epochs)])
        with (
            AsyncCheckpointWriter(recorder, self._flat) as saving,
            self._open(self._snapshot) as replicas,
        ):
            self._snapshot = None  # the servers have it now
            self._ledger = replicas.ledger
            self._saving = saving
            recorder.sent_bytes = lambda: self._pop_bytes_sent(replicas)
            showing = StatusReporter(replicas, recorder, self._training.epochs)
            if is_new and replicas.evaluator is not None:
                replicas.evaluator.begin(0, replicas.read())
            try:
                finished = self._learn(replicas, showing)
                if replicas.evaluator is not None:
                    with showing.activity("evaluating the final parameters"):
                        self._evaluate_last(replicas.evaluator, is_over=finished)
                self.end_epochs(replicas.ledger.epoch + replicas.is_over)
            except EvaluatorError as error:
                evaluator_error, finished = error, False
                replicas.pause()
            self._warn(replicas)
            if finished:
                totals = {"samples": recorder.usage.samples, "flops": recorder.usage.flops}
                reason = {} if self._ended is None else {"reason": self._ended}
                known = {**totals, **self._ledger_counts(), **self._pushes.event_fields, **reason}
                recorder.event("phase_end", phase="layers", step=self.number, **known)
            with showing.activity("saving a checkpoint"):
                self._record_saved(saving.wait())
                if finished or self.number != self._saved:
                    self._save(replicas.snapshot(), is_finished=finished)
                self._record_saved(saving.wait())
        if evaluator_error is not None and recorder.stop.signal is None and not recorder.stop.is_limited:
            raise evaluator_error
        return finished

    def _learn(self, replicas: Replicas, reporter: StatusReporter) -> bool:
        recorder, epoch, evaluator = self._recorder, replicas.ledger.epoch, replicas.evaluator
        recorder.restart_means(0.0)
        while not replicas.is_over:
            for learnt in replicas.proceed(POLL_SECONDS):
                self._count(learnt, replicas.flops[1])
            if recorder.is_means_due:
                self._record_means(replicas)
            if evaluator is not None:
                self._record_validation(evaluator.take_result(), evaluator)
                if replicas.ledger.epoch != epoch and not evaluator.is_busy:
                    epoch = replicas.ledger.epoch
                    evaluator.begin(self.number)
            self.end_epochs(replicas.ledger.epoch)
            if refused := self._refusals.consecutive_rejections(replicas.ledger.total):
                what = f"servers rejected all of the last {refused} samples ({kinds(replicas.count())})"
                raise recorder.divergence_error(what, f"sample {self.number}")
            if self._stopping.is_exhausted:
                self._ended = self._stopping.reason
                with reporter.activity("ending: validation no longer improves"):
                    replicas.pause()
                break
            if (ended := self.callbacks.ended) is not None:
                self._ended, self.is_ended_by_callback = f"{ended.name}: {ended.reason}", True
                with reporter.activity(f"ending: {ended.reason}"):
                    replicas.pause()
                break
            if recorder.stop.signal is None and recorder.limit_within(POLL_SECONDS):
                recorder.stop.is_limited = True
            if recorder.stop.signal is not None or recorder.stop.is_limited:
                with reporter.activity("stopping: finishing samples in flight first"):
                    replicas.pause()
                for learnt in replicas.proceed(POLL_SECONDS):  # reports of the samples in flight
                    self._count(learnt, replicas.flops[1])
                self._record_means(replicas)
                return False
            self._save_if_due(replicas)
        for learnt in replicas.finish() if replicas.is_over else replicas.proceed(0.0):
            self._count(learnt, replicas.flops[1])
        self._record_means(replicas)
        return True

    def _evaluate_last(self, evaluator: EvaluatorHandle, *, is_over: bool) -> None:
        """At the end of a run, collect pending evaluations and evaluate the final parameters; a stop does
        not wait.
        """
        self._record_validation(evaluator.wait() if is_over else evaluator.take_result(), evaluator)
        if is_over:
            evaluator.begin(self.number)
            self._record_validation(evaluator.wait(), evaluator)

    # ---- events

    def _record_validation(self, reply: EvaluateReply | None, evaluator: EvaluatorHandle) -> None:
        """Write the event of a validation; if the loss is the best, save the parameters."""
        if reply is None:
            return
        number, means = reply.number, dict(reply.means)
        self._recorder.event(
            "validation",
            phase="layers",
            step=number,
            phase_step=number,
            training_seconds=self._recorder.seconds,
            validation_seconds=reply.seconds,
            **means,
        )
        point = evaluator.parameters() if number and means["loss"] < self._stopping.best_loss else None
        is_kept = point is not None or not number
        if self._stopping.update(means["loss"] if is_kept else inf) and point is not None:
            self._saving.save_best(number, point)
        if self.callbacks.hears("on_validation_end"):
            self._metrics = means
            self._validated = self._validated or FlatParameters(copy.deepcopy(self._flat.module))
            point = evaluator.parameters() if point is None else point
            if point is not None:  # else its process has just exited
                self._validated.vector.copy_(point)
            self.call("on_validation_end")

    def _count(self, learnt: StepMetrics, flops: int) -> None:
        if not isfinite(learnt.value):  # some servers may reject this push while others accept it
            self._recorder.count(learnt.samples, flops * learnt.samples)
            return
        sums = dict(learnt.details)
        weight = learnt.samples - sums.get(LEFT_OUT, 0.0)
        scored = weight - sums.get(UNJUDGED, 0.0)
        details = {"accuracy": sums["right"] / scored} if "right" in sums and scored else {}
        metrics = Metrics(learnt.value / (weight or 1.0), learnt.samples, details, weight)
        self._recorder.add(metrics, flops, f"sample {self.number}")
        self._pushes.add(learnt.pushed)
        self._pushes.count(learnt.pushes, learnt.samples)
        self._unrecorded += 1

    def _ledger_counts(self) -> dict[str, object]:
        """Return the nonzero sample counts of the ledger, as event fields."""
        assert self._ledger is not None, "training has begun"
        return {f"samples_{name}": value for name, value in vars(self._ledger.total).items() if value}

    def _record_means(self, replicas: Replicas) -> None:
        self._recorder.usage.samples = self.number  # reported samples count only after servers applied them
        assert self._ledger is not None, "training has begun"
        if warning := self._refusals.warning(self._ledger.total, replicas.count):
            self._recorder.event("warning", warning=f"{warning}; {self._recorder.remedy}")
        if not self._unrecorded:
            return
        self._unrecorded = 0
        counts, status = replicas.count(), replicas.status()
        updates = max(1, sum(each.updates for each in counts))
        staleness = sum(each.staleness * each.updates for each in counts) / updates
        self._recorder.usage.staleness = staleness
        self._replicas = status.connected_replicas or self._replicas  # 0 at the end
        total, values = status.account, self._recorder.means(0.0).values
        at = total.counted + total.torn + total.refused + total.left_out
        self._recorder.event(
            "step",
            phase="layers",
            step=self.number,
            phase_step=at,
            phase_steps=self._training.epochs * self._samples,
            **{name: value for name, value in self._ledger_counts().items() if name != "samples_handed_out"},
            **values,
            training_seconds=self._recorder.seconds,
            epoch=status.epoch,
            replicas=self._replicas,
            staleness=staleness,
            staleness_max=max((each.staleness_most for each in counts), default=0),
            **({"refusal_reasons": kinds(counts)} if total.refused or total.torn else {}),
            queued_bytes=sum(each.waiting for each in counts),
            server_cpu_seconds=sum(each.cpu_seconds for each in counts),
            applying_seconds=sum(each.applying_seconds for each in counts),
            updates=updates,
            learning_rate=self._schedule.rate(self._training.learning_rate, at),
            **self._windows.event_fields(counts),
            **self._pushes.event_fields,
        )
        self._metrics = {name: each for name, each in values.items() if isinstance(each, int | float)}
        self.call("on_step_end")

    def _warn(self, replicas: Replicas) -> None:
        """Report, at the end of a run, warnings that users may have missed."""
        assert self._ledger is not None, "training has begun"
        counts = replicas.count()
        self._windows.event_fields(counts)
        where = _WHY_OF_CLUSTER if replicas.are_outlived else _WHY
        warnings = [describe_rejections(self._ledger.total, counts), self._windows.warning(where) or ""]
        if any(warnings):
            self._recorder.warn("; ".join(filter(None, warnings)))

    def _pop_bytes_sent(self, replicas: Replicas) -> int:
        before, self._sent = self._sent, replicas.status().sent_bytes
        return self._sent - before

    # ---- checkpoints

    def _save_if_due(self, replicas: Replicas) -> None:
        """Advance a checkpoint: begin it, read it from the servers, or report it."""
        self._record_saved(self._saving.take())
        if self._saving.is_busy:
            return
        if replicas.is_frozen:
            self._save(replicas.take_checkpoint(), is_finished=False)
        elif self._recorder.is_save_due and self.number != self._saved:
            replicas.begin_checkpoint()

    def _save(self, snapshot: ParameterSnapshot, *, is_finished: bool) -> None:
        """Begin to write a checkpoint."""
        entries, more = self.callback_entries()
        number = self._recorder.usage.samples = snapshot.ledger.total.counted
        state: dict[str, object] = {
            "strategy": {
                **snapshot.to_json(),
                **self._stopping.state(),
                "is_finished": is_finished,
                "epochs_ended": self.epochs_ended,
                "epochs": self._training.epochs,
                "patience": self._training.patience,
                "ended": self._ended,
                "pushed": self._pushes.bytes,
            },
            "position": {"phase": 0, "step": number, "total": number},
            **entries,
        }
        others = {name: vector for name, vector in snapshot.vectors.items() if name != _POINT}
        self._saving.save(number, snapshot.vectors[_POINT], others, state, more)

    def _record_saved(self, written: Sequence[tuple[int, Path]]) -> None:
        for number, path in written:
            self._recorder.event("checkpoint", step=number, path=path.name)
            self.call("on_checkpoint", checkpoint=path)
            self._saved = number
