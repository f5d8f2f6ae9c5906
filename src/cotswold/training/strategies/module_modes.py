"""The modes of a module's layers while it learns.

Knows: which layers a program has put into evaluation mode. Does not know: steps, losses, files.
"""

from __future__ import annotations

from torch import nn


class Modes:
    """The modes in which a module learns.

    A layer that its program put into evaluation mode, such as a frozen batch normalisation, stays in it. A
    module that is in evaluation mode as a whole, as `cotswold.train` leaves it, learns with all its layers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.is_stated = module.training
        """Whether the modes of the layers are the program's wish."""
        names = [name for name, each in module.named_modules() if not each.training]
        self.frozen = names if module.training else []
        """The names of layers that stay in evaluation mode."""

    def learn(self) -> None:
        """Put the module into training mode, but for the frozen layers."""
        self._module.train()
        for name in self.frozen:
            self._module.get_submodule(name).training = False

    def restore(self, frozen: object) -> None:
        """Freeze the layers that a checkpoint names, unless the program says itself which are frozen."""
        if not self.is_stated and isinstance(frozen, list):
            self.frozen = [name for name, _ in self._module.named_modules() if name in frozen]


def learns(module: nn.Module, layer: nn.Module) -> bool:
    """Whether a layer is in training mode while its module learns."""
    return layer.training or not module.training
