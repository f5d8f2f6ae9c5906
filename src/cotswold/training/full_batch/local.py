"""The whole training set in one process: an objective over a work, portion by portion.

Knows: portions, which of them count, the order in which they are added. Does not know: networks, optimisers,
other processes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cotswold.batch.core.accounting import exact_sum
from cotswold.batch.runtime.pattern_sets import PatternSets
from cotswold.optim import Command, Evaluation, TensorVectors
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.shards.core.permutation import ChunkPermutation, format_ranges
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import PortionSum, Work


@dataclass(frozen=True)
class Drawn:
    """A set of patterns that was drawn."""

    number: int
    """Counted from 1 over the whole run."""
    name: str
    """`all`, or a name of its own."""
    portions: str
    """In words, `0-2,5`."""


@dataclass(frozen=True)
class Share:
    """What of an evaluation is done."""

    evaluation: int
    """Counted from 1 over the whole run."""
    portions: int
    of: int
    value: float | None
    """The mean over the patterns so far; None where that is not known before the end."""
    samples: int
    gradient: bool
    finished: bool = False
    workers: int = 1
    """How many are alive."""
    backups: int = 0
    """Portions that were given to a second worker."""
    drawn: Drawn | None = None
    """What the evaluation has chosen by itself, once it is finished; None where it was told what to count."""


Look = Callable[[Share], None]
"""Hears after every portion; what it raises ends the evaluation."""


class WholeSet:
    """A work's patterns as an objective, computed here.

    Patterns are dealt to portions at random by the seed, as on a cluster. With a ``fraction`` below 1 each
    set that is drawn has as many portions as make up that part; ``deterministic`` sums go along the binary
    tree over the numbers of portions.
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
        look: Look = lambda share: None,
    ) -> None:
        """``recorded``: the sets that are drawn first, portions in words."""
        self.work, self.look = work, look
        shards = split_into_shards(
            work.layout, work.parameters.element_size(), ClusterSettings.shard_bytes, ["here"]
        )
        # dots add up what a cluster's shards would, so that both have the same bits
        self.vectors = TensorVectors(work.parameters, pieces=[each.stop - each.start for each in shards])
        self.evaluations = 0
        self._fraction, self._deterministic = fraction, deterministic
        self._dealing = ChunkPermutation(seed, work.patterns, portion)
        self.sets = PatternSets(self._dealing)
        """Which patterns evaluations count; what resume needs besides the vectors."""
        self.sets.replay(recorded)
        self._dealt: dict[int, array[int]] = {}  # dealing anew each time would take longer than a small sum

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """As `Objective.evaluate`. Raises what ``look`` raises, with all vectors but ``gradient`` as they
        were after ``before``."""
        self.vectors.run(before)
        if patterns is None:
            kept_sets = self.sets.state()
            try:
                chosen = self._draw()
                return self._evaluated(at, gradient, after, chosen, None)
            except BaseException:
                self.sets.load(kept_sets)  # what is given up is drawn again
                raise
        return self._evaluated(at, gradient, after, self.sets.portions(patterns), patterns)

    def _draw(self) -> Sequence[int]:
        """The portions of a new set."""
        recorded = self.sets.next_recorded()
        return self._dealing.drawn(self.sets.draws, self._fraction) if recorded is None else recorded

    def _evaluated(
        self,
        at: str,
        gradient: str | None,
        after: Sequence[Command],
        chosen: Sequence[int],
        name: str | None,
    ) -> Evaluation:
        """The evaluation of these portions; ``name``: of their set, None for a new one."""
        point, own = self.vectors[at][0], self.work.parameters
        into = None if gradient is None else self.vectors.make(gradient)[0]
        kept = None
        if point.data_ptr() != own.data_ptr():
            kept = own.clone()
            own.copy_(point)
        self.evaluations += 1
        progress = _Progress(self.evaluations, len(chosen), into is not None, self.look)
        try:
            total = self._sum(chosen, into, progress)
        finally:
            if kept is not None:
                own.copy_(kept)
        if into is not None:
            into.mul_(1.0 / total.samples)
        drawn = None
        if name is None:
            name = self.sets.drawn(chosen)
            drawn = Drawn(self.sets.draws, name, format_ranges(chosen))
        progress.finish(drawn)
        dots = tuple(self.vectors.run(after))
        return Evaluation(total.value / total.samples, dots, name, total.samples)

    def part(self, patterns: str, fraction: float) -> str:
        """The name of a part of a set, the same one each time."""
        return self.sets.part(patterns, fraction)

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
            self._dealt[number] = self._dealing.patterns_of(number)
        found = self.work.add(self._dealt[number], into)
        progress.add(found)
        return found

    def _tree(
        self, chosen: Sequence[int], start: int, stop: int, into: Tensor | None, progress: _Progress
    ) -> PortionSum:
        """The sum of the portions from ``start``, a multiple of the run's length, to ``stop``, as their node
        of the tree has it: left half plus right half, each a sum of its own."""
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
        beside = None if into is None else torch.zeros_like(into)
        other = self._tree(right, start + half, stop, beside, progress)
        if into is not None and beside is not None:
            into.add_(beside)
        return _added(found, other)


class _Progress:
    """How far an evaluation is, told after every portion."""

    def __init__(self, evaluation: int, of: int, gradient: bool, look: Look) -> None:
        self._evaluation, self._of, self._gradient, self._look = evaluation, of, gradient, look
        self._portions, self._value, self._samples = 0, 0.0, 0
        self.values: list[float] = []
        """Of the portions; their sum is the same in any order, and on a cluster."""

    def add(self, found: PortionSum) -> None:
        self._portions += 1
        self._value += found.value
        self.values.append(found.value)
        self._samples += found.samples
        self._look(self._share())

    def finish(self, drawn: Drawn | None) -> None:
        self._look(replace(self._share(), finished=True, drawn=drawn))

    def _share(self) -> Share:
        mean = self._value / max(1, self._samples)
        return Share(self._evaluation, self._portions, self._of, mean, self._samples, self._gradient)


def _added(one: PortionSum, other: PortionSum) -> PortionSum:
    details = {
        name: one.details.get(name, 0.0) + other.details.get(name, 0.0)
        for name in {**one.details, **other.details}
    }
    return PortionSum(one.value + other.value, one.samples + other.samples, details)
