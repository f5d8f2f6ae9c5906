"""The training and evaluation modes of a module's layers during training.

Knows: the layers that a program put into evaluation mode. Does not know: steps, losses, files.
"""

from __future__ import annotations

from torch import nn


class Modes:
    """The modes in which a module is trained.

    A layer that the program put into evaluation mode, such as a frozen batch normalisation, stays in it. If
    the whole module is in evaluation mode, as `cotswold.train` leaves it, all layers are trained.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.is_training = module.training
        """True if the program chose the modes of the layers."""
        names = [name for name, each in module.named_modules() if not each.training]
        self.frozen = names if module.training else []
        """The names of layers that stay in evaluation mode."""

    def learn(self) -> None:
        """Put the module into training mode, except for the frozen layers."""
        self._module.train()
        for name in self.frozen:
            self._module.get_submodule(name).training = False

    def restore(self, frozen: object) -> None:
        """Freeze the layers that a checkpoint names, unless the program chose the frozen layers."""
        if not self.is_training and isinstance(frozen, list):
            self.frozen = [name for name, _ in self._module.named_modules() if name in frozen]


def is_training_mode(module: nn.Module, layer: nn.Module) -> bool:
    """Return True if a layer is in training mode while its module is trained."""
    return layer.training or not module.training
