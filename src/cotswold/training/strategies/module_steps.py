"""Supervised training steps for a user's module.

Knows: counted FLOPs, frozen layers, whether a module matches a checkpoint. Does not know: data sets,
directories of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold.checkpoint import Checkpoint, SealedChunk, StateDict, StateValue, TensorChunk
from cotswold.errors import CheckpointError, UserError
from cotswold.run import Metrics
from cotswold.training.jobs.state_check import check_state_matches
from cotswold.training.losses import IS_SUM, is_sum
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.module_modes import Modes
from cotswold.training.strategies.supervised import SupervisedStrategy
from cotswold.training.strategies.supervised_sharded import SupervisedSharded
from cotswold.training.trainers.sync import SyncTrainer

_FROZEN = "frozen"
"""The key in a checkpoint of the layers that stay in evaluation mode."""


class ModuleSyncTrainer(SyncTrainer):
    """A trainer for a module that the program rebuilds when it resumes the run."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises MismatchError for another module before any tensor is filled."""
        check_state_matches(self._counting_strategy.network, checkpoint)
        super().resume(checkpoint)
        self._counting_strategy.modes.restore(checkpoint.state.get(_FROZEN, []))

    @property
    def _counting_strategy(self) -> CountedFlops:
        assert isinstance(self.strategy, CountedFlops), "the builder passes this type"
        return self.strategy

    def _checkpoint(self) -> tuple[int, Iterator[TensorChunk | SealedChunk], dict[str, object], str]:
        number, pieces, state, where = super()._checkpoint()
        return number, pieces, {**state, _FROZEN: self._counting_strategy.modes.frozen}, where


class CountedFlops(SupervisedStrategy):
    """A network without a FLOP plan: the first step counts the FLOPs, which are then reused."""

    ranks = 1
    _flops: int | None = None

    def __init__(
        self, network: nn.Module, *given: Any, warn: Callable[[str], None] = lambda said: None, **words: Any
    ) -> None:
        """``warn`` receives the user-visible warnings of the first step."""
        self.modes, self.warn = Modes(network), warn
        super().__init__(network, *given, **words)

    def learn(self) -> None:
        """Put the module into training mode, except for layers that the program put into evaluation mode."""
        self.modes.learn()

    @property
    def flops(self) -> int:
        """Counted FLOPs per sample; 0 before the first step."""
        return self._flops or 0

    def describe(self) -> Mapping[str, object]:
        """Return the module's children and weights."""
        children = [f"{name}: {type(child).__name__}" for name, child in self.network.named_children()]
        return {
            "phase": "layers",
            "layers": children or [type(self.network).__name__],
            "parameters": self.parameters,
        }

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Take one step; the first step also counts FLOPs.

        Raises UserError if a layer cannot normalise a batch of one sample, such as the last of an epoch.
        """
        try:
            return self._measure(batches)
        except ValueError as error:
            if "Expected more than 1 value per channel" not in str(error):
                raise
            if self.replication is not None:
                raise UserError(
                    "the module normalises over a batch, and cannot train on a part of one sample: use a "
                    "larger batch_size, fewer replicas, or mesh.sync_batchnorm (the whole batch's statistics)"
                ) from error
            raise UserError(
                "the module normalises over a batch, and cannot train on a batch of one sample: use "
                "another batch_size, or a DataLoader with drop_last=True, which skips the last batch of an "
                "epoch"
            ) from error

    def _measure(self, batches: Iterator[Batch]) -> Metrics:
        if self._flops is not None:
            return super().train_step(batches)
        called, self._called = self._called, self.network  # a compiled network hides its operations
        try:
            with FlopCounterMode(display=False) as counter:
                metrics = super().train_step(batches)
        finally:
            self._called = called
        counted = counter.get_total_flops()
        if self.replication is not None:
            counted = int(self.replication.sum(counted))
        self._flops = self.ranks * counted // metrics.samples
        if is_sum(self.loss):
            self.warn(IS_SUM)
        return metrics

    def state_dict(self) -> StateDict:
        """Return the state of the supervised strategy and the FLOPs."""
        return {**super().state_dict(), "flops": self._flops}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Restore the state of the supervised strategy and the FLOPs."""
        super().load_state_dict(state)
        flops = state["flops"]
        if flops is not None and not isinstance(flops, int):
            raise CheckpointError("the checkpoint lacks the FLOPs per sample")
        self._flops = flops


class LocalModuleSteps(CountedFlops):
    """A module in one process."""


class ModuleSharded(CountedFlops, SupervisedSharded):
    """A partitioned module."""
