"""The runner of replicas: no common step; time is counted in samples.

Knows: when to validate, to save and to end, what a checkpoint says of replicas. Does not know: which
processes learn, what is done with events, the terminal.

Checkpoints are numbered by the samples that count. When one is due servers keep a state behind markers, which
is read and written while replicas go on; before a stop nobody is handed samples until all that were are
settled. In both cases the vectors have exactly what the ledger says, and any number of replicas and servers
goes on from there: what was in hand is computed again. Beside the servers' copy this process has one of the
vectors, until it is written. Validation judges what it pulled, in a thread, and saves the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path

import torch
from torch import Tensor, nn

from cotswold.checkpoint import Checkpoint
from cotswold.cluster.messages import Learnt
from cotswold.cluster.replicas import Replicas, Snapshot
from cotswold.errors import CheckpointError
from cotswold.optim.schedule import BySamples
from cotswold.recipe.schema import DownpourTraining
from cotswold.run import Metrics, Recorder
from cotswold.server.samples import Samples
from cotswold.training.flat import FlatModule
from cotswold.training.networks import network_tensors
from cotswold.training.runners.pushes import Pushes
from cotswold.training.runners.saving import VECTOR, Saving
from cotswold.training.runners.showing import Showing
from cotswold.training.runners.synchronous import position_from

POLL_SECONDS = 0.2
_POINT = "x"
Open = Callable[[Snapshot | None], AbstractContextManager[Replicas]]
"""Starts processes; with what to go on from, if anything."""
Judge = Callable[[Tensor], Mapping[str, float] | None]
"""Means over validation samples at some parameters; None without samples."""


class ReplicaRuns:
    """Replicas that learn, until they are told to stop."""

    def __init__(
        self,
        open_replicas: Open,
        judge: Judge,
        flat: FlatModule,
        samples: int,
        training: DownpourTraining,
        recorder: Recorder,
        describe: Mapping[str, object],
    ) -> None:
        """``flat``: the network, which is filled where it is written; ``samples``: of an epoch; ``describe``:
        what events say of it."""
        self._open, self._judge, self._flat, self._samples = open_replicas, judge, flat, samples
        self._training, self._recorder, self._describe = training, recorder, describe
        self._ledger: Samples | None = None
        self._snapshot: Snapshot | None = None
        self._is_finished = False
        self._best = inf
        self._saved = 0
        self._sent = 0
        self._replicas = 0
        """That had joined when means were told."""
        self._untold = 0
        """Metrics since means were told."""
        self._pushes = Pushes()
        self._schedule = BySamples(
            *(training.schedule, training.warmup, samples, training.batch_size, training.epochs)
        )

    @property
    def number(self) -> int:
        """Samples that count so far: what checkpoints are numbered by."""
        return 0 if self._ledger is None else self._ledger.total.counted

    @property
    def module(self) -> nn.Module:
        """The network, with the weights of the last checkpoint."""
        return self._flat.module

    @property
    def parameters(self) -> int:
        """How many weights the network has."""
        return sum(each.numel() for each in self._flat.module.parameters())

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; raises CheckpointError where it is of another network or version."""
        position, kept = position_from(checkpoint.state), checkpoint.state.get("strategy")
        if not isinstance(kept, dict) or not isinstance(kept.get("vectors"), list):
            raise CheckpointError(f"{checkpoint.path} says nothing of replicas; it is of another version")
        for name, tensor in network_tensors(self._flat.module).items():
            checkpoint.read_into(name, tensor)
        vectors = {_POINT: self._flat.vector.clone()}
        for name in map(str, kept["vectors"]):
            vectors[name] = torch.empty_like(self._flat.vector)
            checkpoint.read_into(f"{VECTOR}{name}", vectors[name])
        snapshot = Snapshot.of(kept, self._samples, vectors)
        ledger = snapshot.ledger
        goes_on = ledger.is_stopped and ledger.epoch + 1 < self._training.epochs
        if goes_on:  # it is asked for more epochs than it had
            ledger.is_stopped = False
            ledger.next_epoch()
        best = kept.get("best_loss")
        self._ledger, self._snapshot, self._saved = ledger, snapshot, position.total
        self._is_finished = kept.get("is_finished") is True and not goes_on
        self._best = best if isinstance(best, float) else inf

    def run(self) -> bool:
        """Learn to the end (True) or until a stop is asked for (False); saves in both cases."""
        recorder, is_new = self._recorder, self._snapshot is None
        if self._is_finished:
            return True
        if is_new:
            recorder.event("stack", **self._describe)
        with (
            Saving(recorder, self._flat) as saving,
            self._open(self._snapshot) as replicas,
            ThreadPoolExecutor(1, "validation") as thread,
        ):
            self._snapshot = None  # it is on the servers
            self._ledger = replicas.ledger
            self._saving = saving
            recorder.sent_bytes = lambda: self._take_sent(replicas)
            judging = _Judging(self._judge, thread)
            showing = Showing(replicas, recorder, self._training.epochs)
            if is_new:
                with showing.during("judging the first parameters"):
                    self._tell_validation(judging.now(0, replicas.read()))
            finished = self._learn(replicas, judging, showing)
            with showing.during("judging the last parameters"):
                self._tell_validation(judging.wait())
                if finished:
                    self._tell_validation(judging.now(self.number, replicas.read()))
            if finished:
                totals = {"samples": recorder.account.samples, "flops": recorder.account.flops}
                recorder.event(
                    "stack_end",
                    stack="layers",
                    step=self.number,
                    **totals,
                    **self._known(),
                    **self._pushes.said,
                )
            with showing.during("saving a checkpoint"):
                self._tell_saved(saving.wait())
                if finished or self.number != self._saved:
                    self._save(replicas.snapshot(), is_finished=finished)
                self._tell_saved(saving.wait())
        return finished

    def _learn(self, replicas: Replicas, judging: _Judging, showing: Showing) -> bool:
        recorder, epoch = self._recorder, replicas.ledger.epoch
        recorder.restart_means(0.0)
        while not replicas.is_over:
            for learnt in replicas.proceed(POLL_SECONDS):
                self._count(learnt, replicas.flops[1])
            self._tell_validation(judging.take())
            if recorder.means_due:
                self._tell_means(replicas)
            if replicas.ledger.epoch != epoch and not judging.is_busy:
                epoch = replicas.ledger.epoch
                judging.begin(self.number, replicas.read())
            if recorder.stop.signal is None and recorder.limit_within(POLL_SECONDS):
                recorder.stop.limited = True
            if recorder.stop.signal is not None or recorder.stop.limited:
                with showing.during("stopping: what is in hand is finished first"):
                    replicas.pause()
                return False
            self._save_if_due(replicas)
        for learnt in replicas.finish():
            self._count(learnt, replicas.flops[1])
        self._tell_means(replicas)
        return True

    # ---- events

    def _count(self, learnt: Learnt, flops: int) -> None:
        details = {}
        if learnt.details:
            ((_, right),) = learnt.details
            details = {"accuracy": right / learnt.samples}
        metrics = Metrics(learnt.value / learnt.samples, learnt.samples, details)
        self._recorder.add(metrics, flops, f"sample {self.number}")
        self._pushes.add(learnt.pushed)
        self._untold += 1

    def _known(self) -> dict[str, object]:
        """What became of samples."""
        assert self._ledger is not None, "it learns"
        return {name: value for name, value in vars(self._ledger.total).items() if value}

    def _tell_means(self, replicas: Replicas) -> None:
        if not self._untold:
            return
        self._untold = 0
        counts, status = replicas.count(), replicas.status()
        updates = max(1, sum(each.updates for each in counts))
        staleness = sum(each.staleness * each.updates for each in counts) / updates
        self._recorder.account.staleness = staleness
        self._replicas = status.replicas or self._replicas  # none is left at the end
        total = status.account
        at = total.counted + total.torn + total.refused + total.left_out
        self._recorder.event(
            "step",
            stack="layers",
            step=self.number,
            at=at,
            of=self._training.epochs * self._samples,
            **{name: value for name, value in self._known().items() if name != "handed_out"},
            **self._recorder.means(0.0).values,
            training_seconds=self._recorder.seconds,
            epoch=status.epoch,
            replicas=self._replicas,
            staleness=staleness,
            staleness_most=max(each.staleness_most for each in counts),
            waiting_bytes=sum(each.waiting for each in counts),
            updates=updates,
            rate=self._schedule.rate(self._training.learning_rate, at),
            **self._pushes.said,
        )

    def _tell_validation(self, found: _Judged | None) -> None:
        if found is None or found.means is None:
            return
        number, means = found.number, found.means
        seconds = self._recorder.seconds
        self._recorder.event(
            "validation", stack="layers", step=number, at=number, training_seconds=seconds, **means
        )
        if means["loss"] < self._best:
            self._best = means["loss"]
            if number:
                self._saving.save_best(number, found.parameters)

    def _take_sent(self, replicas: Replicas) -> int:
        before, self._sent = self._sent, replicas.status().sent_bytes
        return self._sent - before

    # ---- checkpoints

    def _save_if_due(self, replicas: Replicas) -> None:
        """Have a checkpoint begun, taken, or told of, whatever is next."""
        self._tell_saved(self._saving.take())
        if self._saving.is_busy:
            return
        if replicas.is_frozen:
            self._save(replicas.take_checkpoint(), is_finished=False)
        elif self._recorder.save_due and self.number != self._saved:
            replicas.begin_checkpoint()

    def _save(self, snapshot: Snapshot, *, is_finished: bool) -> None:
        """Begin to write what a run goes on from."""
        number = snapshot.ledger.total.counted
        state: dict[str, object] = {
            "strategy": {
                **snapshot.said(),
                "best_loss": None if self._best == inf else self._best,
                "is_finished": is_finished,
            },
            "position": {"phase": 0, "step": number, "total": number},
        }
        others = {name: vector for name, vector in snapshot.vectors.items() if name != _POINT}
        self._saving.save(number, snapshot.vectors[_POINT], others, state)

    def _tell_saved(self, written: Sequence[tuple[int, Path]]) -> None:
        for number, path in written:
            self._recorder.event("checkpoint", step=number, path=path.name)
            self._saved = number


class _Judged:
    """A validation, and what was judged."""

    def __init__(self, number: int, parameters: Tensor, means: Mapping[str, float] | None) -> None:
        self.number, self.parameters, self.means = number, parameters, means


class _Judging:
    """Validation in a thread, one at a time."""

    def __init__(self, judge: Judge, thread: ThreadPoolExecutor) -> None:
        self._judge, self._thread = judge, thread
        self._job: Future[_Judged] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether one is under way, or was not taken."""
        return self._job is not None

    def begin(self, number: int, parameters: Tensor) -> None:
        """Judge these parameters; ``number``: samples that count."""
        self._job = self._thread.submit(self.now, number, parameters)

    def now(self, number: int, parameters: Tensor) -> _Judged:
        """The same, and wait for it."""
        return _Judged(number, parameters, self._judge(parameters))

    def take(self) -> _Judged | None:
        """What is done, once."""
        return self.wait() if self._job is not None and self._job.done() else None

    def wait(self) -> _Judged | None:
        """What was begun, once it is done; None where nothing was."""
        job, self._job = self._job, None
        return None if job is None else job.result()
