"""Losses by name.

Knows: the function of each name of `[objective] loss`. Does not know: networks, steps.

A loss maps outputs ``(sample, …)`` and targets to one number, the mean over samples. Targets are classes
``(sample,)``, or values of the outputs' shape (for `cross_entropy`, class probabilities). Other shapes raise
an error, because broadcasting them would silently train something else.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold.errors import RecipeError, UserError
from cotswold.recipe import Recipe
from cotswold.recipe.schema import LossObjective

Loss = Callable[[Tensor, Tensor], Tensor]
IGNORED = -100
"""The class of samples that `torch.nn.functional.cross_entropy` ignores."""
_ROUNDING = 0.01
"""The tolerance for probabilities that must sum to 1, wide enough for float16."""


def loss_by_name(name: str, target_low: float = 0.0, target_high: float = 1.0) -> Loss:
    """Return the loss of a name; raises RecipeError if the name is unknown.

    ``target_low`` and ``target_high`` are the targets of `sum_squared_error` for the wrong classes and the
    right class.
    """
    if name not in _LOSSES:
        raise RecipeError(f"unknown loss {name!r}; use one of {', '.join(sorted(_LOSSES))}")
    if (target_low, target_high) != (0.0, 1.0):
        assert name == "squared_error", "the schema allows targets for it alone"
        return partial(sum_squared_error, target_low=target_low, target_high=target_high)
    return _LOSSES[name]


def loss_of(recipe: Recipe) -> Loss:
    """Return the loss that a recipe names."""
    assert isinstance(recipe.objective, LossObjective), "a strategy with labels"
    return loss_by_name(recipe.loss, recipe.objective.target_low, recipe.objective.target_high)


def loss_on(loss: Loss, device: torch.device) -> Loss:
    """Return a loss for outputs on a device: a copy there of a user's module, other losses as they are."""
    if isinstance(loss, CustomLoss) and isinstance(loss.function, nn.Module):
        return CustomLoss(copy.deepcopy(loss.function).to(device))
    return loss


class CustomLoss:
    """A user-defined loss; raises UserError if the loss returns no trainable number.

    torch only warns, once, if it broadcasts targets; in the first step of a run that is an error here.
    """

    def __init__(self, function: Loss) -> None:
        self.function = function
        self.is_sum = False
        """True if the first call showed that the loss is a sum over samples."""
        self._is_called = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss; 0, without a gradient, if the loss ignores every target of the batch."""
        if self._is_called:
            return self._value(outputs, targets)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a (target|input) size")
            try:
                found = self._value(outputs, targets)
            except UserWarning as error:
                raise UserError(
                    f"the loss would broadcast targets of shape {tuple(targets.shape)} over outputs of shape "
                    f"{tuple(outputs.shape)}; give both the same shape"
                ) from error
        self._is_called = True
        self.is_sum = _is_sum(self.function, outputs, targets)
        return found

    def _value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = _number(self.function(outputs, targets))
        if found.isnan() and is_classes(outputs, targets) and not bool(target_weights(self, targets).any()):
            return torch.mul(outputs.sum(), 0.0)  # a mean over no targets
        return found


def counted_mask(loss: Loss, targets: Tensor) -> Tensor:
    """Return a mask, in the targets' shape, of the classes that a loss counts; the accuracy counts the same.

    A loss skips its ignored class. Classes are never negative, so a loss that accepts a negative class
    ignores it.
    """
    function: object = loss.function if isinstance(loss, CustomLoss) else loss
    words = function.keywords if isinstance(function, partial) else {}
    ignored = words.get("ignore_index", getattr(function, "ignore_index", IGNORED))
    return torch.logical_and(targets >= 0, torch.ne(targets, ignored))


def target_weights(loss: Loss, targets: Tensor) -> Tensor:
    """Return the weight of each target in the mean of a loss of classes: 0 if ignored, else its class's."""
    mask, of_class = counted_mask(loss, targets), class_weights(loss)
    return mask if of_class is None else of_class.to(targets.device)[targets.where(mask, 0).long()] * mask


def class_weights(loss: Loss) -> Tensor | None:
    """Return the weights of classes by which a loss of torch divides its mean; None without."""
    function: object = loss.function if isinstance(loss, CustomLoss) else loss
    if isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss):
        return function.weight
    if isinstance(function, partial) and function.func in (functional.cross_entropy, functional.nll_loss):
        return cast("Tensor | None", function.keywords.get("weight"))
    return None


def is_sum(loss: Loss) -> bool:
    """True if the first call of a user-defined loss showed that the loss is a sum over samples."""
    return isinstance(loss, CustomLoss) and loss.is_sum


def _is_sum(function: Loss, outputs: object, targets: Tensor) -> bool:
    """Return True if a loss is a sum over samples.

    Either the function declares it (``reduction="sum"``), or a copy of the function doubles its value when
    the first two samples are repeated.
    """
    words = function.keywords if isinstance(function, partial) else {}
    said = words.get("reduction", getattr(function, "reduction", None))
    if said is not None or not isinstance(outputs, Tensor):
        return bool(said == "sum")
    few, wanted = outputs.detach()[:2], targets[:2]
    try:
        with torch.no_grad(), _preserve_random_states(outputs.device):
            apart = _with_own_counters(function)
            once = float(apart(few, wanted))
            twice = float(apart(torch.cat([few, few]), torch.cat([wanted, wanted])))
    except Exception:  # it accepts only whole batches, so this test is impossible
        return False
    return once != 0 and abs(twice - 2 * once) <= _ROUNDING * abs(twice)


def _with_own_counters(function: Loss) -> Loss:
    """Return a copy of a loss with separate counters; parameters are shared. A plain function is returned as
    is.
    """
    owner = getattr(function, "__self__", function)
    shared = {id(each): each for each in owner.parameters()} if isinstance(owner, nn.Module) else {}
    return copy.deepcopy(function, shared)


@contextmanager
def _preserve_random_states(device: torch.device) -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python on exit."""
    devices = [device.index or 0] if device.type == "cuda" else []
    drawn, drawn_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)


IS_SUM = (
    "the loss is a sum over samples, not their mean: reported losses are too large by the factor "
    'batch_size; use the mean (reduction="mean"), and multiply the learning rate by batch_size'
)


def is_detector(loss: Loss) -> bool:
    """Return True if an output of this loss is the score of a detector: above 0 means yes."""
    function = loss.function if isinstance(loss, CustomLoss) else loss
    return isinstance(function, nn.BCEWithLogitsLoss) or function in (
        bce_with_logits,
        functional.binary_cross_entropy_with_logits,
    )


def _number(found: object) -> Tensor:
    if not isinstance(found, Tensor):
        raise UserError(
            f"the loss returned a {type(found).__name__}; it must return a tensor "
            "that torch computed from the output"
        )
    if found.numel() != 1:
        raise UserError(
            f"the loss returned a tensor of shape {tuple(found.shape)}; it must return one number, the mean "
            "over samples"
        )
    if torch.is_grad_enabled() and not found.requires_grad:
        raise UserError(
            "the loss does not depend on any trainable parameter of the module; compute it from the output, "
            "without detach(), item() or no_grad()"
        )
    return found


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of class indices, or of one probability for each class."""
    if not isinstance(outputs, Tensor):
        raise UserError(_no_tensor(outputs))
    if not targets.is_floating_point():
        if outputs.dim() < 2 or targets.shape != outputs.shape[:1] + outputs.shape[2:]:
            raise UserError(
                f"targets of shape {tuple(targets.shape)} do not fit as classes to outputs of shape "
                f"{tuple(outputs.shape)} (scores of the classes on axis 1); give "
                "one class per sample"
            )
        targets = targets.long()
        if ((targets >= outputs.shape[1]) | ((targets < 0) & (targets != IGNORED))).any():
            raise UserError(_no_classes(outputs, targets))
        if bool((targets == IGNORED).all()):
            return outputs.sum() * 0.0  # torch gives NaN, the mean over no targets
        return functional.cross_entropy(outputs, targets)
    if targets.shape != outputs.shape or outputs.dim() < 2 or outputs.shape[1] < 2 or not _probable(targets):
        raise UserError(
            f"targets are floats of shape {tuple(targets.shape)}, but cross_entropy needs classes: whole "
            "numbers (targets.long()), or one probability for each class; for regression use squared_error"
        )
    return functional.cross_entropy(outputs, targets)


def sum_squared_error(
    outputs: Tensor, targets: Tensor, target_low: float = 0.0, target_high: float = 1.0
) -> Tensor:
    """Squared error, summed over outputs; a class means ``target_high`` at its output and ``target_low`` at
    the others.
    """
    wanted = _values(targets, outputs)
    if (target_low, target_high) != (0.0, 1.0) and is_classes(outputs, targets):
        wanted = target_low + (target_high - target_low) * wanted
    return functional.mse_loss(outputs, wanted, reduction="sum") / len(targets)


def bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logistic loss of one detector for each class, summed over classes.

    A single output is one detector; its targets are 0 and 1. Source: Dean et al. 2012, section 5.
    """
    if is_classes(outputs, targets) and outputs.shape[1] == 1:
        targets = targets.unsqueeze(1)
    wanted = _values(targets, outputs)
    if bool(((wanted < 0) | (wanted > 1)).any()):
        raise UserError(
            f"targets lie between {float(wanted.min()):g} and {float(wanted.max()):g}, but bce_with_logits "
            "needs 0, 1 or a probability between them; give such targets, or use squared_error for regression"
        )
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / len(targets)


def is_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Return True if targets are classes, with one score each in outputs ``(sample, class, …)``."""
    return (
        isinstance(outputs, Tensor)
        and not targets.is_floating_point()
        and targets.dim() > 0
        and outputs.shape[:1] + outputs.shape[2:] == targets.shape
        and outputs.dim() == targets.dim() + 1
    )


def _probable(targets: Tensor) -> bool:
    return bool((targets >= 0).all() and ((targets.sum(1) - 1).abs() <= _ROUNDING).all())


def _no_classes(outputs: Tensor, targets: Tensor) -> str:
    return (
        f"targets are classes from {int(targets.min())} to {int(targets.max())}, but the module has "
        f"{outputs.shape[1]} outputs, one for each class from 0; give one output per class, or float targets "
        "for regression"
    )


def _type(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _no_tensor(outputs: object) -> str:
    return (
        f"the module returned a {type(outputs).__name__}, but a named loss needs a tensor; give a function "
        "of (output, target)"
    )


def _values(targets: Tensor, outputs: Tensor) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise UserError(_no_tensor(outputs))
    if is_classes(outputs, targets):
        if outputs.shape[1] == 1:
            raise UserError(
                f"targets of {_type(targets)} and shape {tuple(targets.shape)} are classes, but the module "
                "has one output; for regression give targets.float().unsqueeze(1), for classes one output "
                "each"
            )
        classes = targets.long()
        if ((classes < 0) | (classes >= outputs.shape[1])).any():
            raise UserError(_no_classes(outputs, targets))
        return functional.one_hot(classes, outputs.shape[1]).to(outputs.dtype)
    if targets.shape != outputs.shape:
        raise UserError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "give targets of the outputs' shape, or integers as classes"
        )
    return targets.to(outputs.dtype)


_LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "squared_error": sum_squared_error,
    "bce_with_logits": bce_with_logits,
}
