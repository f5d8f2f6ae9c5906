"""Supervised training by all ranks of a mesh.

Knows: this rank's part of every image, weight and momentum. Does not know: how layers compute over ranks
(`mesh.partition`), files, clocks, the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cotswold.checkpoint import StateDict, StateValue, TensorPart
from cotswold.errors import RecipeError
from cotswold.geometry import Box
from cotswold.mesh.modules.parameters import own_box
from cotswold.recipe.schema import SupervisedTraining
from cotswold.training.components import Components
from cotswold.training.losses import Loss
from cotswold.training.strategies.phases import Epochs
from cotswold.training.strategies.supervised import MakeValidationBatches, SupervisedStrategy

_NONE = Components()


class SupervisedSharded(SupervisedStrategy):
    """The strategy `supervised` on a grid of ranks, with a network made by `mesh.partition`.

    ``spread`` converts the inputs of a batch to the network's inputs.
    """

    def __init__(
        self,
        network: nn.Module,
        training: SupervisedTraining,
        loss: Loss,
        epochs: Sequence[Epochs],
        epoch_steps: float,
        validation: MakeValidationBatches,
        *,
        components: Components = _NONE,
        spread: Callable[[Tensor], Any],
    ) -> None:
        if training.compile:
            raise RecipeError(
                "training.compile needs one process: a network on a grid of ranks cannot be compiled; "
                "remove it, or train without a grid"
            )
        super().__init__(network, training, loss, epochs, epoch_steps, validation, components)
        self._spread = spread

    def outputs(self, inputs: Tensor) -> Any:
        """Return the network's outputs, whole on every rank."""
        return self.network(self._spread(inputs))

    def state_dict(self) -> StateDict:
        """Return this rank's parts of weights and momenta, and the values common to all ranks."""
        return {
            name: _part(value) if isinstance(value, Tensor) else value
            for name, value in super().state_dict().items()
        }


def _part(values: Tensor) -> StateValue:
    """Return this rank's part of a tensor, and its position in the whole."""
    if not isinstance(values, DTensor):
        return values.detach()
    part, box, shape = values.to_local().detach(), own_box(values), tuple(values.shape)
    return part if box == Box.whole(shape) else TensorPart(part, box, shape)
