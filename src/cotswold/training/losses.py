"""Losses by name.

Knows: what each name of `[objective] loss` computes. Does not know: networks, steps.

A loss takes outputs ``(sample, …)`` and targets, and gives one number, mean over samples. Targets are classes
``(sample,)``, or, for `squared` and `logistic`, values of the outputs' own shape: others would be
broadcast, and something trained that nobody meant.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from cotswold.errors import RecipeError, UserError

Loss = Callable[[Tensor, Tensor], Tensor]


def named_loss(name: str) -> Loss:
    """The loss of a name; raises RecipeError for one that has none."""
    if name not in _LOSSES:
        raise RecipeError(f"there is no loss {name!r}; there are {', '.join(sorted(_LOSSES))}")
    return _LOSSES[name]


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error, summed over outputs; a class stands for 1 at its output and 0 at the others.

    A network that ends in tanh and learns -1 and 1 gives such targets itself.
    """
    return functional.mse_loss(outputs, _values(targets, outputs), reduction="sum") / len(targets)


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logistic loss of one detector a class (Dean et al. 2012, section 5), summed over classes."""
    wanted = _values(targets, outputs)
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / len(targets)


def is_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are classes, of which outputs ``(sample, class, …)`` have a score each."""
    return not targets.is_floating_point() and outputs.dim() == targets.dim() + 1


def _values(targets: Tensor, outputs: Tensor) -> Tensor:
    if is_classes(outputs, targets):
        try:
            return functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        except RuntimeError as error:
            raise UserError(
                f"targets are classes from {int(targets.min())} to {int(targets.max())}, and there are "
                f"{outputs.shape[1]} outputs, one for each class from 0; give as many, or floats to predict"
            ) from error
    if targets.shape != outputs.shape:
        raise UserError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "give targets the outputs' shape, or whole numbers as classes"
        )
    return targets.to(outputs.dtype)


_LOSSES: dict[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "squared": squared,
    "logistic": logistic,
}
