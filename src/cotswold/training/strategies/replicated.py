"""Data parallelism of strategy `supervised`: replicas compute parts of a batch and average their gradients.

Knows: the weight of a part's mean loss in that of the whole batch, random numbers of replicas, sums of losses
and scores. Does not know: how a replica computes, who divides the batches (`base.Share`), files.

A replica's loss is the mean over its part, so its gradient counts by the samples (or targets) of that mean.
The result is that of one process with the whole batch, except for batch normalisation (unless
``sync_batchnorm``) and dropout. The first replica draws the random numbers that a single process would draw;
the streams of the others depend only on the seed and the step, so checkpoints need not contain them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import isfinite

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cotswold.host import Ranks
from cotswold.mesh.modules.gradient_buckets import GradientBuckets
from cotswold.mesh.modules.parameters import local_part
from cotswold.mesh.modules.sync_batchnorm import StatisticsRanks, synchronised_batchnorm
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.ranks.replicas import ReplicaAxis
from cotswold.run import Metrics
from cotswold.training.loss_weights import LossWeight, loss_weight, possible_weights
from cotswold.training.losses import Loss
from cotswold.training.metrics.exchange import merge_states
from cotswold.training.metrics.metric_set import MetricSet
from cotswold.training.scores import BatchResult, Scores
from cotswold.training.strategies.base import Batch

_ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, which makes the seeds of neighbouring steps unrelated."""


class Replication:
    """The replicas of a network that is trained by `SupervisedStrategy`.

    All replicas start with the tensors of the first one.

    Args:
        replicas: The replicas.
        ranks: All ranks of the job.
        network: The network, or this rank's part of it.
        seed: The seed of the run.
        statistics: The ranks whose samples batch normalisation sees; None for those of this replica.
        mesh: The grid of ranks of each replica; None if each is one process.
    """

    def __init__(
        self,
        replicas: ReplicaAxis,
        ranks: Ranks,
        network: nn.Module,
        seed: int,
        statistics: StatisticsRanks | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        self._replicas, self._ranks, self._network, self._seed = replicas, ranks, network, seed
        self._statistics = statistics
        self._weight, self._is_idle = 0.0, False
        self.total = LossWeight(1.0)
        """The weight of the loss of the present batch in all parts."""
        self._sums: tuple[Tensor, dist.Work | None] | None = None
        for each in (*network.parameters(), *network.buffers()):
            replicas.copy_first(local_part(each).detach())
        sums = None if mesh is None else mesh.shared_sums
        self.buckets = GradientBuckets(network.parameters(), replicas, shared_sums=sums)

    def seed_step(self, phase: int, step: int) -> None:
        """Set the random state of every replica but the first, as a function of seed and step."""
        self.buckets.refresh()
        if self._replicas.index:
            mixed = self._seed
            for each in (phase, step, self._replicas.index):
                mixed = (mixed ^ (each + 1)) * _ODD % (1 << 64)
                mixed ^= mixed >> 31
            torch.manual_seed(mixed >> 1)

    def gradients(self, batch: Batch, loss: Loss, compute: Callable[[Batch], BatchResult]) -> BatchResult:
        """Return the result of the whole batch after a backward pass, with averaged gradients.

        Args:
            batch: This replica's part.
            loss: The loss.
            compute: Computes loss and gradients of the part; calls `scaled`.
        """
        self._is_idle = batch.is_idle
        self._start_weights(batch, loss)
        if batch.is_idle and self._statistics is None:
            found = BatchResult(Metrics(0.0, 0, {}, 0.0), self.total)
        else:
            found = compute(batch)
        self.buckets.finish()
        return self._whole(found)

    @contextmanager
    def normalised(self) -> Iterator[None]:
        """Compute batch normalisation with statistics over all replicas, if requested, for a `with` block."""
        how = self._statistics
        with nullcontext() if how is None else synchronised_batchnorm(how, counts=not self._is_idle):
            yield

    def scaled(self, value: Tensor, outputs: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """Return a mean loss, scaled so that gradients average to those of the whole batch.

        ``batch`` is this replica's part, or a smaller part of it; then the gradients of all of these add up,
        and only the last backward pass is outside of `GradientBuckets.paused`.
        """
        assert self._sums is not None, "gradients() starts them"
        sums, work = self._sums
        if work is not None:
            work.wait()
        own = self._own if batch is self._part else possible_weights(loss, batch)
        self.total = loss_weight(loss, batch, outputs, sums.tolist())
        self._weight = loss_weight(loss, batch, outputs, self._own).value
        weight = 0.0 if self._is_idle else loss_weight(loss, batch, outputs, own).value
        return value * (self._replicas.count * weight / self.total.value if self.total.value else 0.0)

    def _start_weights(self, batch: Batch, loss: Loss) -> None:
        """Start the sums of the weights of all parts."""
        self._part, self._own = batch, possible_weights(loss, batch)
        sums = torch.tensor(self._own, dtype=torch.float64, device="cpu")
        self._sums = sums, self._replicas.start_sum(sums)

    def _whole(self, found: BatchResult) -> BatchResult:
        """Return the result of the whole batch."""
        metrics = found.metrics
        own = 0.0 if self._is_idle else 1.0
        is_first = not self._replicas.index  # the first replica is never idle
        accuracy, scored = metrics.details.get("accuracy", 0.0), own * found.scored
        part = [
            own * metrics.loss * self._weight if own else 0.0,
            own * metrics.samples,
            own * metrics.mean_weight,
            accuracy * scored,
            scored,
            self.total.value if is_first else 0.0,
            float(is_first and self.total.is_sum),
        ]
        sums = torch.tensor(part, dtype=torch.float64, device="cpu")
        loss, samples, weight, right, scored, total, is_sum = self._replicas.sum_in_place(sums).tolist()
        self.total = LossWeight(total, bool(is_sum))
        sums_work = self._sums
        assert sums_work is not None, "gradients() starts them"
        if sums_work[1] is not None and self._is_idle:
            sums_work[1].wait()
        details = {name: value for name, value in metrics.details.items() if name != "accuracy"}
        if scored:
            details = {"accuracy": right / scored, **details}
        remedy = metrics.remedy
        if not isfinite(loss):
            remedy = next(filter(None, self._ranks.gather(remedy)), "")
        mean = loss / total if total else 0.0
        return BatchResult(Metrics(mean, int(samples), details, weight, remedy), self.total, scored)

    def sum(self, number: float) -> float:
        """Return the sum of a number over all replicas."""
        found = torch.tensor([number], dtype=torch.float64, device="cpu")
        return float(self._replicas.sum_in_place(found))

    def copy_buffers(self) -> None:
        """Give every replica the buffers of the first one, such as running means."""
        for each in self._network.buffers():
            self._replicas.copy_first(local_part(each).detach())

    def merge_validation(self, scores: Scores, metrics: MetricSet) -> None:
        """Replace the sums and the states of metrics of a validation by those of all replicas."""
        scores.reduce(self._replicas.sum_in_place)
        if metrics:
            places = self._replicas.grid.size  # each with the same outputs, and the same states
            merge_states(metrics, self._ranks, lambda found: found[::places])
