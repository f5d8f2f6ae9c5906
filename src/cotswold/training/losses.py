"""Losses by name.

Knows: what each name of `[objective] loss` computes. Does not know: networks, steps.

A loss takes outputs ``(sample, …)`` and targets, and gives one number, mean over samples. Targets are classes
``(sample,)``, or values of the outputs' own shape (for `cross_entropy` the probabilities of the classes):
others would be broadcast, and something trained that nobody meant.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold.errors import RecipeError, UserError
from cotswold.recipe import Recipe
from cotswold.recipe.schema import LossObjective

Loss = Callable[[Tensor, Tensor], Tensor]
IGNORED = -100
"""The class of samples that `torch.nn.functional.cross_entropy` leaves out."""
_ROUNDING = 0.01
"""By how much probabilities may miss 1 together; those of float16 do."""


def named_loss(name: str, low: float = 0.0, high: float = 1.0) -> Loss:
    """The loss of a name; raises RecipeError for one that has none.

    ``low`` and ``high``: what `squared` wants of the outputs of other classes and of the class.
    """
    if name not in _LOSSES:
        raise RecipeError(f"there is no loss {name!r}; there are {', '.join(sorted(_LOSSES))}")
    if (low, high) != (0.0, 1.0):
        assert name == "squared", "the schema allows targets for it alone"
        return partial(squared, low=low, high=high)
    return _LOSSES[name]


def loss_of(recipe: Recipe) -> Loss:
    """The loss that a recipe names for its labels."""
    assert isinstance(recipe.objective, LossObjective), "a strategy with labels"
    return named_loss(recipe.loss, recipe.objective.low, recipe.objective.high)


class OwnLoss:
    """A loss that a program gives; raises UserError where it gives no number that can be learnt from.

    torch warns of targets that are broadcast, once; for the first step of a run that is an error.
    """

    def __init__(self, function: Loss) -> None:
        self.function = function
        self.is_sum = False
        """Whether it adds up over samples, as far as the first call has shown."""
        self._is_called = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss; 0, without a gradient, if it leaves out every target of the batch."""
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
        self.is_sum = _adds_up(self.function, outputs, targets)
        return found

    def _value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = _number(self.function(outputs, targets))
        if found.isnan() and is_classes(outputs, targets) and not bool(counted(self, targets).any()):
            return torch.mul(outputs.sum(), 0.0)  # a mean over no targets
        return found


def counted(loss: Loss, targets: Tensor) -> Tensor:
    """The classes that a loss counts: a mask of their shape. The accuracy counts the same.

    A loss leaves out the class that it ignores. A class is never negative, so a loss that accepts a negative
    one leaves it out too.
    """
    function: object = loss.function if isinstance(loss, OwnLoss) else loss
    words = function.keywords if isinstance(function, partial) else {}
    ignored = words.get("ignore_index", getattr(function, "ignore_index", IGNORED))
    return torch.logical_and(targets >= 0, torch.ne(targets, ignored))


def is_sum(loss: Loss) -> bool:
    """Whether a program's own loss was found to be a sum over samples when it was first computed."""
    return isinstance(loss, OwnLoss) and loss.is_sum


def _adds_up(function: Loss, outputs: object, targets: Tensor) -> bool:
    """Whether a loss is a sum over samples.

    The function says so itself (``reduction="sum"``), or a copy of it gives twice as much for the first two
    samples taken twice.
    """
    words = function.keywords if isinstance(function, partial) else {}
    said = words.get("reduction", getattr(function, "reduction", None))
    if said is not None or not isinstance(outputs, Tensor):
        return bool(said == "sum")
    few, wanted = outputs.detach()[:2], targets[:2]
    try:
        with torch.no_grad(), _kept_draws(outputs.device):
            apart = _apart(function)
            once = float(apart(few, wanted))
            twice = float(apart(torch.cat([few, few]), torch.cat([wanted, wanted])))
    except Exception:  # it takes whole batches alone, and shows nothing by parts
        return False
    return once != 0 and abs(twice - 2 * once) <= _ROUNDING * abs(twice)


def _apart(function: Loss) -> Loss:
    """A copy of a loss, which keeps what it counts for itself; a function has none. Parameters are shared."""
    owner = getattr(function, "__self__", function)
    shared = {id(each): each for each in owner.parameters()} if isinstance(owner, nn.Module) else {}
    return copy.deepcopy(function, shared)


@contextmanager
def _kept_draws(device: torch.device) -> Iterator[None]:
    """The random numbers of torch, NumPy and Python are as before when this ends."""
    devices = [device.index or 0] if device.type == "cuda" else []
    drawn, drawn_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_numpy)


IS_SUM = (
    "the loss is a sum over samples, and was taken for their mean: losses that are reported are too large by "
    'the size of a batch; give the mean (reduction="mean"), with the learning rate times that size'
)


def is_detector(loss: Loss) -> bool:
    """Whether an output of this loss is the score of a detector: above 0 for yes."""
    function = loss.function if isinstance(loss, OwnLoss) else loss
    return isinstance(function, nn.BCEWithLogitsLoss) or function in (
        logistic,
        functional.binary_cross_entropy_with_logits,
    )


def _number(found: object) -> Tensor:
    if not isinstance(found, Tensor):
        raise UserError(
            f"the loss gives a {type(found).__name__}; it must give a tensor, "
            "computed by torch from the output"
        )
    if found.numel() != 1:
        raise UserError(
            f"the loss gives a tensor of shape {tuple(found.shape)}; it must give one number, the mean over "
            "samples"
        )
    if torch.is_grad_enabled() and not found.requires_grad:
        raise UserError(
            "the loss does not depend on a parameter of the module that learns; compute it from the output, "
            "without detach(), item() or no_grad()"
        )
    return found


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the softmax; of targets that are whole numbers, or one probability for each class."""
    if not isinstance(outputs, Tensor):
        raise UserError(_no_tensor(outputs))
    if not targets.is_floating_point():
        if outputs.dim() < 2 or targets.shape != outputs.shape[:1] + outputs.shape[2:]:
            raise UserError(
                f"targets of shape {tuple(targets.shape)} are no classes of outputs of shape "
                f"{tuple(outputs.shape)}, one score for each class in the second place; give "
                "one class a sample"
            )
        targets = targets.long()
        if ((targets >= outputs.shape[1]) | ((targets < 0) & (targets != IGNORED))).any():
            raise UserError(_no_classes(outputs, targets))
        if bool((targets == IGNORED).all()):
            return outputs.sum() * 0.0  # torch gives NaN, the mean over no targets
        return functional.cross_entropy(outputs, targets)
    if targets.shape != outputs.shape or outputs.dim() < 2 or outputs.shape[1] < 2 or not _probable(targets):
        raise UserError(
            f"targets are floats of shape {tuple(targets.shape)}, and cross_entropy wants classes: whole "
            "numbers (targets.long()), or the probability of each; to predict numbers take squared"
        )
    return functional.cross_entropy(outputs, targets)


def squared(outputs: Tensor, targets: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Squared error, summed over outputs; a class stands for ``high`` at its output and ``low`` at the
    others."""
    wanted = _values(targets, outputs)
    if (low, high) != (0.0, 1.0) and is_classes(outputs, targets):
        wanted = low + (high - low) * wanted
    return functional.mse_loss(outputs, wanted, reduction="sum") / len(targets)


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logistic loss of one detector a class (Dean et al. 2012, section 5), summed over classes.

    A single output is one detector; its targets are 0 and 1.
    """
    if is_classes(outputs, targets) and outputs.shape[1] == 1:
        targets = targets.unsqueeze(1)
    wanted = _values(targets, outputs)
    if bool(((wanted < 0) | (wanted > 1)).any()):
        raise UserError(
            f"targets lie between {float(wanted.min()):g} and {float(wanted.max()):g}, and logistic wants 0, "
            "1 or a probability between them; give such targets, or take squared to predict numbers"
        )
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / len(targets)


def is_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are classes, of which outputs ``(sample, class, …)`` have a score each."""
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
        f"targets are classes from {int(targets.min())} to {int(targets.max())}, and there are "
        f"{outputs.shape[1]} outputs, one for each class from 0; give as many, or floats to predict"
    )


def _type(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _no_tensor(outputs: object) -> str:
    return (
        f"the module gives a {type(outputs).__name__}, and a loss by name takes a tensor; give a function of "
        "(output, target)"
    )


def _values(targets: Tensor, outputs: Tensor) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise UserError(_no_tensor(outputs))
    if is_classes(outputs, targets):
        if outputs.shape[1] == 1:
            raise UserError(
                f"targets of {_type(targets)} and shape {tuple(targets.shape)} are classes, and there is one "
                "output; to predict numbers give targets.float().unsqueeze(1), for classes an output each"
            )
        classes = targets.long()
        if ((classes < 0) | (classes >= outputs.shape[1])).any():
            raise UserError(_no_classes(outputs, targets))
        return functional.one_hot(classes, outputs.shape[1]).to(outputs.dtype)
    if targets.shape != outputs.shape:
        raise UserError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of shape {tuple(outputs.shape)}; "
            "give targets the outputs' shape, or whole numbers as classes"
        )
    return targets.to(outputs.dtype)


_LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "squared": squared,
    "logistic": logistic,
}
