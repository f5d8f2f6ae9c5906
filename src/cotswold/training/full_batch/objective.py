"""What a worker computes: the sum of a network's losses over patterns, and its gradient.

Knows: networks of recipes and of programs, losses, patterns. Does not know: which process this is, who asks,
how sums are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import UserError
from cotswold.host import Token, inherited
from cotswold.nn import DenseNetwork
from cotswold.ops.dense import DenseActivation, DenseLoss, DenseOutput
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining, Linear, LossObjective
from cotswold.shards.runtime.work import PortionSum, Slot
from cotswold.training.data.batches import is_same
from cotswold.training.data.indexed import Patterns, StorePatterns
from cotswold.training.data.remote import Fed, HeldPatterns, PoolPlace, ServedPatterns
from cotswold.training.flat_parameters import FlatModule
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import IS_SUM, Loss, counted, is_sum, loss_of
from cotswold.training.models import LayerNetwork
from cotswold.training.nonfinite_loss import check_finite
from cotswold.training.scores import score
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.module_buffers import Buffers, refusal
from cotswold.training.strategies.module_modes import learns
from cotswold.training.strategies.supervised import needed, one_type


class ModuleWork:
    """Any module under a loss, by autograd; the parameters that learn are one vector.

    The module computes as in evaluation, so that the objective is one function of the parameters. Its
    buffers stay as they are.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        samples: Patterns,
        held: Patterns | None,
    ) -> None:
        """``held``: patterns for validation."""
        check_steady(module)
        self.flat = FlatModule(module.eval())
        self._loss, self._samples = loss, samples
        self._held = held if held is not None and len(held) else None

    @property
    def network(self) -> nn.Module:
        """The module."""
        return self.flat.module

    @property
    def parameters(self) -> Tensor:
        """The parameters that learn, one vector."""
        return self.flat.vector

    @property
    def layout(self) -> Sequence[Slot]:
        """The parameters in the vector."""
        return [Slot.of_shape(*each) for each in zip(self.flat.names, self.flat.shapes, strict=True)]

    @property
    def patterns(self) -> int:
        """How many patterns there are to learn from."""
        return len(self._samples)

    @property
    def varies(self) -> bool:
        """Whether a pattern is another one in each epoch."""
        return self._samples.varies

    @property
    def is_fed(self) -> bool:
        """Whether data servers make the patterns."""
        return isinstance(self._samples, Fed)

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """As `FedWork.expect`; nothing is asked for where patterns are at hand."""
        if isinstance(self._samples, Fed):
            self._samples.expect(batches)

    @property
    def is_starved(self) -> bool:
        """Whether it waits for patterns now."""
        return isinstance(self._samples, Fed) and self._samples.is_starved

    @cached_property
    def flops(self) -> tuple[int, int]:
        """Of one pattern, as torch counts them on the first one: the value, and the gradient with it."""
        counts = []
        for gradient in (None, torch.zeros_like(self.parameters)):
            with FlopCounterMode(display=False) as counter:
                self.add([0], gradient)
            counts.append(counter.get_total_flops())
        return counts[0], counts[1]

    @property
    def adds_up(self) -> bool:
        """Whether the loss was found to be a sum over samples, not their mean."""
        return is_sum(self._loss)

    def add(self, patterns: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """The sum of losses over these patterns; adds their gradient."""
        if not len(patterns):
            return PortionSum(0.0, 0, {})
        batch = self.read(patterns)
        self.flat.collect(gradient)
        try:
            return self.summed(batch, self.network, gradient is not None)
        finally:
            self.flat.collect(None)

    def read(self, patterns: Sequence[int]) -> Batch:
        """These patterns."""
        return self._samples.batch(patterns)

    def summed(self, batch: Batch, network: nn.Module, learn: bool) -> PortionSum:
        """The sum of losses over a batch as ``network``, this module or one made of it, computes it; with
        ``learn`` its parameters get their gradients."""
        with torch.set_grad_enabled(learn):
            outputs, targets = network(batch.inputs), needed(batch.targets)
            found = score(self._loss, outputs, targets)
            if found.judged < found.targets:
                raise UserError(
                    f"{found.targets - found.judged} targets are "
                    f"{int(targets[~counted(self._loss, targets)][0])}, which the loss leaves out of its "
                    "mean: a sum over portions would depend on how they are dealt; leave these samples out "
                    "of the data set, or give them a class of their own"
                )
            loss = self._loss(outputs, targets) * len(targets)
            if learn:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        value = float(loss.detach())
        if not isfinite(value):
            check_finite(batch)
        return PortionSum(value, len(targets), found.sums)

    @property
    def held(self) -> int:
        """How many patterns there are for validation."""
        return 0 if self._held is None else len(self._held)

    def judge(self, start: int, stop: int) -> PortionSum:
        """The sum of losses over these patterns for validation, and how many are classified rightly."""
        return self.judged(self.network, start, stop)

    @torch.no_grad()
    def judged(self, network: nn.Module, start: int, stop: int) -> PortionSum:
        """As `judge`, by ``network``: this module or one made of it."""
        assert self._held is not None, "there are some"
        batch = self._held.batch(range(start, stop))
        outputs, targets = network(batch.inputs), needed(batch.targets)
        found = score(self._loss, outputs, targets)
        sums = dict(found.sums)
        if "right" in sums:
            sums["accuracy"] = sums.pop("right")
        return PortionSum(float(self._loss(outputs, targets)) * found.weight, len(targets), sums)


class LayerWork(ModuleWork):
    """The layers of a recipe, whose FLOPs are those of its plan."""

    @cached_property
    def flops(self) -> tuple[int, int]:
        """Of one pattern, as Aberdeen et al. 2000 (section 6.2) count: products alone; the value takes
        2 (n_i + n_o) n_h for one hidden layer, the gradient with it 4 n_i n_h + 6 n_h n_o."""
        network = self.network
        assert isinstance(network, LayerNetwork), "made by of_recipe"
        return sum(plan.forward_flops for plan in network.plans), network.update_flops


class DenseWork(LayerWork):
    """Fully connected layers on kernels of our own, whose parameters the layers' own are views of."""

    def __init__(
        self,
        module: LayerNetwork,
        dense: DenseNetwork,
        loss: Loss,
        samples: Patterns,
        held: Patterns | None,
    ) -> None:
        super().__init__(module, loss, samples, held)
        assert self.flat.shapes == [slot.shape for slot in dense.layout], "both have one vector"
        self._dense = dense

    def add(self, patterns: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """The sum of losses over these patterns; adds their gradient."""
        if not len(patterns):
            return PortionSum(0.0, 0, {})
        batch = self._samples.batch(patterns)
        targets = needed(batch.targets)
        classes = not targets.is_floating_point()
        value, right = self._dense.add(
            self.parameters, batch.inputs.flatten(1).t(), targets if classes else targets.t(), gradient
        )
        return PortionSum(value, len(patterns), {"right": float(right)} if classes else {})


_OUTPUTS: Mapping[tuple[str, str], tuple[DenseOutput, DenseLoss]] = {
    ("squared", "linear"): ("identity", "squared_error"),
    ("squared", "tanh"): ("tanh", "squared_error"),
    ("squared", "sigmoid"): ("sigmoid", "squared_error"),
    ("cross_entropy", "linear"): ("softmax", "cross_entropy"),
    ("logistic", "linear"): ("sigmoid", "cross_entropy"),
}
"""What the kernels call a loss and what is applied to the outputs before it."""


def dense_of(recipe: Recipe, outputs: int) -> DenseNetwork | None:
    """The layers of a recipe as one fully connected network; None where they are something else."""
    layers, objective = recipe.network.layers, recipe.objective
    kinds = [layer.type for layer in layers[1::2]]
    linear = [layer for layer in layers[::2] if isinstance(layer, Linear)]
    end = _OUTPUTS.get((recipe.loss, recipe.network.output))
    activation = kinds[0] if kinds else "tanh"
    if len(layers) % 2 or len(linear) != len(kinds) or len({*kinds, activation}) > 1 or end is None:
        return None
    if activation not in get_args(DenseActivation):
        return None
    assert isinstance(objective, LossObjective) and isinstance(recipe.training, BatchTraining), "of layers"
    output, loss = end
    return DenseNetwork(
        (recipe.input.size, *(layer.features for layer in linear), outputs),
        cast(DenseActivation, activation),
        output,
        loss,
        (objective.low, objective.high),
        recipe.training.deterministic,
    )


def of_recipe(
    recipe: Recipe,
    store: Store,
    rows: Path | None = None,
    pool: str | None = None,
    token: Token | None = None,
) -> LayerWork:
    """The layers of a recipe over its store; ``rows``: a folder where `write_rows` has put the samples;
    ``pool``: the `PoolPlace` of data servers that give the training samples instead, and the ``token`` that
    opens it, where it is not that in the environment."""
    held = StorePatterns(store, "validation", rows) if store.splits.get("validation") else None
    network = supervised_network(recipe, store.outputs)
    samples: Patterns
    if pool is None:
        samples = StorePatterns(store, "train", rows)
    else:
        samples = HeldPatterns(store, ServedPatterns(store, PoolPlace.parsed(pool), token=token))
    return work_of(recipe, network, store.outputs, loss_of(recipe), samples, held)


def work_of(
    recipe: Recipe, network: LayerNetwork, outputs: int, loss: Loss, samples: Patterns, held: Patterns | None
) -> LayerWork:
    """The layers of a recipe over any patterns: on dense kernels where they are fully connected."""
    dense = dense_of(recipe, outputs)
    if dense is None:
        return LayerWork(network, loss, samples, held)
    return DenseWork(network, dense, loss, samples, held)


def in_worker(recipe: str, store: str, rows: str | None = None, pool: str | None = None) -> LayerWork:
    """As `of_recipe`, from what can be sent to another process: a recipe's text, and places."""
    torch.set_num_threads(1)
    return of_recipe(recipes.parse(recipe), Store(store), None if rows is None else Path(rows), pool)


INHERITED = "work"
"""The name under which a program's own work is in the processes that are forked from it."""


def inherited_work() -> ModuleWork:
    """That of the program from which this process was forked."""
    found = inherited(INHERITED)
    assert isinstance(found, ModuleWork), "given so"
    return found


def check_steady(module: nn.Module) -> None:
    """Raise UserError for layers that make a module another function at each evaluation, or of the
    portion."""
    for name, each in module.named_modules():
        place = f"{name or type(module).__name__} ({type(each).__name__})"
        if not learns(module, each):
            continue
        if _drops(each):
            raise UserError(
                f"{place} drops outputs at random, anew at each evaluation, and strategy batch compares "
                "evaluations; set its dropout to 0 or take it out, or train by strategy supervised"
            )
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"{place} normalises over a batch, and the objective of strategy batch is a sum over "
                "patterns; take another normalisation, such as GroupNorm, or train by strategy supervised"
            )


def _drops(module: nn.Module) -> bool:
    """Whether a layer of torch's drops outputs while it learns; those made of others are asked one by one."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0


_ROUNDING = 1e3
"""Sums of threads differ by some of the precision; what is drawn differs by far more than so many of it."""


def check_repeatable(work: ModuleWork, portion: int) -> None:
    """Raise UserError where the first portion is another when it is computed again: what the code of a module
    or of a data set draws is in no layer that `check_steady` could see."""
    patterns = range(min(portion, work.patterns))
    first, again = work.read(patterns), work.read(patterns)
    buffers = Buffers(work.network)
    with one_type(work.network, first):
        if not isfinite(work.add(patterns, torch.zeros_like(work.parameters)).value):
            return  # the first evaluation says it
    if changed := buffers.changed():
        raise UserError(refusal(work.network, changed, "batch"))
    if work.adds_up:
        raise UserError(IS_SUM)
    name = type(work.network).__name__
    remedy = "strategy batch compares evaluations; take out what is drawn at random"
    if not is_same(first.inputs, again.inputs):
        raise UserError(
            f"the data set gave other samples when the same {len(patterns)} were read again, and {remedy}, "
            "such as a random transform, or train by strategy supervised"
        )
    with torch.no_grad():
        one, other = (work.network(first.inputs) for _ in range(2))
    if not isinstance(one, Tensor):
        one, other = (torch.tensor(work.summed(first, work.network, False).value) for _ in range(2))
    if (one - other).abs().max() > _ROUNDING * torch.finfo(work.parameters.dtype).eps * one.abs().max():
        raise UserError(
            f"{name} gave other outputs when the same {len(patterns)} samples were computed again, and "
            f"{remedy}, such as torch.nn.functional.dropout, or train by strategy supervised"
        )
