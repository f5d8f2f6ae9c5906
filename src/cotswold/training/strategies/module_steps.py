"""Steps of supervised training of a program's own module.

Knows: FLOPs that are counted, layers that stay in evaluation mode, whether a module is that of a checkpoint.
Does not know: data sets, where runs are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold.checkpoint import Checkpoint, SealedChunk, StateDict, StateValue, TensorChunk
from cotswold.errors import CheckpointError, UserError
from cotswold.run import Metrics
from cotswold.training.jobs.same_module import check_module
from cotswold.training.losses import IS_SUM, is_sum
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.module_modes import Modes
from cotswold.training.strategies.supervised import Supervised
from cotswold.training.strategies.supervised_on_mesh import SupervisedOnMesh
from cotswold.training.trainers.sync import Synchronous

_FROZEN = "frozen"
"""The name under which a checkpoint keeps the layers that stay in evaluation mode."""


class ModuleSteps(Synchronous):
    """Steps of a module that somebody has made again where the run is resumed."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """As `Synchronous`; raises MismatchError for another module, before anything of it is filled."""
        check_module(self._own.network, checkpoint)
        super().resume(checkpoint)
        self._own.modes.restore(checkpoint.state.get(_FROZEN, []))

    @property
    def _own(self) -> CountedFlops:
        assert isinstance(self.strategy, CountedFlops), "built so"
        return self.strategy

    def _checkpoint(self) -> tuple[int, Iterator[TensorChunk | SealedChunk], dict[str, object], str]:
        number, pieces, state, where = super()._checkpoint()
        return number, pieces, {**state, _FROZEN: self._own.modes.frozen}, where


class CountedFlops(Supervised):
    """A network of which nobody has a plan: its FLOPs are counted in the first step, and kept."""

    ranks = 1
    _flops: int | None = None

    def __init__(
        self, network: nn.Module, *given: Any, warn: Callable[[str], None] = lambda said: None, **words: Any
    ) -> None:
        """``warn`` hears what a person should know of the first step."""
        self.modes, self.warn = Modes(network), warn
        super().__init__(network, *given, **words)

    def learn(self) -> None:
        """Put the module into training mode, but for layers that the program put into evaluation mode."""
        self.modes.learn()

    @property
    def flops(self) -> int:
        """Of one sample, as counted; 0 before the first step."""
        return self._flops or 0

    def describe(self) -> Mapping[str, object]:
        """The module's children and weights."""
        children = [f"{name}: {type(child).__name__}" for name, child in self.network.named_children()]
        return {
            "stack": "layers",
            "layers": children or [type(self.network).__name__],
            "parameters": self.parameters,
        }

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """As `Supervised`; the first one is counted.

        Raises UserError where a layer cannot normalise a batch of one sample, such as an epoch's last.
        """
        try:
            return self._counted(batches)
        except ValueError as error:
            if "Expected more than 1 value per channel" not in str(error):
                raise
            raise UserError(
                "the module normalises over a batch, and cannot learn from a batch of one sample: give "
                "another batch_size, or a DataLoader with drop_last=True, which leaves an epoch's last out"
            ) from error

    def _counted(self, batches: Iterator[Batch]) -> Metrics:
        if self._flops is not None:
            return super().train_step(batches)
        with FlopCounterMode(display=False) as counter:
            metrics = super().train_step(batches)
        self._flops = self.ranks * counter.get_total_flops() // metrics.samples
        if is_sum(self.loss):
            self.warn(IS_SUM)
        return metrics

    def state_dict(self) -> StateDict:
        """As `Supervised`, and the FLOPs."""
        return {**super().state_dict(), "flops": self._flops}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """As `Supervised`, and the FLOPs."""
        super().load_state_dict(state)
        flops = state["flops"]
        if flops is not None and not isinstance(flops, int):
            raise CheckpointError("the checkpoint does not say how many FLOPs a sample takes")
        self._flops = flops


class OneModule(CountedFlops):
    """A module in one process."""


class ModuleOnMesh(CountedFlops, SupervisedOnMesh):
    """A partitioned module."""
