"""Checks of a program's module and data set before a run exists.

Knows: what can be trained, the device of a module. Does not know: how anything is trained, files.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cotswold.errors import UserError
from cotswold.recipe.schema import LayerTraining, SupervisedTraining
from cotswold.training.data.user_datasets import UserData, yields_batches

_Training = TypeVar("_Training", bound=LayerTraining)


def check_module_learns(module: nn.Module) -> None:
    """Raise UserError for a module without trainable parameters, or with state that is not a tensor."""
    name = type(module).__name__
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(f"{name} has no parameter that requires a gradient, so nothing can be trained")
    shapeless = [each for each, value in module.named_parameters() if is_lazy(value)]
    if shapeless:
        raise UserError(
            f"{', '.join(shapeless[:3])} of {name} have no shape before the first batch; call the module "
            "once on a batch, then train it"
        )
    empty = [each for each, value in _tensors(module) if value.is_meta]
    if empty:
        raise UserError(
            f"{', '.join(empty[:3])} of {name} are on the device meta, where tensors have no values; "
            "allocate "
            'them with module.to_empty(device="cpu"), then initialise the module'
        )
    fixed = [each for each, value in module.named_parameters() if value.is_inference()]
    if fixed:
        raise UserError(
            f"{', '.join(fixed[:3])} of {name} were made under torch.inference_mode(), and such tensors "
            "cannot be trained; create the module outside of it"
        )
    odd = [each for each, value in module.state_dict().items() if not isinstance(value, Tensor)]
    if odd:
        raise UserError(
            f"the state of {name} has {', '.join(odd[:3])}, which a checkpoint cannot store; convert them to "
            "tensors"
        )


def with_module_device(module: nn.Module, training: _Training) -> _Training:
    """Return the settings with the module's device, unless a device was set or the module is on the CPU."""
    if "device" in training.model_fields_set or not isinstance(training, SupervisedTraining):
        return training
    devices = sorted({str(value.device) for _, value in _tensors(module)})
    if len(devices) > 1:
        raise UserError(
            f"{type(module).__name__} has tensors on {' and '.join(devices)}; give device=, to which the "
            f'whole module is moved, such as device="{devices[-1]}"'
        )
    if torch.device(devices[0]).type == "cpu":
        return training
    return training.model_copy(update={"device": devices[0]})


def with_batch_size(training: SupervisedTraining, dataset: UserData) -> SupervisedTraining:
    """Return the settings with the batch size of a data set that makes batches itself.

    Raises UserError if another batch size was set.
    """
    if not yields_batches(dataset):
        return training
    own: int | None = dataset.batch_size  # type: ignore[union-attr]  # what makes batches has it
    if "batch_size" in training.model_fields_set and training.batch_size != own:
        raise UserError(
            f"batch_size={training.batch_size} conflicts with the {type(dataset).__name__}, which makes its "
            f"own batches{'' if own is None else f' of {own}'}; omit batch_size, or give a data set that "
            "makes no batches"
        )
    return training if own is None else training.model_copy(update={"batch_size": own})


def _tensors(module: nn.Module) -> chain[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def check_classes(data: object, validation: object) -> None:
    """Raise UserError if a data set and its validation set number their classes differently."""
    given = [getattr(each, "classes", None) for each in (data, validation)]
    ours, theirs = (list(each) if isinstance(each, list | tuple) else [] for each in given)
    if ours and theirs and ours != theirs:
        raise UserError(
            f"the classes of the validation set ({', '.join(map(str, theirs[:5]))}) are not those of the "
            f"data set ({', '.join(map(str, ours[:5]))}), so their numbers would differ; give both the same "
            "classes in the same order, such as from_hub(..., classes=training.classes)"
        )
