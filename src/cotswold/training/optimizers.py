"""Optimisers of strategy supervised: by the name in a recipe, or given by a program.

Knows: torch's optimisers, which parameters each updates. Does not know: schedules, checkpoints, steps.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cotswold.errors import UserError
from cotswold.recipe.schema import SharedTraining, SupervisedTraining
from cotswold.recipe.schema.optimizers import OPTIMIZERS
from cotswold.training.components import Components, OptimizerSource

_Training = TypeVar("_Training", bound=SharedTraining)
_SHOWN = 3
_EXAMPLE = "functools.partial(torch.optim.AdamW, lr=1e-3)"


class CombinedOptimizer(Optimizer):
    """Several optimisers, each with parameters of its own, that take every step together.

    Args:
        parts: The optimisers.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        groups = [group for part in parts for group in part.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.parts = tuple(parts)
        self.param_groups = groups
        for part in parts:
            part.state = self.state

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step of every optimiser."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss


def with_own_optimizer(training: _Training, components: Components) -> _Training:
    """Return `[training]` with the optimizer "custom" if a program gives the optimiser.

    Raises:
        UserError: if the strategy takes no optimiser or scheduler, or if the optimiser is not given.
    """
    own = [name for name in ("optimizer", "scheduler") if getattr(components, name) is not None]
    if not isinstance(training, SupervisedTraining):
        if own:
            raise UserError(
                f"strategy {training.strategy} takes no {own[0]} object, because it has its own update rule; "
                f"use strategy supervised, or omit {own[0]}"
            )
        return training
    if components.optimizer is not None:
        return training.model_copy(update={"optimizer": "custom"})
    if training.optimizer == "custom":
        raise UserError(
            'optimizer "custom" is an optimiser of a Python program, which no file of a run contains; give '
            f"it in Python (the same again to resume): optimizer=..., such as {_EXAMPLE}"
        )
    return training


def make_optimizer(
    training: SupervisedTraining, network: nn.Module, source: OptimizerSource | None = None
) -> Optimizer:
    """Return the optimiser of a network: the one that a program gave, or the one that the recipe names.

    Raises:
        UserError: if it cannot train the network.
    """
    if source is None:
        return _named(training, network)
    found = source if isinstance(source, Optimizer) else _made(source, network)
    _check(found, network)
    return found


def describe_optimizer(optimizer: Optimizer, training: SupervisedTraining, is_own: bool) -> dict[str, object]:
    """Return the name of an optimiser and its settings, for events."""
    if not is_own:
        return {"optimizer": training.optimizer, "optimizer_settings": training.optimizer_values}
    groups = [
        {
            name: value
            for name, value in group.items()
            if isinstance(value, int | float | str | tuple) and not isinstance(value, bool)
        }
        for group in optimizer.param_groups
    ]
    several = {"parameter_groups": groups} if len(groups) > 1 else {}
    return {"optimizer": kind_of(optimizer), "optimizer_settings": groups[0], **several}


def kind_of(thing: object) -> str:
    """Return the name of an object's class, with its module."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def on_partition(components: Components, module: nn.Module, partitioned: nn.Module) -> Components:
    """Move an optimiser instance from a module's parameters to those of the partitioned module.

    Factories need no change.

    Raises:
        UserError: if the optimiser has taken steps, whose state belongs to whole parameters.
    """
    source = components.optimizer
    if not isinstance(source, Optimizer):
        return components
    _check(source, module)
    if any(source.state.values()):
        raise UserError(
            f"the optimizer {type(source).__name__} has taken steps before the module was partitioned; "
            "give a new one, or a function that makes one, such as "
            "functools.partial(torch.optim.AdamW, lr=1e-3)"
        )
    names = {id(values): name for name, values in module.named_parameters()}
    parts = dict(partitioned.named_parameters())
    for group in source.param_groups:
        group["params"] = [parts[names[id(values)]] for values in group["params"]]
    return components


def _named(training: SupervisedTraining, network: nn.Module) -> Optimizer:
    parameters = [each for each in network.parameters() if each.requires_grad]
    values = training.optimizer_values
    values["lr"] = values.pop("learning_rate")
    if training.optimizer == "muon":
        return _muon(network, parameters, values)
    optimizer = _torch_class(training.optimizer)(parameters, **values)
    if training.optimizer == "sgd" and training.momentum:
        for each in parameters:  # torch makes them later, but checkpoints have them from the start
            optimizer.state[each]["momentum_buffer"] = torch.zeros_like(each)
    return optimizer


def _torch_class(name: str) -> Callable[..., Optimizer]:
    torch_name = OPTIMIZERS[name].torch_name
    found: Callable[..., Optimizer] | None = getattr(torch.optim, torch_name, None)
    if found is None:
        raise UserError(
            f'training.optimizer = "{name}" needs torch.optim.{torch_name}, which torch {torch.__version__} '
            "does not have; install a newer torch, or use adamw"
        )
    return found


def _muon(network: nn.Module, parameters: Sequence[Tensor], values: Mapping[str, Any]) -> Optimizer:
    embedded = {
        id(each)
        for module in network.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for each in module.parameters(recurse=False)
    }
    matrices = [each for each in parameters if each.dim() == 2 and id(each) not in embedded]
    others = [each for each in parameters if each.dim() != 2 or id(each) in embedded]
    if not matrices:
        raise UserError(
            f'training.optimizer = "muon" updates weights of fully connected layers, but '
            f"{type(network).__name__} has none to train; use adamw"
        )
    common = {name: values[name] for name in ("lr", "weight_decay")}
    muon = _torch_class("muon")(
        matrices,
        momentum=values["momentum"],
        nesterov=values["nesterov"],
        adjust_lr_fn="match_rms_adamw",  # one learning rate suits both
        **common,
    )
    if not others:
        return muon
    adamw = _torch_class("adamw")(others, betas=values["betas"], eps=values["eps"], **common)
    return CombinedOptimizer([muon, adamw])


def _made(source: Callable[..., Optimizer], network: nn.Module) -> Optimizer:
    if isinstance(source, str):
        raise UserError(
            f"optimizer {source!r} is a name; give optimizer={json.dumps(source)} as a setting of strategy "
            f"supervised, or a function such as {_EXAMPLE}"
        )
    if not callable(source):
        raise UserError(
            f"optimizer must be a function that makes an optimiser of parameters, such as {_EXAMPLE}, or an "
            f"optimiser on the module's parameters; got {source!r:.80}"
        )
    try:
        found: object = source([each for each in network.parameters() if each.requires_grad])
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the optimizer cannot be made of the module's parameters ({error}); give a function that takes "
            f"them alone, such as {_EXAMPLE}"
        ) from error
    if not isinstance(found, Optimizer):
        raise UserError(
            f"the function for optimizer returned {found!r:.80}; it must return a torch.optim.Optimizer, "
            f"such as {_EXAMPLE}"
        )
    return found


def _check(optimizer: Optimizer, network: nn.Module) -> None:
    """Raise UserError for an optimiser with parameters of another module, or one that evaluates again."""
    name, own = type(optimizer).__name__, {id(each) for each in network.parameters()}
    held = [each for group in optimizer.param_groups for each in group["params"]]
    strange = [tuple(each.shape) for each in held if id(each) not in own]
    if strange:
        shown = ", ".join(map(str, strange[:_SHOWN])) + (", …" if len(strange) > _SHOWN else "")
        raise UserError(
            f"the optimizer {name} has {len(strange)} of {len(held)} parameters that are not parameters of "
            f"{type(network).__name__} (shapes {shown}); make it of module.parameters(), or give a function "
            "that makes it, such as functools.partial(torch.optim.AdamW, lr=1e-3)"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"the optimizer {name} evaluates the loss several times in a step, but a mini-batch is evaluated "
            'once; use strategy batch (method "lbfgs" or "cg"), or another optimizer'
        )
