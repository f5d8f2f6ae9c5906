"""The full-batch objective in one process, evaluated portion by portion.

Knows: portions, which of them count, the order of their sum. Does not know: networks, optimisers, other
processes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cotswold.batch.core.accounting import exact_sum
from cotswold.batch.runtime.sample_sets import SampleSets
from cotswold.optim import Command, Evaluation, TensorVectors
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.shards.core.permutation import PortionPermutation, format_ranges
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import PortionSum, Work


@dataclass(frozen=True)
class Subset:
    """A set of samples drawn for evaluations."""

    number: int
    """The number of the draw, from 1 over the whole run."""
    name: str
    """`all`, or a generated name."""
    portions: str
    """The portions as ranges, such as `0-2,5`."""


@dataclass(frozen=True)
class EvaluationProgress:
    """The progress of an evaluation."""

    evaluation: int
    """The number of the evaluation, from 1 over the whole run."""
    portions_done: int
    portions: int
    value: float | None
    """The mean over the samples so far; None if it is unknown before the end."""
    samples: int
    gradient: bool
    finished: bool = False
    workers: int = 1
    """The number of live workers."""
    backup_tasks: int = 0
    """Portions that a second worker received as backups."""
    drawn: Subset | None = None
    """The set that a finished evaluation drew; None if the caller chose the set."""


ProgressCallback = Callable[[EvaluationProgress], None]
"""Called after every portion; if it raises, the evaluation ends."""


class FullBatchObjective:
    """The objective of a task's samples, computed in this process.

    The seed deals samples to portions at random, as on a cluster. With a ``fraction`` below 1, each set that
    is drawn has the number of portions for that fraction. ``deterministic`` sums follow the binary tree over
    the portion numbers.
    """

    def __init__(
        self,
        work: Work,
        *,
        portion: int,
        fraction: float = 1.0,
        deterministic: bool = False,
        seed: int = 0,
        recorded: Sequence[str] = (),
        on_progress: ProgressCallback = lambda share: None,
    ) -> None:
        """``recorded`` lists the sets to draw first, as portion ranges."""
        self.work, self.on_progress = work, on_progress
        shards = split_into_shards(
            work.layout, work.parameters.element_size(), ClusterSettings.shard_bytes, ["here"]
        )
        # dot products sum over a cluster's shards, so that both have the same bits
        self.vectors = TensorVectors(work.parameters, pieces=[each.stop - each.start for each in shards])
        self.evaluations = 0
        self._fraction, self._deterministic = fraction, deterministic
        self._dealing = PortionPermutation(seed, work.samples, portion)
        self.sets = SampleSets(self._dealing)
        """The sets of samples that evaluations count; part of the state for resuming."""
        self.sets.replay(recorded)
        self._dealt: dict[int, array[int]] = {}  # dealing again each time would take longer than a small sum

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        """Evaluate the objective, as `Objective.evaluate`.

        If ``on_progress`` raises, all vectors except ``gradient`` stay as they were after ``before``.
        """
        self.vectors.run(before)
        if sample_set is None:
            kept_sets = self.sets.state()
            try:
                chosen = self._draw()
                return self._evaluated(at, gradient, after, chosen, None)
            except BaseException:
                self.sets.load(kept_sets)  # an aborted set is drawn again
                raise
        return self._evaluated(at, gradient, after, self.sets.portions(sample_set), sample_set)

    def _draw(self) -> Sequence[int]:
        """Return the portions of a new set."""
        recorded = self.sets.next_replayed()
        return self._dealing.draw(self.sets.draws, self._fraction) if recorded is None else recorded

    def _evaluated(
        self,
        at: str,
        gradient: str | None,
        after: Sequence[Command],
        chosen: Sequence[int],
        name: str | None,
    ) -> Evaluation:
        """Return the evaluation of these portions; ``name`` is that of their set, None for a new one."""
        point, own = self.vectors[at][0], self.work.parameters
        into = None if gradient is None else self.vectors.make(gradient)[0]
        kept = None
        if point.data_ptr() != own.data_ptr():
            kept = own.clone()
            own.copy_(point)
        self.evaluations += 1
        progress = _Progress(self.evaluations, len(chosen), into is not None, self.on_progress)
        try:
            total = self._sum(chosen, into, progress)
        finally:
            if kept is not None:
                own.copy_(kept)
        if into is not None:
            into.mul_(1.0 / total.samples)
        drawn = None
        if name is None:
            name = self.sets.add_drawn(chosen)
            drawn = Subset(self.sets.draws, name, format_ranges(chosen))
        progress.finish(drawn)
        dots = tuple(self.vectors.run(after))
        return Evaluation(total.value / total.samples, dots, name, total.samples)

    def part(self, sample_set: str, fraction: float) -> str:
        """Return the name of a fraction of a set, the same each time."""
        return self.sets.subset(sample_set, fraction)

    def _sum(self, chosen: Sequence[int], into: Tensor | None, progress: _Progress) -> PortionSum:
        if into is not None:
            into.zero_()
        if self._deterministic:
            found = self._tree(chosen, 0, self._dealing.portions, into, progress)
        else:
            found = PortionSum(0.0, 0, {})
            for number in chosen:
                found = _added(found, self._one(number, into, progress))
        return PortionSum(exact_sum(progress.values), found.samples, found.details)

    def _one(self, number: int, into: Tensor | None, progress: _Progress) -> PortionSum:
        if number not in self._dealt:
            self._dealt[number] = self._dealing.samples_of(number)
        found = self.work.add(self._dealt[number], into)
        progress.add(found)
        return found

    def _tree(
        self, chosen: Sequence[int], start: int, stop: int, into: Tensor | None, progress: _Progress
    ) -> PortionSum:
        """Sum the portions from ``start``, a multiple of the range's length, to ``stop``, as one node of the
        tree.

        A node is the sum of its left and right halves, each summed separately.
        """
        if len(chosen) <= 1:
            return self._one(chosen[0], into, progress) if chosen else PortionSum(0.0, 0, {})
        half = 1 << ((stop - start - 1).bit_length() - 1)
        left = [each for each in chosen if each < start + half]
        right = list(chosen[len(left) :])
        found = self._tree(left, start, min(start + half, stop), into, progress)
        if not right:
            return found
        if not left:
            return self._tree(right, start + half, stop, into, progress)
        half_sum = None if into is None else torch.zeros_like(into)
        other = self._tree(right, start + half, stop, half_sum, progress)
        if into is not None and half_sum is not None:
            into.add_(half_sum)
        return _added(found, other)


class _Progress:
    """The progress of an evaluation, reported after every portion."""

    def __init__(self, evaluation: int, of: int, gradient: bool, on_progress: ProgressCallback) -> None:
        self._evaluation, self._of, self._gradient = evaluation, of, gradient
        self._on_progress = on_progress
        self._portions, self._value, self._samples = 0, 0.0, 0
        self.values: list[float] = []
        """The values of the portions; their exact sum is the same in any order, and on a cluster."""

    def add(self, found: PortionSum) -> None:
        self._portions += 1
        self._value += found.value
        self.values.append(found.value)
        self._samples += found.samples
        self._on_progress(self._share())

    def finish(self, drawn: Subset | None) -> None:
        self._on_progress(replace(self._share(), finished=True, drawn=drawn))

    def _share(self) -> EvaluationProgress:
        mean = self._value / max(1, self._samples)
        return EvaluationProgress(
            self._evaluation, self._portions, self._of, mean, self._samples, self._gradient
        )


def _added(one: PortionSum, other: PortionSum) -> PortionSum:
    details = {
        name: one.details.get(name, 0.0) + other.details.get(name, 0.0)
        for name in {**one.details, **other.details}
    }
    return PortionSum(one.value + other.value, one.samples + other.samples, details)
